//! Keeps the latest changes by operators and by the guard, with origin and time; each is also a line of the log.
//! Contains no caller text: a key appears as its digest only.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::{error, info};

use super::AdminState;
use crate::clock::{Now, Timestamp};
use crate::engine::{
    Alarm, BlockedKey, ControlEvent, Engine, Mode, Switch, SwitchOrigin, SwitchView, Target,
};

/// The latest changes, and the latest rules that the guard reported.
#[derive(Debug, Default)]
pub struct ChangeLedger {
    changes: Mutex<VecDeque<ChangeStatus>>,
    alarms: Mutex<VecDeque<(Timestamp, Alarm)>>,
}

/// A change by an operator, by the guard or by time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ChangeStatus {
    pub(crate) at: String,
    pub(crate) by: String,
    pub(crate) what: String,
}

impl ChangeLedger {
    /// Records a change here and in the log.
    pub fn enter(&self, by: &str, what: &str, now: Now) {
        let change = ChangeStatus { at: utc(now.at, now), by: by.to_owned(), what: what.to_owned() };
        push_latest(&self.changes, change);
        info!(by, "{what}");
    }

    /// Records the events of the engine since the last call.
    pub fn enter_events(&self, engine: &Engine, now: Now) {
        for event in &engine.take_control_events() {
            let (by, what) = match event {
                ControlEvent::SwitchEnded(Switch { target, mode, .. }) => {
                    ("time".to_owned(), format!("{target}: no longer {mode}, its time is over"))
                }
                ControlEvent::BlockEnded(block) => {
                    let (rule, key) = (&block.rule, block.format_digest());
                    ("time".to_owned(), format!("{rule}: the key {key} is free, its time is over"))
                }
                ControlEvent::FleetSwitched(Switch { target, mode, until, by, .. }) => {
                    let until = until.map(|until| format!(" until {}", utc(until, now))).unwrap_or_default();
                    (by.to_string(), format!("switched {target} to {mode} on all hosts{until}"))
                }
                ControlEvent::FleetCleared(Switch { target, mode, .. }) => {
                    ("fleet".to_owned(), format!("{target}: no longer {mode} on all hosts"))
                }
                ControlEvent::FleetBlocked(block) => {
                    let (key, rule, until) = (block.format_digest(), &block.rule, utc(block.until, now));
                    let what = format!("blocked the key {key} of {rule} on all hosts until {until}");
                    (block.by.to_string(), what)
                }
                ControlEvent::FleetUnblocked(block) => {
                    let (key, rule) = (block.format_digest(), &block.rule);
                    ("fleet".to_owned(), format!("{rule}: the key {key} is free on all hosts"))
                }
                ControlEvent::Guard(alarm) => {
                    self.alarm(alarm, now);
                    continue;
                }
            };
            self.enter(&by, &what, now);
        }
    }

    fn alarm(&self, alarm: &Alarm, now: Now) {
        let Alarm { rule, callers, refused, .. } = alarm;
        let message = warning(alarm);
        // Before the line of the log, whose readers look here.
        push_latest(&self.alarms, (now.at, alarm.clone()));
        error!(%rule, callers, refused, "{message}");
        if let Some(until) = alarm.shadow_until {
            let until = utc(until, now);
            let what = format!("switched {rule} to shadow until {until}");
            self.enter(&SwitchOrigin::Guard.to_string(), &what, now);
        }
    }

    /// Returns warnings: the reports of the guard in the last hour, of rules that have not changed since.
    pub fn warnings(&self, engine: &Engine, now: Now) -> Vec<String> {
        let alarms = self.alarms.lock();
        let stands = |alarm: &Alarm| match alarm.shadow_until {
            Some(until) => now.at < until,
            None => engine.effective_mode(&alarm.rule) == Some(Mode::Enforce),
        };
        let recent = alarms.iter().filter(|(at, alarm)| {
            now.at.since(*at) < SHOWN_FOR && engine.is_alarm_of_rule(&alarm.rule) && stands(alarm)
        });
        recent.map(|(at, alarm)| format!("{} {}", utc(*at, now), warning(alarm))).collect()
    }

