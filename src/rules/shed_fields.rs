//! Fields of `shed` entries and their parts: names, types, defaults, descriptions.

use super::field::{Field, FieldKind};
use super::rule_fields::MODE;

pub(super) const SHED: &[Field] = &[
    Field::built("pool")
        .of(FieldKind::Name)
        .required()
        .about("the pool that is watched over, in one entry of one domain only"),
    Field::built("slots")
        .of(FieldKind::Whole(1, u32::MAX))
        .or("unknown")
        .about("how many requests its processes work on at once, when they do not say"),
    Field::built("callers")
        .of(FieldKind::Section("callers"))
        .or("`{by: [user, ip], rotate: 10min}`")
        .about("who counts as one caller: refused or not as one"),
    Field::built("queue_age")
        .of(FieldKind::Section("queue_age"))
        .or("off")
        .about("refuses what waited too long before it reached the application; `{}` takes the defaults"),
    Field::built("workers")
        .of(FieldKind::Section("workers"))
        .or("off")
        .about("refuses slowly and by importance while the slots are busy; `{}` takes the defaults"),
    Field::built("brake")
        .of(FieldKind::Section("brake"))
        .or("off")
        .about("refuses at once and by importance while requests queue up; `{}` takes the defaults"),
    Field::built("fleet")
        .of(FieldKind::Section("reserve"))
        .or("off")
        .about("keeps slots back for the most important"),
    Field::built("signals")
        .of(FieldKind::Named(&FieldKind::Section("signal")))
        .or("none")
        .about("other readings of how full the host is, by name; see Signals"),
];

pub(super) const CALLERS: &[Field] = &[
    Field::built("by")
        .of(FieldKind::List(&FieldKind::Name))
        .or("`[user, ip]`")
        .about("the first of these attributes that a request has names its caller"),
    Field::built("rotate")
        .of(FieldKind::Time)
        .or("`10min`")
        .about("how long it takes until all who are refused are others, 1s to 7day"),
];

pub(super) const QUEUE_AGE: &[Field] = &[
    Field::built("others")
        .of(FieldKind::Time)
        .or("`500ms`")
        .about("how long all but the most important may have waited, up to 60s"),
    Field::built("critical")
        .of(FieldKind::Time)
        .or("`2500ms`")
        .about("how long the most important may have waited, up to 60s"),
    MODE,
];

pub(super) const WORKERS: &[Field] = &[
    Field::built("good")
        .of(FieldKind::Percent)
        .or("`70%`")
        .about("below this share of busy slots the host recovers"),
    Field::built("bad")
        .of(FieldKind::Percent)
        .or("`80%`")
        .about("above this share of busy slots it sheds more"),
    Field::built("after")
        .of(FieldKind::Time)
        .or("`28s`")
        .about("at full load from rest, the time to the first refusal, 1s to 1day"),
    Field::built("full").of(FieldKind::Time).or("`120s`").about(
        "at full load, the time from the first refusal to the last, 30s to 1day; less than 60s is warned of",
    ),
    Field::built("leak")
        .of(FieldKind::Text)
        .or("`1/1800`, with `stripe_exact` 0")
        .about("by how much it recovers in a second between `good` and `bad`: a fraction, or 0"),
    Field::built("shed_critical")
        .of(FieldKind::Boolean)
        .or("`false`")
        .about("whether the most important is shed as well, last"),
    Field::built("stripe_exact")
        .of(FieldKind::Boolean)
        .or("`false`")
        .about("the law as it was published: no leak, a fresh draw for each request"),
    MODE,
];

pub(super) const BRAKE: &[Field] = &[
    Field::built("bands").of(FieldKind::List(&FieldKind::Percent)).or("evenly from `70%` to `90%`").about(
        "what share of the slots a priority may use while it is on: the least important first, one for each but the \
         most important",
    ),
    MODE,
];

pub(super) const RESERVE: &[Field] = &[
    Field::built("reserve")
        .of(FieldKind::Percent)
        .required()
        .about("the share of the slots that is kept back"),
    Field::built("for")
        .of(FieldKind::Name)
        .or("the first of `priorities`")
        .about("one of `priorities`: what is less important may not use the reserve"),
    MODE,
];

pub(super) const SIGNAL: &[Field] = &[
    Field::built("listen")
        .of(FieldKind::Text)
        .or("must be there for `accept_queue`")
        .about("where the application listens: a port such as `:8000`, or the path of a socket; `accept_queue` alone"),
    Field::built("use")
        .of(FieldKind::Boolean)
        .or("`false`")
        .about("whether it counts as utilization, or is only shown"),
    Field::built("map")
        .of(FieldKind::List(&FieldKind::Point))
        .or("see Signals")
        .about("points `[reading, utilization]` with straight lines in between, 2 to 16"),
];
