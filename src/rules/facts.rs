//! The fields of a rule or a `shed` entry as text, for comparisons, checks and queries.

use super::percent::Percent;
use super::shed::{CallerGrouping, Listen, Shed, SignalRule, SignalSource};
use super::words::span;
use super::{
    Allowance, Condition, Guard, KeyPart, Limit, ListedEntry, OverTreatment, Pattern, RefusedCost, Rule,
};
use crate::limit::Quota;

/// A field and its text. Fields without a value are left out.
pub type Fact = (&'static str, String);

/// Lists the fields of a rule. A field missing here is missing in reported differences.
pub fn facts(rule: &Rule) -> Vec<Fact> {
    let key: Vec<_> = rule.key.iter().map(key_part).collect();
    let mut facts = vec![("match", conditions(&rule.conditions)), ("key", format!("[{}]", key.join(", ")))];
    facts.extend(limit(rule, &rule.limit));
    facts.extend(rule.expires.map(|lasts| ("expires", span(lasts))));
    facts.push(("mode", rule.mode.to_string()));
    if let Some(fleet) = &rule.fleet {
        facts.push(("scope", <&str>::from(rule.scope()).to_owned()));
        facts.push(("fleet", fleet.text()));
        facts.extend(fleet.max_over.map(|share| ("max_over", Percent(share).to_string())));
    }
    facts.extend(rule.unit.as_ref().map(|unit| ("unit", unit.to_string())));
    facts.extend(rule.warn_at.map(|share| ("warn_at", Percent(share).to_string())));
    facts.extend(rule.refund_on.map(|_| ("refund_on", "ok".to_owned())));
    facts.extend((!rule.advertise).then(|| ("advertise", "false".to_owned())));
    facts.extend(
        (!rule.show_keys.is_empty()).then(|| ("show_keys", format!("[{}]", rule.show_keys.join(", ")))),
    );
    facts.extend((rule.guard == Guard::Shadow).then(|| ("guard", "shadow".to_owned())));
    facts.extend(rule.overrides.as_ref().map(|overrides| ("overrides", overrides_text(rule, overrides))));
    facts.extend(rule.help.as_ref().map(|help| ("help", help.to_string())));
    facts.retain(|(_, text)| !text.is_empty());
    facts
}

/// Lists the fields of an entry of `deny` or `exempt`.
pub(super) fn listed_facts(listed: &ListedEntry) -> Vec<Fact> {
    let mut facts = vec![
        ("list", <&str>::from(listed.kind).to_owned()),
        ("match", conditions(&listed.conditions)),
        ("mode", listed.mode.to_string()),
    ];
    facts.extend(listed.help.as_ref().map(|help| ("help", help.to_string())));
    facts.retain(|(_, text)| !text.is_empty());
    facts
}

/// Lists the fields of a limit without its overrides.
fn limit(rule: &Rule, limit: &Limit) -> Vec<Fact> {
    let mut facts = match limit.allowance(0) {
        Some(allowance) => of_allowance(allowance),
        None => vec![(if rule.expires.is_some() { "max" } else { "rate" }, "unlimited".to_owned())],
    };
    facts.extend((limit.refused == RefusedCost::Counted).then(|| ("refused", "counted".to_owned())));
    facts.extend(limit.block.map(|lasts| ("block", span(lasts))));
    if let Some(lasts) = limit.soft_for {
        facts.push(("over for", span(lasts)));
    }
    facts
}

fn of_allowance(allowance: &Allowance) -> Vec<Fact> {
    let mut facts = of_quota(&allowance.quota);
    match &allowance.over {
        OverTreatment::Refuse => {}
        OverTreatment::Soft(larger) => facts.push(("over", format!("soft, {} in all", larger.limit()))),
        OverTreatment::Elastic(second) => facts.push(("over", format!("elastic, {}", second.format_rate()))),
    }
    if allowance.max_debt != allowance.quota.limit() {
        facts.push(("max_debt", allowance.max_debt.to_string()));
    }
    facts
}

fn of_quota(quota: &Quota) -> Vec<Fact> {
    if matches!(quota, Quota::Concurrency(_)) {
        return vec![("max", quota.limit().to_string())];
    }
    let mut facts = vec![("algorithm", quota.algorithm().to_owned()), ("rate", quota.format_rate())];
    match quota {
        Quota::TokenBucket(quota) => facts.push(("burst", quota.burst().to_string())),
        Quota::LeakyBucket(quota) => facts.push(("queue", quota.queue().to_string())),
        Quota::FixedWindow(quota) => facts.push(("window", quota.describe_windows())),
        Quota::SlidingLog(_) => facts.push(("window", span(quota.window().into()))),
        Quota::Concurrency(_) => {}
        Quota::FleetBudget(quota) => return of_quota(&quota.local_quota()),
        Quota::SlidingWindow(sliding) => {
            facts.push(("window", span(quota.window().into())));
            facts.push(("buckets", sliding.buckets().to_string()));
        }
    }
    facts
}

fn overrides_text(rule: &Rule, overrides: &super::Overrides) -> String {
    let rate = |number: u32| {
        rule.limit.allowance(number).map_or_else(
            || "unlimited".to_owned(),
            |allowance| {
                let facts: Vec<_> =
                    of_allowance(allowance).into_iter().filter(|(field, _)| *field != "algorithm").collect();
                facts.iter().map(|(field, text)| format!("{field} {text}")).collect::<Vec<_>>().join(" ")
            },
        )
    };
    let listed = overrides.list.iter().map(|(of, number)| format!("{} {}", conditions(of), rate(*number)));
    let mut texts: Vec<String> = listed.collect();
    if !overrides.rows.is_empty() {
        texts.push(format!("{} rows ({})", overrides.rows.len(), overrides.rows.fingerprint()));
    }
    texts.join("; ")
}

fn key_part(part: &KeyPart) -> String {
    let mut text = part.attribute.to_string();
    if part.transform.lowercase {
        text.push_str(" in lower case");
    }
    if let Some(bits) = part.transform.ipv6_prefix {
        text.push_str(&format!(" /{bits}"));
    }
    text
}

/// Formats conditions as they are written in a file.
pub fn conditions(conditions: &[Condition]) -> String {
    let condition = |condition: &Condition| {
        let mut values: Vec<_> = condition.any_of.iter().map(pattern).collect();
        values.extend(condition.or_absent.then(|| "{present: false}".to_owned()));
        match values.as_slice() {
            [only] => format!("{}: {only}", condition.attribute),
            values => format!("{}: [{}]", condition.attribute, values.join(", ")),
        }
    };
    let mut written: Vec<_> = conditions.iter().map(condition).collect();
    if written.is_empty() {
        return String::new();
    }
    // All conditions must match, so their order has no meaning.
    written.sort_unstable();
    format!("{{{}}}", written.join(", "))
}

fn pattern(of: &Pattern) -> String {
    match of {
        Pattern::Exact(text) => text.replace('*', "\\*"),
        Pattern::Glob(glob) => glob.to_string(),
        Pattern::AnyCase(glob) => format!("{{glob: {glob}, ignore_case: true}}"),
        Pattern::Network(network) => format!("{{cidr: {network}}}"),
        Pattern::Not(patterns) => {
            let patterns: Vec<_> = patterns.iter().map(pattern).collect();
            format!("{{not: [{}]}}", patterns.join(", "))
        }
        Pattern::Present => "{present: true}".to_owned(),
    }
}

/// Lists the fields of a `shed` entry. A field missing here is missing in reported differences.
pub(super) fn shed_facts(shed: &Shed, priorities: &[Box<str>]) -> Vec<Fact> {
    let mut facts = Vec::new();
    facts.extend(shed.slots.map(|slots| ("slots", slots.to_string())));
    let CallerGrouping { by, rotate } = &shed.callers;
    facts.push(("callers", format!("{{by: [{}], rotate: {}}}", by.join(", "), span(*rotate))));
    if let Some(own) = &shed.queue_age {
        let [others, critical] = [own.others, own.critical].map(span);
        facts.push(("queue_age", format!("{{others: {others}, critical: {critical}, mode: {}}}", own.mode)));
    }
    if let Some(own) = &shed.workers {
        let ([good, bad], [after, full]) =
            ([own.good, own.bad].map(Percent), [own.after, own.full].map(span));
        let mut text = format!("good: {good}, bad: {bad}, after: {after}, full: {full}");
        text.push_str(&format!(", leak: {}", leak(own.leak)));
        text.push_str(if own.shed_critical { ", shed_critical: true" } else { "" });
        text.push_str(if own.stripe_exact { ", stripe_exact: true" } else { "" });
        facts.push(("workers", format!("{{{text}, mode: {}}}", own.mode)));
    }
    if let Some(own) = &shed.brake {
        let bands: Vec<_> = own.bands.iter().map(|band| Percent(*band).to_string()).collect();
        facts.push(("brake", format!("{{bands: [{}], mode: {}}}", bands.join(", "), own.mode)));
    }
    if let Some(own) = &shed.fleet {
        let reserved_for = priorities.get(own.reserved_for).map_or("", |name| name);
        let reserve = Percent(own.reserve);
        facts.push(("fleet", format!("{{reserve: {reserve}, for: {reserved_for}, mode: {}}}", own.mode)));
    }
    if !shed.signals.is_empty() {
        let signals: Vec<_> = shed.signals.iter().map(signal).collect();
        facts.push(("signals", format!("{{{}}}", signals.join(", "))));
    }
    facts
}

fn signal(signal: &SignalRule) -> String {
    let is_queue = matches!(signal.source, SignalSource::AcceptQueue(_));
    let listen = match &signal.source {
        SignalSource::AcceptQueue(listen) => format!("listen: {listen}, "),
        _ => String::new(),
    };
    let points = signal.map.iter().map(|(reading, utilization)| {
        let reading = if is_queue { reading.to_string() } else { Percent(*reading).to_string() };
        format!("[{reading}, {}]", Percent(*utilization))
    });
    let points = points.collect::<Vec<_>>().join(", ");
    format!("{}: {{{listen}use: {}, map: [{points}]}}", signal.name, signal.counts)
}

fn leak((part, whole): (u32, u32)) -> String {
    if part == 0 { "0".to_owned() } else { format!("{part}/{whole}") }
}

/// The form in rules files.
impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Port(port) => write!(f, ":{port}"),
            Listen::Path(path) => f.write_str(path),
        }
    }
}
