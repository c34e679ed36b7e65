//! The reserve of pools over many hosts: what each beat says of them, and what comes of its answer. Pure: time is an argument.
//!
//! A beat says of each pool how many slots it has here, and how much other work this host claims; what it hears goes into
//! the engine as [`Claim`] tells, and holds there for ten seconds. Beats are numbered: what one says takes the place of what
//! was said before, and only the answer to the last one counts, so that what others know this host to claim is never less
//! than what it lets in.

use super::beat::{Beat, Beaten, POOLS_MAX, PoolLoad, PoolReport, PoolSaid};
use crate::clock::Timestamp;
use crate::engine::{Agreed, Claim, Engine, FleetSums, Here};
use std::collections::BTreeMap;
use std::time::Duration;

/// What other hosts were told of this host's pools.
#[derive(Debug, Default)]
pub struct Reserves {
    pools: BTreeMap<Box<str>, Told>,
    /// The number of the last beat.
    seq: u64,
    on_its_way: Option<OnItsWay>,
}

/// Of one pool.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    claim: Claim,
    here: Here,
    elsewhere: FleetSums,
    /// When the last that was answered was said.
    heard: Option<Timestamp>,
    /// There is no such pool any more: it says so until somebody has heard.
    is_gone: bool,
}

/// The reports that nobody has answered yet: one beat at a time says something of pools.
#[derive(Debug)]
struct OnItsWay {
    reports: Vec<PoolReport>,
    sent: Timestamp,
}

impl Reserves {
    /// The number of the next beat and what it says. While the one before may still be answered, it is said once more.
    pub fn report(&mut self, engine: &Engine, now: Timestamp) -> (u64, Vec<PoolReport>) {
        if let Some(before) = self.on_its_way.as_ref().filter(|before| now.since(before.sent) < ANSWER_MAX) {
            return (self.seq, before.reports.clone());
        }
        self.pools.values_mut().for_each(|told| told.is_gone = true);
        let mut reports = Vec::new();
        for reserve in engine.reserves() {
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
            // What is given back is not let in any more from now on.
            told.tell(&reserve.pool, engine);
            reports.push(PoolReport { pool: reserve.pool.into(), load });
        }
        // What others do not know of any more is gone without a word.
        self.pools.retain(|_, told| !told.is_gone || told.is_known(now));
        let gone = self.pools.iter().filter(|(_, told)| told.is_gone);
        let gone = gone.map(|(pool, _)| PoolReport { pool: pool.to_string(), load: PoolLoad::default() });
        reports.extend(gone);
        self.seq += 1;
        self.on_its_way = (!reports.is_empty()).then(|| OnItsWay { reports: reports.clone(), sent: now });
        (self.seq, reports)
    }

    /// Whether nobody is to be told of any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Takes what a beat has brought. Returns whether somebody else goes by this host's name: then nothing was heard.
    #[must_use]
    pub fn heard(&mut self, beat: &Beat, beaten: &Beaten, engine: &Engine) -> bool {
        let Some(OnItsWay { reports, sent }) = self.take(beat) else { return false };
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

    /// Nobody has answered a beat in time. If it was heard all the same, the next one takes its place.
    pub fn failed(&mut self, beat: &Beat) {
        self.take(beat);
    }

    /// The reports of a beat, if it is the last one and not answered yet.
    fn take(&mut self, beat: &Beat) -> Option<OnItsWay> {
        let seq = self.seq;
        self.on_its_way.take_if(|_| beat.seq == seq && !beat.pools.is_empty())
    }
}

impl Told {
    /// What is claimed.
    fn say(&mut self, now: Timestamp) -> u32 {
        if !self.is_known(now) {
            self.claim = Claim::of(&self.here);
        }
        self.claim.say(&self.here)
    }

    /// What was said is known, and what all have together.
    fn hear(&mut self, load: &PoolLoad, said: &PoolSaid, sent: Timestamp) {
        self.heard = Some(sent);
        self.elsewhere = elsewhere(said, load);
        // What was lent to hosts that Redis has forgotten is not back before they have either spoken or let go of it.
        self.claim.hear(self.elsewhere, &self.here, !said.may_lack);
    }

    fn tell(&self, pool: &str, engine: &Engine) {
        let Some(heard) = self.heard else { return };
        let (most, alone) = (self.claim.most(), self.here.own_part());
        engine.set_elsewhere(pool, Agreed { sums: self.elsewhere, most, alone, heard });
    }

    /// Whether what was last heard still holds.
    fn is_known(&self, now: Timestamp) -> bool {
        self.heard.is_some_and(|heard| now.since(heard) < KNOWN)
    }
}

/// What all other hosts have.
fn elsewhere(said: &PoolSaid, here: &PoolLoad) -> FleetSums {
    FleetSums {
        slots: said.load.slots.saturating_sub(here.slots),
        critical: said.load.critical.saturating_sub(here.critical),
        others: said.load.other.saturating_sub(here.other),
    }
}

/// An answer that has not come after this will not come: no link waits longer.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// After this a host counts alone, and begins anew.
const KNOWN: Duration = Duration::from_secs(10);
