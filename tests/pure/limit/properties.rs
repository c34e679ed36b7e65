//! Properties of every algorithm, over random traces against its definition: a list of all charges.

use proptest::prelude::*;
use proptest::sample::select;
use tidegate::clock::{Micros, Now, Timestamp};
use tidegate::limit::fixed_window::{FixedWindowQuota, WindowAlign, WindowPeriod};
use tidegate::limit::leaky_bucket::LeakyBucketQuota;
use tidegate::limit::sliding_log::{COUNT_MAX, SlidingLogQuota};
use tidegate::limit::sliding_window::SlidingWindowQuota;
use tidegate::limit::token_bucket::TokenBucketQuota;
use tidegate::limit::{Outcome, Rate, TickScale};

use super::key::Key;
use super::{DAY, MILLI, SECOND};
use crate::definition::{Charged, Definition};

/// A new key, and its definition.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    key: Key,
    definition: Definition,
    limit: u32,
    window: u64,
    /// Whether the rate has no rounding.
    is_exact: bool,
}

impl Subject {
    /// A log that is charged beyond its limit stores that many units separately, as the engine has it.
    fn with_debt(mut self) -> Subject {
        if let Key::SlidingLog(quota, _) = &mut self.key {
            *quota = quota.with_stored_units(2 * self.limit + 1);
        }
        self
    }
}

/// Far enough from 1970 for any step of the wall clock.
const START: Now = Now { at: Timestamp::from_nanos(20_000 * DAY), utc_offset_nanos: 0 };

fn rates() -> impl Strategy<Value = Rate> {
    let period = prop_oneof![Just(1_u64), Just(60), Just(3_600), Just(86_400), 1_u64..100];
    let count = prop_oneof![1_u32..=128, Just(3), Just(7), 129_u32..100_000];
    (count, period).prop_map(|(count, seconds)| Rate::new(count, seconds * SECOND).unwrap())
}

fn bucket(key: Key, rate: Rate, limit: u32) -> Subject {
    let definition =
        Definition::Bucket { parts: i128::from(rate.count()), interval: i128::from(rate.period_nanos()) };
    let window = rate.period_nanos() * u64::from(limit) / u64::from(rate.count());
    let is_exact = rate.rounding_parts_on(TickScale::for_rate(rate)).is_none();
    Subject { key, definition, limit, window: window.max(20), is_exact }
}

pub(crate) fn token_buckets() -> impl Strategy<Value = Subject> {
    (rates(), 1_u32..200).prop_map(|(rate, burst)| {
        bucket(Key::token_bucket(TokenBucketQuota::new(rate, burst).unwrap(), START), rate, burst)
    })
}

fn leaky_buckets() -> impl Strategy<Value = Subject> {
    (rates(), 0_u32..30).prop_map(|(rate, queue)| {
        bucket(Key::leaky_bucket(LeakyBucketQuota::new(rate, queue).unwrap(), START), rate, queue + 1)
    })
}

/// Windows whose ends follow by plain division.
fn fixed_windows() -> impl Strategy<Value = Subject> {
    let nanos =
        select(vec![SECOND, 60 * SECOND, 3_600 * SECOND, 6 * 3_600 * SECOND, DAY, 3 * DAY, 7 * SECOND / 3]);
    let align = select(vec![WindowAlign::Utc, WindowAlign::First, WindowAlign::Epoch]);
    (0_u32..20, nanos, align).prop_map(|(count, nanos, align)| {
        // A window that does not divide the day is cut at midnight.
        let is_cut = align == WindowAlign::Utc && !DAY.is_multiple_of(nanos) && nanos < DAY;
        let align = if is_cut { WindowAlign::Epoch } else { align };
        let first = align == WindowAlign::First;
        let key = FixedWindowQuota::new(count, WindowPeriod::Nanos(nanos), align).unwrap();
        let definition = Definition::FixedWindow { nanos, first };
        Subject { key: Key::fixed_window(key), definition, limit: count, window: nanos, is_exact: true }
    })
}

fn window_nanos() -> impl Strategy<Value = u64> {
    prop_oneof![Just(MILLI), Just(SECOND), Just(60 * SECOND + 1), Just(366 * DAY), MILLI..SECOND]
}

