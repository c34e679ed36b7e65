//! Fields of `concurrency` rules, their shadow rules and overrides.

use super::field::{Field, FieldKind};
use super::rule_fields::{
    ADVERTISE, GUARD, HELP, KEY, MATCH, MODE, NAME, OVERRIDES_FILE, SCOPE, SHOW_KEYS, WARN_AT,
};

pub(super) const CONCURRENCY: &[Field] = &[
    NAME,
    MATCH,
    KEY,
    MAX,
    EXPIRES,
    MODE,
    CANDIDATE_FIELD,
    OVERRIDES,
    OVERRIDES_FILE,
    WARN_AT,
    ADVERTISE,
    HELP,
    SHOW_KEYS,
    SCOPE,
    FLEET,
    GUARD,
];

/// Fields of its shadow rule.
pub(super) const CANDIDATE: &[Field] = &[MAX];

/// Fields of an entry of its `overrides`.
pub(super) const OVERRIDE: &[Field] = &[MATCH.required(), MAX];

/// Fields that belong to `limits`, not to `concurrency`.
pub(super) const HOMES: &[(&[&str], &str)] = &[(
    &[
        "algorithm",
        "rate",
        "burst",
        "queue",
        "buckets",
        "align",
        "timezone",
        "unit",
        "over",
        "refused",
        "block",
        "max_debt",
        "refund_on",
        "max_over",
    ],
    "in a rule of `limits`",
)];

const FLEET: Field = Field::built("fleet")
    .of(FieldKind::Section("fleet"))
    .or("`{mode: borrow}`")
    .about("how hosts share the places, with `scope: fleet`; see Fleet");

const MAX: Field = Field::built("max")
    .of(FieldKind::Either(&[FieldKind::Whole(1, u32::MAX), FieldKind::Words(&["unlimited"])]))
    .required()
    .about("how much work at once; see Concurrency");

const EXPIRES: Field = Field::built("expires")
    .of(FieldKind::Time)
    .or("60s")
    .about("when work that nobody releases or renews counts as ended, 1s to 7day; see Leases");

const CANDIDATE_FIELD: Field = Field::built("candidate")
    .of(FieldKind::Section("concurrency candidate"))
    .or("none")
    .about("another `max`, measured beside the rule");

const OVERRIDES: Field = Field::built("overrides")
    .of(FieldKind::List(&FieldKind::Section("concurrency override")))
    .or("none")
    .about(
        "another `max` for some requests: the first entry that matches, after the rows of `overrides_file`",
    );
