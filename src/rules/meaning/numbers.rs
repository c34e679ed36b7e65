//! Reader of the limit fields of a rule or shadow rule, one by one.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use crate::rules::fields::{Field, Fields, choice, text};
use crate::rules::problem::{ValueProblem, shown};
use crate::rules::source::{Report, Span};
use crate::rules::written::{OVER, RULE};
use crate::rules::yaml::{Value, YamlNode};
use crate::rules::{RefusedCost, amount, percent, period, rate_text};

/// The limit fields as written. Unreadable ones are missing here and reported.
#[derive(Clone, Debug)]
pub(super) struct LimitFields {
    /// The span for problems that concern several fields.
    pub(super) at: Span,
    pub(super) algorithm: WrittenAlgorithm,
    pub(super) rate: Option<At<rate_text::WrittenRate>>,
    pub(super) burst: Option<At<u32>>,
    pub(super) queue: Option<At<u32>>,
    pub(super) buckets: Option<At<u32>>,
    pub(super) align: Option<At<WrittenAlign>>,
    pub(super) over: Option<At<WrittenOver>>,
    pub(super) refused: Option<At<RefusedCost>>,
    pub(super) block: Option<At<Duration>>,
    pub(super) max_debt: Option<At<u32>>,
}

/// A value and its span.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) place: Span,
    pub(super) value: T,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrittenAlgorithm {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingLog,
    SlidingWindow,
}

#[derive(Clone, Debug)]
pub(super) enum WrittenAlign {
    Utc,
    Zone(TimeZone),
    First,
}

/// The treatment of requests beyond the quota; shares in thousandths.
#[derive(Clone, Copy, Debug)]
pub(super) enum WrittenOver {
    Refuse,
    Soft(u16, Option<Duration>),
    Elastic(u16),
}

impl WrittenAlgorithm {
    pub(super) fn name(self) -> &'static str {
        ALGORITHMS.iter().find(|(_, known)| *known == self).map_or("", |(field, _)| field.name)
    }
}