fn logs() -> impl Strategy<Value = Subject> {
    let count = prop_oneof![3 => 1_u32..12, 2 => 12_u32..200, 1 => Just(COUNT_MAX)];
    (count, window_nanos()).prop_map(|(limit, nanos)| {
        let key = Key::sliding_log(SlidingLogQuota::new(limit, nanos).unwrap());
        Subject { key, definition: Definition::SlidingLog { nanos }, limit, window: nanos, is_exact: true }
    })
}

fn sliding_windows() -> impl Strategy<Value = Subject> {
    let count = prop_oneof![3 => 1_u32..12, 2 => 12_u32..500];
    let buckets = prop_oneof![Just(1), Just(2), Just(7), Just(60), 1_u8..=60];
    (count, window_nanos(), buckets).prop_map(|(limit, nanos, buckets)| {
        let key = Key::sliding_window(SlidingWindowQuota::new(limit, nanos, buckets).unwrap());
        let definition = Definition::SlidingWindow { nanos, buckets };
        Subject { key, definition, limit, window: nanos, is_exact: true }
    })
}

fn subjects() -> impl Strategy<Value = Subject> {
    prop_oneof![token_buckets(), leaky_buckets(), fixed_windows(), logs(), sliding_windows()]
}

/// How far the clocks move before a step.
#[derive(Clone, Copy, Debug)]
enum Pause {
    Nanos(i64),
    /// Until the request fits by definition, less some nanoseconds.
    Until(u64),
    /// A step of the wall clock.
    Wall(i64),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request, charged if allowed.
    Ask(u32),
    /// Charged even if refused.
    Count(u32),
    /// Charged after the fact, with this much debt.
    Owe(u32, u32),
    Refund(u32),
}

#[derive(Clone, Debug)]
pub(crate) struct Trace {
    subject: Subject,
    steps: Vec<(Pause, Event)>,
}

/// Requests while the clocks of threads differ and the wall clock steps.
fn unsteady() -> impl Strategy<Value = Trace> {
    subjects().prop_flat_map(|subject| {
        let whole = i64::try_from(subject.window).unwrap();
        let unit = whole / i64::from(subject.limit.clamp(1, 20));
        let pause = prop_oneof![
            8 => (0..unit * 2).prop_map(Pause::Nanos),
            3 => Just(Pause::Nanos(0)),
            1 => Just(Pause::Nanos(whole)),
            1 => (0..whole * 3).prop_map(Pause::Nanos),
            1 => (-unit * 3..0).prop_map(Pause::Nanos),
            1 => (-whole..whole).prop_map(Pause::Wall),
        ];
        let step = (pause, costs(subject.limit).prop_map(Event::Ask));
        prop::collection::vec(step, 1..120).prop_map(move |steps| Trace { subject: subject.clone(), steps })
    })
}

/// Requests to the nanosecond, and charges of one other kind: a log merges entries of several.
fn steady() -> impl Strategy<Value = Trace> {
    steady_of(subjects(), 0..4)
}

/// Requests to the nanosecond alone.
pub(crate) fn requests(subjects: impl Strategy<Value = Subject>) -> impl Strategy<Value = Trace> {
    steady_of(subjects, 0..1)
}

fn steady_of(
    subjects: impl Strategy<Value = Subject>,
    kinds: std::ops::Range<u8>,
) -> impl Strategy<Value = Trace> {
    (subjects, kinds).prop_flat_map(|(subject, kind)| {
        let subject = if kind == DEBT { subject.with_debt() } else { subject };
        let unit = i64::try_from(subject.window).unwrap() / i64::from(subject.limit.clamp(1, 20));
        let pause = prop_oneof![
            8 => (0..unit * 2).prop_map(Pause::Nanos),
            3 => Just(Pause::Nanos(0)),
            3 => (0..2_u64).prop_map(Pause::Until),
            1 => (0..unit * 60).prop_map(Pause::Nanos),
        ];
        let amount = move || costs(subject.limit);
        let other = match kind {
            0 => amount().prop_map(Event::Ask).boxed(),
            1 => amount().prop_map(Event::Count).boxed(),
            DEBT => (amount(), amount()).prop_map(|(amount, most)| Event::Owe(amount, most)).boxed(),
            _ => amount().prop_map(Event::Refund).boxed(),
        };
        let event = prop_oneof![4 => amount().prop_map(Event::Ask), 1 => other];
        prop::collection::vec((pause, event), 1..80)
            .prop_map(move |steps| Trace { subject: subject.clone(), steps })
    })
}

