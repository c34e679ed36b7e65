//! The guard of changed rules: a rule that refuses most callers raises an alarm and optionally goes to shadow
//! mode. It samples a bounded number of callers for a few minutes and never blocks a decision.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashTable;
use parking_lot::Mutex;

use super::{OperatorControl, RuleName};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::rule_set::CompiledRuleSet;
use crate::engine::sync::{AtomicU32, Ordering};
use crate::rules::{Guard, Mode, Rule};

/// A rule that refuses most callers right after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The rule.
    pub rule: RuleName,
    /// Sampled callers: all of them up to 448, else a uniform sample.
    pub callers: u32,
    /// Sampled callers that were refused at least once.
    pub refused: u32,
    /// Time since the change.
    pub after: Duration,
    /// The end of the rule's shadow mode; `None`: it keeps refusing.
    pub shadow_until: Option<Timestamp>,
}

/// The sample of one rule's callers. When it is full, it keeps the digests with the most leading zeros: each
/// caller is equally likely, however many requests it makes. A share of one half is then accurate to three
/// hundredths (one standard deviation of 224 callers); up to 448 callers it is exact.
#[derive(Debug, Default)]
pub(in crate::engine) struct CallerSample {
    /// The minimum number of leading zeros of a sampled digest.
    zeros: AtomicU32,
    callers: Mutex<HashTable<(u64, bool)>>,
}

impl CallerSample {
    /// Adds a caller. Skips it if another thread holds the sample: statistics never block a decision.
    pub(in crate::engine) fn record_caller(&self, caller: u64, refused: bool) {
        if caller.leading_zeros() < self.zeros.load(Ordering::Relaxed) {
            return;
        }
        let Some(mut callers) = self.callers.try_lock() else { return };
        if let Some((_, was_refused)) = callers.find_mut(caller, |(known, _)| *known == caller) {
            *was_refused |= refused;
            return;
        }
        let mut zeros = self.zeros.load(Ordering::Relaxed);
        while callers.len() >= CALLERS_MAX && zeros < u64::BITS {
            zeros += 1;
            callers.retain(|(known, _)| known.leading_zeros() >= zeros);
        }
        self.zeros.store(zeros, Ordering::Relaxed);
        if caller.leading_zeros() >= zeros {
            callers.insert_unique(caller, (caller, refused), |(known, _)| *known);
        }
    }

    /// Returns the sampled callers, and the refused ones among them.
    fn count_callers(&self) -> (u32, u32) {
        let callers = self.callers.lock();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        (count(callers.len()), count(callers.iter().filter(|(_, refused)| *refused).count()))
    }
}

#[derive(Debug, Default)]
pub(in crate::engine) struct Guards {
    watched: Vec<GuardedRule>,
    /// The number of alarms per rule, in the order of the first alarm.
    pub(in crate::engine) alarms_by_rule: Vec<(RuleName, u64)>,
    /// Rules that raised an alarm and have not changed since.
    alarmed: Vec<RuleName>,
}

#[derive(Debug)]
struct GuardedRule {
    rule: RuleName,
    guard: Guard,
    /// Set by the first look.
    since: Option<Timestamp>,
    guarding: Arc<CallerSample>,
}

impl Guards {
    pub(super) fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    pub(in crate::engine) fn find_sample(&self, domain: &str, rule: &str) -> Option<&Arc<CallerSample>> {
        let is = |watched: &&GuardedRule| *watched.rule.domain == *domain && *watched.rule.rule == *rule;
        self.watched.iter().find(is).map(|watched| &watched.guarding)
    }

    pub(in crate::engine) fn heap_bytes(&self) -> usize {
        self.watched.iter().map(|watched| watched.guarding.callers.lock().allocation_size()).sum()
    }

    /// Takes the number of alarms of a rule whose slot changes; the total is stored elsewhere.
    pub(in crate::engine) fn take_alarm_count(&mut self, rule: &RuleName) -> u64 {
        let at = self.alarms_by_rule.iter().position(|(listed, _)| listed == rule);
        at.map_or(0, |at| self.alarms_by_rule.remove(at).1)
    }

