//! History of the last ten minutes: a small ring that the operators' thread fills from the same counters that a
//! scrape reads. Decisions do not touch it, and it is not kept across restarts.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::info;

use super::AdminState;
use super::status::RuleStatus;
use crate::clock::Timestamp;
use crate::engine::{PoolView, RuleTotals, Totals, VerdictTotals};

/// The last ten minutes, a step every five seconds.
#[derive(Debug, Default)]
pub struct History {
    past: Mutex<StepHistory>,
}

#[derive(Debug, Default)]
struct StepHistory {
    /// End time of each step; the newest last.
    ends: VecDeque<Timestamp>,
    /// The decisions by kind, once there is a step.
    kinds: Option<CountSteps<KINDS>>,
    rules: HashMap<String, CountSteps<OUTCOMES>>,
    pools: HashMap<Box<str>, VecDeque<PoolStep>>,
}

/// The growth of counters in each step since they are known, the newest last; and their values at the end of the last.
#[derive(Debug)]
struct CountSteps<const N: usize> {
    steps: VecDeque<[u32; N]>,
    counted: [u64; N],
}

/// The state of a pool: its utilization, where it is known, and the severity of its controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PoolStep {
    /// The share of slot-time that was busy.
    pub(super) utilization: Option<f32>,
    /// The severity of the `workers` controller.
    pub(super) severity: f32,
}

#[derive(Debug)]
pub(super) struct HistorySample {
    at: Timestamp,
    counted: [u64; KINDS],
    rules: Vec<(String, [u64; OUTCOMES])>,
    pools: Vec<(Box<str>, PoolStep)>,
}

/// Rates over the recorded steps, seen from one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RateHistory {
    /// For each step: its end, in seconds before this moment, and decisions per second by kind; the newest last.
    pub(super) steps: Vec<(f32, [f32; KINDS])>,
    /// Decisions by kind over all steps.
    pub(super) sums: [u64; KINDS],
    /// Current decisions per second by kind.
    pub(super) now: [f32; KINDS],
    /// Time over which `now` is measured, in seconds.
    pub(super) seconds: f32,
    /// By full name. Rules that were not there all the while have fewer steps.
    pub(super) rules: HashMap<String, RuleHistory>,
    pub(super) pools: HashMap<Box<str>, Vec<PoolStep>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RuleHistory {
    /// Passed, refused and would-refuse requests per second of each step.
    pub(super) steps: Vec<[f32; OUTCOMES]>,
    pub(super) now: [f32; OUTCOMES],
}

impl RateHistory {
    /// Sorts rules by current activity, then by total activity, then by name. Refusals weigh as much as passes: an
    /// operator looks for either.
    pub(super) fn busiest_first<'s>(
        &'s self,
        rules: &'s [RuleStatus],
    ) -> Vec<(&'s RuleStatus, Option<&'s RuleHistory>)> {
        let history = |rule: &RuleTotals| self.rules.get(&format!("{}/{}", rule.domain, rule.rule));
        let ever = |rule: &RuleStatus| rule.totals.outcomes().iter().sum::<u64>();
        let busy = |rule: Option<&RuleHistory>| rule.map_or(0.0, |rule| rule.now.iter().sum::<f32>());
        let rules = rules.iter().filter(|rule| !rule.totals.domain.is_empty() || ever(rule) > 0);
        let mut rules: Vec<_> = rules.map(|rule| (rule, history(&rule.totals))).collect();
        rules.sort_by(|(one, one_now), (other, other_now)| {
            busy(*other_now).total_cmp(&busy(*one_now)).then_with(|| ever(other).cmp(&ever(one)))
        });
        rules
    }
}

/// Logs the pools whose brake is on and was not at the last step, and the other way round.
fn log_brakes(before: &mut BTreeSet<Box<str>>, admin: &AdminState) {
    let pools = admin.engine.pools(admin.clock.now());
    let braking = pools.iter().filter(|pool| pool.configured && pool.braking);
    let braking: BTreeSet<Box<str>> = braking.map(|pool| (&*pool.pool).into()).collect();
    for pool in braking.difference(before) {
        info!(%pool, "the pool is full: its brake is on");
    }
    for pool in before.difference(&braking) {
        info!(%pool, "the brake of the pool is off again");
    }
    *before = braking;
}

impl History {
    /// Records a step every five seconds, forever.
    pub(super) async fn keep(admin: &AdminState) {
        let mut ticks = tokio::time::interval(STEP);
        // Skip the ticks missed while the host was suspended.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        // The first one comes at once.
        ticks.tick().await;
        let mut braking = BTreeSet::new();
        loop {
            ticks.tick().await;
            admin.history.note(HistorySample::take(admin));
            log_brakes(&mut braking, admin);
        }
    }

