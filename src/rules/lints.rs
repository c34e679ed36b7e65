//! Warnings about valid rules that may not do what was intended: one pass over the domains without errors.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::de::{TYPO, nearest};
use super::draft::Draft;
use super::finder::Anchor;
use super::meaning::REQUESTS;
use super::network::Network;
use super::problem::{Problem, Severity, shown};
use super::source::{Source, Span};
use super::{
    Condition, KeyPart, Limit, ListKind, ListedEntry, Mode, OverTreatment, Pattern, Position, RefusedCost,
    Rule, candidate_of, words,
};
use crate::clock::Micros;
use crate::limit::Quota;

/// Checks the domains. `is_complete`: all files were read, so that missing entries are really missing.
pub(super) fn lint(
    domains: &[Draft],
    sources: &HashMap<&Arc<str>, &Source>,
    is_complete: bool,
) -> Vec<Problem> {
    let mut lints = Lints { sources, problems: Vec::new(), comparisons_left: COMPARISONS_MAX };
    let no_sheds = is_complete && !domains.iter().any(|domain| !domain.contents.sheds.is_empty());
    lints.count(domains);
    for domain in domains {
        lints.lists(domain);
        lints.redundant(domain);
        lints.delayed(domain);
        lints.suspects(domain);
        lints.compared(domain);
        for rule in &domain.contents.rules {
            if candidate_of(&rule.name).is_none() {
                lints.key(rule);
            }
            lints.limit(rule);
            let mut allowances = rule.limit.allowances.iter().flatten();
            if no_sheds && allowances.any(|allowance| matches!(allowance.over, OverTreatment::Elastic(_))) {
                let why = "is never used: no pool is shed, so none is known to have room";
                let help = "write an entry of `shed` for the pool, such as `{pool: web, workers: {}}`";
                lints.warn(&rule.position, format!("the elastic part of {} {why}", shown(&rule.name)), help);
            }
        }
        for (name, position) in domain.unknown_replaced() {
            let help = "write the `name` of another `rate_limit`, or leave the entry out";
            lints.warn(position, format!("no limit is named {} in this domain", shown(name)), help);
        }
    }
    lints.problems
}

struct Lints<'s> {
    sources: &'s HashMap<&'s Arc<str>, &'s Source>,
    problems: Vec<Problem>,
    /// Remaining comparisons; very long lists and rules are not compared completely.
    comparisons_left: usize,
}

