//! Work from its begin to its end: sessions, leases, and what ends with them.

use super::Engine;
use super::algorithm::{Algorithm, each_algorithm};
use super::leases::{
    NewLease, NotItsPool, NotOpened, OpenSession, Opening, Parting, Refund, Reservation, Session, Tie, Ties,
    Why, WorkOutcome,
};
use super::memory::Memory;
use super::pool::{Agreed, Reserve};
use super::shards::Shard;
use crate::clock::Now;
use crate::rules::Over;
use crate::rules::shed::Source;

/// A reading that the rules in force ask the host for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The pool.
    pub pool: Box<str>,
    /// The signal's name.
    pub signal: Box<str>,
    /// What is to be read.
    pub source: Source,
    /// A process of the pool, if one is known.
    pub pid: Option<u32>,
}

impl Engine {
    /// A connection begins: it joins its session, or is the first of one.
    ///
    /// # Errors
    /// The session is another user's, or began with another pool or other slots; there are too many.
    pub fn open(&self, opening: &Opening<'_>, now: Now) -> Result<Session, NotOpened> {
        self.leases.open(opening, &self.pools, now)
    }

    /// A connection of a session ends. After the last one a session with a name is waited for, for five seconds; one
    /// without ends at once.
    pub fn close(&self, session: &Session, now: Now) -> Parting {
        self.leases.close(session, now, &mut self.loosening(false, now))
    }

    /// Every session that has a name.
    #[must_use]
    pub fn open_sessions(&self) -> Vec<OpenSession> {
        let mut open = Vec::new();
        self.leases.each_session(&mut |session| open.push(session));
        open
    }

    /// A session ends, and all its leases with it: its process has died.
    pub fn end(&self, session: &Session, now: Now) {
        self.leases.end_session(session, now.at, &mut self.loosening(false, now));
    }

    /// Work has ended. Returns whether the session had such a lease; else nothing changes.
    pub fn release(&self, session: &Session, lease: u64, outcome: WorkOutcome, now: Now) -> bool {
        let held = self.release_for(session, lease, outcome, Why::Released, now);
        if !held {
            self.leases.count_not_held(session, lease);
        }
        held
    }

    /// A grant that could not be told: it ends as if its request had been given up on.
    pub fn take_back(&self, session: &Session, lease: u64, now: Now) {
        self.release_for(session, lease, WorkOutcome::Dropped, Why::Abandoned, now);
    }

    fn release_for(&self, session: &Session, lease: u64, outcome: WorkOutcome, why: Why, now: Now) -> bool {
        let ended = self.leases.release(session, lease, why, now, &mut self.loosening(false, now));
        let Some(ties) = ended else { return false };
        self.loosen(ties.iter(), outcome, why == Why::Abandoned, now);
        true
    }

    /// Starts the time of a lease again. Returns whether the session had such a lease.
    #[must_use]
    pub fn renew(&self, session: &Session, lease: u64, now: Now) -> bool {
        let held = self.leases.renew(session, lease, now);
        if !held {
            self.leases.count_not_held(session, lease);
        }
        held
    }

    /// Whether a session still has a lease.
    #[must_use]
    pub fn holds(&self, session: &Session, lease: u64, now: Now) -> bool {
        self.leases.is_live(session, lease, now)
    }

    /// Requests that were given up on, each by the count of its connection and its id: what was granted to them ends, and
    /// what will be as well. Returns the leases that ended.
    pub fn abandon(
        &self,
        session: &Session,
        reports: &mut dyn Iterator<Item = (u64, u64)>,
        now: Now,
    ) -> Vec<u64> {
        self.leases.abandon(session, reports, now, &mut self.loosening(true, now))
    }

    /// A reading that an application pushes, in thousandths, about its own pool.
    ///
    /// # Errors
    /// The pool is another.
    pub fn signal(
        &self,
        session: &Session,
        pool: &str,
        name: &str,
        permille: u16,
        now: Now,
    ) -> Result<(), NotItsPool> {
        if session.pool().name() != pool {
            return Err(NotItsPool);
        }
        session.pool().signals.lock().push(name, session.number(), permille, now.at);
        Ok(())
    }

    /// A reading of the host about a pool: connections that wait for `accept_queue`, else thousandths; `None`: it could
    /// not be read.
    pub fn observe(&self, pool: &str, signal: &str, reading: Option<u32>, now: Now) {
        if let Some(pool) = self.pools.find(pool) {
            pool.signals.lock().observe(signal, reading, now.at);
        }
    }