impl LimitFields {
    pub(super) fn of_rule(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<LimitFields> {
        let rate = fields.required("rate", "write `rate: 100/s`, or per min, h, day, week, month", report);
        let numbers = read(fields, WrittenAlgorithm::TokenBucket, report);
        // Problems of the rule as a whole point to its rate.
        Some(LimitFields { at: rate?.at, ..numbers? })
    }

    /// Reads the fields of a shadow rule. Missing ones are taken from its rule if the algorithm has them.
    pub(super) fn of_candidate(
        fields: &Fields<'_>,
        rule: Option<&LimitFields>,
        report: &mut Report<'_>,
    ) -> Option<LimitFields> {
        let default = rule.map_or(WrittenAlgorithm::TokenBucket, |rule| rule.algorithm);
        let own = read(fields, default, report)?;
        let rule = rule?;
        let (at, algorithm) = (own.at, own.algorithm);
        // A burst has no meaning without a limit, so `rate: unlimited` also drops an inherited one.
        let is_limited = own.rate.as_ref().is_none_or(|rate| rate.value != rate_text::WrittenRate::Unlimited);
        Some(LimitFields {
            rate: inherit(own.rate, &rule.rate, "rate", at, algorithm),
            burst: inherit(own.burst, &rule.burst.clone().filter(|_| is_limited), "burst", at, algorithm),
            queue: inherit(own.queue, &rule.queue, "queue", at, algorithm),
            buckets: inherit(own.buckets, &rule.buckets, "buckets", at, algorithm),
            align: inherit(own.align, &rule.align, "align", at, algorithm),
            over: inherit(own.over, &rule.over, "over", at, algorithm),
            refused: inherit(own.refused, &rule.refused, "refused", at, algorithm),
            block: inherit(own.block, &rule.block, "block", at, algorithm),
            max_debt: inherit(own.max_debt, &rule.max_debt, "max_debt", at, algorithm),
            ..own
        })
    }
}

fn inherit<T: Clone>(
    own: Option<At<T>>,
    rule: &Option<At<T>>,
    field: &str,
    place: Span,
    algorithm: WrittenAlgorithm,
) -> Option<At<T>> {
    let inherited = rule.as_ref().filter(|_| belongs(field, algorithm));
    own.or_else(|| inherited.map(|written| At { place, value: written.value.clone() }))
}

fn read(fields: &Fields<'_>, default: WrittenAlgorithm, report: &mut Report<'_>) -> Option<LimitFields> {
    let algorithm = match fields.get("algorithm") {
        Some(node) => choice(node, "algorithm", ALGORITHMS, report),
        None => Some(default),
    };
    if let Some(algorithm) = algorithm {
        about_strangers(fields, algorithm, report);
    }
    let refused = |node: &YamlNode, report: &mut Report<'_>| choice(node, "refused", REFUSED, report);
    let numbers = LimitFields {
        at: fields.at(),
        // Without a valid algorithm the numbers are dropped, and the fields are read only for their errors.
        algorithm: algorithm.unwrap_or(default),
        rate: value(fields, "rate", report, |node, report| {
            let text = text(node, "rate", report)?;
            report.settle(node.at, rate_text::parse(text))
        }),
        burst: value(fields, "burst", report, |node, report| number(node, "burst", 1, report)),
        queue: value(fields, "queue", report, |node, report| number(node, "queue", 0, report)),
        buckets: value(fields, "buckets", report, |node, report| number(node, "buckets", 1, report)),
        align: align(fields, report),
        over: value(fields, "over", report, over),
        refused: value(fields, "refused", report, refused),
        block: value(fields, "block", report, |node, report| time(node, "block", report)),
        max_debt: value(fields, "max_debt", report, |node, report| number(node, "max_debt", 0, report)),
    };
    algorithm.map(|_| numbers)
}

fn value<T>(
    fields: &Fields<'_>,
    name: &str,
    report: &mut Report<'_>,
    read: impl FnOnce(&YamlNode, &mut Report<'_>) -> Option<T>,
) -> Option<At<T>> {
    let node = fields.get(name)?;
    Some(At { place: node.at, value: read(node, report)? })
}

/// Reports fields that belong to other algorithms.
fn about_strangers(fields: &Fields<'_>, algorithm: WrittenAlgorithm, report: &mut Report<'_>) {
    for (name, at, _) in fields.iter().filter(|(name, ..)| !belongs(name, algorithm)) {
        let known = RULE.iter().find(|field| field.name == name);
        let [others @ .., last] = known.map_or(&[][..], |field| field.only) else { continue };
        let of = match others {
            [] => format!("`{last}`"),
            others => format!("`{}` and `{last}`", others.join("`, `")),
        };
        let message = format!("`{name}` is a field of {of}, and this is a `{}`", algorithm.name());
        let mend = match others {
            [] => format!("leave `{name}` out, or write `algorithm: {last}`"),
            _ => format!("leave `{name}` out, or write another `algorithm`"),
        };
        report.error(at, message, mend);
    }
}

fn belongs(name: &str, algorithm: WrittenAlgorithm) -> bool {
    let known = RULE.iter().find(|field| field.name == name);
    known.is_none_or(|field| field.only.is_empty() || field.only.contains(&algorithm.name()))
}

fn number(node: &YamlNode, field: &str, least: u32, report: &mut Report<'_>) -> Option<u32> {
    report.settle(node.at, amount::read_from(node, field, least))
}

fn time(node: &YamlNode, field: &str, report: &mut Report<'_>) -> Option<Duration> {
    let text = text(node, field, report)?;
    report.settle(node.at, period::parse(text, field))
}

fn align(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<At<WrittenAlign>> {
    let zone = value(fields, "timezone", report, |node, report| {
        let name = text(node, "timezone", report)?;
        report.settle(node.at, zone(name))
    });
    let Some(align) = value(fields, "align", report, |node, report| choice(node, "align", ALIGNS, report))
    else {
        return zone.map(|zone| At { place: zone.place, value: calendar_of(zone.value) });
    };
    let value = match (align.value, zone) {
        (Aligned::First, None) => WrittenAlign::First,
        (Aligned::Utc, None) => WrittenAlign::Utc,
        (Aligned::First, Some(zone)) => {
            let message = "windows that open with the first request of a key have no `timezone`";
            report.error(zone.place, message, "leave `timezone` out, or `align: first`");
            return None;
        }
        (Aligned::Utc, Some(zone)) => {
            let message = "`align: utc` and a `timezone`: only one of them can hold";
            report.error(zone.place, message, "leave one of the two out");
            return None;
        }
    };
    Some(At { place: align.place, value })
}

/// Makes the alignment of a time zone. All names of UTC need no lookup in a transition table.
fn calendar_of(zone: TimeZone) -> WrittenAlign {
    let changes = zone.following(Timestamp::MIN).next().is_some();
    if !changes && zone.to_offset(Timestamp::UNIX_EPOCH) == Offset::UTC {
        WrittenAlign::Utc
    } else {
        WrittenAlign::Zone(zone)
    }
}

fn zone(name: &str) -> Result<TimeZone, ValueProblem> {
    // Fixed offsets and other descriptions outside the database have no common calendar.
    TimeZone::get(name).map_err(|_| {
        let distance = |known: &str| strsim::osa_distance(&known.to_lowercase(), &name.to_lowercase());
        let names = jiff::tz::db().available().map(|known| known.to_string());
        // Suggests `Europe/Berlin` for `Berlin`.
        let ends = |known: &str| known.rsplit('/').next().is_some_and(|city| city.eq_ignore_ascii_case(name));
        let nearest = names.min_by_key(|known| if ends(known) { 0 } else { distance(known) });
        let mend = match nearest.filter(|known| ends(known) || distance(known) * 3 <= known.len()) {
            Some(known) => format!("did you mean `{known}`?"),
            None => "write a name of the IANA time zone database, such as Europe/Berlin".to_owned(),
        };
        ValueProblem::new(format!("unknown time zone {}", shown(name)), mend)
    })
}

fn over(node: &YamlNode, report: &mut Report<'_>) -> Option<WrittenOver> {
    if !matches!(node.value, Value::Map(_)) {
        let known = text(node, "over", report)? == "refuse";
        if !known {
            let message = format!("unknown over {}", shown(node.as_scalar().unwrap_or_default()));
            report.error(node.at, message, "write `refuse`, `{soft: 10%, for: 60s}` or `{elastic: 100%}`");
        }
        return known.then_some(WrittenOver::Refuse);
    }
    let errors_before = report.errors();
    let fields = Fields::read(node, "`over`", OVER, report)?;
    if report.errors() > errors_before {
        return None;
    }
    let share = |name, report: &mut Report<'_>| {
        value(&fields, name, report, |node, report| {
            report.settle(node.at, percent::read(node, name, SHARE_MAX))
        })
    };
    let (soft, elastic) = (share("soft", report), share("elastic", report));
    let span = value(&fields, "for", report, |node, report| time(node, "for", report));
    match (fields.get("soft"), fields.get("elastic"), fields.get("for")) {
        (Some(_), Some(elastic), _) => {
            let message = "`soft` and `elastic`: only one of them can hold";
            report.error(elastic.at, message, "keep one of the two");
            None
        }
        (None, Some(_), Some(span)) => {
            report.error(span.at, "`for` belongs to `soft`: elastic has no end", "leave `for` out");
            None
        }
        (None, None, _) => {
            report.error(node.at, "`over` says neither `soft` nor `elastic`", "write `over: {soft: 10%}`");
            None
        }
        (Some(_), None, span_written) => {
            // An invalid duration must not become an unlimited one.
            (span_written.is_none() || span.is_some()).then_some(())?;
            Some(WrittenOver::Soft(soft?.value, span.map(|span| span.value)))
        }
        (None, Some(_), None) => Some(WrittenOver::Elastic(elastic?.value)),
    }
}

#[derive(Clone, Copy)]
enum Aligned {
    Utc,
    First,
}

const ALGORITHMS: &[(Field, WrittenAlgorithm)] = &[
    (Field::built("token_bucket"), WrittenAlgorithm::TokenBucket),
    (Field::built("leaky_bucket"), WrittenAlgorithm::LeakyBucket),
    (Field::built("fixed_window"), WrittenAlgorithm::FixedWindow),
    (Field::built("sliding_log"), WrittenAlgorithm::SlidingLog),
    (Field::built("sliding_window"), WrittenAlgorithm::SlidingWindow),
];

const ALIGNS: &[(Field, Aligned)] =
    &[(Field::built("utc"), Aligned::Utc), (Field::built("first"), Aligned::First)];

const REFUSED: &[(Field, RefusedCost)] =
    &[(Field::built("free"), RefusedCost::Free), (Field::built("counted"), RefusedCost::Counted)];

/// Ten times the limit; a larger part calls for a larger limit.
const SHARE_MAX: u16 = 10_000;
