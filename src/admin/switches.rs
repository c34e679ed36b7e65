//! `GET /switches`: lists active switches and blocks with their origin. It changes nothing.

use serde::{Deserialize, Serialize};

use super::AdminState;
use super::change_log::{ChangeStatus, utc};
use crate::clock::{Now, Timestamp};
use crate::engine::{BlockedKey, Mode, SwitchView, Target};

/// The object of `GET /switches`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SwitchesStatus {
    pub(crate) mode: String,
    /// Whether a file `disable` allows everything.
    pub(crate) off: bool,
    #[serde(flatten)]
    pub(crate) held: ActiveSwitchesStatus,
    pub(crate) warnings: Vec<String>,
    pub(crate) changes: Vec<ChangeStatus>,
}

/// Active switches and blocks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ActiveSwitchesStatus {
    pub(crate) switches: Vec<SwitchStatus>,
    pub(crate) blocks: Vec<BlockStatus>,
}

/// A rule, or everything without one, in another mode than that of its file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SwitchStatus {
    pub(crate) rule: Option<String>,
    pub(crate) mode: String,
    /// The mode in force.
    pub(crate) holds: String,
    /// The mode of the file; null if no rule has the name.
    pub(crate) written: Option<String>,
    pub(crate) until: Option<String>,
    /// The time of the switch.
    pub(crate) said: Option<String>,
    pub(crate) fleet: bool,
    /// Whether no later switch overrides it.
    pub(crate) is_last: Option<bool>,
    pub(crate) by: String,
}

/// A blocked key.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BlockStatus {
    pub(crate) rule: String,
    /// Its digest.
    pub(crate) key: String,
    pub(crate) text: Option<String>,
    pub(crate) until: Option<String>,
    pub(crate) fleet: bool,
    pub(crate) by: String,
}

/// Reads the switches and blocks of this host and of the fleet.
pub(super) fn switches(admin: &AdminState) -> SwitchesStatus {
    let (now, fleet) = (admin.clock.now(), fleet_overrides(admin));
    let switches =
        admin.engine.switches().iter().map(|view| SwitchStatus::new(view, now)).collect::<Vec<_>>();
    let blocks =
        admin.engine.blocked_keys().iter().map(|block| BlockStatus::new(block, now)).collect::<Vec<_>>();
    SwitchesStatus {
        mode: admin.engine.mode().name().to_owned(),
        off: admin.engine.is_off(),
        held: ActiveSwitchesStatus {
            switches: [switches, fleet.switches].concat(),
            blocks: [blocks, fleet.blocks].concat(),
        },
        warnings: admin.ledger.warnings(now),
        changes: admin.ledger.changes(),
    }
}

/// Reads the fleet overrides.
pub(super) fn fleet_overrides(admin: &AdminState) -> ActiveSwitchesStatus {
    let now = admin.clock.now();
    let (switches, blocks) = (admin.engine.fleet_switches(), admin.engine.fleet_overrides().blocks);
    ActiveSwitchesStatus {
        switches: switches.iter().map(|view| SwitchStatus::new(view, now)).collect(),
        blocks: blocks.iter().map(|block| BlockStatus::new(block, now)).collect(),
    }
}

/// The health notice while a fleet override sets the mode of everything.
pub(super) fn everything_everywhere(admin: &AdminState) -> Option<String> {
    let view = admin.engine.fleet_switches().into_iter().find(|view| view.switch.target == Target::Daemon)?;
    let until = utc(view.switch.until?, admin.clock.now());
    let mode = view.switch.mode;
    Some(format!(
        "everything is {mode} on all hosts until {until}: `tidegate switch --all --clear --fleet` ends it"
    ))
}

impl SwitchStatus {
    fn new(SwitchView { switch, configured_mode, holds, is_last }: &SwitchView, now: Now) -> SwitchStatus {
        SwitchStatus {
            rule: match &switch.target {
                Target::Daemon => None,
                Target::Rule(rule) => Some(rule.to_string()),
            },
            mode: switch.mode.name().to_owned(),
            holds: holds.name().to_owned(),
            written: configured_mode.map(Mode::name).map(str::to_owned),
            until: switch.until.map(|until| utc(until, now)),
            said: (switch.set_at > Timestamp::ORIGIN).then(|| utc(switch.set_at, now)),
            fleet: switch.by.is_fleet(),
            is_last: Some(*is_last),
            by: switch.by.to_string(),
        }
    }
}

impl BlockStatus {
    fn new(block: &BlockedKey, now: Now) -> BlockStatus {
        BlockStatus {
            rule: block.rule.to_string(),
            key: block.format_digest(),
            text: block.text.as_deref().map(str::to_owned),
            until: Some(utc(block.until, now)),
            fleet: block.by.is_fleet(),
            by: block.by.to_string(),
        }
    }
}
