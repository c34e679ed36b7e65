//! Renders the evaluation, in the order of evaluation: as text, and as one JSON object, whose keys are only ever added and
//! always present.

use std::collections::BTreeMap;
use std::io::{Result, Write};

use serde_json::{Map, Value, json};

use super::{AllowanceBy, Counted, ExplainFinding, Explained, ExplainedRequest, MismatchReason, PriorityBy};
use crate::cli::describe::{self, object};
use crate::engine::UNIT_REQUESTS;
use crate::rules::words::{beyond, bound_of, each, expires, mode, numbers_or_unlimited};
use crate::rules::{Domain, ListKind, Mismatch, Mode, Rule, conditions, shown};
use crate::terms::counted;

/// Prints the whole evaluation; `from` names the source of the rules.
pub(super) fn print(
    explained: &Explained<'_>,
    request: &ExplainedRequest<'_>,
    from: &str,
    out: &mut dyn Write,
) -> Result<()> {
    writeln!(out, "domain    {}, from {from}", explained.domain.name())?;
    writeln!(out, "request   {}", request_text(request))?;
    if let Some((name, by)) = explained.priority {
        writeln!(out, "priority  {name}: {}", priority(by, request))?;
    }
    for (listed, why) in &explained.lists {
        let result = match why {
            Some(why) => format!("no, {}", why.describe(request.descriptors.attributes())),
            None => format!("yes, {}", matched(&conditions(&listed.conditions))),
        };
        let (kind, name, mode) = (<&str>::from(listed.kind), &listed.name, mode(listed.mode));
        writeln!(out, "{kind:<9} {name}{mode} ({}): {result}", listed.position)?;
    }
    if let Some(listed) = explained.decided {
        let becomes = match listed.kind {
            ListKind::Exempt => "passes",
            ListKind::Deny => "is refused",
        };
        return writeln!(out, "the request {becomes} by {}; no rule is checked", listed.name);
    }
    for finding in &explained.rules {
        rule(finding, request, out)?;
    }
    for (number, (descriptor, becomes)) in (1..).zip(request.descriptors.iter().zip(&explained.descriptors)) {
        let becomes = match (&becomes.rule, becomes.replaced) {
            (None, _) => "no descriptor of this depth limits it".to_owned(),
            (Some(name), false) => format!("leads to {name}"),
            (Some(name), true) => {
                format!("would lead to {name}, replaced by the limit of another descriptor")
            }
        };
        writeln!(out, "in tree   descriptor {number} ({}): {becomes}", written(descriptor))?;
    }
    sheds(explained.domain, out)?;
    let judging = explained.rules.iter().filter(|finding| finding.stands.is_ok()).count();
    let all = explained.domain.rules().len();
    let apply = if judging == 1 || all == 1 { "applies" } else { "apply" };
    writeln!(out, "{judging} of {} {apply}", counted(all, "rule"))
}

/// Prints the shedding rules, which apply to requests that no limit refused, in the pool of the process.
fn sheds(domain: &Domain, out: &mut dyn Write) -> Result<()> {
    for shed in domain.sheds() {
        for (part, set) in shed.parts() {
            let Some(does) = describe::part(domain, shed, part) else { continue };
            let name = shed.rule_name(part);
            writeln!(out, "in pool   {name}{} ({}): {does}", mode(set), shed.position)?;
        }
    }
    Ok(())
}

