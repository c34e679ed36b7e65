//! A part of the sessions with all their leases, under one lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use super::lease::{Covers, Lease, LeaseCost, LeaseLink, LeaseResource, NONE, NewLease, Ties};
use super::session::{
    ConnectionEnd, ConnectionParams, HeldLeases, OpenSession, Reports, Session, SessionError, SessionId,
    SessionMember,
};
use super::wheel::{ExpiryBatch, Wheel};
use super::{Leases, TABLES};
use crate::clock::{NANOS_PER_MICRO, Now, Timestamp};
use crate::engine::digest::Digest;
use crate::engine::pool::Pool;
use crate::engine::snapshot::SnapshotEntry;
use crate::engine::sync::Ordering;

#[derive(Debug, Default)]
pub(super) struct LeaseTable {
    pub(super) members: Slab<SessionMember>,
    by_name: HashMap<[u8; 16], u32>,
    pub(super) leases: Slab<Lease>,
    /// The number of slab indexes that leases have had.
    pub(super) allocated: u32,
    /// Slab indexes of restored leases by number: their numbers encode the index from before the restart.
    pub(super) restored_indices: HashMap<u64, u32>,
    wheel: Wheel,
    /// Sessions without a connection, by expiry. The entry of a resumed session stays until its time.
    graces: VecDeque<(Timestamp, SessionId)>,
    generation: u64,
}

impl LeaseTable {
    /// Adds a connection to an existing session. `None`: there is no session of this name.
    pub(super) fn join(
        &mut self,
        opening: &ConnectionParams<'_>,
    ) -> Option<Result<(u32, &SessionMember), SessionError>> {
        let number = *self.by_name.get(&opening.name?)?;
        let member = self.members.get_mut(number as usize)?;
        if member.user != opening.user {
            return Some(Err(SessionError::OtherUser));
        }
        if member.pool.name() != opening.pool || member.slots != opening.slots {
            return Some(Err(SessionError::OtherPoolOrSlots));
        }
        member.connections += 1;
        member.ends_at = None;
        Some(Ok((number, member)))
    }

    pub(super) fn add(
        &mut self,
        opening: &ConnectionParams<'_>,
        pool: Arc<Pool>,
        holdings: Arc<HeldLeases>,
        at: Timestamp,
    ) -> Option<(u32, u64)> {
        self.generation += 1;
        let ConnectionParams { name, user, slots, pid, .. } = *opening;
        pool.add_session(slots, pid, at);
        let number = self.members.insert(SessionMember {
            name,
            generation: self.generation,
            user,
            pid,
            pool,
            slots,
            connections: 1,
            ends_at: None,
            first: NONE,
            leases: 0,
            reports: Reports::new(Arc::clone(&holdings.of_user)),
            holdings,
        });
        let number = u32::try_from(number).ok()?;
        if let Some(name) = name {
            self.by_name.insert(name, number);
        }
        Some((number, self.generation))
    }

    pub(super) fn member(&mut self, id: SessionId) -> Option<&mut SessionMember> {
        self.members.get_mut(id.member as usize).filter(|member| member.generation == id.generation)
    }

    pub(super) fn leave(&mut self, id: SessionId, at: Timestamp) -> ConnectionEnd {
        let Some(member) = self.member(id) else { return ConnectionEnd::Stays };
        member.connections = member.connections.saturating_sub(1);
        if member.connections > 0 {
            return ConnectionEnd::Stays;
        }
        if member.name.is_none() {
            return ConnectionEnd::Ends;
        }
        let ends_at = at.after(GRACE);
        member.ends_at = Some(ends_at);
        self.graces.push_back((ends_at, id));
        ConnectionEnd::EndsAt(ends_at)
    }

    /// Removes and returns the next session whose grace period has passed, with the time at which it passed.
    pub(super) fn pop_expired_session(&mut self, now: Timestamp) -> Option<(SessionId, Timestamp)> {
        while let Some((ends_at, id)) = self.graces.pop_front_if(|(ends_at, _)| *ends_at <= now) {
            if self.member(id).is_some_and(|member| member.ends_at == Some(ends_at)) {
                return Some((id, ends_at));
            }
        }
        None
    }

    /// Returns a time before which nothing here ends, once everything due has been ended.
    pub(super) fn next_end_min(&self) -> Timestamp {
        let never = Timestamp::from_nanos(u64::MAX);
        let grace = self.graces.front().map_or(never, |(ends_at, ..)| *ends_at);
        if self.leases.is_empty() { grace } else { grace.min(self.wheel.next_end_min()) }
    }