impl Lints<'_> {
    fn warn(&mut self, at: &Position, message: String, help: impl Into<String>) {
        let Some(source) = self.sources.get(&at.file) else { return };
        self.problems.push(source.problem(Severity::Warning, at.span, message, help.into()));
    }

    /// Warns of so many rules that reading them again takes more memory than the unit allows.
    fn count(&mut self, domains: &[Draft]) {
        let rules = || domains.iter().flat_map(|domain| &domain.contents.rules);
        let (count, Some(first)) = (rules().count(), rules().next()) else { return };
        if count > RULES_IN_UNIT_MAX {
            let message = format!(
                "{count} rules take some 7 KiB each while they are read again: more than `MemoryMax=512M` of the unit leaves"
            );
            let help = "give callers a `key`, and exceptions a row of `overrides_file`; or raise MemoryMax=";
            let start = Position { span: Span::START, ..first.position.clone() };
            self.warn(&start, message, help);
        }
    }

    /// Warns of many rules that the index cannot tell apart by a value of the request.
    fn compared(&mut self, domain: &Draft) {
        let is_compared = |rule: &&Rule| {
            let mut conditions = rule.conditions.iter().filter(|condition| !condition.or_absent);
            !conditions.any(|condition| condition.any_of.iter().all(|pattern| Anchor::of(pattern).is_some()))
        };
        let mut compared = domain.contents.rules.iter().filter(is_compared).peekable();
        let Some(first) = compared.peek().copied() else { return };
        let count = compared.count();
        if count > COMPARED_MAX {
            let message = format!(
                "{count} rules have no exact value, prefix, suffix or network in `match`: every request that has their \
                 attributes is compared with each, a millisecond for some 3000"
            );
            let help =
                "count by an attribute in `key`, use `overrides`, or begin or end their patterns with a text";
            self.warn(&first.position, message, help);
        }
    }

    /// Warns of values that probably match no request, and of attributes that are probably misspelled.
    fn suspects(&mut self, domain: &Draft) {
        let names = domain.contents.rules.iter().flat_map(|rule| {
            let conditions = rule.conditions.iter().map(|condition| &*condition.attribute);
            conditions.chain(rule.key.iter().map(|part| &*part.attribute))
        });
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        names.for_each(|name| *uses.entry(name).or_default() += 1);
        // An attribute of several rules is meant.
        let meant: Vec<&str> = uses.iter().filter(|(_, uses)| **uses > 1).map(|(name, _)| *name).collect();
        let rules = domain.contents.rules.iter().filter(|rule| candidate_of(&rule.name).is_none());
        let rules = rules.map(|rule| (&rule.position, rule.conditions.as_slice(), rule.key.as_slice()));
        let lists = domain.contents.lists.iter();
        let lists = lists.map(|listed| (&listed.position, listed.conditions.as_slice(), &[][..]));
        for (position, conditions, key) in rules.chain(lists) {
            for (message, help) in conditions.iter().filter_map(suspect_value) {
                self.warn(position, message, help);
            }
            let named = conditions.iter().map(|condition| &*condition.attribute);
            for name in named.chain(key.iter().map(|part| &*part.attribute)) {
                self.comparisons_left = self.comparisons_left.saturating_sub(meant.len());
                if self.comparisons_left == 0 {
                    continue;
                }
                // A copied rule copies its mistakes.
                let is_alone = uses.get(name).is_none_or(|uses| *uses < 2);
                let near = match is_alone {
                    true => suspect_name(name, meant.iter().copied()),
                    false => suspect_name(name, []).filter(|near| !name.starts_with(near)),
                };
                let Some(near) = near else { continue };
                let why =
                    if is_alone { "no other rule uses it" } else { "the middlewares send another name" };
                let message = format!("{} is probably misspelled: {why}", shown(name));
                self.warn(position, message, format!("write {near}, if that is meant"));
            }
        }
    }

    /// Warns of key attributes that `match` restricts to one value, or to none, and of a unit that is hardly meant.
    fn key(&mut self, rule: &Rule) {
        for condition in &rule.conditions {
            if !rule.key.iter().any(|part| part.attribute == condition.attribute) {
                continue;
            }
            let name = shown(&condition.attribute);
            let message = match (condition.any_of.as_slice(), condition.or_absent) {
                ([], true) => {
                    format!("{name} must be absent, and the rule counts by it: it judges no request")
                }
                ([Pattern::Exact(value)], _) if !value.is_empty() => {
                    format!("{name} is always {} here: counting by it counts once", shown(value))
                }
                _ => continue,
            };
            self.warn(&rule.position, message, "leave it out of `key`, or out of `match`");
        }
        if let Some(unit) = rule.unit.as_deref().filter(|unit| nearest(unit, [REQUESTS], TYPO).is_some()) {
            let why = "a request costs 1 of `requests`, and of another unit only when it says so";
            let message = format!("the unit {} is probably misspelled: {why}", shown(unit));
            self.warn(&rule.position, message, "leave `unit` out, if requests are meant");
        }
    }

    /// Warns of limits that admit more than their rate in one period, or slightly less over time.
    fn limit(&mut self, rule: &Rule) {
        let quotas = || rule.limit.allowances.iter().flatten().map(|allowance| &allowance.quota);
        let buckets = quotas().filter_map(|quota| match quota {
            Quota::TokenBucket(bucket) => Some(bucket),
            Quota::FleetBudget(share) if share.window().is_none() => Some(share.bucket()),
            _ => None,
        });
        for bucket in buckets.filter(|bucket| bucket.rate().period_nanos() >= DAY_NANOS).take(1) {
            let (rate, text) = (bucket.rate(), bucket.rate().to_string());
            let most = u64::from(rate.count()) + u64::from(bucket.burst());
            let period = text.split_once('/').map_or("day", |(_, period)| period);
            let message = format!("a token bucket of {rate} lets up to {most} through in one {period}");
            let help = match bucket.burst() {
                0 | 1 => "`algorithm: fixed_window` counts by the calendar",
                _ => {
                    "a `burst` below the rate narrows that; `algorithm: fixed_window` counts by the calendar"
                }
            };
            self.warn(&rule.position, message, help);
        }
        let rates = quotas().filter_map(|quota| match quota {
            Quota::TokenBucket(bucket) => Some((bucket.rate(), bucket.scale())),
            Quota::LeakyBucket(leaky) => Some((leaky.bucket().rate(), leaky.bucket().scale())),
            _ => None,
        });
        let rounded = rates.filter_map(|(rate, scale)| Some((rate.rounding_parts_on(scale)?, rate)));
        if let Some((parts, rate)) = rounded.min_by_key(|(parts, _)| *parts) {
            let message = format!("the rate {rate} is not exact: it is kept slow by one part in {parts}");
            let help = "exact are numbers up to 128 and those that divide the period evenly";
            self.warn(&rule.position, message, help);
        }
    }

    /// Warns of rules with the requests, key and algorithm of an enforced rule that is at least as strict.
    fn redundant(&mut self, domain: &Draft) {
        let mut groups: HashMap<String, Vec<_>> = HashMap::new();
        for rule in &domain.contents.rules {
            if let Some((alike, generosity)) = comparable(rule) {
                groups.entry(alike).or_default().push((generosity, rule));
            }
        }
        for mut group in groups.into_values() {
            // Stable sort: of two equal rules the first in file order stays.
            group.sort_by_key(|(generosity, _)| *generosity);
            let mut strictest: Option<(u32, &Rule)> = None;
            for ((_, limit), rule) in group {
                match strictest {
                    Some((least, other)) if least <= limit => {
                        let message = format!(
                            "{} refuses nothing that {} passes",
                            shown(&rule.name),
                            shown(&other.name)
                        );
                        let help = "both match the same requests and count by the same key: keep one, unless CHARGE may put it into debt";
                        self.warn(&rule.position, message, help);
                    }
                    _ if rule.mode == Mode::Enforce => strictest = Some((limit, rule)),
                    _ => {}
                }
            }
        }
    }

    /// Warns of leaky buckets in which a slower one, by another key, delays the work of the same requests.
    fn delayed(&mut self, domain: &Draft) {
        let leaky = domain.contents.rules.iter().filter(|rule| rule.mode == Mode::Enforce);
        let leaky: Vec<_> = leaky
            .filter_map(|rule| match rule.limit.quota()? {
                Quota::LeakyBucket(quota) => {
                    let queue = u64::from(quota.queue());
                    Some((rule, Micros(quota.bucket().window().0 / (queue + 1) * queue)))
                }
                _ => None,
            })
            .take(LEAKY_COMPARED_MAX)
            .collect();
        for (rule, wait_max) in &leaky {
            let meets = |other: &Rule| {
                let (own, others) = (&rule.conditions, &other.conditions);
                own.is_empty() || others.is_empty() || own == others
            };
            let holds_up = |(other, longer): &&(&Rule, Micros)| {
                longer > wait_max && other.key != rule.key && meets(other)
            };
            let Some((other, longer)) = leaky.iter().filter(holds_up).max_by_key(|(_, longer)| *longer)
            else {
                continue;
            };
            let message = format!(
                "{} can hold up all of {} for {}: what it delays has its place here then, and later work queues behind",
                shown(&other.name),
                shown(&rule.name),
                words::span(Duration::from(*longer))
            );
            let help = "give the faster one another algorithm, or no requests of the slower one";
            self.warn(&rule.position, message, help);
        }
    }

    /// Warns of rules that no request reaches, as an entry of `exempt` or `deny` matches all of theirs.
    fn lists(&mut self, domain: &Draft) {
        // An entry that matches everything is reported by the reader.
        let takes_some = |entry: &&ListedEntry| entry.mode == Mode::Enforce && !entry.conditions.is_empty();
        for rule in domain.contents.rules.iter().filter(|rule| candidate_of(&rule.name).is_none()) {
            let mut entries = domain.contents.lists.iter().filter(takes_some);
            let Some(by) = entries.find(|by| self.covers(by, &rule.conditions, &rule.key)) else { continue };
            let taken = if by.kind == ListKind::Exempt { "exempt" } else { "denied" };
            let (name, by_name) = (shown(&rule.name), shown(&by.name));
            let message = format!("{name} is never reached: all it matches is {taken} by {by_name}");
            let help = format!("remove it, or narrow the entry at {}", by.position);
            self.warn(&rule.position, message, help);
        }
    }

    /// Whether an entry matches every request with these conditions and this key.
    fn covers(&mut self, entry: &ListedEntry, conditions: &[Condition], key: &[KeyPart]) -> bool {
        entry.conditions.iter().all(|wide| {
            let Some(narrow) = conditions.iter().find(|narrow| narrow.attribute == wide.attribute) else {
                let has_it = key.iter().any(|part| part.attribute == wide.attribute);
                return has_it && wide.any_of.iter().any(Pattern::is_any);
            };
            let cost = 1 + wide.any_of.len().saturating_mul(narrow.any_of.len());
            self.comparisons_left = self.comparisons_left.saturating_sub(cost);
            let holds = |pattern: &Pattern| match pattern.as_exact() {
                Some(value) => wide.holds(Some(value)),
                None => wide.any_of.iter().any(|wide| wide.is_any() || wide == pattern),
            };
            self.comparisons_left > 0
                && (wide.or_absent || !narrow.or_absent)
                && narrow.any_of.iter().all(holds)
        })
    }
}

