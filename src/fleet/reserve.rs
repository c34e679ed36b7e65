//! The pools' reserve over many hosts: reports in heartbeats, and their replies. Pure: time is an argument.
//!
//! A heartbeat reports for each pool the local slots, and the non-critical requests that this host claims;
//! the reply is passed to the engine by [`Claim`] and is valid for ten seconds. Heartbeats are numbered: a
//! report replaces the one before, and only the reply to the last one counts, so the claim that other hosts
//! know is never below the requests that this host admits.

use super::beat::{FleetPoolLoad, Heartbeat, HeartbeatReply, POOLS_MAX, PoolLoad, PoolReport};
use crate::clock::Timestamp;
use crate::engine::{Claim, Engine, FleetSums, HostReadings, OtherHostsSums};
use std::collections::BTreeMap;
use std::time::Duration;

/// The reports and claims of this host's pools.
#[derive(Debug, Default)]
pub struct Reserves {
    pools: BTreeMap<Box<str>, ReserveUpdate>,
    /// The sequence number of the last heartbeat.
    seq: u64,
    on_its_way: Option<InFlightReports>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ReserveUpdate {
    claim: Claim,
    here: HostReadings,
    elsewhere: FleetSums,
    /// When the last answered report was sent.
    heard: Option<Timestamp>,
    /// The pool no longer exists; reported as empty until that is answered.
    is_gone: bool,
}

/// The unanswered reports: at most one heartbeat with reports is in flight.
#[derive(Debug)]
struct InFlightReports {
    reports: Vec<PoolReport>,
    sent: Timestamp,
}

impl Reserves {
    /// Returns the next sequence number and its reports, or the last ones while they may still be answered.
    pub fn report(&mut self, engine: &Engine, now: Timestamp) -> (u64, Vec<PoolReport>) {
        if let Some(before) = self.on_its_way.as_ref().filter(|before| now.since(before.sent) < ANSWER_MAX) {
            return (self.seq, before.reports.clone());
        }
        self.pools.values_mut().for_each(|told| told.is_gone = true);
        let mut reports = Vec::new();
        for reserve in engine.take_pool_reserves() {
            if !self.pools.contains_key(&reserve.pool) && self.pools.len() >= POOLS_MAX {
                continue;
            }
            let told = self.pools.entry(reserve.pool.clone()).or_default();
            (told.here, told.is_gone) = (reserve.here, false);
            let load = PoolLoad {
                slots: u64::from(reserve.here.slots),
                critical: u64::from(reserve.critical),
                other: u64::from(told.say(now)),
            };
            // From now on the engine admits no more than the reduced claim.
            told.tell(&reserve.pool, engine);
            reports.push(PoolReport { pool: reserve.pool.into(), load });
        }
        // Drop removed pools that other hosts no longer know.
        self.pools.retain(|_, told| !told.is_gone || told.is_known(now));
        let gone = self.pools.iter().filter(|(_, told)| told.is_gone);
        let gone = gone.map(|(pool, _)| PoolReport { pool: pool.to_string(), load: PoolLoad::default() });
        reports.extend(gone);
        self.seq += 1;
        self.on_its_way =
            (!reports.is_empty()).then(|| InFlightReports { reports: reports.clone(), sent: now });
        (self.seq, reports)
    }

    /// Whether there is no pool to report.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Applies a reply. Returns whether another daemon uses this host's name; the reply is then ignored.
    #[must_use]
    pub fn heard(&mut self, beat: &Heartbeat, beaten: &HeartbeatReply, engine: &Engine) -> bool {
        let Some(InFlightReports { reports, sent }) = self.take(beat) else { return false };
        if beaten.pools.iter().any(|said| said.is_overtaken) {
            return true;
        }
        for (report, said) in reports.iter().zip(&beaten.pools) {
            let Some(told) = self.pools.get_mut(&*report.pool) else { continue };
            if told.is_gone {
                self.pools.remove(&*report.pool);
                continue;
            }
            told.hear(&report.load, said, sent);
            told.tell(&report.pool, engine);
        }
        false
    }

    /// Forgets a heartbeat without a reply in time. If it ran all the same, the next one replaces it.
    pub fn failed(&mut self, beat: &Heartbeat) {
        self.take(beat);
    }

    /// Takes the reports of a heartbeat, if it is the last one and unanswered.
    fn take(&mut self, beat: &Heartbeat) -> Option<InFlightReports> {
        let seq = self.seq;
        self.on_its_way.take_if(|_| beat.seq == seq && !beat.pools.is_empty())
    }
}

impl ReserveUpdate {
    /// Returns the claim to report: a number of non-critical requests.
    fn say(&mut self, now: Timestamp) -> u32 {
        if !self.is_known(now) {
            self.claim = Claim::new(&self.here);
        }
        self.claim.update_and_publish(&self.here)
    }

    /// Applies the reply to a report sent at `sent`.
    fn hear(&mut self, load: &PoolLoad, said: &FleetPoolLoad, sent: Timestamp) {
        self.heard = Some(sent);
        self.elsewhere = elsewhere(said, load);
        // The sums may lack hosts that Redis forgot and that still use their claims: the limit does not rise.
        self.claim.apply_sums(self.elsewhere, &self.here, !said.may_lack);
    }

    fn tell(&self, pool: &str, engine: &Engine) {
        let Some(heard) = self.heard else { return };
        let (most, alone) = (self.claim.allowed(), self.here.own_part());
        engine.set_other_hosts_sums(
            pool,
            OtherHostsSums {
                sums: self.elsewhere,
                noncritical_max: most,
                local_max: alone,
                reported_at: heard,
            },
        );
    }

    /// Whether the last reply is still valid.
    fn is_known(&self, now: Timestamp) -> bool {
        self.heard.is_some_and(|heard| now.since(heard) < KNOWN)
    }
}

/// The sums over all other hosts.
fn elsewhere(said: &FleetPoolLoad, here: &PoolLoad) -> FleetSums {
    FleetSums {
        slots: said.load.slots.saturating_sub(here.slots),
        critical: said.load.critical.saturating_sub(here.critical),
        noncritical: said.load.other.saturating_sub(here.other),
    }
}

/// The longest time until a reply: no link waits longer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A reply is valid for this long; after it the host counts alone and starts anew.
const KNOWN: Duration = Duration::from_secs(10);