    /// The last changes, the latest first.
    pub(super) fn changes(&self) -> Vec<ChangeStatus> {
        self.changes.lock().iter().rev().cloned().collect()
    }
}

/// Adds an entry in place of the oldest one, if there is no room.
fn push_latest<T>(entries: &Mutex<VecDeque<T>>, entry: T) {
    let mut entries = entries.lock();
    if entries.len() >= CHANGES_MAX {
        entries.pop_front();
    }
    entries.push_back(entry);
}

fn warning(alarm: &Alarm) -> String {
    let Alarm { rule, callers, refused, after, shadow_until } = alarm;
    let after = after.as_secs();
    let help = match shadow_until {
        Some(_) => "it is in shadow for 10 minutes: correct the rule".to_owned(),
        None => format!("`tidegate switch {rule} shadow` lets them pass"),
    };
    format!("{rule} REFUSES MOST CALLERS since it changed {after} s ago: {refused} of {callers}; {help}")
}

/// Formats a timestamp as UTC text, to the second.
pub(super) fn utc(at: Timestamp, now: Now) -> String {
    // Before 1970 no daemon ran; the other end is in the year 2262.
    let nanos = u64::try_from(now.to_unix_nanos(at)).unwrap_or_default();
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)).to_string()
}

/// Number of changes that a page shows; older ones are in the log.
const CHANGES_MAX: usize = 100;

/// Older events are in the log and the metric.
const SHOWN_FOR: Duration = Duration::from_secs(3_600);

/// The object of `GET /switches`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SwitchesStatus {
    pub(crate) mode: String,
    /// Whether a file `disable` allows everything.
    pub(crate) off: bool,
    pub(crate) off_by: Option<String>,
    #[serde(flatten)]
    pub(crate) held: ActiveSwitchesStatus,
    pub(crate) warnings: Vec<String>,
    pub(crate) changes: Vec<ChangeStatus>,
}

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

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BlockStatus {
    pub(crate) rule: String,
    pub(crate) key: String,
    pub(crate) text: Option<String>,
    pub(crate) until: Option<String>,
    pub(crate) fleet: bool,
    pub(crate) by: String,
}

/// Reads the switches and blocks of this host and of the fleet.
pub(super) fn switches(admin: &AdminState) -> SwitchesStatus {
    let (engine, now) = (&admin.engine, admin.clock.now());
    let switches = [engine.switches(), engine.fleet_switches()].concat();
    let blocks = [engine.blocked_keys(), engine.fleet_overrides().blocks].concat();
    SwitchesStatus {
        mode: engine.mode().name().to_owned(),
        off: engine.is_off(),
        off_by: admin.control.disable_file(),
        held: ActiveSwitchesStatus::new(&switches, &blocks, now),
        warnings: admin.ledger.warnings(engine, now),
        changes: admin.ledger.changes(),
    }
}

pub(super) fn fleet_overrides(admin: &AdminState) -> ActiveSwitchesStatus {
    let (switches, blocks) = (admin.engine.fleet_switches(), admin.engine.fleet_overrides().blocks);
    ActiveSwitchesStatus::new(&switches, &blocks, admin.clock.now())
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

impl SwitchesStatus {
    /// Returns the line that says that a file allows everything, if one does.
    pub(crate) fn off_line(&self) -> Option<String> {
        let path = self.off_by.as_deref().unwrap_or("disable");
        self.off.then(|| format!("EVERYTHING IS ALLOWED: the file {path} is there"))
    }
}

impl ActiveSwitchesStatus {
    fn new(switches: &[SwitchView], blocks: &[BlockedKey], now: Now) -> ActiveSwitchesStatus {
        ActiveSwitchesStatus {
            switches: switches.iter().map(|view| SwitchStatus::new(view, now)).collect(),
            blocks: blocks.iter().map(|block| BlockStatus::new(block, now)).collect(),
        }
    }
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
