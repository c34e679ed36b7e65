//! Random rules and traces, and the rules as file text. Nothing is checked here.

use proptest::prelude::*;
use proptest::sample::select;

/// One rule.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    /// Keyed by `u`, else one state.
    pub(super) keyed: bool,
    /// Only for `p=y`.
    pub(super) matching: bool,
    /// Counted in tokens, else in requests.
    pub(super) tokens: bool,
    pub(super) shadow: bool,
    pub(super) advertise: bool,
    /// In percent.
    pub(super) warn_at: Option<u64>,
    pub(super) written: Written,
    /// The terms of `u=2`.
    pub(super) other: Option<Terms>,
    /// Whether `u=3` is unlimited.
    pub(super) unlimited: bool,
    pub(super) candidate: Option<Written>,
}

/// The fields of a rule or a shadow rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) algorithm: Algorithm,
    pub(super) terms: Terms,
    pub(super) burst: u64,
    pub(super) queue: u64,
    pub(super) buckets: u64,
    pub(super) first: bool,
    pub(super) over: Over,
    pub(super) counted: bool,
    pub(super) block_ms: Option<u64>,
    pub(super) max_debt: Option<u64>,
}

/// A count of units per number of seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) count: u64,
    pub(super) seconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
}

/// Shares in percent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Over {
    Refuse,
    Soft(u64, Option<u64>),
    Elastic(u64),
}

/// An event, and the pause before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) pause: Pause,
    pub(super) user: &'static str,
    pub(super) p: &'static str,
    pub(super) event: Event,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Pause {
    Nanos(u64),
    /// The last retry-after, or a microsecond less.
    Retry(u64),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Ask { peek: bool, requests: u32, tokens: Option<u32>, wait_max: Option<u64> },
    Charge { requests: i64, tokens: Option<i64> },
    Room(bool),
    Tick,
}

impl Written {
    fn has(&self, field: &str) -> bool {
        match field {
            "over" | "max_debt" => self.algorithm != Algorithm::LeakyBucket,
            _ => !matches!(self.algorithm, Algorithm::LeakyBucket | Algorithm::TokenBucket),
        }
    }

    fn text(&self) -> String {
        let Terms { count, seconds } = self.terms;
        let mut text = format!("rate: {count}/{seconds}s");
        text += &match self.algorithm {
            Algorithm::TokenBucket => format!(", algorithm: token_bucket, burst: {}", self.burst),
            Algorithm::LeakyBucket => format!(", algorithm: leaky_bucket, queue: {}", self.queue),
            Algorithm::FixedWindow => {
                format!(", algorithm: fixed_window, align: {}", if self.first { "first" } else { "utc" })
            }
            Algorithm::SlidingLog => ", algorithm: sliding_log".to_owned(),
            Algorithm::SlidingWindow => format!(", algorithm: sliding_window, buckets: {}", self.buckets),
        };
        if self.has("over") {
            text += &match self.over {
                Over::Refuse => ", over: refuse".to_owned(),
                Over::Soft(share, None) => format!(", over: {{soft: {share}%}}"),
                Over::Soft(share, Some(millis)) => format!(", over: {{soft: {share}%, for: {millis}ms}}"),
                Over::Elastic(share) => format!(", over: {{elastic: {share}%}}"),
            };
        }
        if self.has("refused") {
            text += if self.counted { ", refused: counted" } else { ", refused: free" };
        }
        if let Some(millis) = self.block_ms {
            text += &format!(", block: {millis}ms");
        }
        if let Some(debt) = self.max_debt.filter(|_| self.has("max_debt")) {
            text += &format!(", max_debt: {debt}");
        }
        text
    }
}

impl Spec {
    /// The shadow rule with the fields it inherits.
    pub(super) fn candidate(&self) -> Option<Written> {
        let candidate = self.candidate?;
        Some(Written {
            block_ms: candidate.block_ms.or(self.written.block_ms),
            max_debt: candidate.max_debt.or(self.written.max_debt.filter(|_| self.written.has("max_debt"))),
            ..candidate
        })
    }

    pub(super) fn text(&self, name: &str) -> String {
        let mut text = format!("  - {{name: {name}, key: [{}]", if self.keyed { "u" } else { "" });
        if self.matching {
            text += ", match: {p: y}";
        }
        if self.tokens {
            text += ", unit: tokens";
        }
        if self.shadow {
            text += ", mode: shadow";
        }
        if !self.advertise {
            text += ", advertise: false";
        }
        if let Some(share) = self.warn_at {
            text += &format!(", warn_at: {share}%");
        }
        text += &format!(", {}", self.written.text());
        let mut overrides = Vec::new();
        if let Some(Terms { count, seconds }) = self.other {
            overrides.push(format!("{{match: {{u: '2'}}, rate: {count}/{seconds}s}}"));
        }
        if self.unlimited {
            overrides.push("{match: {u: '3'}, rate: unlimited}".to_owned());
        }
        if !overrides.is_empty() {
            text += &format!(", overrides: [{}]", overrides.join(", "));
        }
        if let Some(candidate) = self.candidate {
            text += &format!(", candidate: {{{}}}", candidate.text());
        }
        text + "}\n"
    }
}

