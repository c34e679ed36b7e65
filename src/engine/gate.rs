//! Load shedding: the gate judges requests that no rule refuses, by the load of their pool.

use std::cell::Cell;
use std::sync::Arc;

use super::counters::{CheckResult, ThreadCounters};
use super::digest::{Digest, KeyHash};
use super::pool::Pool;
use super::slots::Slot;
use crate::clock::{Micros, Now};
use crate::rules::shed::{Shed, ShedPart, Workers};
use crate::rules::{Domain, Mode};
use crate::shed::slow_law::Controller;
use crate::shed::{band_slots, chance, draw, hint, queue_age};
use crate::terms::NoteKind;

/// The shedders of a pool.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) pool: Arc<Pool>,
    pub(super) shedding: Arc<PoolShedding>,
    /// The number of its first part in the domain.
    pub(super) first: u32,
    pub(super) slots: [Slot; ShedPart::ALL.len()],
}

pub(super) struct GateRequest<'a> {
    /// The index of the request's priority; 0 is the most important.
    pub(super) priority: Option<usize>,
    pub(super) attributes: &'a [(&'a str, &'a str)],
    /// The time it waited for the application.
    pub(super) queued: Option<Micros>,
    /// Whether it enters the pool's work if it passes.
    pub(super) enters_work: bool,
    pub(super) now: Now,
    pub(super) counters: Option<&'a ThreadCounters>,
    pub(super) callers: &'a KeyHash,
    /// The counter from which per-request draws derive.
    pub(super) draws: &'a Cell<u64>,
    /// Whether its caller is added to the heavy-caller statistics.
    pub(super) records_caller: bool,
}

