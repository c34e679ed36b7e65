//! Switches: a rule or the whole daemon in another mode than configured, optionally for a time.

use serde::{Deserialize, Serialize};

use super::{OperatorControl, RuleName, RuleNameError};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::rules::{ListKind, Mode, NamedItem, NamedKind};

/// A target, its mode and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// The target.
    pub target: Target,
    /// The mode. The whole daemon is never switched to enforce, as that is its state without a switch.
    pub mode: Mode,
    /// The time when it expires; `None`: never.
    pub until: Option<Timestamp>,
    /// When it was set: of a local and a fleet-wide switch the later one applies.
    pub set_at: Timestamp,
    /// The origin of the switch.
    pub by: SwitchOrigin,
}

/// The target of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<RuleName>", into = "Option<RuleName>")]
pub enum Target {
    /// The whole daemon: no rule is stricter than its mode.
    Daemon,
    /// One rule, list entry or shedder part.
    Rule(RuleName),
}

/// The origin of a switch or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchOrigin {
    /// A user of this host, by uid.
    User(u32),
    /// The guard: a rule refused most callers right after a change.
    Guard,
    /// A user of some host, for the whole fleet. The host is given by the first bytes of its fleet identity.
    Fleet {
        /// The uid on that host.
        uid: u32,
        /// The host.
        host: [u8; 4],
    },
}

/// A switch with its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchView {
    /// The switch.
    pub switch: Switch,
    /// The configured mode; `None`: the rule does not exist, and the switch applies when it returns.
    pub configured_mode: Option<Mode>,
    /// The effective mode: never stricter than that of the whole daemon.
    pub holds: Mode,
    /// Whether it overrides the other switch of this target, local or fleet-wide.
    pub is_last: bool,
}

/// Why a switch is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum SwitchError {
    #[error(transparent)]
    Name(#[from] RuleNameError),
    #[error(
        "`{0}` exempts, and refuses no request: switch it to enforce (it exempts) or disabled (it does not)"
    )]
    Exempt(RuleName),
    #[error("{SWITCHES_MAX} switches are set, the most that can be: clear some, or switch --all")]
    TooMany,
}

impl Target {
    pub(super) fn matches_rule(&self, domain: &str, rule: &str) -> bool {
        matches!(self, Target::Rule(name) if *name.domain == *domain && *name.rule == *rule)
    }
}

impl From<Option<RuleName>> for Target {
    fn from(rule: Option<RuleName>) -> Target {
        rule.map_or(Target::Daemon, Target::Rule)
    }
}

impl From<Target> for Option<RuleName> {
    fn from(target: Target) -> Option<RuleName> {
        match target {
            Target::Daemon => None,
            Target::Rule(name) => Some(name),
        }
    }
}

impl SwitchOrigin {
    /// The user; `None` for the guard.
    #[must_use]
    pub fn uid(self) -> Option<u32> {
        match self {
            SwitchOrigin::User(uid) | SwitchOrigin::Fleet { uid, .. } => Some(uid),
            SwitchOrigin::Guard => None,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Daemon => f.write_str("everything"),
            Target::Rule(name) => name.fmt(f),
        }
    }
}

impl std::fmt::Display for SwitchOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SwitchOrigin::User(uid) => write!(f, "uid {uid}"),
            SwitchOrigin::Guard => f.write_str("guard"),
            SwitchOrigin::Fleet { uid, host } => {
                write!(f, "uid {uid} of host {:08x}", u32::from_be_bytes(*host))
            }
        }
    }
}