    pub(super) fn note(&self, look: HistorySample) {
        let mut past = self.past.lock();
        let past = &mut *past;
        push(&mut past.ends, look.at);
        past.kinds.get_or_insert_with(|| CountSteps::new(look.counted)).note(look.counted);
        let mut before = std::mem::take(&mut past.rules);
        for (name, counted) in look.rules.into_iter().take(RULES_MAX) {
            let mut track = before.remove(&name).unwrap_or_else(|| CountSteps::new(counted));
            track.note(counted);
            past.rules.insert(name, track);
        }
        let mut before = std::mem::take(&mut past.pools);
        for (name, step) in look.pools.into_iter().take(POOLS_MAX) {
            let mut steps = before.remove(&name).unwrap_or_default();
            push(&mut steps, step);
            past.pools.insert(name, steps);
        }
    }

    /// Returns the recorded history, including growth since the last step.
    pub(super) fn story(&self, look: &HistorySample) -> RateHistory {
        let past = self.past.lock();
        let spans = past.spans();
        let newest = past.ends.back().copied().unwrap_or(look.at);
        // Measure over the last step and the time since: at least one step, so that rates do not flicker.
        let last = spans.last().copied().unwrap_or_default();
        let seconds = (last + look.at.since(newest).as_secs_f32()).max(SECONDS_MIN);
        // Without a step, nothing was counted before.
        let none = CountSteps { steps: VecDeque::new(), counted: [0; KINDS] };
        let kinds = past.kinds.as_ref().unwrap_or(&none);
        let (steps, now) = kinds.rates(look.counted, &spans, seconds);
        let mut sums = grown(look.counted, kinds.counted).map(u64::from);
        for step in &kinds.steps {
            sums.iter_mut().zip(step).for_each(|(sum, count)| *sum += u64::from(*count));
        }
        let rules = look.rules.iter().filter_map(|(name, counted)| {
            let (steps, now) = past.rules.get(name)?.rates(*counted, &spans, seconds);
            Some((name.clone(), RuleHistory { steps, now }))
        });
        let pools = past.pools.iter().map(|(name, steps)| (name.clone(), steps.iter().copied().collect()));
        RateHistory {
            steps: past.ends.iter().map(|at| look.at.since(*at).as_secs_f32()).zip(steps).collect(),
            sums,
            now,
            seconds,
            rules: rules.collect(),
            pools: pools.collect(),
        }
    }
}

impl StepHistory {
    /// How long each step was, in seconds; the first has no beginning, and nothing in it.
    fn spans(&self) -> Vec<f32> {
        let begins = self.ends.front().into_iter().chain(&self.ends);
        self.ends.iter().zip(begins).map(|(end, begin)| end.since(*begin).as_secs_f32()).collect()
    }
}

impl<const N: usize> CountSteps<N> {
    /// Counts from before the first sight of a counter belong to no step.
    fn new(counted: [u64; N]) -> CountSteps<N> {
        CountSteps { steps: VecDeque::new(), counted }
    }

    fn note(&mut self, counted: [u64; N]) {
        push(&mut self.steps, grown(counted, self.counted));
        self.counted = counted;
    }

    /// Returns the counts per second of each step, and those in the last `seconds`, at whose end the counters have these values.
    fn rates(&self, counted: [u64; N], spans: &[f32], seconds: f32) -> (Vec<[f32; N]>, [f32; N]) {
        let skipped = spans.len().saturating_sub(self.steps.len());
        let steps = self.steps.iter().zip(spans.iter().skip(skipped));
        let steps = steps.map(|(step, span)| step.map(|count| per_second(count, *span))).collect();
        let mut now = self.steps.back().copied().unwrap_or([0; N]).map(|count| count as f32 / seconds);
        let since = grown(counted, self.counted);
        now.iter_mut().zip(since).for_each(|(rate, count)| *rate += count as f32 / seconds);
        (steps, now)
    }
}

impl HistorySample {
    /// Reads the current counters, the same ones that a scrape reads.
    pub(super) fn take(admin: &AdminState) -> HistorySample {
        let now = admin.clock.now();
        let Totals { verdicts: VerdictTotals { allow, limit, wait, deny, shed }, rules, .. } =
            admin.engine.totals();
        // Saturates, as clients may report any number.
        let missed = admin.server.missed_decisions().filter(|(_, reason, _)| reason.is_without_daemon());
        let missed = missed.fold(0_u64, |sum, (.., count)| sum.saturating_add(count));
        HistorySample {
            at: now.at,
            counted: [allow, limit, wait, deny, shed, missed],
            rules: rules
                .iter()
                .map(|rule| (format!("{}/{}", rule.domain, rule.rule), rule.outcomes()))
                .collect(),
            pools: admin.engine.pools(now).iter().filter(|pool| pool.configured).map(of_pool).collect(),
        }
    }
}

fn of_pool(pool: &PoolView) -> (Box<str>, PoolStep) {
    let utilization = pool.utilization.map(short);
    (pool.pool.clone(), PoolStep { utilization, severity: short(pool.severity) })
}

/// As exact as a picture.
#[allow(clippy::cast_possible_truncation, reason = "a share of one loses but its last digits")]
fn short(share: f64) -> f32 {
    share as f32
}

fn push<S>(steps: &mut VecDeque<S>, step: S) {
    if steps.len() >= STEPS_MAX {
        steps.pop_front();
    }
    steps.push_back(step);
}

