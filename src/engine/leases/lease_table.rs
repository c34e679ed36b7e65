//! A part of the sessions with all their leases, under one lock.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use slab::Slab;

use super::lease::{Covers, Lease, LeaseCost, LeaseResource, Ties};
use super::session::{
    ConnectionEnd, ConnectionParams, HeldLeases, Reports, Session, SessionError, SessionId, SessionMember,
};
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
    /// The tick in which each lease ends, with its slab index: in half the bytes of the time itself.
    ends: BTreeSet<(u32, u32)>,
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
            leases: BTreeSet::new(),
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
        let lease =
            self.ends.first().map_or(never, |(tick, _)| Timestamp::from_nanos(u64::from(*tick) * TICK_NANOS));
        grace.min(lease)
    }

    /// Adds a lease to its session. Returns its slab index.
    #[inline]
    pub(super) fn begin(&mut self, lease: Lease, at: Timestamp) -> Option<u32> {
        let owner = self.members.get_mut(lease.member as usize)?;
        owner.holdings.of_user.charge(lease.ties.heap_bytes());
        let end = tick(lease.ends_at);
        let index = u32::try_from(self.leases.insert(lease)).ok()?;
        self.ends.insert((end, index));
        self.allocated = self.allocated.max(index + 1);
        if owner.takes_slot() {
            owner.pool.take_slot(owner.slots > 0, at);
        }
        owner.leases.insert(index);
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
    pub(super) fn lease(&mut self, hidden: u32, number: u64, id: SessionId) -> Option<(u32, &Lease)> {
        self.member(id)?;
        self.find(hidden, number).filter(|(_, lease)| lease.member == id.member)
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
        let Some(lease) = self.leases.get_mut(index as usize) else { return at };
        self.ends.remove(&(tick(lease.ends_at), index));
        // One whose work has not started keeps its end.
        lease.ends_at = lease.ends_at.max(at.after(Duration::from_millis(u64::from(lease.ttl_millis))));
        self.ends.insert((tick(lease.ends_at), index));
        lease.ends_at
    }

    /// Ends a lease as of `at` and returns its ties.
    pub(super) fn end(&mut self, index: u32, at: Timestamp) -> Option<Ties> {
        let lease = self.leases.try_remove(index as usize)?;
        self.ends.remove(&(tick(lease.ends_at), index));
        if !self.restored_indices.is_empty() {
            self.restored_indices.remove(&lease.number);
        }
        let owner = self.members.get_mut(lease.member as usize);
        debug_assert!(owner.is_some(), "a session ends after its leases");
        if let Some(owner) = owner {
            if owner.frees_slot() {
                owner.pool.free_slot(owner.slots > 0, at);
            }
            owner.leases.remove(&index);
            owner.pool.remove_lease(lease.is_noncritical);
            owner.holdings.of_user.shrink(lease.ties.heap_bytes());
            owner.holdings.release();
        }
        Some(lease.ties)
    }

    /// Ends a batch of the expired leases and returns their number.
    pub(super) fn end_some(&mut self, now: Timestamp, ended: &mut Vec<Ties>) -> usize {
        let expired = |(_, index): &(u32, u32)| {
            let ends_at = self.leases.get(*index as usize)?.ends_at;
            (ends_at <= now).then_some((*index, ends_at))
        };
        let due = self.ends.range(..=(tick(now), u32::MAX)).filter_map(expired);
        let due: ArrayVec<(u32, Timestamp), BATCH> = due.take(BATCH).collect();
        for (index, at) in &due {
            ended.extend(self.end(*index, *at).filter(|ties| !ties.is_empty()));
        }
        due.len()
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
        let leases = self.leases_of(number, BATCH, |_| true);
        for lease in &leases {
            *count += 1;
            ended.extend(self.end(*lease, at).filter(|ties| !ties.is_empty()));
        }
        if leases.len() == BATCH {
            return MemberEndProgress::More;
        }
        if let Some(member) = self.members.try_remove(number as usize) {
            member.pool.remove_session(member.slots, member.pid, at);
            member.holdings.of_user.sessions.fetch_sub(1, Ordering::Relaxed);
        }
        MemberEndProgress::Session
    }

    /// Ends the leases of a session that were granted to these requests. Returns their numbers.
    pub(super) fn end_of_requests(
        &mut self,
        number: u32,
        at: Timestamp,
        mut is_one: impl FnMut(u64, u64) -> bool,
        ended: &mut Vec<Ties>,
    ) -> Vec<u64> {
        let mut numbers = Vec::new();
        let abandoned = self.leases_of(number, usize::MAX, |lease| {
            let is_abandoned = is_one(u64::from(lease.connection), lease.request);
            numbers.extend(is_abandoned.then_some(lease.number));
            is_abandoned
        });
        ended.extend(abandoned.into_iter().filter_map(|index| self.end(index, at)));
        numbers
    }

    /// Returns the slab indexes of the first leases of a session that are chosen.
    fn leases_of(&self, member: u32, most: usize, mut is_chosen: impl FnMut(&Lease) -> bool) -> Vec<u32> {
        let member = self.members.get(member as usize);
        let indexes = member.into_iter().flat_map(|member| member.leases.iter().copied());
        let chosen = indexes.filter(|index| self.leases.get(*index as usize).is_some_and(&mut is_chosen));
        chosen.take(most).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberEndProgress {
    More,
    Session,
    Nothing,
}

/// Leases ended under one lock.
const BATCH: usize = 128;

fn tick(at: Timestamp) -> u32 {
    u32::try_from(at.as_nanos() / TICK_NANOS).unwrap_or(u32::MAX)
}

/// A tick, 250 ms: the interval of `Engine::tick`. 32 bits of them are 34 years.
const TICK_NANOS: u64 = 250_000_000;

/// How long a session without a connection is kept.
pub(super) const GRACE: Duration = Duration::from_secs(5);

impl Leases {
    /// Visits every named session with its leases, one session per lock, without a lock.
    pub(in crate::engine) fn copy_out(&self, visit: &mut dyn FnMut(SnapshotEntry)) {
        let mut found = Vec::new();
        for number in 0..TABLES {
            let mut from = 0;
            loop {
                let table = self.lock_table(number);
                let mut indices = from..table.members.capacity();
                let next = indices.find_map(|index| Some((index, table.members.get(index)?)));
                let Some((index, member)) = next else { break };
                table.copy_session(member, &mut found);
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
        let leases = member.leases.iter().filter_map(|index| self.leases.get(*index as usize));
        copies.extend(leases.map(|lease| SnapshotEntry::Lease(Box::new(lease.clone()))));
    }

    fn restore(&mut self, member: u32, stored: Lease, now: Timestamp) -> Option<Timestamp> {
        let ttl = Duration::from_millis(u64::from(stored.ttl_millis));
        let (number, ends_at) = (stored.number, stored.ends_at.min(now.after(ttl)));
        let index = self.begin(Lease { member, ends_at, ..stored }, now)?;
        self.restored_indices.insert(number, index);
        Some(ends_at)
    }
}
