//! Defines the scenarios with their claims: the table that decides whether shedding works. It runs nothing.

use std::ops::Range;

use crate::judge::{Claim, is_full};
use crate::plan::{CRITICAL, EVENT, GET, PRIORITIES, Plan, Service, TEST};
use crate::real::Setting;
use crate::record::Run;

/// One row of the table.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) parts: &'static str,
    /// Whether s leaks between 0.7 and 0.8.
    pub(crate) leaks: bool,
    /// For runs over many seeds only: another case is harder, or its claims are only reported.
    pub(crate) is_extra: bool,
    pub(crate) plan: Plan,
    pub(crate) claims: fn(&Run) -> Vec<Claim>,
}

impl Case {
    pub(crate) fn setting(&self) -> Setting {
        let Case { parts, leaks, .. } = *self;
        Setting { slots: self.plan.workers, parts, leaks, quota: self.plan.greedy.is_some() }
    }
}

fn case(name: &'static str, plan: Plan, claims: fn(&Run) -> Vec<Claim>) -> Case {
    Case { name, parts: ALL, leaks: true, is_extra: false, plan, claims }
}

fn extra(name: &'static str, plan: Plan, claims: fn(&Run) -> Vec<Claim>) -> Case {
    Case { is_extra: true, ..case(name, plan, claims) }
}

pub(crate) fn slow_loop_alone() -> Vec<Case> {
    let plan = Plan::step(0.55, 1.5, long(), 300);
    let published = extra("1.5×, slow loop alone, leak 0", plan.clone(), |run| {
        alone(run, Claim::at_most("reversals", 1.0, run.reversals(&event(long()))))
    });
    // A leak parks u at 0.8, where bursts of long work raise s more than the leak lowers it: sometimes one
    // reversal more under lognormal service.
    let leaking = case("1.5×, slow loop alone, leak 1/1800", plan, |run| {
        let claim = if run.plan.service == Service::Lognormal { reported } else { Claim::at_most };
        alone(run, claim("reversals", 1.0, run.reversals(&event(long()))))
    });
    vec![Case { parts: "workers", leaks: false, ..published }, Case { parts: "workers", ..leaking }]
}

fn alone(run: &Run, reversals: Claim) -> Vec<Claim> {
    let shed = run.first_shed;
    let mut claims = vec![
        Claim::at_least("first shed after, s", 29.0, shed),
        Claim::at_most("first shed within, s", 40.0, shed),
        Claim::at_most("queue empty and u < 0.9, s", 130.0, run.cleared_after(&event(long()))),
        Claim::at_least("critical after 180 s", 0.999, run.critical(&late(long()))),
        Claim::at_least("goodput, of capacity", 0.68, run.goodput(&late(long())) / run.plan.capacity()),
        reversals,
        Claim::at_most("u is shown wrong by", 1e-9, run.utilization_off),
    ];
    claims.extend(recovery(run));
    claims
}

pub(crate) fn step() -> Vec<Case> {
    let plan = |load| Plan::step(0.55, load, long(), 300);
    vec![
        case("1.5×", plan(1.5), |run| stepped(run, 0.99, 60.0)),
        case("3×", plan(3.0), |run| stepped(run, 0.97, 45.0)),
    ]
}

/// Claims with all three: critical requests from the first moment on, and a limit on the first refusal of the
/// slow loop.
fn stepped(run: &Run, critical: f64, first: f64) -> Vec<Claim> {
    let mut claims = vec![
        Claim::at_least("critical in the first 180 s", critical, run.critical(&early())),
        Claim::at_least("goodput, of capacity", 0.68, run.goodput(&late(long())) / run.plan.capacity()),
        Claim::at_most("queue", 512.0, run.queue_max(&event(long()))),
        Claim::at_most("first shed by the slow loop within, s", first, run.first_slow),
    ];
    claims.extend(recovery(run));
    claims
}

fn recovery(run: &Run) -> [Claim; 2] {
    let (end, gone) = (EVENT + long(), run.plan.end());
    [
        Claim::at_most("s ≤ 0 after the load's end, s", 270.0, run.recovered_after(&(end..gone))),
        Claim::at_most("s rises again by", 0.0, run.steepest_rise(&(end + 20..gone))),
    ]
}

pub(crate) fn far_too_much() -> Vec<Case> {
    vec![case("8×", Plan::step(0.55, 8.0, if is_full() { 300 } else { 230 }, 10), |run| {
        vec![
            Claim::at_least("critical in the first 180 s", 0.60, run.critical(&early())),
            Claim::at_least("critical after 180 s", 0.999, run.critical(&late(overload(run)))),
        ]
    })]
}

