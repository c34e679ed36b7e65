//! Copies sessions and their leases into a snapshot and restores them. The number of a restored lease encodes
//! its former slab index, so its table finds it through a map until it ends.

use std::time::Duration;

use super::lease::Lease;
use super::lease_table::LeaseTable;
use super::session::{OpenSession, Session, SessionId, SessionMember};
use super::{Leases, TABLES};
use crate::clock::{Now, Timestamp};
use crate::engine::snapshot::SnapshotEntry;

impl Leases {
    /// Copies every named session with its leases.
    pub(in crate::engine) fn copy_out(&self, visit: &mut dyn FnMut(SnapshotEntry)) {
        self.walk(LeaseTable::copy_session, visit);
    }

    pub(in crate::engine) fn open_sessions(&self) -> Vec<OpenSession> {
        let mut all = Vec::new();
        self.walk(|_, member, open| open.extend(member.open()), &mut |session| all.push(session));
        all
    }

    /// Reads every session, one per lock, and visits the results without a lock.
    fn walk<T>(&self, read: impl Fn(&LeaseTable, &SessionMember, &mut Vec<T>), visit: &mut dyn FnMut(T)) {
        let mut found = Vec::new();
        for number in 0..TABLES {
            let mut from = 0;
            loop {
                let table = self.lock_table(number);
                let mut indices = from..table.members.capacity();
                let next = indices.find_map(|index| Some((index, table.members.get(index)?)));
                let Some((index, member)) = next else { break };
                read(&table, member, &mut found);
                from = index + 1;
                drop(table);
                found.drain(..).for_each(&mut *visit);
            }
        }
    }

    /// Restores a lease of a session. `None`: it has expired, or a bound is reached.
    pub(in crate::engine) fn restore(&self, session: &Session, stored: Lease, now: Now) -> Option<()> {
        if stored.ends_at <= now.at {
            return None;
        }
        let reserved = self.reserve(session, None)?;
        let SessionId { table, member, .. } = session.0.id;
        let ends_at = self.lock_table(table).restore(member, stored, now.at)?;
        reserved.keep();
        self.lower_next_end(ends_at);
        Some(())
    }
}

impl LeaseTable {
    fn copy_session(&self, member: &SessionMember, copies: &mut Vec<SnapshotEntry>) {
        let Some(open) = member.open() else { return };
        copies.push(SnapshotEntry::Session(Box::new(open)));
        let mut next = member.first;
        while let Some(lease) = self.leases.get(next as usize) {
            copies.push(SnapshotEntry::Lease(Box::new(lease.clone())));
            next = lease.in_session.after;
        }
    }

    fn restore(&mut self, member: u32, stored: Lease, now: Timestamp) -> Option<Timestamp> {
        let ttl = Duration::from_millis(u64::from(stored.ttl_millis));
        let (number, ends_at) = (stored.number, stored.ends_at.min(now.after(ttl)));
        let index = self.begin(Lease { member, ends_at, ..stored }, now)?;
        self.restored_indices.insert(number, index);
        Some(ends_at)
    }
}