    /// Begins a lease of a session. `number` makes the number that its holder gets from its slab index.
    pub(super) fn grant(
        &mut self,
        member: u32,
        connection: u64,
        new: &NewLease<'_>,
        at: Timestamp,
        number: impl FnOnce(u32) -> u64,
    ) -> Option<u64> {
        let lease = Lease {
            number: 0,
            ends_at: new.starts_at.after(new.ttl),
            request: new.request,
            ties: Ties::from_slice(new.ties),
            cost: new.cost,
            connection: u32::try_from(connection).unwrap_or(u32::MAX),
            ttl_millis: u32::try_from(new.ttl.as_millis()).unwrap_or(u32::MAX),
            member,
            in_session: LeaseLink::default(),
            on_spoke: LeaseLink::default(),
            spoke: 0,
            is_noncritical: new.is_noncritical,
        };
        let index = self.begin(lease, at)?;
        let number = number(index);
        if let Some(lease) = self.leases.get_mut(index as usize) {
            lease.number = number;
        }
        Some(number)
    }

    /// Adds a lease to its session. Returns its slab index.
    #[inline]
    pub(super) fn begin(&mut self, mut lease: Lease, at: Timestamp) -> Option<u32> {
        let owner = self.members.get_mut(lease.member as usize)?;
        lease.in_session.after = owner.first;
        owner.holdings.of_user.charge(lease.ties.heap_bytes());
        let index = u32::try_from(self.leases.insert(lease)).unwrap_or(NONE);
        self.allocated = self.allocated.max(index.saturating_add(1));
        if owner.takes_slot() {
            owner.pool.take_slot(owner.slots > 0, at);
        }
        owner.leases += 1;
        let next = std::mem::replace(&mut owner.first, index);
        if let Some(next) = self.leases.get_mut(next as usize) {
            next.in_session.before = index;
        }
        self.wheel.insert(index, &mut self.leases);
        Some(index)
    }

    /// Returns the lease of this number, in any session, and its slab index; `hidden` is the index decoded
    /// from the number.
    #[inline]
    pub(super) fn find(&self, hidden: u32, number: u64) -> Option<(u32, &Lease)> {
        let at = |index: u32| {
            self.leases.get(index as usize).filter(|lease| lease.number == number).map(|lease| (index, lease))
        };
        at(hidden).or_else(|| match self.restored_indices.is_empty() {
            true => None,
            false => at(*self.restored_indices.get(&number)?),
        })
    }

    /// Returns a session's lease, in the same way.
    pub(super) fn lease(&self, hidden: u32, number: u64, member: u32) -> Option<(u32, &Lease)> {
        self.find(hidden, number).filter(|(_, lease)| lease.member == member)
    }

    /// Takes the cost of a user's live lease, if it covers the refund. `None`: there is no such lease; an
    /// error: the cost is recorded under this name.
    pub(super) fn take_cost(
        &mut self,
        user: u32,
        (hidden, number): (u32, u64),
        now: Timestamp,
        covers: Covers<'_>,
    ) -> Option<Result<Option<Timestamp>, Digest>> {
        let (index, _) = self.find(hidden, number)?;
        let lease = self.leases.get_mut(index as usize).filter(|lease| lease.ends_at > now)?;
        self.members.get(lease.member as usize).filter(|member| member.user == user)?;
        let mut units = Vec::new();
        for tie in lease.ties.iter() {
            match tie {
                LeaseResource::RefundableCost(name) => return Some(Err(name)),
                LeaseResource::Cost { unit, cost } => units.push((unit, cost)),
                LeaseResource::Permit(_) | LeaseResource::Refund(_) | LeaseResource::IdempotencyKey(_) => {}
            }
        }
        if lease.cost.fingerprint == 0 || !covers(lease.cost, &units) {
            return Some(Ok(None));
        }
        lease.cost = LeaseCost::default();
        let ttl_nanos = u64::from(lease.ttl_millis) * 1_000 * NANOS_PER_MICRO;
        Some(Ok(Some(Timestamp::from_nanos(lease.ends_at.as_nanos().saturating_sub(ttl_nanos)))))
    }