/// The kind of traces with charges after the fact.
const DEBT: u8 = 2;

fn costs(limit: u32) -> impl Strategy<Value = u32> {
    prop_oneof![6 => Just(1_u32), 2 => 0..limit + 2, 1 => Just(limit)]
}

fn after(now: Now, nanos: u64) -> Now {
    Now { at: Timestamp::from_nanos(now.at.as_nanos() + nanos), ..now }
}

/// The first nanosecond from now at which this holds; it then holds for good.
fn first(holds: impl Fn(u64) -> bool) -> Option<u64> {
    let above = (0..62).map(|bits| (1_u64 << bits) - 1).find(|nanos| holds(*nanos))?;
    let (mut below, mut above) = (above / 2, above);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if holds(middle) { above = middle } else { below = middle }
    }
    Some(above)
}

/// Runs a trace; `each` sees key and definition before every request.
pub(crate) fn run(trace: &Trace, mut each: impl FnMut(Now, u32, &Key, &Charged)) {
    let Subject { mut key, definition, limit, .. } = trace.subject.clone();
    let limit = u64::from(limit);
    let is_leaky = matches!(key, Key::LeakyBucket(..));
    let (mut now, mut charged) = (START, Charged::default());
    if definition.is_bucket() {
        definition.charge(&mut charged, now, 0, 0);
    }
    for (pause, event) in &trace.steps {
        match (*pause, *event) {
            (Pause::Nanos(nanos), _) => {
                now.at = Timestamp::from_nanos(now.at.as_nanos().saturating_add_signed(nanos));
            }
            (Pause::Until(less), Event::Ask(cost)) => {
                let fits =
                    |nanos| definition.remaining(&charged, after(now, nanos), limit) >= u64::from(cost);
                now = after(now, first(fits).unwrap_or(0).saturating_sub(less));
            }
            (Pause::Until(_), _) => {}
            (Pause::Wall(nanos), _) => now.utc_offset_nanos += nanos,
        }
        match *event {
            Event::Ask(cost) => {
                each(now, cost, &key, &charged);
                if cost > 0 && key.passes(now, cost) {
                    key.charge(now, cost);
                    definition.charge(&mut charged, now, u64::from(cost), 0);
                }
            }
            Event::Count(cost) if cost > 0 && !definition.is_bucket() => {
                key.charge(now, cost);
                definition.charge(&mut charged, now, u64::from(cost), 0);
            }
            Event::Owe(amount, most) if !is_leaky => {
                key.charge_debt(now, amount, most);
                definition.owe(&mut charged, now, u64::from(amount), limit + u64::from(most));
            }
            Event::Refund(amount) if !is_leaky => {
                key.refund(now, amount);
                definition.refund(&mut charged, now, u64::from(amount));
            }
            _ => {}
        }
    }
}

fn any_trace() -> impl Strategy<Value = Trace> {
    prop_oneof![steady(), unsteady()]
}

/// Numbers at the ends of their ranges.
fn extreme_keys() -> impl Strategy<Value = Key> {
    let count = || prop_oneof![Just(1_u32), Just(u32::MAX), any::<u32>().prop_map(|count| count.max(1))];
    let nanos = || select(vec![MILLI, 7 * SECOND / 3, DAY, 7 * DAY, 366 * DAY]);
    let rate = || {
        (1_u32..1_000_000, select(vec![SECOND, 366 * DAY]))
            .prop_map(|(count, period)| Rate::new(count, period).unwrap())
    };
    let burst = || prop_oneof![1_u32..100, any::<u32>()];
    let start = Now::at_nanos(0);
    let zone = jiff::tz::TimeZone::get("America/Sao_Paulo").unwrap();
    let aligns = vec![WindowAlign::Utc, WindowAlign::First, WindowAlign::Epoch, WindowAlign::Zone(zone)];
    prop_oneof![
        (rate(), burst()).prop_filter_map("too large", move |(rate, burst)| {
            TokenBucketQuota::new(rate, burst).ok().map(|quota| Key::token_bucket(quota, start))
        }),
        (rate(), burst()).prop_filter_map("too long", move |(rate, queue)| {
            LeakyBucketQuota::new(rate, queue).ok().map(|quota| Key::leaky_bucket(quota, start))
        }),
        (prop_oneof![Just(0), count()], nanos(), 0_u32..13, select(aligns)).prop_map(
            |(count, nanos, months, align)| {
                let period =
                    if months == 0 { WindowPeriod::Nanos(nanos) } else { WindowPeriod::Months(months) };
                Key::fixed_window(FixedWindowQuota::new(count, period, align).unwrap())
            }
        ),
        (1..=COUNT_MAX, nanos())
            .prop_map(|(count, nanos)| Key::sliding_log(SlidingLogQuota::new(count, nanos).unwrap())),
        (count(), nanos(), 1_u8..=60).prop_map(|(count, nanos, buckets)| {
            Key::sliding_window(SlidingWindowQuota::new(count, nanos, buckets).unwrap())
        }),
    ]
}

