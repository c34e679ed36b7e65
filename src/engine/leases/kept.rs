//! Copies sessions and their leases into a snapshot and restores them. The number of a restored lease encodes
//! its former slab index, so its table finds it through a map until it ends.

use std::time::Duration;

use super::lease::{Lease, LeaseLink, Ties};
use super::lease_table::LeaseTable;
use super::session::{OpenSession, Session, SessionHandle};
use super::{Leases, TABLES};
use crate::clock::{Now, Timestamp};
use crate::engine::kept::{SnapshotEntry, StoredLease, StoredSession};

impl Leases {
    /// Copies every named session with its leases, one session per lock.
    pub(in crate::engine) fn copy_out(&self, visit: &mut dyn FnMut(SnapshotEntry)) {
        let mut copies = Vec::new();
        for number in 0..TABLES {
            let mut from = 0;
            loop {
                let next = self.lock_table(number).copy_session(from, &mut copies);
                copies.drain(..).for_each(&mut *visit);
                match next {
                    Some(next) => from = next,
                    None => break,
                }
            }
        }
    }

    pub(in crate::engine) fn each_session(&self, visit: &mut dyn FnMut(OpenSession)) {
        for number in 0..TABLES {
            let mut from = 0;
            loop {
                let (place, found) = match self.lock_table(number).open_session(from) {
                    Some(next) => next,
                    None => break,
                };
                found.into_iter().for_each(&mut *visit);
                from = place;
            }
        }
    }

    /// Restores a lease of a session. `None`: it has expired, or a bound is reached.
    pub(in crate::engine) fn put_back(&self, session: &Session, kept: &StoredLease, now: Now) -> Option<()> {
        if kept.ends_at <= now.at {
            return None;
        }
        let reserved = self.reserve(session, None)?;
        let SessionHandle { table, member, .. } = *session.0;
        let ends_at = self.lock_table(table).put_back(member, kept, now.at)?;
        reserved.keep();
        self.lower_next_end(ends_at);
        Some(())
    }
}

impl LeaseTable {
    /// Copies the next named session from index `from` on, with its leases. Returns the index to go on at.
    fn copy_session(&self, from: u32, copies: &mut Vec<SnapshotEntry>) -> Option<u32> {
        let place = self.members.next_from(from)?;
        let member = self.members.get(place)?;
        if let Some(name) = member.name {
            copies.push(SnapshotEntry::Session(Box::new(StoredSession {
                name,
                user: member.user,
                pid: member.pid,
                pool: member.pool.name().into(),
                slots: member.slots,
            })));
            let mut next = member.first;
            while let Some(lease) = self.leases.get(next) {
                copies.push(SnapshotEntry::Lease(Box::new(kept(lease))));
                next = lease.in_session.after;
            }
        }
        place.checked_add(1)
    }

    /// Returns the index to continue at and the next session from `from` on, if it has a name.
    fn open_session(&self, from: u32) -> Option<(u32, Option<OpenSession>)> {
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

    fn put_back(&mut self, member: u32, kept: &StoredLease, now: Timestamp) -> Option<Timestamp> {
        let lasts = Duration::from_millis(u64::from(kept.lasts_millis));
        let ends_at = kept.ends_at.min(now.after(lasts));
        let lease = Lease {
            number: kept.number,
            ends_at,
            request: kept.request,
            ties: Ties::from_slice(&kept.ties),
            cost: kept.cost,
            connection: kept.connection,
            ttl_millis: kept.lasts_millis,
            member,
            in_session: LeaseLink::NONE,
            on_spoke: LeaseLink::NONE,
            spoke: 0,
            is_noncritical: kept.is_other,
        };
        let place = self.begin(lease, now)?;
        self.restored_indices.insert(kept.number, place);
        Some(ends_at)
    }
}

fn kept(lease: &Lease) -> StoredLease {
    StoredLease {
        number: lease.number,
        ends_at: lease.ends_at,
        lasts_millis: lease.ttl_millis,
        request: lease.request,
        connection: lease.connection,
        is_other: lease.is_noncritical,
        ties: lease.ties.iter().collect(),
        cost: lease.cost,
    }
}
