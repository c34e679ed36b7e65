//! A switch: a rule, or the whole daemon, in another mode than the files say, perhaps for a time.

use super::{Control, NotNamed, RuleName};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::rules::{Kind, ListKind, Mode};

/// What is switched, to what, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch {
    /// What is switched.
    pub target: Target,
    /// To what. The whole daemon is never switched to enforce: that is what it does without a switch.
    pub mode: Mode,
    /// When it ends by itself; `None`: never.
    pub until: Option<Timestamp>,
    /// When it was said: of two words, to this host and to all, the later one holds.
    pub said: Timestamp,
    /// Who did it.
    pub by: By,
}

/// What is switched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The whole daemon: no rule is stricter than its mode.
    Everything,
    /// One rule, one entry of a list, or one part of a shedder.
    Rule(RuleName),
}

/// Who switched or blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A user of this host, by number.
    User(u32),
    /// The guard: a rule refused most callers right after a change.
    Guard,
    /// A user of some host, to all of them. Of its host the first bytes of the name that the fleet knows it by.
    Fleet {
        /// By number, on that host.
        uid: u32,
        /// Which host.
        host: [u8; 4],
    },
}

/// A switch beside what would be without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchView {
    /// The switch.
    pub switch: Switch,
    /// The mode in the files, or in the settings; `None`: the rule is gone, and the switch waits for its return.
    pub written: Option<Mode>,
    /// The mode that holds: never stricter than that of the whole daemon.
    pub holds: Mode,
    /// Whether it is the last word about this: the other was said to all hosts, or to this one.
    pub is_last: bool,
}

/// Why something is not switched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSwitched {
    /// Its name says nothing.
    #[error(transparent)]
    Name(#[from] NotNamed),
    /// An exemption refuses nobody.
    #[error("`{0}` exempts, and refuses nobody: switch it to enforce (it exempts) or disabled (it does not)")]
    Exempt(RuleName),
    /// There are too many switches.
    #[error(
        "{SWITCHES_MAX} things are switched, and no more can be: clear what is not needed, or switch --all"
    )]
    TooMany,
}

impl Target {
    pub(super) fn is_rule(&self, domain: &str, rule: &str) -> bool {
        matches!(self, Target::Rule(name) if *name.domain == *domain && *name.rule == *rule)
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Target::Everything => f.write_str("everything"),
            Target::Rule(name) => name.fmt(f),
        }
    }
}

impl std::fmt::Display for By {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            By::User(uid) => write!(f, "uid {uid}"),
            By::Guard => f.write_str("guard"),
            By::Fleet { uid, host } => write!(f, "uid {uid} of host {:08x}", u32::from_be_bytes(*host)),
        }
    }
}

impl Engine {
    /// Switches, over whatever it was switched to before. It holds for the next decision. The whole daemon switched to
    /// enforce is cleared: nothing makes it stricter than it was started.
    ///
    /// # Errors
    /// There is nothing of this name, or no room.
    pub fn switch(&self, switch: &Switch) -> Result<SwitchView, NotSwitched> {
        let mut control = self.control.lock();
        control.may_be(switch)?;
        let is_known = control.switches.iter().any(|known| known.target == switch.target);
        if !is_known && control.switches.len() >= SWITCHES_MAX {
            return Err(NotSwitched::TooMany);
        }
        // What was said to all hosts is over for this one by a later word alone.
        let is_back = control.fleet.switches.iter().all(|known| known.target != Target::Everything);
        if switch.target == Target::Everything && switch.mode == Mode::Enforce && is_back {
            control.switches.retain(|known| known.target != Target::Everything);
        } else {
            control.set(switch.clone());
        }
        self.enact(&mut control);
        Ok(control.view(switch, self.options.mode))
    }

    /// Whether all hosts can be switched so, as far as this one knows the rules; and how it would stand.
    ///
    /// # Errors
    /// There is nothing of this name, or it has no such mode.
    pub fn could_switch(&self, switch: &Switch) -> Result<SwitchView, NotSwitched> {
        let control = self.control.lock();
        control.may_be(switch)?;
        Ok(control.view(switch, self.options.mode))
    }

    /// Goes back to what the files and the settings say. Whether it was switched.
    pub fn clear(&self, target: &Target) -> bool {
        let mut control = self.control.lock();
        let before = control.switches.len();
        control.switches.retain(|known| known.target != *target);
        let some = control.switches.len() < before;
        if some {
            self.enact(&mut control);
        }
        some
    }

    /// The mode that holds for a rule, an entry of a list, or a part of a shedder; `None`: the rules do not name it.
    #[must_use]
    pub fn mode_of(&self, name: &RuleName) -> Option<Mode> {
        let control = self.control.lock();
        let switched = control.said_of(|target| target.is_rule(&name.domain, &name.rule));
        let own = control.mode_written(name)?;
        Some(switched.map_or(own, |switch| switch.mode).max(control.mode(self.options.mode)))
    }

    /// All that is switched, in the order in which it was.
    #[must_use]
    pub fn switches(&self) -> Vec<SwitchView> {
        let control = self.control.lock();
        control.switches.iter().map(|switch| control.view(switch, self.options.mode)).collect()
    }
}

impl Control {
    /// Sets a switch in place of whatever there was.
    pub(super) fn set(&mut self, switch: Switch) {
        self.switches.retain(|known| known.target != switch.target);
        self.switches.push(switch);
    }

    fn may_be(&self, switch: &Switch) -> Result<(), NotSwitched> {
        let Target::Rule(name) = &switch.target else { return Ok(()) };
        match self.kind(name) {
            None => Err(self.unknown(name).into()),
            Some(Kind::Listed(ListKind::Exempt)) if switch.mode == Mode::Shadow => {
                Err(NotSwitched::Exempt(name.clone()))
            }
            Some(_) => Ok(()),
        }
    }

    pub(super) fn view(&self, switch: &Switch, made_with: Mode) -> SwitchView {
        let last = self.said_of(|target| *target == switch.target).unwrap_or(switch);
        let whole = self.mode(made_with);
        let (written, own) = match &switch.target {
            Target::Everything => (Some(made_with), whole),
            Target::Rule(name) => (self.mode_written(name), last.mode),
        };
        let is_last = last.by.is_fleet() == switch.by.is_fleet();
        SwitchView { switch: switch.clone(), written, holds: own.max(whole), is_last }
    }

    fn mode_written(&self, name: &RuleName) -> Option<Mode> {
        let domain = self.written.iter().find(|domain| *domain.name() == *name.domain)?;
        domain.named().find(|named| *named.name == *name.rule).map(|named| named.mode)
    }

    fn kind(&self, name: &RuleName) -> Option<Kind> {
        let domain = self.written.iter().find(|domain| *domain.name() == *name.domain)?;
        domain.named().find(|named| *named.name == *name.rule).map(|named| named.kind)
    }

    fn unknown(&self, name: &RuleName) -> NotNamed {
        let full = name.to_string();
        match self.named(&full) {
            Err(error) => error,
            // Switched once and gone since.
            Ok(_) => NotNamed::Unknown { name: full.into(), like: None },
        }
    }
}

/// More than anybody keeps in mind; each costs a look at every name when the rules change.
pub(super) const SWITCHES_MAX: usize = 512;
