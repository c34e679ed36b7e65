//! Versions of a rule's numbers, so that during a rollout all hosts agree on the newest.

use super::link::RedisCommand;
use super::scripts;
use super::wire::EXACT_MAX;
use crate::engine::FleetBudget;
use crate::terms::hex;
use std::collections::HashMap;

/// Asks for the version of a rule's numbers.
///
/// Sent when rules are loaded, and again to a Redis whose buckets have another birth, which may have lost the versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionCommand {
    /// The number of the rule, equal on all hosts.
    pub rule: u64,
    /// The fingerprint of the numbers of all its budgets.
    pub numbers: String,
    /// The numbers that this host had before (`numbers` if unchanged), and their version (0: none yet).
    pub before: Option<(String, u64)>,
}

impl VersionCommand {
    pub(super) fn encode(&self) -> RedisCommand<'static> {
        let (before, known) = self.before.clone().unwrap_or_default();
        let known = known.min(EXACT_MAX / 2).to_string();
        RedisCommand {
            script: &scripts::VERSION,
            keys: vec![format!("tg:{{tm}}:v:{}", hex(&u128::from(self.rule).to_le_bytes())).into_bytes()],
            args: vec![self.numbers.clone().into_bytes(), before.into_bytes(), known.into_bytes()],
        }
    }
}

/// The versions of the rules' numbers: requested after changes, and again if Redis may have lost them.
#[derive(Debug, Default)]
pub(super) struct Versions {
    known: HashMap<u64, KnownVersion>,
    /// The newest versions of rules that are not in force: of the process before, or removed since.
    others: HashMap<u64, NumbersVersion>,
    /// A digest of all numbers in force, the same on hosts with the same rules.
    pub(super) digest: u64,
    /// Whether a version has changed since it was last stored.
    pub(super) is_changed: bool,
}

/// The fingerprint of a rule's numbers in hexadecimal digits, and their version.
type NumbersVersion = (String, u64);

#[derive(Debug)]
struct KnownVersion {
    numbers: String,
    /// The newest numbers of which this host knows the version, and that.
    newest: Option<NumbersVersion>,
    /// The newest version that a cell in Redis had.
    seen: u64,
    status: VersionState,
}

impl KnownVersion {
    fn version(&self) -> Option<u64> {
        self.newest.as_ref().filter(|(numbers, _)| *numbers == self.numbers).map(|(_, version)| *version)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VersionState {
    Due,
    Asked,
    Settled,
}

impl Versions {
    /// Replaces the budgets; changed numbers of a rule need a new version.
    pub(super) fn set(&mut self, budgets: &HashMap<u64, FleetBudget>) {
        let in_force = budgets.values().filter(|budget| budget.is_in_force);
        let rules: HashMap<u64, u64> = in_force.map(|it| (it.rule_number, it.fingerprint)).collect();
        let digests = rules.iter().map(|(rule, fingerprint)| fingerprint.wrapping_mul(rule | 1));
        self.digest = digests.fold(0, u64::wrapping_add);
        for (rule, known) in self.known.extract_if(|rule, _| !rules.contains_key(rule)) {
            self.others.extend(known.newest.map(|newest| (rule, newest)));
        }
        if self.others.len() > OTHERS_MAX {
            self.others.clear();
        }
        for (rule, fingerprint) in rules {
            let numbers = hex(&fingerprint.to_le_bytes());
            let newest = match self.known.get(&rule) {
                Some(known) if known.numbers == numbers => continue,
                Some(known) => known.newest.clone(),
                // Numbers of a rule that was not in force are newer than its last ones, also earlier numbers.
                None => self.others.remove(&rule),
            };
            let known = KnownVersion { numbers, newest, seen: 0, status: VersionState::Due };
            self.known.insert(rule, known);
        }
    }

    /// Requests all versions again: Redis may have lost them, or the connections of earlier requests were closed.
    pub(super) fn resend(&mut self) {
        self.known.values_mut().for_each(|known| known.status = VersionState::Due);
    }

    /// Asks again, once, if cells have a newer version: after a rollback elsewhere it is of the numbers that this host has.
    pub(super) fn record_seen(&mut self, rule: u64, version: u64) {
        let known = self.known.get_mut(&rule).filter(|known| known.status == VersionState::Settled);
        if let Some(known) = known
            && known.version().is_some_and(|own| own < version)
            && known.seen < version
        {
            (known.seen, known.status) = (version, VersionState::Due);
        }
    }

    /// Takes the next request to send, which counts as in flight from now on.
    pub(super) fn next(&mut self) -> Option<VersionCommand> {
        let (rule, known) = self.known.iter_mut().find(|(_, known)| known.status == VersionState::Due)?;
        known.status = VersionState::Asked;
        let (numbers, before) = (known.numbers.clone(), known.newest.clone());
        Some(VersionCommand { rule: *rule, numbers, before })
    }

    /// Applies a reply, unless the numbers have changed since.
    pub(super) fn answered(&mut self, command: &VersionCommand, version: u64) {
        if let Some(known) = self.pending(command) {
            known.status = VersionState::Settled;
            let newest = Some((known.numbers.clone(), version));
            let is_changed = known.newest != newest;
            known.newest = newest;
            self.is_changed |= is_changed;
        }
    }

    /// Returns the newest versions, for [`Versions::restore`] of the next process.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let newest = |(rule, known): (&u64, &KnownVersion)| Some((*rule, known.newest.clone()?));
        let mut versions = self.others.clone();
        versions.extend(self.known.iter().filter_map(newest));
        // Numbers and texts in memory cannot fail to be written.
        rmp_serde::to_vec(&versions).unwrap_or_default()
    }

    /// Takes the versions that the process before has stored, before any is requested. Returns false if they are damaged.
    pub(super) fn restore(&mut self, stored: &[u8]) -> bool {
        let Ok(restored) = rmp_serde::from_slice(stored) else { return false };
        self.others = restored;
        for (rule, known) in &mut self.known {
            known.newest = self.others.remove(rule);
        }
        true
    }

    /// Marks a request without a reply to be sent again.
    pub(super) fn failed(&mut self, command: &VersionCommand) {
        if let Some(known) = self.pending(command) {
            known.status = VersionState::Due;
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.known.iter().filter_map(|(rule, known)| Some((*rule, known.version()?)))
    }

    /// The version of a budget's numbers; zero, which never holds against another, while it is unknown, or if the rule no
    /// longer has these numbers.
    pub(super) fn of(&self, budget: &FleetBudget) -> u64 {
        let known = self.known.get(&budget.rule_number).filter(|_| budget.is_in_force);
        known.and_then(KnownVersion::version).unwrap_or(0)
    }

    fn pending(&mut self, command: &VersionCommand) -> Option<&mut KnownVersion> {
        let known = self.known.get_mut(&command.rule)?;
        (known.numbers == command.numbers && known.status == VersionState::Asked).then_some(known)
    }
}

/// Far more rules than are removed before they return.
const OTHERS_MAX: usize = 16_384;
