//! Fields of descriptors. As in the Envoy rate limit service, each is allowed only where it has an effect.

use super::field::{Field, FieldKind};

pub(super) const DESCRIPTOR: &[Field] = &[
    Field::built("key").of(FieldKind::Text).required().about("the key of the entry"),
    Field::built("value")
        .of(FieldKind::Text)
        .or("any value")
        .about("the value of the entry; `*` stands for any run of characters"),
    Field::built("rate_limit").of(FieldKind::Section("rate limit")).or("no limit").about(
        "the limit of descriptors that end here; without it the descriptor leads on, or lets through what it matches",
    ),
    Field::built("descriptors")
        .of(FieldKind::List(&FieldKind::Section("descriptor")))
        .or("none")
        .about("what the next entry may be"),
    Field::built("shadow_mode")
        .of(FieldKind::Boolean)
        .or("`false`")
        .about("its own limit is judged and refuses nothing; descriptors below do not inherit it"),
    Field::built("share_threshold")
        .of(FieldKind::Boolean)
        .or("`false`")
        .about("all values that its pattern matches share one counter; it needs a `*`"),
    Field::built("quota_mode")
        .of(FieldKind::Boolean)
        .or("`false`")
        .about("its own limit refuses nothing; a request over it passes and is noted as `quota`; not inherited"),
    Field::built("detailed_metric").of(FieldKind::Boolean).or("`false`").about("read, and without effect"),
    Field::built("value_to_metric").of(FieldKind::Boolean).or("`false`").about("read, and without effect"),
    Field::built("metadata").of(FieldKind::Attributes(&FieldKind::Any)).or("none").about("read, and without effect"),
];

pub(super) const RATE_LIMIT: &[Field] = &[
    Field::built("unit")
        .of(FieldKind::Either(&[
            FieldKind::Words(&["second", "minute", "hour", "day", "week", "month", "year"]),
            FieldKind::Text,
        ]))
        .or("must be there, unless `unlimited`")
        .about("the length of a window, in small or capital letters; a month is 30 days, a year 365"),
    Field::built("requests_per_unit")
        .of(FieldKind::Whole(0, u32::MAX))
        .or("`0`")
        .about("how many may pass in a window; 0 refuses all"),
    Field::built("unlimited")
        .of(FieldKind::Boolean)
        .or("`false`")
        .about("everything passes, and nothing is counted"),
    Field::built("name").of(FieldKind::Text).or("none").about("what `replaces` calls this limit by"),
    Field::built("replaces")
        .of(FieldKind::List(&FieldKind::Section("replacement")))
        .or("none")
        .about("limits that do not count for a request that this one counts for"),
];

pub(super) const REPLACED: &[Field] =
    &[Field::built("name").of(FieldKind::Text).required().about("the `name` of the limit that is replaced")];
