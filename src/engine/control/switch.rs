//! Switches: a rule or the whole daemon in another mode than configured, optionally for a time; and the names by which operators
//! give rules: `domain/rule`, or the rule alone if only one domain has it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::OperatorControl;
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::rules::de::TYPO;
use crate::rules::{Domain, ListKind, Mode, NAME_BYTES_MAX, NamedItem, NamedKind};

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(from = "Option<RuleName>", into = "Option<RuleName>")]
pub enum Target {
    /// The whole daemon: no rule is stricter than its mode.
    #[strum(to_string = "everything")]
    Daemon,
    /// One rule, list entry or shedder part.
    #[strum(to_string = "{0}")]
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

/// The full name of a rule, a list entry or a shedder part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(Box<str>, Box<str>)", into = "(Box<str>, Box<str>)")]
pub struct RuleName {
    /// Its domain.
    pub domain: Box<str>,
    /// Its name in the domain: `per-user`, `web/workers`.
    pub rule: Box<str>,
}

impl TryFrom<(Box<str>, Box<str>)> for RuleName {
    type Error = &'static str;

    /// Checks that the names are possible in rules, and so safe in logs and on screens.
    fn try_from((domain, rule): (Box<str>, Box<str>)) -> Result<RuleName, &'static str> {
        let is_fit = |name: &str, bytes_max| {
            (1..=bytes_max).contains(&name.len()) && !name.chars().any(char::is_control)
        };
        let are_fit = is_fit(&domain, NAME_BYTES_MAX) && is_fit(&rule, RULE_BYTES_MAX);
        if are_fit { Ok(RuleName { domain, rule }) } else { Err("not the name of a rule") }
    }
}

impl From<RuleName> for (Box<str>, Box<str>) {
    fn from(name: RuleName) -> (Box<str>, Box<str>) {
        (name.domain, name.rule)
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.rule)
    }
}

/// Why a name cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RuleNameError {
    #[error("nothing is called `{name}`: {}", suggestion(.like))]
    Unknown { name: Box<str>, like: Option<RuleName> },
    #[error("`{name}` may be {one} or {other}: write the full name")]
    Ambiguous { name: Box<str>, one: RuleName, other: RuleName },
}

fn suggestion(like: &Option<RuleName>) -> String {
    match like {
        Some(like) => format!("did you mean `{like}`?"),
        None => "`tidegate status` shows the rules in force".to_owned(),
    }
}

impl RuleName {
    fn from_item(domain: &Domain, named: &NamedItem<'_>) -> RuleName {
        RuleName { domain: domain.name().into(), rule: named.name.into() }
    }
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
    pub fn uid(self) -> Option<u32> {
        match self {
            SwitchOrigin::User(uid) | SwitchOrigin::Fleet { uid, .. } => Some(uid),
            SwitchOrigin::Guard => None,
        }
    }
}

impl fmt::Display for SwitchOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    /// Resolves a name; a full name takes precedence over a short one.
    ///
    /// # Errors
    /// The name is unknown or ambiguous.
    pub fn find_rule_name(&self, name: &str) -> Result<RuleName, RuleNameError> {
        self.control.lock().find_rule_name(name)
    }

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
    pub fn effective_mode(&self, name: &RuleName) -> Option<Mode> {
        let in_force = self.in_force();
        let mut named = in_force.each().filter(|named| *named.domain == *name.domain);
        named.find(|named| *named.name == *name.rule).map(|named| named.mode)
    }

    /// The switches of this host, oldest first.
    pub fn switches(&self) -> Vec<SwitchView> {
        let control = self.control.lock();
        control.own.switches.iter().map(|switch| control.view_switch(switch)).collect()
    }
}

impl OperatorControl {
    pub(super) fn find_rule_name(&self, name: &str) -> Result<RuleName, RuleNameError> {
        let mut short: Vec<RuleName> = Vec::new();
        for known in self.rule_names() {
            if is_full_name(&known, name) {
                return Ok(known);
            }
            if *known.rule == *name && !short.contains(&known) {
                short.push(known);
            }
        }
        let mut short = short.into_iter();
        match (short.next(), short.next()) {
            (Some(one), None) => Ok(one),
            (Some(one), Some(other)) => Err(RuleNameError::Ambiguous { name: name.into(), one, other }),
            (None, _) => {
                Err(RuleNameError::Unknown { name: name.into(), like: self.find_similar_name(name) })
            }
        }
    }

    /// All names in the rules, and those of switches whose rule does not exist.
    fn rule_names(&self) -> impl Iterator<Item = RuleName> {
        let rules = self.configured_domains.iter().flat_map(|domain| {
            domain.named().map(|named| RuleName::from_item(domain, &named)).collect::<Vec<_>>()
        });
        let switched =
            self.own.switches.iter().chain(&self.fleet.switches).filter_map(|switch| match &switch.target {
                Target::Rule(rule) => Some(rule.clone()),
                Target::Daemon => None,
            });
        rules.chain(switched)
    }

    fn find_similar_name(&self, name: &str) -> Option<RuleName> {
        let distance = |known: &RuleName| {
            let full = strsim::osa_distance(name, &known.to_string());
            full.min(strsim::osa_distance(name, &known.rule))
        };
        let nearest =
            self.rule_names().map(|known| (distance(&known), known)).min_by_key(|(distance, _)| *distance)?;
        (nearest.0 <= EDIT_DISTANCE_MAX.min(name.chars().count() / TYPO)).then_some(nearest.1)
    }

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

fn is_full_name(known: &RuleName, name: &str) -> bool {
    let rest = name.strip_prefix(&*known.domain).and_then(|rest| rest.strip_prefix('/'));
    rest == Some(&*known.rule)
}

/// The longest name in the rules: a node of a descriptor tree has its path in its name.
const RULE_BYTES_MAX: usize = 512;

/// Names at a larger edit distance are not suggested, nor short ones with more than a third of the letters wrong.
const EDIT_DISTANCE_MAX: usize = 3;