proptest! {
    #![proptest_config(crate::rng::cases(250))]

    #[test]
    fn decides_as_defined(trace in any_trace()) {
        let Subject { definition, limit, is_exact, .. } = trace.subject;
        prop_assume!(is_exact);
        run(&trace, |now, cost, key, charged| {
            let remaining = definition.remaining(charged, now, u64::from(limit));
            assert_eq!(key.passes(now, cost), cost == 0 || u64::from(cost) <= remaining, "{cost} of {remaining}");
            assert_eq!(key.level(now).remaining, remaining, "{cost} asked");
        });
    }

    #[test]
    fn retry_after_is_exact_to_the_microsecond(trace in any_trace()) {
        run(&trace, |now, cost, key, _| match key.judge(now, cost) {
            Outcome::Later(Micros(wait)) => {
                assert!(key.passes(after(now, wait * 1_000), cost), "{cost} after {wait} µs");
                assert!(!key.passes(after(now, (wait - 1) * 1_000), cost), "{cost} before {wait} µs");
            }
            Outcome::Never => assert!(cost > trace.subject.limit),
            Outcome::Pass | Outcome::Queued(_) => assert!(cost <= trace.subject.limit),
        });
    }

    #[test]
    fn remaining_cost_passes_and_reset_is_next_increase(trace in any_trace()) {
        run(&trace, |now, _, key, _| {
            let level = key.level(now);
            let remaining = u32::try_from(level.remaining).unwrap();
            assert!(key.passes(now, remaining) && !key.passes(now, remaining + 1), "{level:?}");
            let later = |micros: u64| key.level(after(now, micros * 1_000)).remaining;
            if level.remaining == level.limit {
                assert_eq!(level.reset, Micros::ZERO);
            } else {
                assert!(later(level.reset.0) > level.remaining, "{level:?}");
                assert_eq!(later(level.reset.0 - 1), level.remaining, "{level:?}");
            }
            assert_eq!(key.level(after(now, key.nanos_until_fresh(now))).remaining, level.limit);
            // No level falls by itself.
            let levels = (0..6).map(|part| later(part * trace.subject.window / 4_000));
            assert!(levels.is_sorted());
        });
    }

    #[test]
    fn never_overflows(
        key in extreme_keys(),
        steps in prop::collection::vec((
            prop_oneof![any::<u64>(), Just(0), Just(u64::MAX)],
            prop_oneof![any::<i64>(), Just(0), Just(i64::MIN), Just(i64::MAX)],
            any::<u32>(), any::<u32>(),
        ), 1..40),
    ) {
        let mut key = key;
        for (nanos, utc, cost, amount) in steps {
            let now = Now { at: Timestamp::from_nanos(nanos), utc_offset_nanos: utc };
            if key.passes(now, cost) {
                key.charge(now, cost);
            }
            key.charge_debt(now, amount, cost);
            if !matches!(key, Key::TokenBucket(..) | Key::LeakyBucket(..)) {
                key.charge(now, u32::MAX);
                prop_assert!(key.level(now).remaining == 0 && !key.passes(now, 1));
            }
            key.nanos_until_fresh(now);
            let level = key.level(now);
            prop_assert!(level.remaining <= level.limit && level.window > Micros::ZERO);
            prop_assert!(level.remaining == level.limit || level.reset > Micros::ZERO);
            key.refund(now, cost);
        }
    }
}
