//! Fields of rules of `limits`, their shadow rules and overrides: names, types, defaults, descriptions.

use super::field::{Field, FieldKind};
use super::fleet::{MODE_WORDS, ON_MISS_WORDS};

pub(super) const RULE: &[Field] = &[
    NAME,
    MATCH,
    KEY,
    ALGORITHM,
    RATE,
    BURST,
    QUEUE,
    BUCKETS,
    ALIGN,
    TIMEZONE,
    MODE,
    UNIT,
    OVER_FIELD,
    REFUSED,
    BLOCK,
    MAX_DEBT,
    CANDIDATE_FIELD,
    OVERRIDES,
    OVERRIDES_FILE,
    WARN_AT,
    ADVERTISE,
    HELP,
    SHOW_KEYS,
    REFUND_ON,
    SCOPE,
    FLEET,
    MAX_OVER,
    GUARD,
];

/// The fields of a shadow rule, which define its limit.
pub(super) const CANDIDATE: &[Field] = &[
    ALGORITHM.or(AS_THE_RULE),
    RATE.or(AS_THE_RULE),
    BURST.or(AS_THE_RULE),
    QUEUE.or(AS_THE_RULE),
    BUCKETS.or(AS_THE_RULE),
    ALIGN.or(AS_THE_RULE),
    TIMEZONE.or(AS_THE_RULE),
    OVER_FIELD.or(AS_THE_RULE),
    REFUSED.or(AS_THE_RULE),
    BLOCK.or(AS_THE_RULE),
    MAX_DEBT.or(AS_THE_RULE),
];

pub(super) const OVERRIDE: &[Field] = &[MATCH.required(), RATE, BURST.or("the number of its own rate")];

/// Fields of `over` in its mapping form.
pub(super) const OVER: &[Field] = &[
    Field::built("soft")
        .of(FieldKind::Percent)
        .about("how much of the limit may be used on top of it: such requests pass, marked and charged"),
    Field::built("for").of(FieldKind::Time).or("without end").about(
        "how long a caller may go on so, from the first request passed over; then until it has room again",
    ),
    Field::built("elastic")
        .of(FieldKind::Percent)
        .about("a second quota of so much, used while the pool has room: such requests pass, marked"),
];

const TOKEN_BUCKET: &str = "token_bucket";
const LEAKY_BUCKET: &str = "leaky_bucket";
const FIXED_WINDOW: &str = "fixed_window";
const SLIDING_LOG: &str = "sliding_log";
const SLIDING_WINDOW: &str = "sliding_window";
const WINDOWS: &[&str] = &[FIXED_WINDOW, SLIDING_LOG, SLIDING_WINDOW];
const NOT_LEAKY: &[&str] = &[TOKEN_BUCKET, FIXED_WINDOW, SLIDING_LOG, SLIDING_WINDOW];

const AS_THE_RULE: &str = "as in the rule";

pub(super) const NAME: Field = Field::built("name")
    .of(FieldKind::Name)
    .required()
    .about("what answers, logs and metrics call it; unique in its domain");

pub(super) const MATCH: Field = Field::built("match")
    .of(FieldKind::Attributes(&VALUES))
    .or("all requests")
    .about("what a request must have: every attribute, and of a list any value; see Matching");

/// One value of an attribute, or a list of alternatives.
pub(super) const VALUES: FieldKind =
    FieldKind::Either(&[FieldKind::Text, FieldKind::List(&VALUE), FieldKind::Section("condition")]);

const VALUE: FieldKind = FieldKind::Either(&[FieldKind::Text, FieldKind::Section("condition")]);

pub(super) const KEY: Field = Field::built("key")
    .of(FieldKind::List(&FieldKind::Either(&[FieldKind::Name, FieldKind::Section("key part")])))
    .required()
    .about("the attributes whose values are counted apart, at most 16; `[]` is one counter for all");

const ALGORITHM: Field = Field::built("algorithm")
    .of(FieldKind::Words(&[TOKEN_BUCKET, LEAKY_BUCKET, FIXED_WINDOW, SLIDING_LOG, SLIDING_WINDOW]))
    .or("`token_bucket`")
    .about("how it counts; see Algorithms");

const RATE: Field = Field::built("rate")
    .of(FieldKind::Rate)
    .required()
    .about("how much in which time, such as `100/s`; see Rates");

const BURST: Field = Field::built("burst")
    .of(FieldKind::Whole(1, u32::MAX))
    .or("the number of the rate")
    .only(&[TOKEN_BUCKET])
    .about("how much a full bucket holds");

const QUEUE: Field = Field::built("queue")
    .of(FieldKind::Whole(0, u32::MAX))
    .or("0")
    .only(&[LEAKY_BUCKET])
    .about("how much may wait for its turn, in units of cost");

const BUCKETS: Field = Field::built("buckets")
    .of(FieldKind::Whole(1, 60))
    .or("10")
    .only(&[SLIDING_WINDOW])
    .about("into how many parts the window is cut: more is more exact and takes more memory");

const ALIGN: Field = Field::built("align")
    .of(FieldKind::Words(&["utc", "first"]))
    .or("`utc`")
    .only(&[FIXED_WINDOW])
    .about("when a window starts: by the calendar, or with the first request of its key");