impl Engine {
    /// Sets a switch, replacing an earlier one; it applies from the next decision. Switching the whole daemon
    /// to enforce clears its switch: no switch makes it stricter than configured.
    ///
    /// # Errors
    /// The target does not exist or has no such mode, or there is no room.
    pub fn set_switch(&self, switch: &Switch) -> Result<SwitchView, SwitchError> {
        let mut control = self.control.lock();
        control.validate_switch(switch)?;
        let is_known = control.own.switches.iter().any(|known| known.target == switch.target);
        if !is_known && control.own.switches.len() >= SWITCHES_MAX {
            return Err(SwitchError::TooMany);
        }
        // On this host, only a later switch overrides a fleet-wide one, so it cannot be cleared.
        let is_back = control.fleet.switches.iter().all(|known| known.target != Target::Daemon);
        if switch.target == Target::Daemon && switch.mode == Mode::Enforce && is_back {
            control.own.switches.retain(|known| known.target != Target::Daemon);
        } else {
            control.set_switch(switch.clone());
        }
        self.recompile_rules(&mut control);
        Ok(control.view_switch(switch))
    }

    /// Returns whether a fleet-wide switch is valid, as far as this host knows the rules, and its effect.
    ///
    /// # Errors
    /// The target does not exist or has no such mode.
    pub fn preview_switch(&self, switch: &Switch) -> Result<SwitchView, SwitchError> {
        let control = self.control.lock();
        control.validate_switch(switch)?;
        Ok(control.view_switch(switch))
    }

    /// Clears a switch. Returns whether there was one.
    pub fn clear_switch(&self, target: &Target) -> bool {
        let mut control = self.control.lock();
        let before = control.own.switches.len();
        control.own.switches.retain(|known| known.target != *target);
        let some = control.own.switches.len() < before;
        if some {
            self.recompile_rules(&mut control);
        }
        some
    }

    /// The effective mode of a rule, list entry or shedder part; `None` if the rules do not contain it.
    #[must_use]
    pub fn effective_mode(&self, name: &RuleName) -> Option<Mode> {
        let in_force = self.in_force();
        let mut named = in_force.each().filter(|named| *named.domain == *name.domain);
        named.find(|named| *named.name == *name.rule).map(|named| named.mode)
    }

    /// The switches of this host, oldest first.
    #[must_use]
    pub fn switches(&self) -> Vec<SwitchView> {
        let control = self.control.lock();
        control.own.switches.iter().map(|switch| control.view_switch(switch)).collect()
    }
}

impl OperatorControl {
    pub(super) fn set_switch(&mut self, switch: Switch) {
        self.own.switches.retain(|known| known.target != switch.target);
        self.own.switches.push(switch);
    }

    fn validate_switch(&self, switch: &Switch) -> Result<(), SwitchError> {
        let Target::Rule(name) = &switch.target else { return Ok(()) };
        match self.find_named(name).map(|named| named.kind) {
            None => Err(self.unknown_rule_error(name).into()),
            Some(NamedKind::Listed(ListKind::Exempt)) if switch.mode == Mode::Shadow => {
                Err(SwitchError::Exempt(name.clone()))
            }
            Some(_) => Ok(()),
        }
    }

    pub(super) fn view_switch(&self, switch: &Switch) -> SwitchView {
        let last = self.find_latest_switch(|target| *target == switch.target).unwrap_or(switch);
        let whole = self.daemon_mode();
        let (written, own) = match &switch.target {
            Target::Daemon => (Some(self.configured_mode), whole),
            Target::Rule(name) => (self.find_named(name).map(|named| named.mode), last.mode),
        };
        let is_last = last.by.is_fleet() == switch.by.is_fleet();
        SwitchView { switch: switch.clone(), configured_mode: written, holds: own.max(whole), is_last }
    }

    fn find_named(&self, name: &RuleName) -> Option<NamedItem<'_>> {
        let domain = self.configured_domains.iter().find(|domain| *domain.name() == *name.domain)?;
        domain.named().find(|named| *named.name == *name.rule)
    }

    fn unknown_rule_error(&self, name: &RuleName) -> RuleNameError {
        let full = name.to_string();
        match self.find_rule_name(&full) {
            Err(error) => error,
            // The name is known from a switch only; its rule no longer exists.
            Ok(_) => RuleNameError::Unknown { name: full.into(), like: None },
        }
    }
}

/// Bounds switches: each costs a comparison with every name when the rules change.
pub(super) const SWITCHES_MAX: usize = 512;
