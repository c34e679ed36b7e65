//! Rules that have just changed, and whom they refuse: one that refuses most callers is told, and perhaps put in
//! shadow. It looks at a bounded sample of callers, for a few minutes; no decision waits for it.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashTable;
use parking_lot::Mutex;

use super::RuleName;
use crate::clock::Timestamp;
use crate::engine::ruling::Ruling;
use crate::engine::sync::{AtomicU32, Ordering};
use crate::rules::{Domain, Guard, Mode, Rule};

/// A rule that refuses most callers right after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The rule.
    pub rule: RuleName,
    /// Callers that were looked at: all of them up to 448, else a fair sample.
    pub callers: u32,
    /// Those of them that were refused at least once.
    pub refused: u32,
    /// How long after the change.
    pub after: Duration,
    /// Until when the rule is in shadow for it; `None`: it goes on refusing.
    pub shadow_until: Option<Timestamp>,
}

/// Whom one rule refuses. Of more callers than there is room for those stay whose digests begin with the most zeros:
/// each caller is as likely as any other, however often he comes. A share of one half is then told to within three
/// hundredths (one standard deviation of 224 callers); up to 448 callers it is exact.
#[derive(Debug, Default)]
pub(in crate::engine) struct Guarding {
    /// So many zeros a digest begins with that is looked at.
    zeros: AtomicU32,
    callers: Mutex<HashTable<(u64, bool)>>,
}

impl Guarding {
    /// Notes a caller. Where another thread notes one he is passed over: nobody waits for a statistic.
    pub(in crate::engine) fn note(&self, caller: u64, refused: bool) {
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

    /// Callers that were looked at, and those of them that were refused.
    fn counts(&self) -> (u32, u32) {
        let callers = self.callers.lock();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        (count(callers.len()), count(callers.iter().filter(|(_, refused)| *refused).count()))
    }
}

/// All rules that are watched, and how often each was told of.
#[derive(Debug, Default)]
pub(in crate::engine) struct Guards {
    watched: Vec<Watched>,
    told: Vec<(RuleName, u64)>,
}

#[derive(Debug)]
struct Watched {
    rule: RuleName,
    guard: Guard,
    /// Set by the first look.
    since: Option<Timestamp>,
    guarding: Arc<Guarding>,
}

impl Guards {
    pub(super) fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// What notes the callers of a rule, if it is watched.
    pub(in crate::engine) fn of(&self, domain: &str, rule: &str) -> Option<&Arc<Guarding>> {
        let is = |watched: &&Watched| *watched.rule.domain == *domain && *watched.rule.rule == *rule;
        self.watched.iter().find(is).map(|watched| &watched.guarding)
    }

    /// Bytes that the samples have allocated.
    pub(in crate::engine) fn heap_bytes(&self) -> usize {
        self.watched.iter().map(|watched| watched.guarding.callers.lock().allocation_size()).sum()
    }

    /// How often each rule was told of, in the order of the first time.
    pub(in crate::engine) fn told(&self) -> &[(RuleName, u64)] {
        &self.told
    }

    /// How often a rule was told of that has another slot from now on: that is told elsewhere.
    pub(in crate::engine) fn take_told(&mut self, rule: &RuleName) -> u64 {
        let at = self.told.iter().position(|(told, _)| told == rule);
        at.map_or(0, |at| self.told.remove(at).1)
    }

    /// Begins to watch what refuses from now on and did not before, or by other numbers. What was watched and did not
    /// change goes on being watched. Rules that come first, with the daemon, are no change.
    pub(super) fn watch(&mut self, domains: &[Arc<Domain>], before: &Ruling, mode: Mode, is_first: bool) {
        let mut watched = std::mem::take(&mut self.watched);
        for domain in domains {
            let known = before.known(domain.name());
            let is_enforced = |rule: &&Rule| rule.mode.max(mode) == Mode::Enforce && !rule.key.is_empty();
            for rule in domain.rules().iter().filter(is_enforced) {
                let has_changed = match known.get(&*rule.name) {
                    None => !is_first,
                    Some((old, terms)) => !terms.enforced || !is_same(old, rule),
                };
                let is = |watched: &Watched| {
                    *watched.rule.domain == *domain.name() && *watched.rule.rule == *rule.name
                };
                let at = watched.iter().position(is);
                if let Some(at) = at.filter(|_| !has_changed) {
                    self.watched.push(watched.swap_remove(at));
                } else if has_changed && self.watched.len() < WATCHED_MAX {
                    let name = RuleName { domain: domain.name().into(), rule: rule.name.clone() };
                    let guarding = Arc::default();
                    self.watched.push(Watched { rule: name, guard: rule.guard, since: None, guarding });
                }
            }
        }
    }

    /// Looks at all of them: which refuse most callers, and whether any is watched no more.
    pub(super) fn look(&mut self, at: Timestamp) -> (Vec<Alarm>, bool) {
        let mut alarms = Vec::new();
        let before = self.watched.len();
        self.watched.retain_mut(|watched| {
            let after = at.since(*watched.since.get_or_insert(at));
            let (callers, refused) = watched.guarding.counts();
            if after < LOOKED_AT_FROM {
                return true;
            }
            let is_most = callers >= CALLERS_MIN && refused > callers / 2;
            if is_most {
                let shadow_until = (watched.guard == Guard::Shadow).then(|| at.after(SHADOW_LASTS));
                alarms.push(Alarm { rule: watched.rule.clone(), callers, refused, after, shadow_until });
            }
            !is_most && after < WATCHED_FOR
        });
        for alarm in &alarms {
            let has_room = self.told.len() < WATCHED_MAX;
            match self.told.iter_mut().find(|(rule, _)| *rule == alarm.rule) {
                Some((_, count)) => *count += 1,
                None if has_room => self.told.push((alarm.rule.clone(), 1)),
                None => {}
            }
        }
        (alarms, self.watched.len() < before)
    }
}

/// Whether a rule refuses whom it refused before.
fn is_same(old: &Rule, new: &Rule) -> bool {
    std::ptr::eq(old, new)
        || old.limit == new.limit
            && old.conditions == new.conditions
            && old.key == new.key
            && old.unit == new.unit
            && old.overrides == new.overrides
}

/// Callers of one rule that are looked at: a sample of so many tells one half from less, and they fill a table of 9 KiB to
/// its last place.
const CALLERS_MAX: usize = 448;

/// Of fewer callers the share says little.
const CALLERS_MIN: u32 = 100;

/// As many as are counted by name: at most 5 MiB, for five minutes.
const WATCHED_MAX: usize = 512;

/// Whoever comes in the first moments comes often, and who comes often is the first to be refused: later it is all sorts.
const LOOKED_AT_FROM: Duration = Duration::from_secs(5);

/// A mistake shows within minutes.
const WATCHED_FOR: Duration = Duration::from_secs(300);

/// Time for somebody to look.
const SHADOW_LASTS: Duration = Duration::from_secs(600);
