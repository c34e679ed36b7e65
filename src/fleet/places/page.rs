//! What is known of the places of one key: what Redis believes, how much work comes here, and from that what to ask of
//! Redis, and when.
//!
//! No time of service is asked for: where as much begins as ends, work in progress × what is asked for ÷ what has begun is
//! what would be in progress if nothing were refused.

mod asking;

use super::{PlacesAsk, PlacesSaid};
use crate::clock::Timestamp;
use crate::engine::{PlacesBudget, PlacesReported, SharedKey};
use crate::fleet::book::{NEVER, Paged};
use crate::fleet::cell::{DEMAND_MAX, Report, TOKEN};
use std::time::Duration;

/// The places of one key.
#[derive(Debug)]
pub(in crate::fleet) struct PlacesPage {
    pub(in crate::fleet) key: SharedKey,
    /// The last report that was surely heard.
    last: Option<Report>,
    /// When Redis last spoke of it.
    told: Option<Timestamp>,
    /// When it was last asked about.
    asked_at: Option<Timestamp>,
    /// What came and what began of late, in thousandths: each counts for less the longer ago it is.
    asked: u64,
    begun: u64,
    /// What is in progress, over as long, in thousandths.
    in_use: u64,
    /// How often it had been asked for since the last report, when it was last looked at.
    seen: u32,
    /// When it was last asked for.
    busy: Timestamp,
    /// How many nobody has, and what all hosts would use, in thousandths, as last said.
    free: i64,
    fleet_demand: u64,
    /// Fewer were granted than were wanted.
    is_short: bool,
    /// So many wait for a place.
    waiting: u32,
    /// There are few: what lies idle goes back at once.
    is_few: bool,
    /// When somebody was last refused who could not wait for one.
    unasked: Option<Timestamp>,
    /// It is on its way.
    pub(in crate::fleet) in_flight: bool,
    /// It has called since it was last asked about.
    pub(in crate::fleet) calls: bool,
    due: Timestamp,
    /// It is looked at when its bucket has room, and not before.
    pub(in crate::fleet) waits: bool,
}

/// What to do about a key that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum Next {
    /// Ask Redis, keeping at most so many places.
    Ask(u32),
    /// Look again then.
    Look(Timestamp),
    /// Nobody asks for it any more.
    LetGo,
}

/// What all keys have in common at a moment.
#[derive(Clone, Copy, Debug)]
pub(in crate::fleet) struct PlacesPace {
    pub(in crate::fleet) now: Timestamp,
    /// Hosts that live.
    pub(in crate::fleet) hosts: u32,
    /// There and back.
    pub(in crate::fleet) round_trip: Duration,
}

impl Paged for PlacesPage {
    fn new(key: SharedKey, now: Timestamp) -> PlacesPage {
        PlacesPage {
            key,
            last: None,
            told: None,
            asked_at: None,
            asked: 0,
            begun: 0,
            in_use: 0,
            seen: 0,
            busy: now,
            free: 0,
            fleet_demand: 0,
            is_short: false,
            waiting: 0,
            is_few: false,
            unasked: None,
            in_flight: false,
            calls: false,
            due: NEVER,
            waits: false,
        }
    }

    fn key(&self) -> &SharedKey {
        &self.key
    }

    fn due(&mut self) -> &mut Timestamp {
        &mut self.due
    }

    fn waits(&mut self) -> &mut bool {
        &mut self.waits
    }

    fn in_flight(&self) -> bool {
        self.in_flight
    }
}

impl PlacesPage {
    /// The earliest moment to ask again: what is scarce is not asked for all the time.
    pub(in crate::fleet) fn soonest(&self, now: Timestamp) -> Timestamp {
        let gap = match (self.waiting > 0, self.is_short) {
            // Somebody waits, and what came before was answered.
            (true, false) => Duration::ZERO,
            (false, true) if !self.is_few => GAP_SHORT,
            _ => GAP_MIN,
        };
        self.asked_at.map_or(now, |asked| asked.after(gap)).max(now)
    }

