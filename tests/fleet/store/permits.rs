//! Models the permit sets.

use std::collections::BTreeMap;

use tidegate::fleet::command::Host;
use tidegate::fleet::permits::{KeyPermitReply, PermitRequest};

/// The members of all hosts, each with its expiry, in microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct PermitSet {
    members: BTreeMap<(Host, u32), Member>,
    heard_us: u64,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    expires_us: u64,
    /// It stays after a silence.
    is_extended: bool,
}

impl Member {
    fn renewed(now_us: u64) -> Member {
        Member { expires_us: now_us + HOLD_US, is_extended: false }
    }
}

impl PermitSet {
    pub(super) fn serve(
        &mut self,
        host: Host,
        request: &PermitRequest,
        is_lost: bool,
        now_us: u64,
    ) -> KeyPermitReply {
        assert!(request.kept.len() + request.dropped.len() <= 512, "more holds up Redis for long");
        let heard_us = std::mem::replace(&mut self.heard_us, now_us);
        if heard_us > 0 && now_us >= heard_us + SILENCE_US {
            for member in self.members.values_mut().filter(|member| !member.is_extended) {
                *member = Member { expires_us: now_us + BACK_US, is_extended: true };
            }
        }
        self.members.retain(|_, member| member.expires_us + u64::from(member.is_extended) > now_us);
        for number in &request.dropped {
            self.members.remove(&(host, *number));
        }
        for number in &request.kept {
            self.members.insert((host, *number), Member::renewed(now_us));
        }
        let mut added = 0;
        let mut members = u32::try_from(self.members.len()).unwrap();
        for number in &request.wanted {
            if !is_lost && members < request.max {
                self.members.insert((host, *number), Member::renewed(now_us));
                (members, added) = (members + 1, added + 1);
            }
        }
        KeyPermitReply { added: (!is_lost).then_some(added), members }
    }

    /// Returns the members as in Redis: by name, each with its expiry.
    pub(super) fn members(&self) -> BTreeMap<Vec<u8>, f64> {
        let name = |(host, number): &(Host, u32)| [&host[..], &number.to_le_bytes()].concat();
        let score = |it: &Member| it.expires_us as f64 + if it.is_extended { 0.5 } else { 0.0 };
        let members = self.members.iter().map(|(member, it)| (name(member), score(it)));
        members.chain([(b"heard".to_vec(), -(self.heard_us as f64))]).collect()
    }
}

pub(super) const KEPT_MS: u64 = 60_001;
const HOLD_US: u64 = 4_000_000;
const SILENCE_US: u64 = 2_000_000;
const BACK_US: u64 = 6_000_000;
