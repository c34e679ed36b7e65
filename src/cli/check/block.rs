//! Describes a rule, a list entry or a domain as lines of text. It validates nothing.

use std::fmt::Write;

use super::super::describe;
use crate::engine::{KindsInUse, bytes_per_rule_key, keys_within};
use crate::limit::{Quota, Rate};
use crate::rules::percent::Percent;
use crate::rules::shed::Shed;
use crate::rules::words::{
    LEASE_BYTES_MAX, beyond, bound, bound_of, each, exactness, expires, mode, numbers_or_unlimited,
    past_budget, steady,
};
use crate::rules::{
    Domain, FleetBound, Limit, ListKind, Overrides, RefusedCost, Region, Rule, WholeNumbers, conditions,
};
use crate::terms::{count, counted};

#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSettings {
    /// Hosts with the same rules; `None` if unknown.
    pub(super) hosts: Option<u32>,
    pub(super) memory_bytes_max: u64,
    pub(super) kinds: KindsInUse,
}

impl BlockSettings {
    pub(super) fn hosts(&self) -> u32 {
        self.hosts.unwrap_or(1)
    }

    /// Returns the fleet sizes to describe: two hosts, the current number, and twice that.
    pub(super) fn fleets(&self) -> impl Iterator<Item = u32> + use<> {
        let now = self.hosts();
        std::iter::once(2).chain([now, now.saturating_mul(2)].into_iter().filter(|hosts| *hosts > 2))
    }

    /// Returns the least number of keys of a rule that fit into the byte budget while the other rules have none.
    pub(super) fn keys_held(&self, rule: &Rule) -> Option<u64> {
        let budget = usize::try_from(self.memory_bytes_max).unwrap_or(usize::MAX);
        keys_within(budget, rule, self.kinds)
    }
}

/// Returns a block of text for each list entry, rule and pool of a domain, in the order of evaluation.
pub(super) fn blocks<'d>(
    domain: &'d Domain,
    settings: &'d BlockSettings,
) -> impl Iterator<Item = String> + 'd {
    let lists = domain.lists().iter().map(|listed| {
        let what = match listed.kind {
            ListKind::Exempt => "exempts",
            ListKind::Deny => "refuses",
        };
        let conditions_text = match conditions(&listed.conditions).as_str() {
            "" => "every request".to_owned(),
            conditions_text => format!("requests with {conditions_text}"),
        };
        let (name, mode) = (&listed.name, mode(listed.mode));
        format!("{}/{name}{mode} ({}): {what} {conditions_text}", domain.name(), listed.position)
    });
    let rules = (0..).zip(domain.rules());
    let rules = rules.map(|(number, rule)| of_rule(domain, number, rule, settings));
    lists.chain(rules).chain(domain.sheds().iter().map(|shed| of_shed(domain, shed)))
}

/// Describes the priorities and the descriptor tree of a domain.
pub(super) fn of_domain(domain: &Domain) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(least) = domain.priorities().last() {
        let entries = match domain.prioritize().len() {
            1 => "1 entry".to_owned(),
            many => format!("{many} entries"),
        };
        lines.push(format!(
            "{}: priorities {}; {entries} of `prioritize`, other requests have {least}",
            domain.name(),
            domain.priorities().join(", "),
        ));
    }
    if domain.tree().nodes() > 0 {
        let limiting =
            (0..).zip(domain.rules()).filter(|(rule, _)| domain.tree().path(*rule).is_some()).count();
        let nodes = counted(domain.tree().nodes(), "descriptor");
        lines.push(format!("{}: a tree of {nodes}, {limiting} with a limit", domain.name()));
    }
    lines
}