/// Returns the growth of monotonic counters. Saturates: more than a `u32` does not happen in five seconds.
fn grown<const N: usize>(now: [u64; N], before: [u64; N]) -> [u32; N] {
    let mut grown = [0; N];
    for ((grown, now), before) in grown.iter_mut().zip(now).zip(before) {
        *grown = u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
    }
    grown
}

fn per_second(count: u32, span: f32) -> f32 {
    if span > 0.0 { count as f32 / span } else { 0.0 }
}

/// Allowed, limited, waited, denied, shed, and decided by clients without the daemon.
pub(super) const KINDS: usize = 6;

/// Passed, refused, would refuse.
pub(super) const OUTCOMES: usize = 3;

/// A picture as wide as a screen shows no more; a fifth of the looks of a scrape every second.
const STEP: Duration = Duration::from_secs(5);

/// Ten minutes of steps, enough for a first look; Prometheus covers longer times.
const STEPS_MAX: usize = 120;

/// The rules that are counted by name, and all others together. With 120 steps of 12 bytes each that is 740 KiB.
const RULES_MAX: usize = 513;

/// More pools than a host has applications; 120 steps of 12 bytes for each.
const POOLS_MAX: usize = 64;

/// The first seconds of a daemon: a rate over less is noise.
const SECONDS_MIN: f32 = 1.0;

#[cfg(test)]
mod tests {
    use super::{History, HistorySample, KINDS, OUTCOMES, PoolStep, RULES_MAX};
    use crate::clock::Timestamp;

    fn look(seconds: u64, allowed: u64, rules: &[(&str, u64)]) -> HistorySample {
        let mut counted = [0; KINDS];
        counted[0] = allowed;
        let of = |(name, passed): &(&str, u64)| ((*name).to_owned(), [*passed, 0, 0]);
        let step = PoolStep { utilization: Some(0.5), severity: -0.1 };
        let pools = vec![("web".into(), step)];
        HistorySample {
            at: Timestamp::from_nanos(seconds * 1_000_000_000),
            counted,
            rules: rules.iter().map(of).collect(),
            pools,
        }
    }

    #[test]
    fn steps_have_their_age_and_counts_per_second() {
        let history = History::default();
        // A daemon that took up counts of before: they did not happen just now.
        history.note(look(100, 1_000, &[("a", 50)]));
        history.note(look(105, 1_050, &[("a", 60)]));
        // It slept: the same count over a longer time is less in a second.
        history.note(look(125, 1_100, &[("a", 60), ("b", 7)]));
        history.note(look(127, 1_100, &[("a", 60), ("b", 9)]));
        let story = history.story(&look(130, 1_120, &[("a", 65), ("b", 9), ("new", 3)]));
        let steps: Vec<_> = story.steps.iter().map(|(ago, step)| (*ago, step[0])).collect();
        assert_eq!(steps, [(30.0, 0.0), (25.0, 10.0), (5.0, 2.5), (3.0, 0.0)]);
        // The current rate covers the last full step and the time since.
        assert_eq!((story.seconds, story.now[0], story.sums[0]), (5.0, 4.0, 120));
        let passed = |name: &str| story.rules[name].steps.iter().map(|step| step[0]).collect::<Vec<_>>();
        assert_eq!((passed("a"), passed("b")), (vec![0.0, 2.0, 0.0, 0.0], vec![0.0, 1.0]));
        assert_eq!([story.rules["a"].now[0], story.rules["b"].now[0]], [1.0, 0.4]);
        assert_eq!((story.rules.contains_key("new"), story.pools["web"].len()), (false, 4));
    }

    #[test]
    fn drops_removed_rules_and_ignores_falling_counts() {
        let history = History::default();
        history.note(look(0, 10, &[("a", 10), ("b", 10)]));
        history.note(look(5, 4, &[("b", 3)]));
        let story = history.story(&look(6, 4, &[("a", 10), ("b", 3)]));
        assert_eq!((story.now[0], story.sums[0], story.rules.contains_key("a")), (0.0, 0, false));
        assert_eq!(story.rules["b"].now, [0.0; OUTCOMES]);
        // Nothing is known yet, and nothing is divided by.
        let story = History::default().story(&look(0, 9, &[]));
        assert!(
            (story.seconds - 1.0).abs() < 1e-6 && story.steps.is_empty() && story.now[0] == 9.0,
            "{story:?}"
        );
    }

    #[test]
    fn keeps_ten_minutes_of_a_bounded_number_of_rules() {
        let history = History::default();
        let names: Vec<String> = (0..2_000).map(|number| format!("domain/rule-{number}")).collect();
        let rules: Vec<(&str, u64)> = names.iter().map(|name| (&**name, 1)).collect();
        for step in 0..300 {
            history.note(look(step * 5, step, &rules));
        }
        let story = history.story(&look(1_500, 300, &rules));
        assert_eq!((story.steps.len(), story.rules.len()), (120, RULES_MAX));
        assert!(story.steps.first().is_some_and(|(ago, _)| *ago <= 600.0));
    }
}
