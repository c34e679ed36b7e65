//! Version numbers of a rule's numbers, so that during a rollout all hosts agree on the newest.

use super::cell::CellQuota;
use super::key_sync::{cell_quota, cell_window};
use super::link::RedisCommand;
use super::scripts;
use super::window::CellWindow;
use super::wire::EXACT_MAX;
use crate::engine::FleetBudget;
use crate::terms::hex;
use std::collections::HashMap;

/// Asks for the version of a rule's numbers.
///
/// Sent when rules are loaded, and again to a Redis whose buckets have another birth, which may have lost the versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionCommand {
    /// The number of the budget, equal on all hosts.
    pub budget: u64,
    pub numbers: String,
    /// The numbers that this host had before (`numbers` if unchanged), and their version (0: none yet).
    pub before: Option<(String, u64)>,
}

/// Returns the text that identifies a rule's numbers, without their version: at most 64 bytes.
pub fn fingerprint(numbers: &CellQuota, window: Option<&CellWindow>) -> String {
    match window {
        Some(window) => format!("{} in {}", numbers.burst, window.text()),
        None => format!("{}/{}/{}", numbers.rate.num(), numbers.rate.den(), numbers.burst),
    }
}

impl VersionCommand {
    pub(super) fn encode(&self) -> RedisCommand<'static> {
        let (before, known) = self.before.clone().unwrap_or_default();
        let known = known.min(EXACT_MAX / 2).to_string();
        RedisCommand {
            script: &scripts::VERSION,
            keys: vec![format!("tg:{{tm}}:v:{}", hex(&u128::from(self.budget).to_le_bytes())).into_bytes()],
            args: vec![self.numbers.clone().into_bytes(), before.into_bytes(), known.into_bytes()],
        }
    }
}

/// The versions of the budgets' numbers: requested after changes, and again if Redis may have lost them.
#[derive(Debug, Default)]
pub(super) struct Versions {
    known: HashMap<u64, KnownVersion>,
}

#[derive(Debug)]
struct KnownVersion {
    numbers: String,
    /// The newest numbers of which this host knows the version, and that.
    newest: Option<(String, u64)>,
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
    /// Replaces the budgets; changed numbers need a new version.
    pub(super) fn set(&mut self, budgets: &HashMap<u64, FleetBudget>) {
        self.known.retain(|number, _| budgets.contains_key(number));
        let prints = budgets.iter().filter_map(|(number, budget)| {
            Some((*number, fingerprint(&cell_quota(budget, 0)?, cell_window(budget, 0).as_ref())))
        });
        for (number, numbers) in prints {
            let newest = match self.known.get(&number) {
                Some(known) if known.numbers == numbers => continue,
                known => known.and_then(|known| known.newest.clone()),
            };
            let known = KnownVersion { numbers, newest, seen: 0, status: VersionState::Due };
            self.known.insert(number, known);
        }
    }

    /// Requests all versions again: Redis may have lost them, or the connections of earlier requests were closed.
    pub(super) fn resend(&mut self) {
        self.known.values_mut().for_each(|known| known.status = VersionState::Due);
    }

    /// Asks again, once, if cells have a newer version: after a rollback elsewhere it is of the numbers that this host has.
    pub(super) fn record_seen(&mut self, budget: u64, version: u64) {
        let known = self.known.get_mut(&budget).filter(|known| known.status == VersionState::Settled);
        if let Some(known) = known
            && known.version().is_some_and(|own| own < version)
            && known.seen < version
        {
            (known.seen, known.status) = (version, VersionState::Due);
        }
    }

    /// Takes the next request to send, which counts as in flight from now on.
    pub(super) fn next(&mut self) -> Option<VersionCommand> {
        let (budget, known) = self.known.iter_mut().find(|(_, known)| known.status == VersionState::Due)?;
        known.status = VersionState::Asked;
        let (numbers, before) = (known.numbers.clone(), known.newest.clone());
        Some(VersionCommand { budget: *budget, numbers, before })
    }

    /// Applies a reply, unless the numbers have changed since.
    pub(super) fn answered(&mut self, command: &VersionCommand, version: u64) {
        if let Some(known) = self.pending(command) {
            known.status = VersionState::Settled;
            known.newest = Some((known.numbers.clone(), version));
        }
    }

    /// Marks a request without a reply to be sent again.
    pub(super) fn failed(&mut self, command: &VersionCommand) {
        if let Some(known) = self.pending(command) {
            known.status = VersionState::Due;
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.known.iter().filter_map(|(number, known)| Some((*number, known.version()?)))
    }

    /// The newest known version of a budget's numbers, of its present or else of its previous ones.
    pub(super) fn newest(&self, budget: u64) -> u64 {
        let newest = self.known.get(&budget).and_then(|known| known.newest.as_ref());
        newest.map_or(FIRST, |(_, version)| *version)
    }

    fn pending(&mut self, command: &VersionCommand) -> Option<&mut KnownVersion> {
        let known = self.known.get_mut(&command.budget)?;
        (known.numbers == command.numbers && known.status == VersionState::Asked).then_some(known)
    }
}

const FIRST: u64 = 1;