fn of_rule(domain: &Domain, number: u32, rule: &Rule, settings: &BlockSettings) -> String {
    let numbers = numbers_or_unlimited(rule.limit.quota());
    let mut block = format!(
        "{}/{}{} ({}): {numbers}, {}",
        domain.name(),
        rule.name,
        mode(rule.mode),
        rule.position,
        each(rule)
    );
    let mut line = |label: &str, text: String| {
        if !text.is_empty() {
            // Writing to a `String` cannot fail.
            let _ = write!(block, "\n  {label:<9} {text}");
        }
    };
    line("path", domain.tree().path(number).unwrap_or_default().join(" → "));
    line("match", conditions(&rule.conditions));
    line("unit", rule.unit.as_deref().unwrap_or_default().to_owned());
    match (&rule.fleet, rule.limit.quota()) {
        (Some(fleet), Some(quota)) => {
            line("bound", bound_of(rule, quota));
            line("region", fleet.region.and_then(|region| region_text(&region, quota)).unwrap_or_default());
            let share = fleet.max_over.map(|share| format!(", max_over: {}", Percent(share)));
            line("fleet", format!("{}{}", fleet.text(), share.unwrap_or_default()));
            // The bound on requests beyond the budget, with its doubts.
            for bound in settings.fleets().filter_map(|hosts| FleetBound::of(fleet, quota, hosts)) {
                let doubt = bound.doubt(quota).map(|doubt| format!("; {doubt}")).unwrap_or_default();
                line(&format!("{} hosts", bound.hosts), format!("{}{doubt}", past_budget(&bound)));
            }
        }
        _ => {
            let refunded = rule.refund_on.map_or("", |_| "; a refunded request does not count");
            line("bound", format!("{}{refunded}", bounds(&rule.limit, settings)));
        }
    }
    line("expires", rule.expires.map(expires).unwrap_or_default());
    let allowance = rule.limit.allowance(0);
    line(
        "over",
        allowance
            .and_then(|own| beyond(&own.over, rule.limit.soft_for, settings.hosts()))
            .unwrap_or_default(),
    );
    let is_fleet = allowance.is_some_and(|own| matches!(own.quota, Quota::FleetBudget(_)));
    if rule.limit.refused == RefusedCost::Counted && !is_fleet {
        line("refused", "counted: refused requests are charged as well".to_owned());
    }
    if let Some(lasts) = rule.limit.block {
        line("block", format!("once refused, refused for {}", humantime::format_duration(lasts)));
    }
    let charged = allowance.filter(|own| !matches!(own.quota, Quota::Concurrency(_)));
    if let Some(own) = charged.filter(|own| own.max_debt != own.quota.limit() || rule.unit.is_some()) {
        line("debt", format!("CHARGE may go {} below zero", own.max_debt));
    }
    line("overrides", rule.overrides.as_deref().map(|own| overrides(rule, own)).unwrap_or_default());
    line("also", also(rule));
    line("memory", memory(rule, settings));
    block
}

/// Describes the shedding rules of one pool, in the order of evaluation.
fn of_shed(domain: &Domain, shed: &Shed) -> String {
    let slots = match shed.slots {
        Some(slots) => format!("{slots} slots unless its processes say how many"),
        None => "as many slots as its processes say".to_owned(),
    };
    let mut block = format!("{}/{} ({}): sheds the pool, {slots}", domain.name(), shed.pool, shed.position);
    let parts = shed.parts().filter_map(|(part, set)| {
        Some((<&str>::from(part), format!("{}{}", describe::part(domain, shed, part)?, mode(set))))
    });
    let callers = ("callers", describe::callers(shed));
    for (label, text) in parts.chain([callers, ("signals", describe::signals(shed))]) {
        if !text.is_empty() {
            // Writing to a `String` cannot fail.
            let _ = write!(block, "\n  {label:<9} {text}");
        }
    }
    block
}

/// Describes a region's share of the budget, and its loss from rounding to whole tokens or permits.
fn region_text(region: &Region, quota: &Quota) -> Option<String> {
    let (weight, whole) = (region.weight, region.whole?);
    let is_window = matches!(quota, Quota::FleetBudget(part) if part.window().is_some());
    let (count, of, one) = match whole {
        WholeNumbers::Tokens { burst, .. } if is_window => (burst, "the limit", "token"),
        WholeNumbers::Tokens { burst, .. } => (burst, "the burst", "token"),
        WholeNumbers::Permits(max) => (max, "`max`", "permit"),
    };
    let exact = u64::from(count) * u64::from(weight);
    let rounded = match exact.checked_sub(u64::from(quota.limit()) * 1_000) {
        Some(0) => String::new(),
        Some(lost) => format!("; of {of} 0.{lost:03} of a {one} is lost"),
        None => format!("; less than one {one} of {of}, and one all the same"),
    };
    let (numbers, slower) = match (whole, quota) {
        (WholeNumbers::Tokens { rate, .. }, _) if is_window => (rate.to_string(), String::new()),
        (WholeNumbers::Tokens { rate, burst }, Quota::FleetBudget(part)) => {
            (format!("{rate}, burst {burst}"), slower(rate, weight, part.bucket().rate()))
        }
        (WholeNumbers::Tokens { rate, burst }, _) => (format!("{rate}, burst {burst}"), String::new()),
        (WholeNumbers::Permits(max), _) => (format!("{max} at once"), String::new()),
    };
    let share = Percent(weight);
    Some(format!("{share} of {numbers}, which all regions have together{rounded}{slower}"))
}