    /// When it is to be looked at.
    pub(in crate::fleet) fn due_at(&self) -> Timestamp {
        self.due
    }

    /// What to do, given what there is.
    pub(in crate::fleet) fn next(
        &mut self,
        there: &PlacesReported,
        budget: &PlacesBudget,
        pace: &PlacesPace,
    ) -> Next {
        if there.asked != self.seen {
            self.busy = pace.now;
            self.seen = there.asked;
        }
        if there.unasked > 0 {
            self.unasked = Some(pace.now);
        }
        let Some(asked_at) = self.asked_at else { return Next::Ask(u32::MAX) };
        let keep = self.keep(there, budget, pace);
        let is_asked = there.asked > 0 && (self.calls || self.is_short);
        let is_wanted = self.waiting > 0 || is_asked && self.target(there, budget, pace) > there.held;
        let is_stale = pace.now >= asked_at.after(REPORT_EVERY);
        let is_believed = self.is_believed() || there.hold() > 0;
        if keep < there.held || is_wanted || is_stale && is_believed {
            // What goes back is not what is scarce.
            let is_scarce = keep == there.held && self.waiting == 0 && self.is_short;
            let soonest = if is_scarce { asked_at.after(GAP_SHORT) } else { self.soonest(pace.now) };
            return if soonest > pace.now { Next::Look(soonest) } else { Next::Ask(keep) };
        }
        if !is_believed && pace.now >= self.busy.after(KEEP) {
            return Next::LetGo;
        }
        Next::Look(self.look_again(asked_at, budget, pace.now))
    }

    /// How many of the places that it has this host keeps.
    fn keep(&self, there: &PlacesReported, budget: &PlacesBudget, pace: &PlacesPace) -> u32 {
        if self.free < 0 {
            // Hosts have more than there are: each keeps its part, and waits until no more than that is in progress.
            let all = u128::from(self.fleet_demand.max(1));
            let part = u128::from(budget.quota.max()) * u128::from(self.demand()) / all;
            return there.held.min(u32::try_from(part).unwrap_or(u32::MAX).max(1));
        }
        if budget.quota.lends_for_work_alone() {
            // It is asked for when somebody needs it: whoever keeps it has one that others lack.
            return there.held.min(self.target(there, budget, pace));
        }
        let is_scarce = self.is_scarce(budget);
        let after = if is_scarce { BACK_AFTER_SCARCE } else { BACK_AFTER };
        let is_settled = self.asked_at.is_some_and(|asked| pace.now >= asked.after(after));
        // What was in progress for a moment may be again soon; but where others lack it they have it until then.
        let in_use = if is_scarce { there.in_use } else { there.peak };
        let there_then = PlacesReported { in_use, ..*there };
        let enough = self.target(&there_then, budget, pace);
        // Once nobody asks any more nothing is kept for a while to come.
        let most =
            if enough == there_then.taken() { enough } else { enough.saturating_add(enough / ENOUGH_PART) };
        if is_settled && there.held > most { enough } else { there.held }
    }

    /// Whether hosts lack places that others have.
    fn is_scarce(&self, budget: &PlacesBudget) -> bool {
        self.is_short || self.free.saturating_mul(SCARCE) < i64::from(budget.quota.max())
    }

    /// How many places there should be: for what is in progress, what comes until more can be asked for, and a part of what
    /// nobody needs.
    fn target(&self, there: &PlacesReported, budget: &PlacesBudget, pace: &PlacesPace) -> u32 {
        let taken = there.taken();
        if budget.quota.lends_for_work_alone() {
            // Who cannot wait for one needs it ahead.
            let unasked = self.unasked.is_some_and(|at| pace.now < at.after(KEEP_SCARCE));
            return taken.saturating_add(u32::from(unasked)).min(budget.quota.max());
        }
        let idle_for = pace.now.since(self.busy);
        let is_plenty = self.free.saturating_mul(PLENTY) >= i64::from(budget.quota.max());
        if there.asked == 0 && idle_for >= if is_plenty { KEEP } else { KEEP_SCARCE } {
            return taken;
        }
        let spare = u64::try_from(self.free).unwrap_or(0) / (u64::from(pace.hosts.max(1)) * SPARE_PART);
        let spare = u32::try_from(spare).unwrap_or(u32::MAX).max(self.low(pace));
        taken.saturating_add(spare).min(budget.quota.max())
    }