pub(crate) fn no_overload() -> Vec<Case> {
    let span = if is_full() { 1_200 } else { 600 };
    let plan = |workers, load| Plan { workers, ..Plan::level(load, span) };
    let nothing: fn(&Run) -> Vec<Claim> = |run| {
        let claim = if run.plan.service == Service::Lognormal { reported } else { Claim::at_most };
        vec![claim("refused", 0.0, run.all_refused())]
    };
    let small: fn(&Run) -> Vec<Claim> = |run| {
        let all = 0..run.plan.end();
        let decides = run.plan.service == Service::Exponential && run.plan.load[0].1 < 0.65;
        let claim = if decides { Claim::at_most } else { reported };
        let others = (0..TEST).map(|priority| run.refused(priority, &all)).fold(0.0, f64::max);
        vec![claim("test refused", 0.02, run.refused(TEST, &all)), claim("others refused", 0.001, others)]
    };
    vec![
        extra("16 workers at 0.55", plan(16, 0.55), nothing),
        extra("16 workers at 0.65", plan(16, 0.65), nothing),
        case("16 workers at 0.70", plan(16, 0.70), nothing),
        extra("32 workers at 0.55", plan(32, 0.55), nothing),
        extra("32 workers at 0.65", plan(32, 0.65), nothing),
        extra("32 workers at 0.70", plan(32, 0.70), nothing),
        case("4 workers at 0.60", plan(4, 0.60), small),
        extra("4 workers at 0.70", plan(4, 0.70), small),
    ]
}

fn reported(what: &'static str, _bound: f64, seen: f64) -> Claim {
    Claim::report(what, seen)
}

pub(crate) fn one_priority() -> Vec<Case> {
    // An oscillation of s shows only after minutes.
    let span = if is_full() { 600 } else { 480 };
    let plan = |load| Plan { mix: [0.04, 0.03, 0.90, 0.03], ..Plan::step(0.55, load, span, 20) };
    let steady: fn(&Run) -> Vec<Claim> = |run| {
        let span = overload(run);
        vec![
            Claim::at_most("reversals", 1.0, run.reversals(&event(span))),
            Claim::at_most("sd(s) after 240 s", 0.02, run.severity_spread(&(EVENT + 240..EVENT + span))),
        ]
    };
    vec![case("90 % GET, 3×", plan(3.0), steady), extra("90 % GET, 6×", plan(6.0), steady)]
}

pub(crate) fn retry_storm() -> Vec<Case> {
    let plan = Plan { retries: 3, ..Plan::step(0.55, 1.2, long(), 60) };
    vec![case("1.2×, 3 retries", plan, |run| {
        vec![
            Claim::at_least("critical", 0.995, run.critical(&event(long()))),
            Claim::at_least("critical, by tries", 0.995, run.critical_by_tries(&event(long()))),
            Claim::at_least("goodput, of capacity", 0.68, run.goodput(&late(long())) / run.plan.capacity()),
        ]
    })]
}

pub(crate) fn pulse() -> Vec<Case> {
    let plan = Plan { retries: 3, ..Plan::step(0.75, 2.0, 30, 300) };
    vec![case("30 s of 2× on 0.75, 3 retries", plan, |run| {
        let later = EVENT + 30 + 240..run.plan.end();
        let share = run.goodput(&later) / run.offered(&later);
        vec![Claim::at_least("goodput 240 s later, of offered", 0.95, share)]
    })]
}

pub(crate) fn slow_service() -> Vec<Case> {
    let slower = Some((EVENT, EVENT + long(), 3.0));
    vec![case("service 3 times slower", Plan { slower, ..Plan::step(0.55, 0.55, long(), 60) }, |run| {
        let capacity = run.plan.capacity() / 3.0;
        vec![
            Claim::at_least("critical", 0.985, run.critical(&event(long()))),
            Claim::at_least("goodput, of the new capacity", 0.65, run.goodput(&late(long())) / capacity),
        ]
    })]
}

pub(crate) fn mostly_critical() -> Vec<Case> {
    let plan = Plan { mix: [0.90, 0.05, 0.04, 0.01], ..Plan::step(0.55, 1.5, long(), 60) };
    vec![case("90 % critical, 1.5×", plan, |run| {
        vec![
            Claim::at_least("critical", 0.70, run.critical(&event(long()))),
            Claim::at_least("goodput, of capacity", 0.95, run.goodput(&late(long())) / run.plan.capacity()),
        ]
    })]
}

