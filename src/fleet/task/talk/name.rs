//! By which name this host goes.

use super::Talk;
use tracing::{debug, warn};

impl Talk {
    /// Another daemon goes by this host's name, and was there later.
    pub(super) fn rename(&mut self) {
        warn!(
            "another daemon has this host's name, as happens when a state directory is copied: this one takes a new one"
        );
        self.plan.identity = self.plan.identity.renamed(self.member.sync().host(), &self.plan.marks);
        self.overrides.renamed(self.member.sync().host());
        self.keep();
    }

    /// Keeps who this host is, on a thread that may wait for the disk.
    pub(super) fn keep(&self) {
        let Some(keep) = self.plan.keep.clone() else { return };
        let bytes = self.plan.identity.to_bytes();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = keep(&bytes) {
                debug!(%error, "who this host is cannot be kept");
            }
        });
    }
}
