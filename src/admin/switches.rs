//! `GET /switches`: lists active switches and blocks with their origin. It changes nothing.

use serde_json::{Value, json};

use super::Desk;
use super::ledger::utc;
use crate::clock::{Now, Timestamp};
use crate::engine::{BlockedKey, Mode, SwitchView, Target};

/// All of it, as one object.
#[must_use]
pub fn switches(desk: &Desk) -> Value {
    let now = desk.clock.now();
    let everywhere = everywhere(desk);
    let both = |field: &str, own: Vec<Value>| {
        let everywhere = everywhere.get(field).and_then(Value::as_array).into_iter().flatten().cloned();
        own.into_iter().chain(everywhere).collect::<Vec<_>>()
    };
    let switches = desk.engine.switches().iter().map(|view| of_switch(view, now)).collect();
    let blocks = desk.engine.blocked_keys().iter().map(|block| of_block(block, now)).collect();
    json!({
        "mode": desk.engine.mode().name(),
        "off": desk.engine.is_off(),
        "switches": both("switches", switches),
        "blocks": both("blocks", blocks),
        "warnings": desk.ledger.warnings(now),
        "changes": desk.ledger.changes(),
    })
}

/// Returns the fleet overrides.
pub(super) fn everywhere(desk: &Desk) -> Value {
    let now = desk.clock.now();
    let switches = desk.engine.fleet_switches();
    let blocks = desk.engine.fleet_overrides().blocks;
    json!({
        "switches": switches.iter().map(|view| of_switch(view, now)).collect::<Vec<_>>(),
        "blocks": blocks.iter().map(|block| of_block(block, now)).collect::<Vec<_>>(),
    })
}

/// The health notice while a fleet override sets the mode of everything.
pub(super) fn everything_everywhere(desk: &Desk) -> Option<String> {
    let view = desk.engine.fleet_switches().into_iter().find(|view| view.switch.target == Target::Daemon)?;
    let until = utc(view.switch.until?, desk.clock.now());
    let mode = view.switch.mode;
    Some(format!(
        "everything is {mode} on all hosts until {until}: `tidegate switch --all --clear --fleet` ends it"
    ))
}

fn of_switch(view: &SwitchView, now: Now) -> Value {
    let until = |until| utc(until, now);
    let SwitchView { switch, configured_mode: written, holds, is_last } = view;
    json!({
        "rule": match &switch.target { Target::Daemon => Value::Null, Target::Rule(rule) => rule.to_string().into() },
        "mode": switch.mode.name(),
        "holds": holds.name(),
        "written": written.map(Mode::name),
        "until": switch.until.map(until),
        "said": (switch.set_at > Timestamp::ORIGIN).then(|| until(switch.set_at)),
        "fleet": switch.by.is_fleet(),
        "is_last": is_last,
        "by": switch.by.to_string(),
    })
}

fn of_block(block: &BlockedKey, now: Now) -> Value {
    json!({
        "rule": block.rule.to_string(),
        "key": block.format_digest(),
        "text": block.text,
        "until": utc(block.until, now),
        "fleet": block.by.is_fleet(),
        "by": block.by.to_string(),
    })
}
