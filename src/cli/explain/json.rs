//! Renders the evaluation as one JSON object: keys are only ever added, and each is always present.

use serde_json::{Map, Value, json};

use super::super::limit_json::{self, asked as conditions_asked, object, position};
use super::super::shed_words;
use super::finding::{
    AllowanceBy, ExplainFinding, Explained, ExplainedRequest, MismatchReason, PriorityBy, TreeOutcome,
};
use super::text::why_not;
use crate::rules::Mismatch;

pub(super) fn all(explained: &Explained<'_>, asked: &ExplainedRequest<'_>) -> Value {
    let lists = explained.lists.iter().map(|(listed, why)| {
        let mut entry = position(&listed.position);
        entry.extend(object(json!({
            "name": &*listed.name,
            "list": <&str>::from(listed.kind),
            "mode": listed.mode.to_string(),
            "match": conditions_asked(&listed.conditions),
            "matches": why.is_none(),
            "why_not": why.as_ref().map(|why| reason(why, asked)),
        })));
        entry
    });
    let in_tree = explained.descriptors.iter().map(|becomes| match becomes {
        TreeOutcome::Free => json!({"rule": null, "replaced": false}),
        TreeOutcome::Counts(name) => json!({"rule": &**name, "replaced": false}),
        TreeOutcome::Replaced(name) => json!({"rule": &**name, "replaced": true}),
    });
    // Exempt and denied requests reach no shedding rule.
    let sheds = explained.domain.sheds().iter().filter(|_| explained.decided.is_none());
    let sheds = sheds.map(|shed| shed_words::json(explained.domain, shed));
    json!({
        "domain": explained.domain.name(),
        "descriptors": asked.descriptors.iter().map(pairs).collect::<Vec<_>>(),
        "cost": asked.cost.iter().map(|(unit, cost)| ((*unit).to_owned(), Value::from(*cost))).collect::<Map<_, _>>(),
        "priority": explained.priority.map(|(name, by)| priority(name, by)),
        "lists": lists.collect::<Vec<_>>(),
        "decided_by": explained.decided.map(|listed| &*listed.name),
        "rules": explained.rules.iter().map(|finding| of_rule(finding, asked)).collect::<Vec<_>>(),
        "tree": in_tree.collect::<Vec<_>>(),
        "sheds": sheds.collect::<Vec<_>>(),
    })
}

fn of_rule(
    ExplainFinding { rule, stands }: &ExplainFinding<'_>,
    asked: &ExplainedRequest<'_>,
) -> Map<String, Value> {
    let mut all = limit_json::rule(rule, 1, &[2]);
    let counted = stands.as_ref().ok();
    let by = counted.map(|counted| match counted.by {
        AllowanceBy::Rule => "rule",
        AllowanceBy::Row => "row",
        AllowanceBy::Listed(_) => "override",
    });
    let place = counted.and_then(|counted| match counted.by {
        AllowanceBy::Listed(place) => Some(place + 1),
        AllowanceBy::Rule | AllowanceBy::Row => None,
    });
    if let Some(counted) = counted {
        // The numbers for this request replace the rule's own.
        all.extend(limit_json::allowance(rule.limit.allowance(counted.allowance), &rule.limit, 1));
    }
    let why = stands.as_ref().err().map(|not| match not {
        MismatchReason::Matching(why) => reason(why, asked),
        MismatchReason::Unit(unit) => json!({"reason": "unit", "attribute": null, "line": null, "text": format!("the cost names no {unit}")}),
    });
    all.extend(object(json!({
        "matches": counted.is_some(),
        "why_not": why,
        "counted_by": counted.map(|counted| &counted.key),
        "cost": counted.map(|counted| counted.cost),
        "numbers_by": by,
        "override": place,
    })));
    all
}

fn reason(why: &Mismatch<'_>, asked: &ExplainedRequest<'_>) -> Value {
    let (kind, attribute, line) = match why {
        Mismatch::Disabled => ("disabled", None, 0),
        Mismatch::Absent { attribute, line } => ("absent", Some(*attribute), *line),
        Mismatch::Condition(condition) => ("condition", Some(&*condition.attribute), condition.line),
    };
    json!({
        "reason": kind,
        "attribute": attribute,
        "line": (line > 0).then_some(line),
        "text": why_not(why, asked),
    })
}

fn priority(name: &str, by: PriorityBy<'_>) -> Value {
    let (by, entry) = match by {
        PriorityBy::Request => ("request", None),
        PriorityBy::Entry(entry) => ("entry", Some(&entry.position)),
        PriorityBy::Last => ("last", None),
    };
    json!({
        "name": name,
        "by": by,
        "file": entry.map(|position| &*position.file),
        "line": entry.map(|position| position.line),
        "column": entry.map(|position| position.column),
    })
}

fn pairs(attributes: &[(&str, &str)]) -> Vec<Value> {
    attributes.iter().map(|(key, value)| json!([key, value])).collect()
}