const TIMEZONE: Field = Field::built("timezone")
    .of(FieldKind::Text)
    .or("UTC")
    .only(&[FIXED_WINDOW])
    .about("whose calendar, such as `Europe/Berlin`");

pub(super) const MODE: Field = Field::built("mode")
    .of(FieldKind::Words(&["enforce", "shadow", "disabled"]))
    .or("`enforce`")
    .about("whether refusals are carried out, only counted, or nothing is judged");

const UNIT: Field = Field::built("unit")
    .of(FieldKind::Name)
    .or("`requests`")
    .about("what it counts in; a request that does not name the unit is not judged by it");

const OVER_FIELD: Field = Field::built("over")
    .of(FieldKind::Either(&[FieldKind::Words(&["refuse"]), FieldKind::Section("over")]))
    .or("`refuse`")
    .only(NOT_LEAKY)
    .about("what becomes of what is too much: `refuse`, `{soft: 10%, for: 60s}` or `{elastic: 100%}`");

const REFUSED: Field = Field::built("refused")
    .of(FieldKind::Words(&["free", "counted"]))
    .or("`free`")
    .only(WINDOWS)
    .about("whether a refused request costs nothing or as much as one that passed");

const BLOCK: Field = Field::built("block")
    .of(FieldKind::Time)
    .or("not at all")
    .about("how long a key is refused once it was refused; what comes meanwhile does not extend it");

const MAX_DEBT: Field = Field::built("max_debt")
    .of(FieldKind::Whole(0, u32::MAX))
    .or("one burst, or the number of the rate")
    .only(NOT_LEAKY)
    .about("how far what is charged afterwards may go below zero");

const CANDIDATE_FIELD: Field = Field::built("candidate").of(FieldKind::Section("candidate")).or("none").about(
    "other numbers, or another algorithm, measured beside the rule; what is not written is as in the rule",
);

const OVERRIDES: Field = Field::built("overrides")
    .of(FieldKind::List(&FieldKind::Section("override")))
    .or("none")
    .about("other rates for some requests: the first entry that matches, after the rows of `overrides_file`");

pub(super) const OVERRIDES_FILE: Field = Field::built("overrides_file")
    .of(FieldKind::Text)
    .or("none")
    .about("a table `NAME.csv` beside the rules file with the numbers of exact keys; see Overrides");

pub(super) const WARN_AT: Field = Field::built("warn_at")
    .of(FieldKind::Percent)
    .or("never")
    .about("from which share of the limit on a request that passes is noted as near it");

pub(super) const ADVERTISE: Field = Field::built("advertise")
    .of(FieldKind::Boolean)
    .or("`true`")
    .about("whether response headers may name it");

pub(super) const HELP: Field = Field::built("help")
    .of(FieldKind::Text)
    .or("none")
    .about("one line that a refused caller is shown, at most 512 bytes: a link as a rule");

pub(super) const SHOW_KEYS: Field = Field::built("show_keys")
    .of(FieldKind::List(&FieldKind::Name))
    .or("none")
    .about("the attributes of `key` whose values operators may see; of others they see digests");

const REFUND_ON: Field =
    Field::built("refund_on").of(FieldKind::Words(&["ok"])).or("never").only(NOT_LEAKY).about(
        "which end of the work gives back what it was charged: with `ok` only what fails counts; see Leases",
    );

pub(super) const SCOPE: Field = Field::built("scope")
    .of(FieldKind::Words(&["host", "fleet"]))
    .or("that of `defaults`, else of the settings, else `host`")
    .about("whether each host counts for itself or all hosts have one budget; see Fleet");

const FLEET: Field = Field::built("fleet")
    .of(FieldKind::Section("fleet"))
    .or("`{mode: borrow}`")
    .about("how hosts share the budget, with `scope: fleet`; see Fleet");

const MAX_OVER: Field = Field::built("max_over")
    .of(FieldKind::Percent)
    .or("10%")
    .about("how far all hosts together may go past the budget, with `scope: fleet`; see Fleet");

pub(super) const FLEET_TERMS: &[Field] = &[
    Field::built("mode")
        .of(FieldKind::Words(MODE_WORDS))
        .or("`borrow`")
        .about("whether hosts borrow tokens ahead of need, or each request waits for Redis; see Fleet"),
    Field::built("on_miss")
        .of(FieldKind::Words(ON_MISS_WORDS))
        .or("`ask`")
        .about("what becomes of a request for which its host holds too little; see Fleet"),
    Field::built("on_redis_down")
        .of(FieldKind::Words(&["share", "local", "allow", "refuse"]))
        .or("`share`")
        .about("what holds while Redis does not answer; see Fleet"),
    Field::built("wait").of(FieldKind::Time).or("5ms").about(
        "how long a request waits for its remote check at most, 2ms to 50ms; then `on_redis_down` holds; see Fleet",
    ),
    Field::built("deadline").of(FieldKind::Time).about("the former name of `wait`"),
];

pub(super) const GUARD: Field = Field::built("guard")
    .of(FieldKind::Words(&["tell", "shadow"]))
    .or("`tell`")
    .about("what becomes of it when it refuses most callers right after a change: see docs/kill-switches.md");
