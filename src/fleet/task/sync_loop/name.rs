//! The name of this host.

use super::SyncLoop;
use tracing::{debug, warn};

impl SyncLoop {
    /// Takes the new name after a later daemon has used this host's name.
    pub(super) fn rename(&mut self) {
        warn!(
            "another daemon has this host's name, as happens when a state directory is copied: this one takes a new one"
        );
        self.plan.identity = self.plan.identity.renamed(self.member.sync().host(), &self.plan.marks);
        self.overrides.renamed(self.member.sync().host());
        self.keep();
    }

    /// Stores the identity on a thread that may block on the disk.
    pub(super) fn keep(&self) {
        let Some(keep) = self.plan.keep.clone() else { return };
        let bytes = self.plan.identity.to_bytes();
        let keeping = std::thread::Builder::new().name("sync-keep".into()).spawn(move || {
            if let Err(error) = keep(&bytes) {
                debug!(%error, "the identity of this host cannot be kept");
            }
        });
        if let Err(error) = keeping {
            debug!(%error, "the identity of this host is not kept: no thread can be had");
        }
    }
}