fn slower(whole: Rate, weight: u16, part: Rate) -> String {
    let exact = u128::from(whole.count()) * u128::from(weight) * u128::from(part.period_nanos());
    let has = u128::from(part.count()) * 1_000 * u128::from(whole.period_nanos());
    match exact.checked_sub(has).and_then(|lost| exact.checked_div(lost)) {
        Some(parts) => format!("; of the rate one part in {parts} is lost"),
        None => String::new(),
    }
}

fn bounds(limit: &Limit, settings: &BlockSettings) -> String {
    let Some(quota) = limit.quota() else {
        return "none of its own: only its overrides limit".to_owned();
    };
    let own = [Some(bound(quota, 1)), exactness(quota)].into_iter().flatten().collect::<Vec<_>>().join(", ");
    match settings.hosts {
        _ if quota.limit() == 0 => own,
        None if matches!(quota, Quota::LeakyBucket(_)) => format!("{own}; each host paces by itself"),
        None => format!("{own}; on N hosts N times that"),
        Some(1) => own,
        Some(hosts) => format!("{own}; on {hosts} hosts {}", bound(quota, hosts)),
    }
}

fn overrides(rule: &Rule, overrides: &Overrides) -> String {
    let mut parts = Vec::new();
    if let Some(file) = &overrides.file {
        let (rows, bytes) = (counted(overrides.rows.len(), "row"), overrides.rows.heap_bytes());
        parts.push(format!("{rows} of {file}, {bytes} bytes"));
    }
    let shown = overrides.list.iter().take(OVERRIDES_SHOWN).map(|(of, number)| {
        let numbers = numbers_or_unlimited(rule.limit.allowance(*number).map(|allowance| &allowance.quota));
        match conditions(of).as_str() {
            "" => format!("otherwise {numbers}"),
            of => format!("{of} {numbers}"),
        }
    });
    parts.extend(shown);
    if overrides.list.len() > OVERRIDES_SHOWN {
        parts.push(format!("{} more in the list", overrides.list.len() - OVERRIDES_SHOWN));
    }
    if let Some(rounded) = slowest_override(&rule.limit) {
        parts.push(format!("the least exact kept slow by one part in {rounded}"));
    }
    parts.join("; ")
}

/// Returns the largest rounding error of the overrides' rates: one part in this number. `None` if exact.
pub(super) fn slowest_override(limit: &Limit) -> Option<u64> {
    let overrides = limit.allowances.iter().skip(1).flatten();
    let rounded = overrides.filter_map(|allowance| {
        let (rate, scale) = steady(&allowance.quota)?;
        rate.rounding_parts_on(scale)
    });
    rounded.min()
}

/// Lists the other fields of a rule that are set.
fn also(rule: &Rule) -> String {
    let texts = rule.fields().into_iter().filter(|(field, _)| ALSO.contains(field));
    texts.map(|(field, text)| format!("{field}: {text}")).collect::<Vec<_>>().join(", ")
}

fn memory(rule: &Rule, settings: &BlockSettings) -> String {
    let bytes = bytes_per_rule_key(rule);
    let Some(held) = settings.keys_held(rule) else { return "nothing is kept".to_owned() };
    let work = match rule.expires {
        Some(_) => format!("; at most {LEASE_BYTES_MAX} bytes for each lease"),
        None => String::new(),
    };
    if rule.key.is_empty() {
        return format!("one key, at most {} bytes{work}", bytes.most);
    }
    let (budget, held) = (mebibytes(settings.memory_bytes_max), count(held));
    format!(
        "{} to {} bytes a key: {budget} hold at least {held} keys of this rule alone{work}",
        bytes.least, bytes.most
    )
}

fn mebibytes(bytes: u64) -> String {
    match bytes >> 20 {
        whole if whole << 20 == bytes => format!("{whole} MiB"),
        _ => format!("{bytes} bytes"),
    }
}

/// The fields without a line of their own.
const ALSO: [&str; 5] = ["warn_at", "refund_on", "advertise", "show_keys", "help"];

/// Up to 256 are possible; the file has them all.
const OVERRIDES_SHOWN: usize = 8;
