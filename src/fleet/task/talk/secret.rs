//! What an operator is told of the secret that makes the keys.

use super::Talk;
use crate::clock::Now;
use crate::fleet::member::SecretUsed;
use tracing::{info, warn};

impl Talk {
    /// Says it, where another one makes the keys from now on.
    pub(super) fn say_secret(&self, used: Option<SecretUsed>, now: Now) {
        let Some(used) = used else { return };
        let view = self.member.secrets(now);
        let secret = view.uses.map(|mark| mark.to_string()).unwrap_or_default();
        if used.lacks {
            let theirs = view.lacks.map(|mark| mark.to_string()).unwrap_or_default();
            warn!(
                secret,
                theirs,
                "THIS HOST DOES NOT HAVE THE FLEET SECRET THAT IS IN USE: it shares no budget with the hosts that do, until \
                 `fleet_secret_files` names theirs as well"
            );
        } else if !used.is_first {
            info!(secret, "all hosts make keys with another fleet secret from now on, this one as well");
        }
    }
}