impl<'a> GateRequest<'a> {
    /// The same request as a PEEK: nothing is counted, and it does not enter the pool's work.
    pub(super) fn without_recording(self, draws: &'a Cell<u64>) -> GateRequest<'a> {
        GateRequest { counters: None, draws, records_caller: false, enters_work: false, ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GateRefusal {
    pub(super) part: ShedPart,
    /// An approximate retry-after.
    pub(super) retry: Micros,
}

impl Gate {
    /// Judges by every part in order; the first that refuses decides. A passing request enters the pool's
    /// work if it takes a lease.
    pub(super) fn judge(
        &self,
        request: &GateRequest<'_>,
        notes: &mut Vec<(NoteKind, u32)>,
    ) -> Option<GateRefusal> {
        let is_other = self.shedding.is_noncritical(request.priority);
        let mut has_entered = false;
        for part in ShedPart::ALL {
            let Some(mode) = self.shedding.mode(part) else { continue };
            let hint = match part {
                ShedPart::Fleet => {
                    let (refused, entered) = self.exceeds_reserve(request, is_other, mode);
                    has_entered = entered;
                    refused.then_some(hint::BRAKE_BASE)
                }
                ShedPart::Brake => self.refuses_by_brake(request).then_some(hint::BRAKE_BASE),
                ShedPart::Workers => self.workers(request).map(hint::workers_base),
                ShedPart::QueueAge => self.exceeds_queue_age(request).then_some(hint::QUEUE_AGE_BASE),
            };
            self.count(part, hint.is_some(), mode, request.counters);
            let Some(hint) = hint else { continue };
            if mode != Mode::Enforce {
                notes.push((NoteKind::Shadow, self.first + part as u32));
                continue;
            }
            if has_entered {
                self.pool.remove_lease(is_other);
            }
            let draw = self.caller_digest(request).map_or_else(|| request.draw(), |caller| caller.high());
            return Some(GateRefusal { part, retry: hint::with_jitter(hint, draw) });
        }
        if request.enters_work && !has_entered {
            self.pool.add_lease(is_other, None);
        }
        None
    }

    /// Returns whether the reserve leaves no room, and whether the request entered the pool's work.
    fn exceeds_reserve(&self, request: &GateRequest<'_>, is_other: bool, mode: Mode) -> (bool, bool) {
        let (Some(slots), Some(reserve), true) = (self.pool.slots(), &self.shedding.shed.fleet, is_other)
        else {
            return (false, false);
        };
        let most = self.pool.noncritical_max(slots, reserve.reserve, request.now.at);
        if request.enters_work && mode == Mode::Enforce {
            let entered = self.pool.add_lease(true, Some(most));
            return (!entered, entered);
        }
        (self.pool.noncritical_leases() >= most, false)
    }

    fn refuses_by_brake(&self, request: &GateRequest<'_>) -> bool {
        let (true, Some(slots), Some(priority)) =
            (self.pool.is_braking(), self.pool.slots(), request.priority)
        else {
            return false;
        };
        self.shedding.band(priority).is_some_and(|band| self.pool.busy() >= band_slots(slots, band))
    }

    /// The shed probability, if `workers` refuses the request.
    fn workers(&self, request: &GateRequest<'_>) -> Option<f64> {
        let workers = self.shedding.shed.workers.as_ref()?;
        let (priority, severity) = (request.priority?, self.pool.severity());
        if severity <= 0.0 || self.pool.slots().is_none() {
            return None;
        }
        let chance = self.shedding.shed_probability(priority, severity);
        let rank = self.shedding.shed_rank(priority)?;
        let draw = self.draw(request, workers, rank);
        draw::is_refused(draw, chance).then_some(chance)
    }

    /// The draw of a request: that of its caller; or its own without a caller, or if the caller makes a large
    /// part of its priority's requests.
    fn draw(&self, request: &GateRequest<'_>, workers: &Workers, rank: usize) -> u64 {
        if workers.stripe_exact {
            return request.draw();
        }
        let Some(caller) = self.caller_digest(request) else { return request.draw() };
        if self.pool.is_heavy_caller(rank, caller.hash(), request.now.at, request.records_caller) {
            return request.draw();
        }
        let epoch = draw::draw_epoch(request.now.at, caller.hash(), self.shedding.shed.callers.rotate);
        let mut bytes = [0; 24];
        let words = [caller.hash(), caller.high(), epoch].map(u64::to_le_bytes);
        bytes.iter_mut().zip(words.as_flattened()).for_each(|(to, from)| *to = *from);
        request.callers.digest_bytes(&bytes).hash()
    }

    fn exceeds_queue_age(&self, request: &GateRequest<'_>) -> bool {
        let (Some(queued), Some(bounds)) = (request.queued, &self.shedding.shed.queue_age) else {
            return false;
        };
        let bound = if request.priority == Some(0) { bounds.critical } else { bounds.others };
        queue_age::is_too_old(queued, bound.0)
    }

    /// The digest of the caller: the first attribute that names one.
    fn caller_digest(&self, request: &GateRequest<'_>) -> Option<Digest> {
        let named =
            self.shedding.shed.callers.by.iter().find_map(|name| Some((name, request.attribute(name)?)));
        named.map(|(name, value)| request.callers.digest([&**name, value].into_iter()))
    }

    fn count(&self, part: ShedPart, refused: bool, mode: Mode, counters: Option<&ThreadCounters>) {
        let (Some(counters), Some(slot)) = (counters, self.slots.get(part as usize)) else { return };
        let check = match (refused, mode) {
            (false, _) => CheckResult::Pass,
            (true, Mode::Enforce) => CheckResult::Refuse,
            (true, _) => CheckResult::WouldRefuse,
        };
        counters.count_check(*slot, check);
    }
}

impl<'a> GateRequest<'a> {
    fn attribute(&self, name: &str) -> Option<&'a str> {
        let first = self.attributes.iter().find(|(known, _)| *known == name);
        first.map(|(_, value)| *value).filter(|value| !value.is_empty())
    }

    fn draw(&self) -> u64 {
        let count = self.draws.get().wrapping_add(1);
        self.draws.set(count);
        self.callers.digest_bytes(&count.to_le_bytes()).hash()
    }
}

#[derive(Debug)]
pub(super) struct PoolShedding {
    pub(super) shed: Shed,
    pub(super) controller: Controller,
    /// The priorities of its domain, most important first.
    priorities: Vec<Box<str>>,
    /// The effective modes of its parts; `None`: not configured.
    pub(super) modes: [Option<Mode>; ShedPart::ALL.len()],
}

impl PoolShedding {
    /// `mode_of`: the effective mode of a part, by its name and its written mode.
    pub(super) fn new(domain: &Domain, shed: &Shed, mode_of: impl Fn(&str, Mode) -> Mode) -> PoolShedding {
        let controller = shed.workers.as_ref().map_or_else(Controller::default, |workers| Controller {
            good: f64::from(workers.good.0) / 1_000.0,
            bad: f64::from(workers.bad.0) / 1_000.0,
            after: workers.after.0.as_secs_f64(),
            full: workers.full.0.as_secs_f64(),
            leak: f64::from(workers.leak.0.0) / f64::from(workers.leak.0.1),
        });
        let modes =
            ShedPart::ALL.map(|part| shed.mode(part).map(|mode| mode_of(&shed.rule_name(part), mode)));
        PoolShedding { shed: shed.clone(), controller, priorities: domain.priorities().to_vec(), modes }
    }

    /// The mode of a part; `None` if it is off.
    pub(super) fn mode(&self, part: ShedPart) -> Option<Mode> {
        self.modes.get(part as usize).copied().flatten().filter(|mode| *mode != Mode::Disabled)
    }

    /// The index of a priority among those that the controller sheds, 0 being the first to shed; `None` if
    /// never shed.
    pub(super) fn shed_rank(&self, priority: usize) -> Option<usize> {
        self.priorities.len().checked_sub(priority + 1).filter(|rank| *rank < self.sheddable())
    }

    /// The number of priorities that the controller sheds: all but the most important, unless
    /// `shed_critical`.
    pub(super) fn sheddable(&self) -> usize {
        let sheds_all = self.shed.workers.as_ref().is_some_and(|workers| workers.shed_critical);
        if sheds_all { self.priorities.len() } else { self.priorities.len().saturating_sub(1) }
    }

    pub(super) fn shed_probability(&self, priority: usize, severity: f64) -> f64 {
        self.shed_rank(priority).map_or(0.0, |rank| chance(severity, self.sheddable(), rank))
    }

    /// The shed probability of every priority, least important first.
    pub(super) fn shed_probabilities(&self, severity: f64) -> Vec<(Box<str>, f64)> {
        let each = self.priorities.iter().enumerate().rev();
        each.map(|(rank, name)| (name.clone(), self.shed_probability(rank, severity))).collect()
    }

    /// The part of the slots that a priority may use while the brake is on, in thousandths; `None`: all.
    pub(super) fn band(&self, priority: usize) -> Option<u16> {
        let from_last = self.priorities.len().checked_sub(priority + 1).filter(|_| priority > 0)?;
        self.shed.brake.as_ref()?.bands.get(from_last).copied()
    }

    /// Whether a priority has no access to the reserve. True without a priority.
    pub(super) fn is_noncritical(&self, priority: Option<usize>) -> bool {
        let reserved_for = self.shed.fleet.as_ref().map_or(0, |reserve| reserve.reserved_for);
        priority.is_none_or(|priority| priority > reserved_for)
    }
}