fn rule(
    ExplainFinding { rule, stands }: &ExplainFinding<'_>,
    request: &ExplainedRequest<'_>,
    out: &mut dyn Write,
) -> Result<()> {
    let named = format!("{}{} ({})", rule.name, mode(rule.mode), rule.position);
    let counted = match stands {
        Err(MismatchReason::Matching(why)) => {
            return writeln!(out, "no        {named}: {}", why.describe(request.descriptors.attributes()));
        }
        Err(MismatchReason::Unit(unit)) => {
            let reason = format!("it counts {unit}, and the cost names none (--cost {unit}=N)");
            return writeln!(out, "no        {named}: {reason}");
        }
        Ok(counted) => counted,
    };
    let allowance = rule.limit.allowance(counted.allowance);
    let numbers = numbers_or_unlimited(allowance.map(|allowance| &allowance.quota));
    writeln!(out, "counts    {named}: {numbers}, {}", each(rule))?;
    let mut line = |label: &str, text: &str| match text {
        "" => Ok(()),
        text => writeln!(out, "          {label:<9} {text}"),
    };
    line("match", &conditions(&rule.conditions))?;
    line("key", &key(counted))?;
    line("numbers", &allowance_by(rule, counted))?;
    let unit = rule.unit.as_deref().unwrap_or(UNIT_REQUESTS);
    line("cost", &cost(counted, unit, allowance.map(|allowance| allowance.quota.limit())))?;
    line("bound", &allowance.map(|allowance| bound_of(rule, &allowance.quota)).unwrap_or_default())?;
    let fleet = rule.fields().into_iter().filter(|(field, _)| ["scope", "fleet", "max_over"].contains(field));
    for (field, result) in fleet {
        line(field, &result)?;
    }
    line("expires", &rule.expires.map(expires).unwrap_or_default())?;
    let more = allowance.and_then(|allowance| beyond(&allowance.over, rule.limit.soft_for, 1));
    line("over", &more.unwrap_or_default())?;
    let block = rule
        .limit
        .block
        .map(|lasts| format!("once refused, refused for {}", humantime::format_duration(lasts)));
    line("block", &block.unwrap_or_default())?;
    let shadow = if rule.mode == Mode::Shadow { "refusals are only noted" } else { "" };
    line("shadow", shadow)
}

fn matched(conditions: &str) -> String {
    match conditions {
        "" => "it matches every request".to_owned(),
        conditions => format!("it matches {conditions}"),
    }
}

fn priority(by: PriorityBy<'_>, request: &ExplainedRequest<'_>) -> String {
    let unknown = |name: &str| format!("{} is none of the domain's, and ", shown(name));
    let unknown = request.priority.map(unknown).unwrap_or_default();
    match by {
        PriorityBy::Request => "named by the request".to_owned(),
        PriorityBy::Entry(entry) => format!("{unknown}the entry at {} matches", entry.position),
        PriorityBy::Last => format!("{unknown}no entry of `prioritize` matches, so it is the last"),
    }
}

fn allowance_by(rule: &Rule, counted: &Counted) -> String {
    let Some(overrides) = rule.overrides.as_deref() else { return String::new() };
    match counted.by {
        AllowanceBy::Rule => "the rule's own: no override matches".to_owned(),
        AllowanceBy::Row => {
            format!("by the row of this key in {}", overrides.file.as_deref().unwrap_or("its table"))
        }
        AllowanceBy::Listed(place) => {
            let of = overrides.list.get(place).map(|(of, _)| of.as_slice()).unwrap_or_default();
            let line = of.first().map(|one| one.line).filter(|line| *line > 0);
            let line = line.map(|line| format!(" (line {line})")).unwrap_or_default();
            format!("by override {}{line}, {}", place + 1, matched(&conditions(of)))
        }
    }
}

fn key(counted: &Counted) -> String {
    match counted.key.as_slice() {
        [] => "one for all".to_owned(),
        key => written(&key.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect::<Vec<_>>()),
    }
}

fn cost(counted: &Counted, unit: &str, limit: Option<u32>) -> String {
    match (counted.cost, limit) {
        (cost, Some(limit)) if cost > u64::from(limit) => {
            format!("{cost} {unit}, more than the limit of {limit} ever has at once")
        }
        (1, _) if unit == UNIT_REQUESTS => String::new(),
        (cost, _) => format!("{cost} {unit}"),
    }
}

