//! Rules as JSON, and entries of `shed` as text and as JSON, for `check` and `explain`. Keys are never removed, and always
//! present.

use humantime::format_duration;
use serde_json::{Map, Value, json};

use crate::clock::Micros;
use crate::engine::bytes_per_rule_key;
use crate::limit::Quota;
use crate::rules::percent::Percent;
use crate::rules::shed::{Shed, ShedPart, SignalSource, Workers};
use crate::rules::words::{LEASE_BYTES_MAX, beyond, bound, bound_of, past_budget, steady};
use crate::rules::{
    Allowance, Condition, Domain, FleetBound, FleetSettings, Limit, ListedEntry, Mode, OverTreatment,
    Position, RefusedCost, Rule, WholeNumbers, conditions,
};

/// Returns the fields of a rule. Bounds are for `hosts` hosts, of a fleet budget for each of `fleets`.
pub(super) fn rule(rule: &Rule, hosts: u32, fleets: &[u32]) -> Map<String, Value> {
    let bytes = bytes_per_rule_key(rule);
    let mut all = position(&rule.position);
    all.extend(object(json!({
        "name": &*rule.name,
        "mode": rule.mode.name(),
        "match": conditions_or_none(&rule.conditions),
        "key": rule.key.iter().map(|part| &*part.attribute).collect::<Vec<_>>(),
        "key_parts": rule.key,
        "unit": rule.unit.as_deref().unwrap_or(crate::engine::UNIT_REQUESTS),
        "scope": <&str>::from(rule.scope()),
        "fleet": rule.fleet.as_ref().map(|settings| fleet(rule, settings, fleets)),
        "warn_at_permille": rule.warn_at,
        "expires_us": rule.expires.map(|span| Micros::from(span).0),
        "refund_on": rule.refund_on.map(|_| "ok"),
        "advertise": rule.advertise,
        "show_keys": rule.show_keys.iter().map(|name| &**name).collect::<Vec<_>>(),
        "help": rule.help.as_deref(),
        "overrides": overrides(rule, hosts),
        "bytes_per_key": {"least": bytes.least, "most": bytes.most},
        "bytes_per_lease": rule.expires.map(|_| LEASE_BYTES_MAX),
    })));
    all.extend(limit(&rule.limit, hosts));
    if let (Some(_), Some(quota)) = (&rule.fleet, rule.limit.quota()) {
        // A fleet budget does not grow with the hosts.
        all.insert("bound".to_owned(), bound_of(rule, quota).into());
        all.insert("bound_on_hosts".to_owned(), bound_of(rule, quota).into());
    }
    all
}

/// Returns the sharing of a fleet budget, and the bounds beyond it.
fn fleet(rule: &Rule, settings: &FleetSettings, fleets: &[u32]) -> Value {
    let quota = rule.limit.quota();
    let bounds = fleets.iter().filter_map(|hosts| FleetBound::of(settings, quota?, *hosts)).map(|bound| {
        let mut fields = object(json!(bound));
        fields.insert("says".to_owned(), past_budget(&bound).into());
        fields.insert("doubt".to_owned(), quota.and_then(|quota| bound.doubt(quota)).into());
        fields
    });
    json!({
        "mode": <&str>::from(settings.mode),
        "on_miss": settings.on_miss.map(<&str>::from),
        "on_redis_down": <&str>::from(settings.on_redis_down),
        "max_over_permille": settings.over(),
        "region": settings.region.map(|region| {
            let (rate, burst, max) = match region.whole {
                Some(WholeNumbers::Tokens { rate, burst }) => (Some(rate.to_string()), Some(burst), None),
                Some(WholeNumbers::Permits(max)) => (None, None, Some(max)),
                None => (None, None, None),
            };
            json!({"weight_permille": region.weight, "rate": rate, "burst": burst, "max": max})
        }),
        "wait_us": Micros::from(settings.wait()).0,
        "bounds": bounds.collect::<Vec<_>>(),
    })
}

/// Returns the fields of a limit, without the allowances of overrides.
pub(super) fn limit(limit: &Limit, hosts: u32) -> Map<String, Value> {
    let mut all = object(json!({
        "refused": match limit.refused { RefusedCost::Free => "free", RefusedCost::Counted => "counted" },
        "block_us": limit.block.map(|block| Micros::from(block).0),
    }));
    all.extend(allowance(limit.allowance(0), limit, hosts));
    all
}

