//! The numbers of a rule as meant: algorithm, rate and what belongs to them.

use crate::limit::{Rate, token_bucket};
use crate::rules::fields::{Field, Fields, choice, text};
use crate::rules::problem::Wrong;
use crate::rules::source::Report;
use crate::rules::yaml::Node;
use crate::rules::{Limit, amount, doubt, rate_text};

pub(super) fn limit(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Limit> {
    fields.get("algorithm").and_then(|node| choice(node, "algorithm", ALGORITHMS, report));
    token_bucket(fields, report).map(Limit::from)
}

fn token_bucket(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<token_bucket::Quota> {
    let node = fields.required("rate", "write `rate: 100/s`, or per min, h, day, week, month", report);
    let rate = node.and_then(|node| rate(node, report));
    let burst = match fields.get("burst") {
        Some(node) => Some((node.at, report.settle(node.at, amount::read(node, "burst"))?)),
        None => None,
    };
    let rate = rate?;
    let (at, burst) = burst.unwrap_or((node?.at, rate.count()));
    let quota = token_bucket::Quota::new(rate, burst).map_err(|error| {
        Wrong::new(format!("{error}: burst {burst} at {rate}"), "write a smaller `burst`, or a faster rate")
    });
    let quota = report.settle(at, quota)?;
    doubt::about_quota(&quota, node?.at, report);
    Some(quota)
}

fn rate(node: &Node, report: &mut Report<'_>) -> Option<Rate> {
    let text = text(node, "rate", report)?;
    report.settle(node.at, rate_text::parse(text).and_then(rate_text::Written::steady)).flatten()
}

const ALGORITHMS: &[(Field, ())] = &[
    (Field::built("token_bucket"), ()),
    (Field::reserved("leaky_bucket"), ()),
    (Field::reserved("fixed_window"), ()),
    (Field::reserved("sliding_log"), ()),
    (Field::reserved("sliding_window"), ()),
];