    pub(super) fn renew(&mut self, index: u32, at: Timestamp) -> Timestamp {
        self.wheel.remove(index, &mut self.leases);
        let Some(lease) = self.leases.get_mut(index as usize) else { return at };
        // One whose work has not started keeps its end.
        lease.ends_at = lease.ends_at.max(at.after(Duration::from_millis(u64::from(lease.ttl_millis))));
        let ends_at = lease.ends_at;
        self.wheel.insert(index, &mut self.leases);
        ends_at
    }

    /// Ends a lease as of `at` and returns its ties.
    pub(super) fn end(&mut self, index: u32, at: Timestamp) -> Option<Ties> {
        self.wheel.remove(index, &mut self.leases);
        let lease = self.leases.try_remove(index as usize)?;
        if !self.restored_indices.is_empty() {
            self.restored_indices.remove(&lease.number);
        }
        let LeaseLink { before, after } = lease.in_session;
        if let Some(after) = self.leases.get_mut(after as usize) {
            after.in_session.before = before;
        }
        let owner = self.members.get_mut(lease.member as usize);
        debug_assert!(owner.is_some(), "a session ends after its leases");
        if let Some(before) = self.leases.get_mut(before as usize) {
            before.in_session.after = after;
        }
        if let Some(owner) = owner {
            if before == NONE {
                owner.first = after;
            }
            if owner.frees_slot() {
                owner.pool.free_slot(owner.slots > 0, at);
            }
            owner.leases = owner.leases.saturating_sub(1);
            owner.pool.remove_lease(lease.is_noncritical);
            owner.holdings.of_user.shrink(lease.ties.heap_bytes());
            owner.holdings.release();
        }
        Some(lease.ties)
    }

    /// Ends a batch of the expired leases and returns their number.
    pub(super) fn end_some(&mut self, now: Timestamp, ended: &mut Vec<Ties>) -> usize {
        let mut found = ExpiryBatch::new();
        self.wheel.collect_expired(now, &self.leases, &mut found);
        for index in &found {
            let at = self.leases.get(*index as usize).map_or(now, |lease| lease.ends_at);
            ended.extend(self.end(*index, at).filter(|ties| !ties.is_empty()));
        }
        found.len()
    }

    /// Ends a batch of a session's leases, and the session with the last. No connection can join meanwhile.
    pub(super) fn end_member(
        &mut self,
        id: SessionId,
        at: Timestamp,
        ended: &mut Vec<Ties>,
        count: &mut u64,
    ) -> MemberEndProgress {
        let number = id.member;
        let Some(name) = self.member(id).map(|member| member.name.take()) else {
            return MemberEndProgress::Nothing;
        };
        if let Some(name) = name {
            self.by_name.remove(&name);
        }
        for _ in 0..ExpiryBatch::new().capacity() {
            let Some(first) = self.members.get(number as usize).map(|member| member.first) else {
                return MemberEndProgress::Nothing;
            };
            if first == NONE {
                if let Some(member) = self.members.try_remove(number as usize) {
                    member.pool.remove_session(member.slots, member.pid, at);
                    member.holdings.of_user.sessions.fetch_sub(1, Ordering::Relaxed);
                }
                return MemberEndProgress::Session;
            }
            let ties = self.end(first, at);
            debug_assert!(ties.is_some(), "the first of a session's leases is there");
            match ties {
                Some(ties) => {
                    *count += 1;
                    ended.extend(Some(ties).filter(|ties| !ties.is_empty()));
                }
                // A stale first link would keep the session alive for ever.
                None => {
                    self.members.get_mut(number as usize).into_iter().for_each(|member| member.first = NONE);
                }
            }
        }
        MemberEndProgress::More
    }

    /// Ends the leases of a session that were granted to these requests. Returns their numbers.
    pub(super) fn end_of_requests(
        &mut self,
        number: u32,
        at: Timestamp,
        mut is_one: impl FnMut(u64, u64) -> bool,
        ended: &mut Vec<Ties>,
    ) -> Vec<u64> {
        let (mut index, mut numbers) =
            (self.members.get(number as usize).map_or(NONE, |member| member.first), Vec::new());
        while let Some(lease) = self.leases.get(index as usize) {
            let (next, number) = (lease.in_session.after, lease.number);
            if is_one(u64::from(lease.connection), lease.request) {
                ended.extend(self.end(index, at));
                numbers.push(number);
            }
            index = next;
        }
        numbers
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberEndProgress {
    More,
    Session,
    Nothing,
}

/// How long a session without a connection is kept.
pub(super) const GRACE: Duration = Duration::from_secs(5);

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