pub(super) fn allowance(allowance: Option<&Allowance>, limit: &Limit, hosts: u32) -> Map<String, Value> {
    let quota = allowance.map(|allowance| &allowance.quota);
    let steady = quota.and_then(steady);
    let rounding = steady.map(|(rate, scale)| rate.rounding_parts_on(scale));
    let (burst, queue, buckets, window) = own_numbers(quota);
    object(json!({
        "algorithm": quota.map(Quota::algorithm),
        "rate": quota.map_or_else(|| "unlimited".to_owned(), Quota::format_rate),
        "limit": quota.map(Quota::limit),
        "burst": burst,
        "queue": queue,
        "buckets": buckets,
        "window": window,
        "window_us": quota.map(|quota| quota.window().0),
        "bound": quota.map(|quota| bound(quota, 1)),
        "hosts": hosts,
        "bound_on_hosts": quota.map(|quota| bound(quota, hosts)),
        "exact": quota.map(|_| rounding.flatten().is_none()),
        "slow_by_one_part_in": rounding.flatten(),
        "ticks_per_nanosecond": steady.map(|(_, scale)| scale.ticks_per_nano()),
        "max_debt": allowance.filter(|own| !matches!(own.quota, Quota::Concurrency(_))).map(|own| own.max_debt),
        "over": allowance.and_then(|allowance| over(allowance, limit, hosts)),
    }))
}

/// Formats conditions as in a rules file; `None` if there are none.
pub(super) fn conditions_or_none(of: &[Condition]) -> Option<String> {
    Some(conditions(of)).filter(|text| !text.is_empty())
}

pub(super) fn listed(listed: &ListedEntry) -> Map<String, Value> {
    let mut all = position(&listed.position);
    all.extend(object(json!({
        "name": &*listed.name,
        "list": <&str>::from(listed.kind),
        "mode": listed.mode.to_string(),
        "match": conditions_or_none(&listed.conditions),
    })));
    all
}

/// Returns a position as three fields; an unknown line or column is null.
pub(super) fn position(position: &Position) -> Map<String, Value> {
    let known = |number: u32| (position.line > 0).then_some(number);
    object(json!({
        "file": &*position.file,
        "line": known(position.line),
        "column": known(position.column),
    }))
}

pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn overrides(rule: &Rule, hosts: u32) -> Option<Value> {
    let overrides = rule.overrides.as_deref()?;
    let listed = overrides.list.iter().map(|(of, number)| {
        let mut entry = object(
            json!({"match": conditions_or_none(of), "line": of.first().map(|condition| condition.line)}),
        );
        entry.extend(allowance(rule.limit.allowance(*number), &rule.limit, hosts));
        entry
    });
    Some(json!({
        "listed": listed.collect::<Vec<_>>(),
        "file": overrides.file.as_deref(),
        "rows": overrides.rows.len(),
        "rows_bytes": overrides.rows.heap_bytes(),
    }))
}

/// Returns burst, queue, buckets and kind of window, which only some algorithms have.
fn own_numbers(quota: Option<&Quota>) -> (Option<u32>, Option<u32>, Option<u8>, Option<String>) {
    match quota {
        Some(Quota::TokenBucket(quota)) => (Some(quota.burst()), None, None, None),
        Some(Quota::FleetBudget(quota)) => own_numbers(Some(&quota.local_quota())),
        Some(Quota::LeakyBucket(quota)) => (None, Some(quota.queue()), None, None),
        Some(Quota::FixedWindow(quota)) => (None, None, None, Some(quota.describe_windows())),
        Some(Quota::SlidingWindow(quota)) => (None, None, Some(quota.buckets()), None),
        Some(Quota::SlidingLog(_) | Quota::Concurrency(_)) | None => (None, None, None, None),
    }
}

fn over(allowance: &Allowance, limit: &Limit, hosts: u32) -> Option<Value> {
    let (kind, quota) = match &allowance.over {
        OverTreatment::Refuse => return None,
        OverTreatment::Soft(larger) => ("soft", larger),
        OverTreatment::Elastic(second) => ("elastic", second),
    };
    Some(json!({
        "kind": kind,
        "limit": quota.limit(),
        "rate": quota.format_rate(),
        "for_us": limit.soft_for.filter(|_| kind == "soft").map(|span| Micros::from(span).0),
        "bound": beyond(&allowance.over, limit.soft_for, 1),
        "bound_on_hosts": beyond(&allowance.over, limit.soft_for, hosts),
    }))
}

