//! The sync state of the permits of a key: the last report to Redis, local demand, and the next command.
//!
//! Service times are not measured: in a steady state, leases in progress × requests ÷ leases begun is the
//! number in progress if nothing were refused.

mod asking;

use super::{KeyPermitReply, PermitRequest};
use crate::clock::Timestamp;
use crate::engine::{FleetConcurrencyLimit, PlacesReported, SharedKey};
use crate::fleet::book::{KeyState, NEVER};
use crate::fleet::cell::{CellReport, DEMAND_MAX, TOKEN};
use std::time::Duration;

#[derive(Debug)]
pub(in crate::fleet) struct PermitKeySync {
    pub(in crate::fleet) key: SharedKey,
    /// The last report that Redis is known to have.
    last: Option<CellReport>,
    /// When the last reply came.
    told: Option<Timestamp>,
    asked_at: Option<Timestamp>,
    /// Requests and leases begun, in thousandths; older ones weigh less.
    asked: u64,
    begun: u64,
    /// Leases in progress, averaged over the same span, in thousandths.
    in_use: u64,
    /// Requests since the last report, as of the last check of the key.
    seen: u32,
    /// When it last had a request.
    busy: Timestamp,
    /// Free permits, and the demand of all hosts in thousandths, as of the last reply.
    free: i64,
    fleet_demand: u64,
    /// Redis granted less than was wanted.
    is_short: bool,
    /// Pending requests for a permit.
    waiting: u32,
    /// The maximum is so low that idle permits return at once.
    is_few: bool,
    /// When a request that could not wait for a permit was last refused.
    unasked: Option<Timestamp>,
    pub(in crate::fleet) in_flight: bool,
    /// The engine has called for a sync since the last command.
    pub(in crate::fleet) calls: bool,
    due: Timestamp,
    /// Waits until its cell bucket can send; not checked before.
    pub(in crate::fleet) waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum NextPermitKey {
    /// Send a command, and keep at most this number of permits.
    Ask(u32),
    Look(Timestamp),
    /// Drop the state: the key is idle.
    LetGo,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::fleet) struct PlacesPace {
    pub(in crate::fleet) now: Timestamp,
    pub(in crate::fleet) hosts: u32,
    pub(in crate::fleet) round_trip: Duration,
}

impl KeyState for PermitKeySync {
    fn new(key: SharedKey, now: Timestamp) -> PermitKeySync {
        PermitKeySync {
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

impl PermitKeySync {
    /// Returns the earliest time of the next command; scarce permits have a longer interval.
    pub(in crate::fleet) fn soonest(&self, now: Timestamp) -> Timestamp {
        let gap = match (self.waiting > 0, self.is_short) {
            // Requests are pending, and the command before was granted in full.
            (true, false) => Duration::ZERO,
            (false, true) if !self.is_few => GAP_SHORT,
            _ => GAP_MIN,
        };
        self.asked_at.map_or(now, |asked| asked.after(gap)).max(now)
    }

    pub(in crate::fleet) fn due_at(&self) -> Timestamp {
        self.due
    }

    /// Decides the next step from the engine's state of the key.
    pub(in crate::fleet) fn next(
        &mut self,
        there: &PlacesReported,
        budget: &FleetConcurrencyLimit,
        pace: &PlacesPace,
    ) -> NextPermitKey {
        if there.requested != self.seen {
            self.busy = pace.now;
            self.seen = there.requested;
        }
        if there.refused_without_wait > 0 {
            self.unasked = Some(pace.now);
        }
        let Some(asked_at) = self.asked_at else { return NextPermitKey::Ask(u32::MAX) };
        let keep = self.keep(there, budget, pace);
        let is_asked = there.requested > 0 && (self.calls || self.is_short);
        let is_wanted = self.waiting > 0 || is_asked && self.target(there, budget, pace) > there.permits;
        let is_stale = pace.now >= asked_at.after(REPORT_EVERY);
        let is_believed = self.is_believed() || there.permits_used() > 0;
        if keep < there.permits || is_wanted || is_stale && is_believed {
            // Returned permits are not the scarce ones.
            let is_scarce = keep == there.permits && self.waiting == 0 && self.is_short;
            let soonest = if is_scarce { asked_at.after(GAP_SHORT) } else { self.soonest(pace.now) };
            return if soonest > pace.now { NextPermitKey::Look(soonest) } else { NextPermitKey::Ask(keep) };
        }
        if !is_believed && pace.now >= self.busy.after(KEEP) {
            return NextPermitKey::LetGo;
        }
        NextPermitKey::Look(self.look_again(asked_at, budget, pace.now))
    }

    /// The number of held permits that this host keeps.
    fn keep(&self, there: &PlacesReported, budget: &FleetConcurrencyLimit, pace: &PlacesPace) -> u32 {
        if self.free < 0 {
            // Hosts have more than the maximum: each keeps its share, and grants none until fewer are in
            // progress.
            let all = u128::from(self.fleet_demand.max(1));
            let part = u128::from(budget.quota.max()) * u128::from(self.demand()) / all;
            return there.permits.min(u32::try_from(part).unwrap_or(u32::MAX).max(1));
        }
        if budget.quota.borrows_for_waiting_only() {
            // Permits are fetched when a request needs one: an idle one is missing elsewhere.
            return there.permits.min(self.target(there, budget, pace));
        }
        let is_scarce = self.is_scarce(budget);
        let after = if is_scarce { BACK_AFTER_SCARCE } else { BACK_AFTER };
        let is_settled = self.asked_at.is_some_and(|asked| pace.now >= asked.after(after));
        // The peak may recur soon; but where permits are scarce, other hosts get them until then.
        let in_use = if is_scarce { there.leases } else { there.peak };
        let there_then = PlacesReported { leases: in_use, ..*there };
        let enough = self.target(&there_then, budget, pace);
        // Without recent requests, no spare permits are kept.
        let most = if enough == there_then.leases_and_reserved() {
            enough
        } else {
            enough.saturating_add(enough / ENOUGH_PART)
        };
        if is_settled && there.permits > most { enough } else { there.permits }
    }

    /// Whether hosts lack permits that others have.
    fn is_scarce(&self, budget: &FleetConcurrencyLimit) -> bool {
        self.is_short || self.free.saturating_mul(SCARCE) < i64::from(budget.quota.max())
    }

    /// The permits to hold: those in use, those for requests until the next reply, and a part of the free
    /// ones.
    fn target(&self, there: &PlacesReported, budget: &FleetConcurrencyLimit, pace: &PlacesPace) -> u32 {
        let taken = there.leases_and_reserved();
        if budget.quota.borrows_for_waiting_only() {
            // A request that cannot wait needs a permit held ahead of it.
            let unasked = self.unasked.is_some_and(|at| pace.now < at.after(KEEP_SCARCE));
            return taken.saturating_add(u32::from(unasked)).min(budget.quota.max());
        }
        let idle_for = pace.now.since(self.busy);
        let is_plenty = self.free.saturating_mul(PLENTY) >= i64::from(budget.quota.max());
        if there.requested == 0 && idle_for >= if is_plenty { KEEP } else { KEEP_SCARCE } {
            return taken;
        }
        let spare = u64::try_from(self.free).unwrap_or(0) / (u64::from(pace.hosts.max(1)) * SPARE_PART);
        let spare = u32::try_from(spare).unwrap_or(u32::MAX).max(self.low(pace));
        taken.saturating_add(spare).min(budget.quota.max())
    }

    /// The number of idle permits that triggers a command: 1.5 times the requests until its reply, and one.
    pub(in crate::fleet) fn low(&self, pace: &PlacesPace) -> u32 {
        let span = u64::try_from((pace.round_trip + SLACK).as_micros()).unwrap_or(u64::MAX);
        // `asked` is in thousandths, over `COUNTED_US`.
        let come =
            (u128::from(self.asked) * u128::from(span) * 3 + 1_000 * COUNTED_US) / (2 * 1_000 * COUNTED_US);
        u32::try_from(come).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// Leases that would be in progress if nothing were refused, in thousandths.
    fn demand(&self) -> u64 {
        let asked = u128::from(self.in_use) * u128::from(self.asked) / u128::from(self.begun.max(1));
        // Before any lease has begun, its duration is unknown.
        let asked = if self.begun == 0 { u128::from(self.asked) } else { asked };
        u64::try_from(asked)
            .unwrap_or(u64::MAX)
            .max(self.in_use)
            .min(TIMES_MAX.saturating_mul(self.in_use.max(self.asked)))
    }

    /// Builds the command from the engine's report.
    pub(in crate::fleet) fn ask(
        &mut self,
        reported: &PlacesReported,
        (version, dice): (u64, u32),
        budget: &FleetConcurrencyLimit,
        pace: &PlacesPace,
    ) -> PermitRequest {
        self.note(reported, pace.now);
        let target = self.target(reported, budget, pace);
        let is_kept = reported.requested > 0 || self.is_short;
        let ahead = if is_kept { target.saturating_sub(reported.permits_used()) } else { 0 };
        // Idle permits serve the pending requests first; only the remainder is needed.
        let idle = reported.permits_used().saturating_sub(reported.leases_and_reserved());
        let need = self.waiting.saturating_sub(idle).min(budget.quota.max());
        let want = ahead.max(need);
        let is_over = reported.leases == 0 && target == 0 && need == 0;
        let demand =
            self.demand().max(u64::from(reported.leases_and_reserved().saturating_add(need)) * 1_000);
        let told = self.told.map(|told| pace.now.since(told)).filter(|age| *age < KNOWN);
        (self.asked_at, self.in_flight, self.calls, self.seen) = (Some(pace.now), true, false, 0);
        PermitRequest {
            key: self.key.name(),
            version,
            max: budget.quota.max(),
            last: self.last,
            hold: reported.permits_used(),
            want,
            need,
            demand: if is_over { 0 } else { demand.min(max_demand(budget)) },
            dice,
            knew_us: told.map(|age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX)),
        }
    }

    /// Adds the requests and leases since the last report to the averages.
    fn note(&mut self, reported: &PlacesReported, now: Timestamp) {
        let (asked, begun) = (u64::from(reported.requested) * 1_000, u64::from(reported.allowed) * 1_000);
        let waited = self.asked_at.map_or(0, |at| now.since(at).as_micros());
        let faded = |count: u64| {
            u64::try_from(u128::from(count) * COUNTED_US / (COUNTED_US + waited)).unwrap_or(u64::MAX)
        };
        let in_use = u64::from(reported.leases) * 1_000;
        let gone = u128::from(self.in_use) * COUNTED_US + u128::from(in_use) * waited;
        self.in_use = match self.asked_at {
            Some(_) => u64::try_from(gone / (COUNTED_US + waited)).unwrap_or(u64::MAX),
            None => in_use,
        };
        self.asked = faded(self.asked).saturating_add(asked);
        self.begun = faded(self.begun).saturating_add(begun);
    }

    /// Applies a reply.
    pub(in crate::fleet) fn hear(
        &mut self,
        ask: &PermitRequest,
        said: &KeyPermitReply,
        budget: &FleetConcurrencyLimit,
        now: Timestamp,
    ) {
        self.is_few = budget.quota.borrows_for_waiting_only();
        self.in_flight = false;
        let hold = u64::from(ask.hold.saturating_add(said.grant)) * TOKEN;
        self.last = Some(CellReport { hold, demand: ask.demand, generation: said.generation });
        self.told = Some(now);
        (self.free, self.fleet_demand) = (said.free, said.demand);
        self.is_short = said.grant < ask.want;
    }

    /// Forgets the last report: the state of Redis is unknown.
    pub(in crate::fleet) fn forget(&mut self) {
        self.in_flight = false;
        self.last = None;
    }

    /// Whether other hosts may count permits or demand of this host.
    pub(in crate::fleet) fn is_believed(&self) -> bool {
        self.last.is_none_or(|last| last.hold > 0 || last.demand > 0)
    }

    /// Whether other hosts may count permits beyond those in use, or demand, of this host.
    pub(in crate::fleet) fn is_believed_beyond(&self, in_use: u32) -> bool {
        self.last.is_none_or(|last| last.hold > u64::from(in_use) * TOKEN || last.demand > 0)
    }

    /// When to check a key after its reply.
    pub(in crate::fleet) fn after(&self, budget: &FleetConcurrencyLimit, now: Timestamp) -> Timestamp {
        if self.calls || self.is_short || self.waiting > 0 {
            return self.soonest(now);
        }
        self.look_again(self.asked_at.unwrap_or(now), budget, now)
    }

    /// When to check a key that needs no command now.
    fn look_again(&self, asked_at: Timestamp, budget: &FleetConcurrencyLimit, now: Timestamp) -> Timestamp {
        let report = asked_at.after(REPORT_EVERY);
        let after = if self.is_scarce(budget) { BACK_AFTER_SCARCE } else { BACK_AFTER };
        let look = now.after(after).min(report);
        if look > now { look } else { now.after(after) }
    }
}

/// The upper bound of demand: a small multiple of the maximum, however often refused requests return.
fn max_demand(budget: &FleetConcurrencyLimit) -> u64 {
    (u64::from(budget.quota.max()) * 1_000 * TIMES_MAX).min(DEMAND_MAX)
}

/// The least interval of commands about a key.
const GAP_MIN: Duration = Duration::from_millis(2);

/// The least interval where permits are scarce.
const GAP_SHORT: Duration = Duration::from_millis(25);

/// Idle permits return after this time.
const BACK_AFTER: Duration = Duration::from_millis(250);

/// Idle permits return after this time where other hosts lack them.
const BACK_AFTER_SCARCE: Duration = Duration::from_millis(50);

/// Permits are scarce if less than one in this number is free.
const SCARCE: i64 = 16;

/// Permits beyond the target return if they exceed it by more than one part in this number.
const ENOUGH_PART: u32 = 8;

/// The interval of reports about held permits, well before they expire.
const REPORT_EVERY: Duration = Duration::from_millis(900);

/// How long spare permits of an idle key are kept: with plenty free, and otherwise.
const KEEP: Duration = Duration::from_secs(10);
const KEEP_SCARCE: Duration = Duration::from_secs(1);

/// Permits are plenty if one in this number is free.
const PLENTY: i64 = 4;

/// Each host holds at most its share of one part in this number of the free permits.
const SPARE_PART: u64 = 4;

/// Allowance for a reply beyond the round trip.
const SLACK: Duration = Duration::from_millis(5);

/// The span over which requests are averaged.
const COUNTED_US: u128 = 500_000;

/// The largest demand, as a multiple of the permits that can be in use.
const TIMES_MAX: u64 = 16;

/// How long Redis keeps a report about permits.
const KNOWN: Duration = Duration::from_secs(10);