    /// Whether there is a pool whose reserve hosts keep together.
    #[must_use]
    pub fn keeps_reserve(&self) -> bool {
        self.pools.all().iter().any(|pool| pool.keeps_reserve())
    }

    /// What there is here of every pool whose reserve hosts keep together, in the order of their names. Says once of each
    /// refusal that there was one.
    #[must_use]
    pub fn reserves(&self) -> Vec<Reserve> {
        let mut reserves: Vec<Reserve> = self.pools.all().iter().filter_map(|pool| pool.reserve()).collect();
        reserves.sort_unstable_by(|one, other| one.pool.cmp(&other.pool));
        reserves
    }

    /// Says what is known of a pool on all other hosts: the reserve goes by it, for ten seconds if nothing more is said.
    pub fn set_elsewhere(&self, pool: &str, agreed: Agreed) {
        if let Some(pool) = self.pools.find(pool) {
            pool.set_elsewhere(agreed);
        }
    }

    /// What the rules in force ask the host to read.
    #[must_use]
    pub fn wanted_readings(&self) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        for pool in self.pools.all() {
            let Some(watch) = pool.watched() else { continue };
            let signals = watch.shed.signals.iter().filter(|signal| signal.source != Source::Pushed);
            wanted.extend(signals.map(|signal| Wanted {
                pool: pool.name().into(),
                signal: signal.name.clone(),
                source: signal.source.clone(),
                pid: pool.pid(),
            }));
        }
        wanted
    }

    /// Ends leases and sessions whose time has come, each as of its own time.
    pub fn end_due(&self, now: Now) {
        self.leases.end_due(now, &mut self.loosening(false, now));
    }

    /// Grants a lease, whose work the pool counts already.
    pub(super) fn grant(&self, reserved: Reservation<'_>, new: &NewLease<'_>, now: Now) -> Option<u64> {
        let pool = reserved.session().pool();
        let lease = reserved.grant(new, now);
        if lease.is_none() {
            pool.leave_work(new.is_other);
            // Its name is not known yet, and whoever asks holds the lock of names.
            self.loosen(new.ties.iter().copied(), WorkOutcome::Dropped, false, now);
        }
        lease
    }

    /// What becomes of leases that nobody released.
    fn loosening(&self, forgets: bool, now: Now) -> impl FnMut(&Ties) + '_ {
        move |ties| self.loosen(ties.iter(), WorkOutcome::Dropped, forgets, now)
    }

    /// Does with what was tied to a lease what its end asks for.
    fn loosen(&self, ties: impl Iterator<Item = Tie>, outcome: WorkOutcome, forgets: bool, now: Now) {
        for tie in ties {
            match tie {
                Tie::Place(digest) => self.end_place(&digest, now),
                Tie::Refund(refund) if outcome == WorkOutcome::Ok => self.refund(&refund, now),
                Tie::Repeat(name) if forgets => self.repeats.forget(&name, &self.shards),
                Tie::Spent(name) if forgets => self.spent.forget(&name, &self.shards),
                Tie::Refund(_) | Tie::Repeat(_) | Tie::Spent(_) | Tie::Cost { .. } => {}
            }
        }
    }

    /// Gives back what a rule was charged, if it still counts what can be compared.
    fn refund(&self, refund: &Refund, now: Now) {
        let ruling = self.ruling.load();
        let Some((rule, terms)) = ruling.identified(refund.rule) else { return };
        let Some(allowance) = rule.limit.allowance(refund.allowance) else { return };
        if terms.states.of(refund.allowance).1 != refund.salt {
            return;
        }
        let quota = match (&allowance.over, refund.is_beyond) {
            (Over::Elastic(second), true) => second,
            (_, true) => return,
            (_, false) => &allowance.quota,
        };
        let mut shard = self.shards.lock(self.shards.of(&refund.digest));
        each_algorithm!(quota, quota => give_back(quota, refund, &mut shard, self.shards.memory(), now));
    }
}

/// Gives back to a state, if it is there: one that is not is as good as new.
fn give_back<A: Algorithm>(quota: &A, refund: &Refund, shard: &mut Shard, memory: &Memory, now: Now) {
    if let Some(mut found) = A::table_mut(shard).entry(&refund.digest) {
        // Under quotas of another kind of ticks it is adopted first, when it is next judged.
        if !A::ADOPTS || found.tag() == refund.digest.tag() {
            let change = |state: &mut A::State| {
                quota.give_back(state, now, refund.cost);
                quota.level(state, now)
            };
            // It never grows by what it is given back.
            let (level, _) = found.change(change, memory);
            found.set_tag(A::tag(found.tag(), &level));
        }
    }
}
