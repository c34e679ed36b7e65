//! Sessions and leases of one book, copied out and put back. A lease that was put back stands in another place than its
//! number hides, so the book knows those apart, until they end.

use super::{Book, Lease, Link, Ties};
use crate::clock::Timestamp;
use crate::engine::digest::Salt;
use crate::engine::kept::{Kept, KeptKey, KeptLease, KeptSession, KeptTie};
use crate::engine::leases::lease::{LeaseCost, Refund, Tie};
use crate::engine::leases::session::OpenSession;

impl Book {
    /// Copies the next session that has a name, from this place on, with its leases. Returns where to go on.
    pub(in crate::engine::leases) fn copy_session(&self, from: u32, copies: &mut Vec<Kept>) -> Option<u32> {
        let place = self.members.next_from(from)?;
        let member = self.members.get(place)?;
        if let Some(name) = member.name {
            copies.push(Kept::Session(Box::new(KeptSession {
                name,
                user: member.user,
                pid: member.pid,
                pool: member.pool.name().into(),
                slots: member.slots,
            })));
            let mut next = member.first;
            while let Some(lease) = self.leases.get(next) {
                copies.push(Kept::Lease(Box::new(kept(lease))));
                next = lease.in_session.after;
            }
        }
        place.checked_add(1)
    }

    /// The next session from a place on, if it has a name, and the place to go on from.
    pub(in crate::engine::leases) fn open_session(&self, from: u32) -> Option<(u32, Option<OpenSession>)> {
        let place = self.members.next_from(from)?;
        let member = self.members.get(place)?;
        let open = member.name.map(|name| OpenSession {
            name,
            user: member.user,
            pool: member.pool.name().into(),
            slots: member.slots,
            ends_at: member.ends_at,
        });
        Some((place.checked_add(1)?, open))
    }

    /// Puts a lease back. Returns when it ends.
    pub(in crate::engine::leases) fn put_back(
        &mut self,
        member: u32,
        kept: &KeptLease,
        ties: &[Tie],
        now: Timestamp,
    ) -> Option<Timestamp> {
        let lasts = std::time::Duration::from_millis(u64::from(kept.lasts_millis));
        let ends_at = kept.ends_at.min(now.after(lasts));
        let lease = Lease {
            number: kept.number,
            ends_at,
            request: kept.request,
            ties: Ties::of(ties),
            cost: kept.cost(),
            connection: kept.connection,
            lasts_millis: kept.lasts_millis,
            member,
            in_session: Link::NONE,
            on_spoke: Link::NONE,
            spoke: 0,
            is_other: kept.is_other,
        };
        let place = self.begin(lease, now)?;
        self.elsewhere.insert(kept.number, place);
        Some(ends_at)
    }

    /// The place of a session's lease that its holder knows by this number; `hidden` is what the number hides.
    #[inline]
    pub(in crate::engine::leases) fn place_of(&self, hidden: u32, number: u64, member: u32) -> Option<u32> {
        let is_its = |place: &u32| {
            self.leases.get(*place).is_some_and(|at| at.number == number && at.member == member)
        };
        if is_its(&hidden) {
            return Some(hidden);
        }
        if self.elsewhere.is_empty() {
            return None;
        }
        self.elsewhere.get(&number).copied().filter(is_its)
    }

    /// Whose lease has this number, if any has.
    pub(in crate::engine::leases) fn holder(&self, hidden: u32, number: u64) -> Option<u32> {
        self.place_of_any(hidden, number).and_then(|place| self.leases.get(place)).map(|lease| lease.member)
    }

    /// The place of the lease that has this number, whoever holds it.
    pub(in crate::engine::leases) fn place_of_any(&self, hidden: u32, number: u64) -> Option<u32> {
        let places = [Some(hidden), self.elsewhere.get(&number).copied()];
        let has_it = |place: &u32| self.leases.get(*place).is_some_and(|lease| lease.number == number);
        places.into_iter().flatten().find(has_it)
    }

    /// A lease has ended.
    #[inline]
    pub(super) fn forget_place(&mut self, number: u64) {
        if !self.elsewhere.is_empty() {
            self.elsewhere.remove(&number);
        }
    }
}

fn kept(lease: &Lease) -> KeptLease {
    KeptLease {
        number: lease.number,
        ends_at: lease.ends_at,
        lasts_millis: lease.lasts_millis,
        request: lease.request,
        connection: lease.connection,
        is_other: lease.is_other,
        ties: lease.ties.iter().map(kept_tie).chain(kept_cost(lease.cost)).collect(),
    }
}

/// As one tie more, so that files without costs are read as ever.
fn kept_cost(LeaseCost { print, cost }: LeaseCost) -> Option<KeptTie> {
    (print != 0).then_some(KeptTie::Print { print, cost })
}

impl KeptLease {
    fn cost(&self) -> LeaseCost {
        let print = self.ties.iter().find_map(|tie| match tie {
            KeptTie::Print { print, cost } => Some(LeaseCost { print: *print, cost: *cost }),
            _ => None,
        });
        print.unwrap_or_default()
    }
}

fn kept_tie(tie: Tie) -> KeptTie {
    match tie {
        Tie::Place(digest) => KeptTie::Place(KeptKey::of(&digest)),
        Tie::Repeat(digest) => KeptTie::Repeat(KeptKey::of(&digest)),
        Tie::Spent(digest) => KeptTie::Spent(KeptKey::of(&digest)),
        Tie::Cost { unit, cost } => KeptTie::Cost { unit, cost },
        Tie::Refund(refund) => KeptTie::Refund {
            rule: refund.rule,
            key: KeptKey::of(&refund.digest),
            salt: refund.salt.bits(),
            allowance: refund.allowance,
            cost: refund.cost,
            is_beyond: refund.is_beyond,
        },
    }
}

/// What was tied to a lease.
pub(in crate::engine::leases) fn tie(kept: &KeptTie) -> Option<Tie> {
    Some(match *kept {
        KeptTie::Place(key) => Tie::Place(key.digest()),
        KeptTie::Repeat(key) => Tie::Repeat(key.digest()),
        KeptTie::Spent(key) => Tie::Spent(key.digest()),
        KeptTie::Cost { unit, cost } => Tie::Cost { unit, cost },
        KeptTie::Print { .. } => return None,
        KeptTie::Refund { rule, key, salt, allowance, cost, is_beyond } => Tie::Refund(Refund {
            rule,
            digest: key.digest(),
            salt: Salt::of_bits(salt),
            allowance,
            cost,
            is_beyond,
        }),
    })
}