/// Returns the group of rules that this one is comparable with, and its generosity: rate, then limit. `None`
/// for rules that do more than refuse, that delay requests, or that share a fleet budget.
fn comparable(rule: &Rule) -> Option<(String, (u128, u32))> {
    let Limit { allowances, refused: RefusedCost::Free, block: None, .. } = &rule.limit else { return None };
    let [Some(allowance)] = allowances.as_slice() else { return None };
    let is_watched = rule.warn_at.is_some() || candidate_of(&rule.name).is_some();
    if allowance.over != OverTreatment::Refuse || rule.mode == Mode::Disabled || is_watched {
        return None;
    }
    let (way, speed) = match &allowance.quota {
        Quota::TokenBucket(bucket) => {
            let rate = bucket.rate();
            (String::new(), (u128::from(rate.count()) << 64).checked_div(rate.period_nanos().into())?)
        }
        Quota::Concurrency(quota) if !quota.is_fleet() => (format!("{:?}", rule.expires), 0),
        Quota::FixedWindow(window) => (format!("{:?}", window.with_count(1)), 0),
        Quota::SlidingLog(log) => (format!("{:?}", log.with_count(1)), 0),
        Quota::SlidingWindow(window) => (format!("{:?}", window.with_count(1)), 0),
        Quota::LeakyBucket(_) | Quota::Concurrency(_) | Quota::FleetBudget(_) => return None,
    };
    let conditions = rule.conditions.iter().map(|condition| {
        let mut values: Vec<_> = condition.any_of.iter().map(|pattern| format!("{pattern:?}")).collect();
        values.sort_unstable();
        values.dedup();
        format!("{} {} {values:?}", condition.attribute, condition.or_absent)
    });
    let mut parts: Vec<_> = conditions.chain(rule.key.iter().map(|part| format!("{part:?}"))).collect();
    parts.sort_unstable();
    let (unit, refunds) = (&rule.unit, rule.refund_on);
    let alike = format!("{parts:?} {unit:?} {refunds:?} {} {way}", allowance.quota.algorithm());
    Some((alike, (speed, allowance.quota.limit())))
}