pub(super) fn specs() -> impl Strategy<Value = Vec<Spec>> {
    prop_oneof![
        4 => prop::collection::vec(spec(), 1..5),
        // Rules of the fast path.
        1 => prop::collection::vec(simple_bucket(), 1..5),
    ]
}

pub(super) fn steps(len: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..len)
}

fn terms() -> impl Strategy<Value = Terms> {
    // With the seconds in nanoseconds these have no factors but 2, 3, 5 and 7: exact on the model's ticks.
    (select(vec![1, 2, 3, 5, 7, 10]), select(vec![1, 10, 60]))
        .prop_map(|(count, seconds)| Terms { count, seconds })
}

fn over() -> impl Strategy<Value = Over> {
    prop_oneof![
        3 => Just(Over::Refuse),
        2 => (select(vec![10, 50, 100]), prop::option::of(select(vec![500, 5_000, 60_000])))
            .prop_map(|(share, millis)| Over::Soft(share, millis)),
        1 => select(vec![50, 100, 200]).prop_map(Over::Elastic),
    ]
}

fn written() -> impl Strategy<Value = Written> {
    let algorithm = select(vec![
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
    ]);
    let numbers = (terms(), 1..12_u64, 0..4_u64, select(vec![1, 2, 3, 7, 10]), any::<bool>());
    let block = prop::option::weighted(0.25, select(vec![1_500, 30_000, 120_000]));
    let debt = prop::option::of(select(vec![0, 1, 5]));
    (algorithm, numbers, over(), prop::bool::weighted(0.3), block, debt).prop_map(
        |(algorithm, (terms, burst, queue, buckets, first), over, counted, block_ms, max_debt)| Written {
            algorithm,
            terms,
            burst,
            queue,
            buckets,
            first,
            over,
            counted,
            block_ms,
            max_debt,
        },
    )
}

fn spec() -> impl Strategy<Value = Spec> {
    let flags = (
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.8),
    );
    let warn_at = prop::option::weighted(0.3, select(vec![50, 80]));
    let overrides = (prop::option::weighted(0.3, terms()), prop::bool::weighted(0.2));
    (flags, warn_at, written(), overrides, prop::option::weighted(0.3, written())).prop_map(
        |((keyed, matching, tokens, shadow, advertise), warn_at, written, (other, unlimited), candidate)| {
            Spec {
                keyed,
                matching,
                tokens,
                shadow,
                advertise,
                warn_at,
                written,
                // Keys that change their terms are not covered.
                other: other.filter(|_| keyed),
                unlimited: unlimited && keyed,
                candidate,
            }
        },
    )
}

/// A token bucket without options.
fn simple_bucket() -> impl Strategy<Value = Spec> {
    spec().prop_map(|spec| Spec {
        tokens: false,
        warn_at: None,
        written: Written {
            algorithm: Algorithm::TokenBucket,
            over: Over::Refuse,
            block_ms: None,
            ..spec.written
        },
        other: None,
        unlimited: false,
        candidate: None,
        ..spec
    })
}

fn step() -> impl Strategy<Value = Step> {
    let pause = prop_oneof![
        4 => Just(Pause::Nanos(0)),
        2 => (0..5_000_u64).prop_map(Pause::Nanos),
        4 => (0..2_500_000_000_u64).prop_map(Pause::Nanos),
        2 => (0..90_u64).prop_map(|seconds| Pause::Nanos(seconds * 1_000_000_000)),
        2 => (0..2_u64).prop_map(Pause::Retry),
    ];
    let cost = || prop_oneof![1 => Just(0_u32), 8 => Just(1), 4 => 1..5_u32, 1 => 5..14_u32];
    let wait_max = prop_oneof![3 => Just(None), 1 => Just(Some(0)), 1 => (0..3_000_000_u64).prop_map(Some)];
    let event = prop_oneof![
        12 => (prop::bool::weighted(0.15), cost(), prop::option::of(cost()), wait_max)
            .prop_map(|(peek, requests, tokens, wait_max)| Event::Ask { peek, requests, tokens, wait_max }),
        2 => (-6..8_i64, prop::option::of(-6..8_i64))
            .prop_map(|(requests, tokens)| Event::Charge { requests, tokens }),
        1 => any::<bool>().prop_map(Event::Room),
        1 => Just(Event::Tick),
    ];
    (pause, select(vec!["1", "1", "2", "3"]), select(vec!["y", "n"]), event)
        .prop_map(|(pause, user, p, event)| Step { pause, user, p, event })
}
