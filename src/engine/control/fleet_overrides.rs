//! Fleet overrides: switches and blocks for all hosts that share a Redis, authenticated and parsed by the
//! fleet module.
//!
//! They apply beside the overrides of this host: of two switches of one target the later one applies; a key
//! is refused while either block is active.

use std::sync::Arc;

use super::key_blocks::{BlockedKeys, FoundKeys, digest_words};
use super::{
    BlockedKey, ControlEvent, KeyError, OperatorControl, RuleName, Switch, SwitchOrigin, SwitchView, Target,
};
use crate::engine::Engine;
use crate::engine::digest::KeyHash;

/// The current fleet overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetOverrides {
    /// The document that they were read from; opaque here.
    pub document: Arc<[u8]>,
    /// The switches.
    pub switches: Vec<Switch>,
    /// Blocked keys, by fleet-wide digest.
    pub blocks: Vec<BlockedKey>,
}

/// One change of the fleet overrides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetChange {
    /// Set a mode.
    Switch(Switch),
    /// Return to the mode of the files or the host.
    Clear(Target),
    /// Block a key until a time.
    Block(BlockedKey),
    /// Unblock a key of a rule.
    Unblock(RuleName, [u64; 2]),
}

impl Engine {
    /// The current fleet overrides.
    pub fn fleet_overrides(&self) -> FleetOverrides {
        self.control.lock().fleet.clone()
    }

    /// Restores the fleet overrides of the previous process, without events.
    pub fn restore_fleet_overrides(&self, overrides: FleetOverrides) {
        let mut control = self.control.lock();
        control.fleet = overrides;
        self.recompile_rules(&mut control);
    }

    /// Applies fleet overrides and records an event for each addition and removal.
    pub fn apply_fleet_overrides(&self, overrides: &FleetOverrides) {
        let mut control = self.control.lock();
        let before = std::mem::replace(&mut control.fleet, overrides.clone());
        let is_same = |one: &Switch, other: &Switch| {
            (&one.target, one.mode, one.by) == (&other.target, other.mode, other.by)
                && one.until.is_some() == other.until.is_some()
        };
        let is_key = |one: &BlockedKey, other: &BlockedKey| one.rule == other.rule && one.key == other.key;
        let is_target = |one: &Switch, other: &Switch| one.target == other.target;
        let set = missing(&overrides.switches, &before.switches, is_same).map(ControlEvent::FleetSwitched);
        let cleared =
            missing(&before.switches, &overrides.switches, is_target).map(ControlEvent::FleetCleared);
        let blocked = missing(&overrides.blocks, &before.blocks, is_key).map(ControlEvent::FleetBlocked);
        let freed = missing(&before.blocks, &overrides.blocks, is_key).map(ControlEvent::FleetUnblocked);
        set.chain(cleared).chain(blocked).chain(freed).for_each(|event| control.record_event(event));
        if before.switches != overrides.switches || before.blocks != overrides.blocks {
            self.recompile_rules(&mut control);
        }
    }

    /// Returns the fleet-wide digest of a key of a rule.
    ///
    /// # Errors
    /// The attributes do not form a key of the rule; or this host is in no fleet.
    pub fn fleet_key_digest(
        &self,
        rule: &RuleName,
        attributes: &[(&str, &str)],
    ) -> Result<[u64; 2], KeyError> {
        let control = self.control.lock();
        let found = FoundKeys::find(self, &control, rule, attributes.into())?;
        if found.values.is_empty() {
            return Err(KeyError::SingleKey(rule.clone()));
        }
        let rule_set = self.rule_set.load();
        let compiled_rule =
            rule_set.find_domain(&rule.domain).and_then(|compiled| compiled.rules.get(found.number as usize));
        let everywhere = compiled_rule.and_then(|compiled_rule| compiled_rule.fleet_blocks.as_ref());
        let FleetBlockedKeys { hash, .. } = everywhere.ok_or_else(|| KeyError::NoFleet(rule.clone()))?;
        Ok(digest_words(&hash.digest(found.values.iter().map(String::as_str))))
    }

    /// The fleet-wide switches, oldest first.
    pub fn fleet_switches(&self) -> Vec<SwitchView> {
        let control = self.control.lock();
        control.fleet.switches.iter().map(|switch| control.view_switch(switch)).collect()
    }
}

/// Returns those of `these` that are not among `others`.
fn missing<T: Clone>(these: &[T], others: &[T], is_same: impl Fn(&T, &T) -> bool) -> impl Iterator<Item = T> {
    these.iter().filter(move |one| !others.iter().any(|other| is_same(one, other))).cloned()
}

impl OperatorControl {
    /// Returns the later switch of a target, of this host's and the fleet's.
    pub(super) fn find_latest_switch(&self, is_it: impl Fn(&Target) -> bool) -> Option<&Switch> {
        let own = self.own.switches.iter().find(|switch| is_it(&switch.target));
        let everywhere = self.fleet.switches.iter().find(|switch| is_it(&switch.target));
        match (own, everywhere) {
            (Some(own), Some(everywhere)) => {
                Some(if own.set_at > everywhere.set_at { own } else { everywhere })
            }
            (own, everywhere) => own.or(everywhere),
        }
    }
}

impl SwitchOrigin {
    /// Whether it applies to all hosts.
    pub fn is_fleet(self) -> bool {
        matches!(self, SwitchOrigin::Fleet { .. })
    }
}

/// The fleet-wide key hash of one rule, and its blocked keys.
#[derive(Clone, Debug)]
pub(in crate::engine) struct FleetBlockedKeys {
    pub(in crate::engine) hash: KeyHash,
    pub(in crate::engine) blocked: Option<Arc<BlockedKeys>>,
}
