//! Models the permit sets.

use std::collections::BTreeMap;

use tidegate::fleet::command::Host;
use tidegate::fleet::permits::{KeyPermitReply, PermitRequest};

/// The members of all hosts, each with its expiry, in microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct PermitSet(BTreeMap<(Host, u32), u64>);

impl PermitSet {
    pub(super) fn serve(
        &mut self,
        host: Host,
        request: &PermitRequest,
        is_lost: bool,
        now_us: u64,
    ) -> KeyPermitReply {
        assert!(request.kept.len() + request.dropped.len() <= 512, "more holds up Redis for long");
        self.0.retain(|_, expires| *expires > now_us);
        for number in &request.dropped {
            self.0.remove(&(host, *number));
        }
        for number in &request.kept {
            self.0.insert((host, *number), now_us + HOLD_US);
        }
        let mut added = 0;
        let mut members = u32::try_from(self.0.len()).unwrap();
        for number in &request.wanted {
            if !is_lost && members < request.max {
                self.0.insert((host, *number), now_us + HOLD_US);
                (members, added) = (members + 1, added + 1);
            }
        }
        KeyPermitReply { added: (!is_lost).then_some(added), members }
    }

    /// Returns the members as in Redis: by name, each with its expiry.
    pub(super) fn members(&self) -> BTreeMap<Vec<u8>, u64> {
        let name = |(host, number): &(Host, u32)| [&host[..], &number.to_le_bytes()].concat();
        self.0.iter().map(|(member, expires)| (name(member), *expires)).collect()
    }
}

pub(super) const KEPT_MS: u64 = 10_001;
const HOLD_US: u64 = 4_000_000;