/// Returns a warning and its help for the first value of a condition that probably matches no request.
fn suspect_value(condition: &Condition) -> Option<(String, String)> {
    condition.any_of.iter().find_map(|pattern| suspect_pattern(&condition.attribute, pattern))
}

fn suspect_pattern(attribute: &str, pattern: &Pattern) -> Option<(String, String)> {
    let text = match pattern {
        Pattern::Exact(text) => text.to_string(),
        Pattern::Glob(glob) => glob.to_string(),
        Pattern::Not(patterns) => {
            return patterns.iter().find_map(|pattern| suspect_pattern(attribute, pattern));
        }
        Pattern::AnyCase(_) | Pattern::Network(_) | Pattern::Present => return None,
    };
    let (attribute, value) = (shown(attribute), shown(&text));
    if text.contains('/') && Network::parse(&text).is_ok() {
        let message =
            format!("{attribute} is compared with the text {value}, not with the addresses of this network");
        return Some((message, format!("write {{cidr: {text}}}")));
    }
    let capitals = text.to_ascii_uppercase();
    if attribute == "`method`" && text != capitals && METHODS.contains(&&*capitals) {
        let message = format!(
            "{attribute} is never {value}: values are compared by case, and methods are sent in capitals"
        );
        return Some((message, format!("write {capitals}")));
    }
    let methods: Vec<&str> = capitals.split([',', '|', ' ']).filter(|part| !part.is_empty()).collect();
    if attribute == "`method`" && methods.len() > 1 && methods.iter().all(|part| METHODS.contains(part)) {
        let message = format!("{attribute} is never {value}: a request has one method");
        return Some((message, format!("write a list: [{}]", methods.join(", "))));
    }
    let is_relative = text.starts_with(|first: char| first.is_alphanumeric()) && !text.contains(':');
    if attribute == "`path`" && is_relative {
        let message = format!("{attribute} is never {value}: paths start with a slash");
        return Some((message, "write it with a `/` before it".to_owned()));
    }
    let is_path = attribute == "`path`";
    if is_path && let Some(glob) = glob_of_route(&text) {
        let message = format!("{value} looks like a route: paths have the values in its place");
        return Some((message, format!("write `route` instead of `path`, or `path: {glob}`")));
    }
    if is_regular_expression(&text, is_path) {
        let compared = if matches!(pattern, Pattern::Glob(_)) { "a pattern with `*`" } else { "text" };
        let message = format!("{value} looks like a regular expression, but is compared as {compared}");
        return Some((message, "`*` stands for any characters, also none: `/v1/*`".to_owned()));
    }
    if is_path && text.starts_with('/') && (text.contains("**") || text.contains('?')) {
        let message = format!("{value} has signs of other globs: here `?` is itself, and `**` is `*`");
        return Some((
            message,
            "`*` stands for any characters, `/` included; paths are sent without their query".to_owned(),
        ));
    }
    None
}