    /// Redis is to be asked again once fewer than this are idle: what comes until the answer is here, half as much again,
    /// and one.
    pub(in crate::fleet) fn low(&self, pace: &PlacesPace) -> u32 {
        let span = u64::try_from((pace.round_trip + SLACK).as_micros()).unwrap_or(u64::MAX);
        // Thousandths over as long as they are counted for.
        let come =
            (u128::from(self.asked) * u128::from(span) * 3 + 1_000 * COUNTED_US) / (2 * 1_000 * COUNTED_US);
        u32::try_from(come).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// What would be in progress here if nothing were refused, in thousandths.
    fn demand(&self) -> u64 {
        let asked = u128::from(self.in_use) * u128::from(self.asked) / u128::from(self.begun.max(1));
        // Of what has never begun nobody knows how long it takes.
        let asked = if self.begun == 0 { u128::from(self.asked) } else { asked };
        u64::try_from(asked)
            .unwrap_or(u64::MAX)
            .max(self.in_use)
            .min(TIMES_MAX.saturating_mul(self.in_use.max(self.asked)))
    }

    /// What to ask, given what was reported.
    pub(in crate::fleet) fn ask(
        &mut self,
        reported: &PlacesReported,
        (version, dice): (u64, u32),
        budget: &PlacesBudget,
        pace: &PlacesPace,
    ) -> PlacesAsk {
        self.note(reported, pace.now);
        let target = self.target(reported, budget, pace);
        let is_kept = reported.asked > 0 || self.is_short;
        let ahead = if is_kept { target.saturating_sub(reported.hold()) } else { 0 };
        // What is held beyond what is taken is there for who waits, and the rest is asked for.
        let idle = reported.hold().saturating_sub(reported.taken());
        let need = self.waiting.saturating_sub(idle).min(budget.quota.max());
        let want = ahead.max(need);
        let is_over = reported.in_use == 0 && target == 0 && need == 0;
        let demand = self.demand().max(u64::from(reported.taken().saturating_add(need)) * 1_000);
        let told = self.told.map(|told| pace.now.since(told)).filter(|age| *age < KNOWN);
        (self.asked_at, self.in_flight, self.calls, self.seen) = (Some(pace.now), true, false, 0);
        PlacesAsk {
            key: self.key.name(),
            version,
            max: budget.quota.max(),
            last: self.last,
            hold: reported.hold(),
            want,
            need,
            demand: if is_over { 0 } else { demand.min(max_demand(budget)) },
            dice,
            knew_us: told.map(|age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX)),
        }
    }

    /// Counts what came since the last report.
    fn note(&mut self, reported: &PlacesReported, now: Timestamp) {
        let (asked, begun) = (u64::from(reported.asked) * 1_000, u64::from(reported.begun) * 1_000);
        let waited = self.asked_at.map_or(0, |at| now.since(at).as_micros());
        let faded = |count: u64| {
            u64::try_from(u128::from(count) * COUNTED_US / (COUNTED_US + waited)).unwrap_or(u64::MAX)
        };
        let in_use = u64::from(reported.in_use) * 1_000;
        let gone = u128::from(self.in_use) * COUNTED_US + u128::from(in_use) * waited;
        self.in_use = match self.asked_at {
            Some(_) => u64::try_from(gone / (COUNTED_US + waited)).unwrap_or(u64::MAX),
            None => in_use,
        };
        self.asked = faded(self.asked).saturating_add(asked);
        self.begun = faded(self.begun).saturating_add(begun);
    }

