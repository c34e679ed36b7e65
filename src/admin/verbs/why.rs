//! `POST /why`: the decision that a request would get now from the rules in force, the state of each matching rule, and the
//! rules that do not match with their reasons. Nothing is charged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{VerbRefusal, VerbResult};
use crate::adapters::DescriptorList;
use crate::admin::switches::utc;
use crate::admin::{AdminState, answer};
use crate::clock::Now;
use crate::engine::{
    BlockedKey, Caller, Cost, Descriptors, DigestError, InspectedCheck, Op, Request, RuleName, ShownDigest,
    SwitchOrigin, SwitchView, Target, UNIT_REQUESTS,
};
use crate::rules::de::{TYPO, nearest};
use crate::rules::words::numbers_or_unlimited;
use crate::rules::{Domain, Mismatch, NamedItem, Rule};
use crate::terms::counted;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WhyRequest {
    /// May be left out with a digest.
    domain: Option<String>,
    #[serde(default)]
    descriptors: Vec<Vec<(String, String)>>,
    /// By unit; empty: one request.
    #[serde(default)]
    cost: BTreeMap<String, u32>,
    priority: Option<String>,
    /// Looks this key up instead of a request.
    digest: Option<String>,
}

/// The answer of `POST /why`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WhyStatus {
    pub(crate) domain: String,
    /// The mode of the whole daemon.
    pub(crate) mode: String,
    /// `None` for a digest.
    pub(crate) verdict: Option<String>,
    /// The binding rule, list entry or shedder.
    pub(crate) rule: Option<String>,
    pub(crate) retry_us: Option<u64>,
    pub(crate) priority: Option<String>,
    /// Text that the caller gets with a refusal.
    pub(crate) help: Option<String>,
    /// The rules that check the request, in file order.
    pub(crate) checks: Vec<WhyCheck>,
    /// Rules and list entries that do not match: those that nearly match first, each in file order; at most 100.
    pub(crate) others: Vec<WhyOther>,
    /// Further ones.
    pub(crate) more: usize,
    /// The pools that the domain sheds, whose state also decides.
    pub(crate) pools: Vec<String>,
    /// Switches and blocks that apply.
    pub(crate) overrides: Vec<String>,
    /// Attributes of the request that nothing in the domain uses.
    pub(crate) unused: Vec<UnusedAttribute>,
}