fn is_regular_expression(text: &str, is_path: bool) -> bool {
    let is_anchored =
        text.len() > 1 && (text.starts_with('^') || text.starts_with('/') && text.ends_with('$'));
    // `10.0.0.*` and `report.*` are patterns.
    let after_word = |at: usize| text.get(..at).is_some_and(|before| before.ends_with(char::is_alphanumeric));
    let any = |part| text.match_indices(part).any(|(at, _)| is_path || !after_word(at));
    is_anchored
        || any(".*")
        || [".+", "\\d", "\\w", "[a-z", "[0-9", "[A-Z", "(?"].iter().any(|part| text.contains(part))
}

/// Returns the pattern for the paths of a route: `/items/*` for `/items/<int:id>`, `/items/:id` and `/items/{id}`.
fn glob_of_route(text: &str) -> Option<String> {
    let is_parameter = |part: &&str| {
        let enclosed = |open, close| part.len() > 2 && part.starts_with(open) && part.ends_with(close);
        let named = part.strip_prefix(':').is_some_and(|name| name.starts_with(char::is_alphabetic));
        named || enclosed('<', '>') || enclosed('{', '}')
    };
    let parts = || text.split('/');
    let is_route = text.starts_with('/') && parts().any(|part| is_parameter(&part));
    is_route.then(|| {
        parts().map(|part| if is_parameter(&part) { "*" } else { part }).collect::<Vec<_>>().join("/")
    })
}

/// Returns the attribute that is probably meant by a name: one that middlewares send, or another of the domain.
fn suspect_name<'k>(name: &str, others: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if SENT.contains(&name) {
        return None;
    }
    if let Some(sent) = SENT.into_iter().find(|sent| sent.eq_ignore_ascii_case(name)) {
        return Some(sent);
    }
    let known = SENT.into_iter().chain(others).filter(|known| known.len() >= LETTERS_MIN && *known != name);
    nearest(name, known, LETTERS_MIN)
}

const DAY_NANOS: u64 = 86_400 * 1_000_000_000;

/// They take tens of milliseconds.
const COMPARISONS_MAX: usize = 1_000_000;

/// Each is compared with all.
const LEAKY_COMPARED_MAX: usize = 100;

/// They take a third of a millisecond of each request.
const COMPARED_MAX: usize = 1_000;

/// Measured: at most 96 MB with 10 000 rules, 634 MB with 100 000, while they are read again.
const RULES_IN_UNIT_MAX: usize = 60_000;

const SENT: [&str; 5] = ["method", "path", "route", "ip", "user"];

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// A name of fewer letters is near to many others, and at most a quarter of the letters is wrong.
const LETTERS_MIN: usize = 4;