    /// Takes what Redis said.
    pub(in crate::fleet) fn hear(
        &mut self,
        ask: &PlacesAsk,
        said: &PlacesSaid,
        budget: &PlacesBudget,
        now: Timestamp,
    ) {
        self.is_few = budget.quota.lends_for_work_alone();
        self.in_flight = false;
        let hold = u64::from(ask.hold.saturating_add(said.grant)) * TOKEN;
        self.last = Some(Report { hold, demand: ask.demand, generation: said.generation });
        self.told = Some(now);
        (self.free, self.fleet_demand) = (said.free, said.demand);
        self.is_short = said.grant < ask.want;
    }

    /// Nobody knows what Redis believes.
    pub(in crate::fleet) fn forget(&mut self) {
        self.in_flight = false;
        self.last = None;
    }

    /// Whether others may believe that this host has or wants something.
    pub(in crate::fleet) fn is_believed(&self) -> bool {
        self.last.is_none_or(|last| last.hold > 0 || last.demand > 0)
    }

    /// Whether others may believe that this host has or wants more than what is in progress.
    pub(in crate::fleet) fn is_believed_beyond(&self, in_use: u32) -> bool {
        self.last.is_none_or(|last| last.hold > u64::from(in_use) * TOKEN || last.demand > 0)
    }

    /// When to look again at a key that was just spoken of.
    pub(in crate::fleet) fn after(&self, budget: &PlacesBudget, now: Timestamp) -> Timestamp {
        if self.calls || self.is_short || self.waiting > 0 {
            return self.soonest(now);
        }
        self.look_again(self.asked_at.unwrap_or(now), budget, now)
    }

    /// When to look at a key about which nothing is to be said now.
    fn look_again(&self, asked_at: Timestamp, budget: &PlacesBudget, now: Timestamp) -> Timestamp {
        let report = asked_at.after(REPORT_EVERY);
        let after = if self.is_scarce(budget) { BACK_AFTER_SCARCE } else { BACK_AFTER };
        let look = now.after(after).min(report);
        if look > now { look } else { now.after(after) }
    }
}

/// Nobody would use more than a few times what there is, whatever comes again and again.
fn max_demand(budget: &PlacesBudget) -> u64 {
    (u64::from(budget.quota.max()) * 1_000 * TIMES_MAX).min(DEMAND_MAX)
}

/// Redis is asked about a key no faster than this.
const GAP_MIN: Duration = Duration::from_millis(2);

/// The same where there are not enough places.
const GAP_SHORT: Duration = Duration::from_millis(25);

/// What lies idle goes back after this long.
const BACK_AFTER: Duration = Duration::from_millis(250);

/// The same where others lack it.
const BACK_AFTER_SCARCE: Duration = Duration::from_millis(50);

/// Places are scarce where less than one in so many is free.
const SCARCE: i64 = 16;

/// More than is needed by one part in so many is too much.
const ENOUGH_PART: u32 = 8;

/// Who holds something says so again this often, well before it lapses.
const REPORT_EVERY: Duration = Duration::from_millis(900);

/// How long a place is kept for whoever asks seldom, and how long where there are few.
const KEEP: Duration = Duration::from_secs(10);
const KEEP_SCARCE: Duration = Duration::from_secs(1);

/// Places are plenty where one in so many is free.
const PLENTY: i64 = 4;

/// Of what nobody has each host has at most its part of one in so many.
const SPARE_PART: u64 = 4;

/// What an answer may take beside the way there and back.
const SLACK: Duration = Duration::from_millis(5);

/// Over how long what comes is counted.
const COUNTED_US: u128 = 500_000;

/// Demand is no more than so many times what can be in progress.
const TIMES_MAX: u64 = 16;

/// Redis keeps what it was told of places for ten seconds.
const KNOWN: Duration = Duration::from_secs(10);