fn request_text(request: &ExplainedRequest<'_>) -> String {
    let descriptors: Vec<_> = request.descriptors.iter().map(written).collect();
    let costs = request.cost.iter().map(|(unit, cost)| match (*unit, *cost) {
        (UNIT_REQUESTS, 1) => "1 request".to_owned(),
        (unit, cost) => format!("{cost} {unit}"),
    });
    let costs: Vec<_> = costs.collect();
    let attributes_text = match descriptors.join(" | ") {
        attributes_text if attributes_text.is_empty() => "no attributes".to_owned(),
        attributes_text => attributes_text,
    };
    let priority = request.priority.map(|name| format!(", priority {}", shown(name))).unwrap_or_default();
    format!("{attributes_text}; cost {}{priority}", costs.join(", "))
}

/// Formats attributes as one line without terminal control characters.
fn written(attributes: &[(&str, &str)]) -> String {
    let one = |(key, value): &(&str, &str)| shown(&format!("{key}={value}")).trim_matches('`').to_owned();
    attributes.iter().map(one).collect::<Vec<_>>().join(" ")
}

pub(super) fn to_json(explained: &Explained<'_>, request: &ExplainedRequest<'_>) -> Value {
    let lists = explained.lists.iter().map(|(listed, why)| {
        let mut entry = describe::listed(listed);
        entry.extend(object(json!({
            "matches": why.is_none(),
            "why_not": why.as_ref().map(|why| reason(why, request)),
        })));
        entry
    });
    // Exempt and denied requests reach no shedding rule.
    let sheds = explained.domain.sheds().iter().filter(|_| explained.decided.is_none());
    let sheds = sheds.map(|shed| describe::shed_json(explained.domain, shed));
    json!({
        "domain": explained.domain.name(),
        "descriptors": request.descriptors.iter().collect::<Vec<_>>(),
        "cost": request.cost.iter().map(|(unit, cost)| (unit, cost)).collect::<BTreeMap<_, _>>(),
        "priority": explained.priority.map(|(name, by)| priority_json(name, by)),
        "lists": lists.collect::<Vec<_>>(),
        "decided_by": explained.decided.map(|listed| &*listed.name),
        "rules": explained.rules.iter().map(|finding| rule_json(finding, request)).collect::<Vec<_>>(),
        "tree": explained.descriptors,
        "sheds": sheds.collect::<Vec<_>>(),
    })
}

fn rule_json(
    ExplainFinding { rule, stands }: &ExplainFinding<'_>,
    request: &ExplainedRequest<'_>,
) -> Map<String, Value> {
    let mut all = describe::rule(rule, 1, &[2]);
    let counted = stands.as_ref().ok();
    let (by, place) = match counted.map(|counted| counted.by) {
        None => (None, None),
        Some(AllowanceBy::Rule) => (Some("rule"), None),
        Some(AllowanceBy::Row) => (Some("row"), None),
        Some(AllowanceBy::Listed(place)) => (Some("override"), Some(place + 1)),
    };
    if let Some(counted) = counted {
        // The numbers for this request replace the rule's own.
        all.extend(describe::allowance(rule.limit.allowance(counted.allowance), &rule.limit, 1));
    }
    let why = stands.as_ref().err().map(|not| match not {
        MismatchReason::Matching(why) => reason(why, request),
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

fn reason(why: &Mismatch<'_>, request: &ExplainedRequest<'_>) -> Value {
    let (kind, attribute, line) = match why {
        Mismatch::Disabled => ("disabled", None, 0),
        Mismatch::Absent { attribute, line } => ("absent", Some(*attribute), *line),
        Mismatch::Condition(condition) => ("condition", Some(&*condition.attribute), condition.line),
    };
    json!({
        "reason": kind,
        "attribute": attribute,
        "line": (line > 0).then_some(line),
        "text": why.describe(request.descriptors.attributes()),
    })
}

fn priority_json(name: &str, by: PriorityBy<'_>) -> Value {
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