pub(crate) fn stuck() -> Vec<Case> {
    let (workers, span) = if is_full() { (64, 300) } else { (16, 120) };
    let load = vec![(EVENT, 0.55), (EVENT + span, 1.5), (EVENT + span + 900, 0.76)];
    vec![case("1.5×, then 0.76", Plan { workers, load, ..Plan::level(0.55, 0) }, |run| {
        let after = run.recovered_after(&(EVENT + overload(run)..run.plan.end()));
        vec![Claim::at_most("s ≤ 0 after, s", 900.0, after)]
    })]
}

pub(crate) fn pauses() -> Vec<Case> {
    let plan = Plan { pauses: true, ..Plan::step(0.55, 3.0, long(), 60) };
    vec![case("3×, clients pause for 50 ms", plan, |run| {
        let all = event(long());
        vec![
            Claim::at_least("critical", 0.97, run.critical(&all)),
            Claim::at_least("critical in the first 180 s", 0.97, run.critical(&early())),
            Claim::at_most("u is shown wrong by", 1e-9, run.utilization_off),
        ]
    })]
}

/// One caller sends a tenth of all requests, ten times its quota.
pub(crate) fn quota() -> Vec<Case> {
    let plan = |priority| Plan { greedy: Some((0.1, priority)), ..Plan::step(0.55, 3.0, 180, 10) };
    let about: fn(&Run) -> Vec<Claim> = |run| {
        let mut claims =
            vec![Claim::at_least("critical, of the others", 0.97, run.critical_within_quota(&early()))];
        let limited = run.limited(&early());
        claims.push(match run.plan.greedy {
            // Its requests are never shed, so it exceeds its quota all the time.
            Some((_, CRITICAL)) => Claim::at_least("429, a second", 30.0, limited),
            // Shed requests are not charged: it exceeds its quota only until its whole priority is shed.
            _ => Claim::at_least("429, a second", 1.0, limited),
        });
        claims
    };
    vec![
        case("3×, a critical caller over his quota", plan(CRITICAL), about),
        case("3×, a caller of GET over his quota", plan(GET), about),
    ]
}

/// Effect of each part on the first three minutes and afterwards.
pub(crate) fn apart() -> Vec<Case> {
    let about: fn(&Run) -> Vec<Claim> = |run| {
        let load = late(overload(run));
        vec![
            Claim::report_low("critical in the first 180 s", run.critical(&early())),
            Claim::report_low("critical after 180 s", run.critical(&load)),
            Claim::report_low("goodput after 180 s, of capacity", run.goodput(&load) / run.plan.capacity()),
            Claim::report("queue", run.queue_max(&(EVENT..EVENT + 180))),
        ]
    };
    let parts = [
        ("", ["1.5×, nothing", "3×, nothing", "8×, nothing"]),
        ("workers", ["1.5×, slow loop", "3×, slow loop", "8×, slow loop"]),
        ("workers brake", ["1.5×, and brake", "3×, and brake", "8×, and brake"]),
        ("workers queue_age", ["1.5×, and queue age", "3×, and queue age", "8×, and queue age"]),
        (ALL, ["1.5×, all three", "3×, all three", "8×, all three"]),
    ];
    let loads = [(1.5, long()), (3.0, long()), (8.0, 300)];
    let all = parts.into_iter().flat_map(|(parts, names)| {
        names.into_iter().zip(loads).map(move |(name, (load, span))| Case {
            parts,
            ..case(name, Plan::step(0.55, load, span, 10), about)
        })
    });
    all.collect()
}

/// Returns the duration of the overload of a run, in seconds.
fn overload(run: &Run) -> u64 {
    run.plan.load[1].0 - EVENT
}

fn event(span: u64) -> Range<u64> {
    EVENT..EVENT + span
}

fn early() -> Range<u64> {
    EVENT..EVENT + 180
}

fn late(span: u64) -> Range<u64> {
    EVENT + 180..EVENT + span
}

/// Returns the duration of an overload, in seconds.
fn long() -> u64 {
    if is_full() { 600 } else { 270 }
}

/// The parts of the documented protection of a host.
pub(crate) const ALL: &str = "workers brake queue_age";
const _: () = assert!(PRIORITIES.len() == TEST + 1, "the least important is the last");