/// Describes the requests that a part refuses, and when; `None` if it is not configured.
pub(super) fn part(domain: &Domain, shed: &Shed, part: ShedPart) -> Option<String> {
    let names = domain.priorities();
    match part {
        ShedPart::Fleet => shed.fleet.as_ref().map(|own| {
            let (kept, others) = names.split_at_checked(own.reserved_for + 1).unwrap_or((names, &[]));
            format!(
                "keeps {} of the slots for {}: {} together use at most {}",
                Percent(u32::from(own.reserve)),
                kept.join(" and "),
                others.join(", "),
                Percent(u32::from(1_000_u16.saturating_sub(own.reserve)))
            )
        }),
        ShedPart::Brake => shed.brake.as_ref().map(|own| {
            let bands = names.iter().rev().zip(&own.bands);
            let bands: Vec<_> =
                bands.map(|(name, band)| format!("{name} {}", Percent(u32::from(*band)))).collect();
            format!(
                "while requests queue up, of the slots at most: {}; {} all",
                bands.join(", "),
                first(names)
            )
        }),
        ShedPart::Workers => shed.workers.as_ref().map(|own| workers(names, own)),
        ShedPart::QueueAge => shed.queue_age.as_ref().map(|own| {
            let [others, critical] = [own.others.0, own.critical.0].map(format_duration);
            match names.first() {
                Some(name) => {
                    format!("refuses requests that waited more than {others}; {name} more than {critical}")
                }
                None => format!("refuses requests that waited more than {others}"),
            }
        }),
    }
}

fn workers(names: &[Box<str>], own: &Workers) -> String {
    let [after, full] = [own.after.0, own.full.0].map(format_duration);
    let sheddable = names.get(usize::from(!own.shed_critical)..).unwrap_or_default();
    let order: Vec<_> = sheddable.iter().rev().map(|name| &**name).collect();
    let never = if own.shed_critical { String::new() } else { format!(", never {}", first(names)) };
    let leak = match own.leak.0 {
        (0, _) => "stays in between".to_owned(),
        (part, whole) => format!("recovers by {part}/{whole} a second in between"),
    };
    format!(
        "sheds above {} of the slots busy, recovers below {}, {leak}; at full load {after} to the first refusal and \
         {full} more to the last: {}{never}",
        Percent(own.bad.0),
        Percent(own.good.0),
        order.join(", "),
    )
}

pub(super) fn callers(shed: &Shed) -> String {
    format!(
        "by {}; the refused callers change over {}",
        shed.callers.by.join(", else "),
        format_duration(shed.callers.rotate)
    )
}

pub(super) fn signals(shed: &Shed) -> String {
    let signals = shed.signals.iter().map(|signal| {
        let listen = match &signal.source {
            SignalSource::AcceptQueue(listen) => format!(" of {listen}"),
            SignalSource::Pushed => " (pushed)".to_owned(),
            _ => String::new(),
        };
        let counts = if signal.counts { "counts" } else { "shown only" };
        format!("{}{listen} {counts}", signal.name)
    });
    signals.collect::<Vec<_>>().join(", ")
}

/// Returns an entry as JSON, every key always present; parts that are off are null.
pub(super) fn shed_json(domain: &Domain, shed: &Shed) -> Map<String, Value> {
    let mut all = position(&shed.position);
    let with_rule = |which: ShedPart, mode: Mode, own: Value| {
        let mut fields = object(own);
        fields.extend(object(json!({
            "rule": shed.rule_name(which),
            "mode": mode.name(),
            "bound": part(domain, shed, which),
        })));
        fields
    };
    all.extend(object(json!({
        "pool": &*shed.pool,
        "slots": shed.slots,
        "callers": {"by": shed.callers.by, "rotate_us": Micros::from(shed.callers.rotate).0},
        "fleet": shed.fleet.as_ref().map(|own| with_rule(ShedPart::Fleet, own.mode, json!({
            "reserve_permille": own.reserve,
            "for": domain.priorities().get(own.reserved_for).map(|name| &**name),
        }))),
        "brake": shed.brake.as_ref().map(|own| {
            with_rule(ShedPart::Brake, own.mode, json!({"bands_permille": own.bands}))
        }),
        "workers": shed.workers.as_ref().map(|own| with_rule(ShedPart::Workers, own.mode, json!({
            "good_permille": own.good.0,
            "bad_permille": own.bad.0,
            "after_us": Micros::from(own.after.0).0,
            "full_us": Micros::from(own.full.0).0,
            "leak": own.leak.0,
            "shed_critical": own.shed_critical,
            "stripe_exact": own.stripe_exact,
        }))),
        "queue_age": shed.queue_age.as_ref().map(|own| with_rule(ShedPart::QueueAge, own.mode, json!({
            "others_us": Micros::from(own.others.0).0,
            "critical_us": Micros::from(own.critical.0).0,
        }))),
        "signals": shed.signals.iter().map(|signal| json!({
            "name": &*signal.name,
            "listen": match &signal.source {
                SignalSource::AcceptQueue(listen) => Some(listen.to_string()),
                _ => None,
            },
            "pushed": signal.source == SignalSource::Pushed,
            "counts": signal.counts,
            "map": signal.map,
        })).collect::<Vec<_>>(),
    })));
    all
}

fn first(names: &[Box<str>]) -> &str {
    names.first().map_or("", |name| name)
}