/// One rule's view of the request, or of the digest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WhyCheck {
    pub(crate) rule: String,
    pub(crate) at: String,
    /// The mode in force.
    pub(crate) mode: String,
    /// Algorithm and numbers that this key has.
    pub(crate) quota: String,
    /// Whether they are those of an override.
    pub(crate) is_overridden: bool,
    /// Whether they may be those of an override, as a digest does not tell.
    pub(crate) is_uncertain: bool,
    pub(crate) digest: String,
    pub(crate) cost: u32,
    pub(crate) unit: String,
    pub(crate) limit: Option<u64>,
    pub(crate) window_us: Option<u64>,
    pub(crate) remaining: Option<u64>,
    pub(crate) reset_us: Option<u64>,
    pub(crate) refuses: bool,
    /// Whether only Redis knows what is left, which was not asked.
    pub(crate) is_unreported: bool,
    pub(crate) blocked: bool,
    pub(crate) retry_us: Option<u64>,
    /// Units requested and refused lately, by the sketch of the busiest callers; absent for a caller not in it.
    pub(crate) requested: Option<u64>,
    pub(crate) refused: Option<u64>,
    pub(crate) would_refuse: Option<u64>,
    /// The values of attributes in `show_keys`.
    pub(crate) text: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WhyOther {
    pub(crate) rule: String,
    pub(crate) at: String,
    pub(crate) reason: String,
    /// The single difference, if it looks like a mistake.
    pub(crate) near: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UnusedAttribute {
    pub(crate) name: String,
    /// The attribute that is probably meant.
    pub(crate) near: Option<String>,
}

pub(in crate::admin) fn why(admin: &AdminState, _: SwitchOrigin, body: &Value) -> VerbResult {
    let request: WhyRequest = super::fields(body)?;
    let in_force = admin.engine.in_force();
    let now = admin.clock.now();
    let mut status = WhyStatus {
        domain: request.domain.clone().unwrap_or_default(),
        mode: admin.engine.mode().to_string(),
        overrides: switches(admin, now, |view| view.switch.target == Target::Daemon),
        ..WhyStatus::default()
    };
    let domain = |name: &str| {
        let found = in_force.domains().find(|domain| *domain.name() == *name);
        found.ok_or_else(|| VerbRefusal::failed(admin.engine.describe_missing(name)))
    };
    match (&request.domain, &request.digest) {
        (Some(name), None) => {
            let domain = domain(name)?;
            let items: Vec<_> = in_force.each().filter(|item| item.domain == domain.name()).collect();
            inspect(admin, domain, &items, &request, &mut status, now)?;
        }
        (name, Some(digest)) => {
            let digest = find_digest(admin, digest)?;
            let named = name.as_deref().map(domain).transpose()?;
            let domains = named.map_or_else(|| in_force.domains().collect(), |domain| vec![domain]);
            let has_rule = |domain: &&&Arc<Domain>| {
                domain.rules().iter().any(|rule| digest.is_of(domain.name(), &rule.name))
            };
            let Some(domain) = domains.iter().find(has_rule) else {
                let domain = name.as_deref().map(|name| format!(" of {name}")).unwrap_or_default();
                return Err(VerbRefusal::failed(format!(
                    "no rule{domain} has a key of this digest: copy it anew; a digest of before a rule was renamed is lost"
                )));
            };
            domain.name().clone_into(&mut status.domain);
            look_up(admin, domain, digest, &mut status, now);
        }
        (None, None) => return Err(VerbRefusal::bad("of which request: write `domain`, or `digest`")),
    }
    Ok(answer::done(json!(status)))
}

fn inspect(
    admin: &AdminState,
    domain: &Domain,
    items: &[NamedItem<'_>],
    request: &WhyRequest,
    status: &mut WhyStatus,
    now: Now,
) -> Result<(), VerbRefusal> {
    let mut list = DescriptorList::new();
    for descriptor in &request.descriptors {
        let pairs: Vec<_> = descriptor.iter().map(|(name, value)| (&**name, &**value)).collect();
        if !list.push(&pairs) {
            return Err(VerbRefusal::bad("at most 8 descriptors, and at most 16 attributes in each"));
        }
    }
    let attributes = list.attributes();
    let units: Vec<(&str, u32)> = request.cost.iter().map(|(unit, cost)| (&**unit, *cost)).collect();
    let cost = if units.is_empty() { Cost::Requests(1) } else { Cost::Units(&units) };
    let descriptors = Descriptors { attributes, ends: list.ends() };
    let peek = Request {
        cost,
        priority: request.priority.as_deref(),
        ..Request::new(Op::Peek, domain.name(), descriptors)
    };
    admin.engine.inspect(&peek, now, |decision| {
        status.verdict = Some(decision.verdict.name().to_owned());
        status.rule = decision.rule_name().map(str::to_owned);
        status.retry_us = decision.retry_after.map(|wait| wait.0);
        status.priority = decision.priority.map(str::to_owned);
        let help = decision.binding.and_then(|binding| binding.rule.help.as_deref());
        status.help = decision.listed.and_then(|listed| listed.help.as_deref()).or(help).map(str::to_owned);
        status.checks = decision.inspected().map(|check| self::check(admin, domain, &check)).collect();
    });
    let unused = domain.unused(attributes);
    let named: Vec<&str> = units.iter().map(|(unit, _)| *unit).collect();
    let others = (0u32..).zip(items).filter_map(|(number, item)| {
        let (reason, near) = match domain.why_not(number, item.mode, attributes) {
            Some(mismatch @ Mismatch::Disabled) => (mismatch.describe(attributes), None),
            Some(mismatch) => (mismatch.describe(attributes), domain.near_match(number, attributes, &unused)),
            None => unit_left_out(domain, number, &named)?,
        };
        Some(WhyOther {
            rule: item.name.to_owned(),
            at: format!("{}:{}", item.position.file, item.position.line),
            reason,
            near,
        })
    });
    status.others = others.collect();
    status.others.sort_by_key(|other| other.near.is_none());
    status.more = status.others.len().saturating_sub(OTHERS_MAX);
    status.others.truncate(OTHERS_MAX);
    let in_domain = |view: &SwitchView| {
        // A switch outlives its rule.
        let exists = view.configured_mode.is_some();
        exists && matches!(&view.switch.target, Target::Rule(name) if *name.domain == *domain.name())
    };
    status.overrides.extend(switches(admin, now, in_domain));
    status.pools = domain.sheds().iter().map(|shed| shed.pool.to_string()).collect();
    let used = domain.attribute_names();
    status.unused = unused
        .into_iter()
        .map(|name| UnusedAttribute {
            name: name.to_owned(),
            near: nearest(name, used.iter().copied(), TYPO).map(str::to_owned),
        })
        .collect();
    Ok(())
}

/// Says that a matching rule counts in none of the units of a cost (none: requests), and whether that looks like a mistake.
/// `None` for nodes of the descriptor tree.
fn unit_left_out(domain: &Domain, number: u32, units: &[&str]) -> Option<(String, Option<String>)> {
    let rule = domain.rules().get(number as usize).filter(|_| domain.tree().path(number).is_none())?;
    let rule = Some(rule).filter(|rule| !rule.counts_work())?;
    let unit = rule.unit.as_deref().unwrap_or(UNIT_REQUESTS);
    let units = if units.is_empty() { &[UNIT_REQUESTS] } else { units };
    if units.contains(&unit) {
        return None;
    }
    let reason = format!("it counts {unit}, and the cost names none (--cost {unit}=N)");
    let near = nearest(unit, units.iter().copied(), TYPO).map(|near| format!("{reason}; is {near} meant?"));
    Some((reason, near))
}

fn check(admin: &AdminState, domain: &Domain, check: &InspectedCheck<'_>) -> WhyCheck {
    let rule = check.rule;
    let mut entry = WhyCheck {
        cost: check.cost,
        unit: rule.unit.as_deref().unwrap_or(UNIT_REQUESTS).to_owned(),
        limit: check.level.map(|level| level.limit),
        window_us: check.level.map(|level| level.window.0),
        remaining: check.level.map(|level| level.remaining),
        reset_us: check.level.map(|level| level.reset.0),
        refuses: check.refuses,
        is_unreported: is_unreported(admin, check),
        blocked: check.blocked,
        retry_us: check.retry_after.map(|wait| wait.0),
        is_overridden: check.is_overridden,
        is_uncertain: check.is_uncertain,
        ..of_rule(admin, domain, rule, numbers_or_unlimited(check.quota), &check.digest)
    };
    add_sketch(admin, domain, &mut entry);
    entry
}

fn is_unreported(admin: &AdminState, check: &InspectedCheck<'_>) -> bool {
    let quota = check.quota.filter(|_| !check.refuses);
    quota.is_some_and(|quota| admin.engine.is_unreported(check.key, quota, admin.clock.now()))
}

/// Returns what is known of a key without its state.
fn of_rule(admin: &AdminState, domain: &Domain, rule: &Rule, quota: String, digest: &str) -> WhyCheck {
    let name = RuleName { domain: domain.name().into(), rule: rule.name.clone() };
    WhyCheck {
        rule: rule.name.to_string(),
        at: format!("{}:{}", rule.position.file, rule.position.line),
        mode: admin.engine.effective_mode(&name).unwrap_or(rule.mode).to_string(),
        quota,
        digest: digest.to_owned(),
        ..WhyCheck::default()
    }
}

/// Adds the counts of the key in the sketch of its rule. Returns whether it has any.
fn add_sketch(admin: &AdminState, domain: &Domain, entry: &mut WhyCheck) -> bool {
    let top = admin.engine.top_callers(domain.name(), &entry.rule);
    let find = |callers: &[Caller]| callers.iter().find(|caller| caller.digest == entry.digest).cloned();
    let [requested, refused, would_refuse] =
        [&top.busiest, &top.refused, &top.would_refuse].map(|top| find(top));
    let text =
        [&requested, &refused, &would_refuse].into_iter().flatten().find_map(|caller| caller.text.clone());
    entry.text = text.map(String::from);
    [entry.requested, entry.refused, entry.would_refuse] =
        [requested, refused, would_refuse].map(|caller| caller.map(|caller| caller.count));
    entry.requested.or(entry.refused).or(entry.would_refuse).is_some()
}

/// Finds the rule that knows a digest: by its states, its sketch and blocks.
fn look_up(admin: &AdminState, domain: &Domain, key: ShownDigest, status: &mut WhyStatus, now: Now) {
    let blocks = [admin.engine.blocked_keys(), admin.engine.fleet_overrides().blocks].concat();
    let digest = key.to_hex();
    status.checks = admin.engine.inspect_key(domain.name(), key, now, |checks| {
        checks.iter().map(|check| self::check(admin, domain, check)).collect()
    });
    if status.checks.is_empty() {
        let entries = domain
            .rules()
            .iter()
            .filter(|rule| key.is_of(domain.name(), &rule.name))
            .map(|rule| of_rule(admin, domain, rule, numbers_or_unlimited(rule.limit.quota()), &digest));
        let known = |mut entry: WhyCheck| add_sketch(admin, domain, &mut entry).then_some(entry);
        status.checks = entries.filter_map(known).collect();
    }
    for check in &mut status.checks {
        let name = RuleName { domain: domain.name().into(), rule: check.rule.as_str().into() };
        let target = Target::Rule(name.clone());
        status.overrides.extend(switches(admin, now, |view| view.switch.target == target));
        let block = blocks.iter().find(|block| block.rule == name && block.format_digest() == *digest);
        status.overrides.extend(block.map(|block| {
            format!("{name}: this key is blocked until {} by {}", utc(block.until, now), block.by)
        }));
    }
}

/// Reads a digest, or its first digits where only one caller or blocked key that is shown has them.
pub(super) fn find_digest(admin: &AdminState, text: &str) -> Result<ShownDigest, VerbRefusal> {
    let wrong = match text.parse() {
        Ok(digest) => return Ok(digest),
        Err(wrong @ DigestError) => wrong,
    };
    let begin = text.to_ascii_lowercase();
    if !(DIGITS_MIN..DIGITS_MAX).contains(&begin.len())
        || !begin.bytes().all(|digit| digit.is_ascii_hexdigit())
    {
        return Err(VerbRefusal::bad(format!(
            "{wrong}; its first {DIGITS_MIN} digits or more suffice for a caller that `status` shows"
        )));
    }
    let blocks = [admin.engine.blocked_keys(), admin.engine.fleet_overrides().blocks].concat();
    let callers = admin
        .engine
        .in_force()
        .each()
        .map(|rule| admin.engine.top_callers(rule.domain, rule.name))
        .collect::<Vec<_>>();
    let callers =
        callers.iter().flat_map(|top| top.busiest.iter().chain(&top.refused).chain(&top.would_refuse));
    let shown =
        callers.map(|caller| caller.digest.clone()).chain(blocks.iter().map(BlockedKey::format_digest));
    let found: BTreeSet<String> = shown.filter(|digest| digest.starts_with(&begin)).collect();
    match found.first() {
        Some(digest) if found.len() == 1 => Ok(digest.parse()?),
        Some(_) => Err(VerbRefusal::bad(format!(
            "{} begin with {begin}: write more digits",
            counted(found.len(), "caller")
        ))),
        None => Err(VerbRefusal::bad(format!(
            "no caller that `status` or `switch` shows begins with {begin}: write all 32 digits"
        ))),
    }
}

/// Describes the switches that apply, of this host and of all.
fn switches(admin: &AdminState, now: Now, applies: impl Fn(&SwitchView) -> bool) -> Vec<String> {
    let all = [admin.engine.switches(), admin.engine.fleet_switches()].concat();
    let text = all.iter().filter(|view| applies(view)).map(|view| {
        let until = view.switch.until.map(|until| format!(" until {}", utc(until, now))).unwrap_or_default();
        format!("{} is switched to {}{until} by {}", view.switch.target, view.switch.mode, view.switch.by)
    });
    text.collect()
}

/// As many as an operator reads.
const OTHERS_MAX: usize = 100;

/// As many digits of a digest as are accepted in place of all.
pub(super) const DIGITS_MIN: usize = 8;
const DIGITS_MAX: usize = 32;