    /// Evaluates all watched rules. Returns alarms, and whether any rule is no longer watched.
    pub(super) fn evaluate_rules(&mut self, at: Timestamp) -> (Vec<Alarm>, bool) {
        let mut alarms = Vec::new();
        let before = self.watched.len();
        self.watched.retain_mut(|watched| {
            let after = at.since(*watched.since.get_or_insert(at));
            let (callers, refused) = watched.guarding.count_callers();
            if after < EVALUATION_DELAY {
                return true;
            }
            let is_most = callers >= CALLERS_MIN && refused > callers / 2;
            if is_most {
                let shadow_until = (watched.guard == Guard::Shadow).then(|| at.after(SHADOW_DURATION));
                alarms.push(Alarm { rule: watched.rule.clone(), callers, refused, after, shadow_until });
            }
            !is_most && after < WATCH_DURATION
        });
        for alarm in &alarms {
            self.alarmed.retain(|rule| *rule != alarm.rule);
            self.alarmed.push(alarm.rule.clone());
            let has_room = self.alarms_by_rule.len() < WATCHED_MAX;
            match self.alarms_by_rule.iter_mut().find(|(rule, _)| *rule == alarm.rule) {
                Some((_, count)) => *count += 1,
                None if has_room => self.alarms_by_rule.push((alarm.rule.clone(), 1)),
                None => {}
            }
        }
        (alarms, self.watched.len() < before)
    }
}

impl Engine {
    /// Whether this rule raised an alarm of the guard and has not changed since.
    pub fn is_alarm_of_rule(&self, rule: &RuleName) -> bool {
        self.control.lock().guards.alarmed.contains(rule)
    }
}

impl OperatorControl {
    /// Starts to watch enforced rules with a key that are new or changed. Unchanged rules remain watched. The
    /// first rules after the start are not a change. `mode`: that of the whole daemon.
    pub(super) fn watch_changed_rules(&mut self, before: &CompiledRuleSet, mode: Mode, is_first: bool) {
        let domains = &self.configured_domains;
        self.guards.alarmed.retain(|name| {
            let domain = domains.iter().find(|domain| *domain.name() == *name.domain);
            let rule = domain.and_then(|domain| domain.rules().iter().find(|rule| rule.name == name.rule));
            let old = before.rules_by_name(&name.domain).get(&*name.rule).map(|(old, _)| *old);
            rule.zip(old).is_some_and(|(rule, old)| has_same_limits(old, rule))
        });
        let mut watched = std::mem::take(&mut self.guards.watched);
        let mut still_watched = Vec::new();
        for domain in &self.configured_domains {
            let known = before.rules_by_name(domain.name());
            let is_enforced = |rule: &&Rule| {
                let mode = self.effective_mode(domain.name(), &rule.name, rule.mode, mode);
                mode == Mode::Enforce && !rule.key.is_empty()
            };
            for rule in domain.rules().iter().filter(is_enforced) {
                let has_changed = match known.get(&*rule.name) {
                    None => !is_first,
                    Some((old, compiled_rule)) => !compiled_rule.enforced() || !has_same_limits(old, rule),
                };
                let is = |watched: &GuardedRule| {
                    *watched.rule.domain == *domain.name() && *watched.rule.rule == *rule.name
                };
                let at = watched.iter().position(is);
                if let Some(at) = at.filter(|_| !has_changed) {
                    still_watched.push(watched.swap_remove(at));
                } else if has_changed && still_watched.len() < WATCHED_MAX {
                    let name = RuleName { domain: domain.name().into(), rule: rule.name.clone() };
                    let guarding = Arc::default();
                    still_watched.push(GuardedRule { rule: name, guard: rule.guard, since: None, guarding });
                }
            }
        }
        self.guards.watched = still_watched;
    }
}

/// Whether both rules refuse the same requests.
fn has_same_limits(old: &Rule, new: &Rule) -> bool {
    std::ptr::eq(old, new)
        || old.limit == new.limit
            && old.conditions == new.conditions
            && old.key == new.key
            && old.unit == new.unit
            && old.overrides == new.overrides
}

/// Sampled callers per rule: enough to separate one half from less, and exactly the load of a 9 KiB table.
const CALLERS_MAX: usize = 448;

/// With fewer callers the share is not significant.
const CALLERS_MIN: u32 = 100;

/// As many as are counted by name: at most 5 MiB, for five minutes.
const WATCHED_MAX: usize = 512;

/// The first callers after a change are the most active ones, which are refused first; later the sample is
/// representative.
const EVALUATION_DELAY: Duration = Duration::from_secs(5);

/// Errors in a rule show within minutes.
const WATCH_DURATION: Duration = Duration::from_secs(300);

/// Time for an operator to react.
const SHADOW_DURATION: Duration = Duration::from_secs(600);
