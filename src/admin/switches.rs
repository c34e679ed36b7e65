//! `GET /switches`: what holds over the rules, and who said so. It changes nothing.

use serde_json::{Value, json};

use super::Desk;
use super::ledger::utc;
use crate::engine::{Blocked, Mode, SwitchView, Target};

/// All of it, as one object.
#[must_use]
pub fn switches(desk: &Desk) -> Value {
    let now = desk.clock.now();
    let until = |until| utc(until, now);
    let switch = |view: &SwitchView| {
        let SwitchView { switch, written, holds } = view;
        json!({
            "rule": match &switch.target { Target::Everything => Value::Null, Target::Rule(rule) => rule.to_string().into() },
            "mode": switch.mode.name(),
            "holds": holds.name(),
            "written": written.map(Mode::name),
            "until": switch.until.map(until),
            "by": switch.by.to_string(),
        })
    };
    let block = |block: &Blocked| {
        json!({
            "rule": block.rule.to_string(),
            "key": block.digest(),
            "text": block.text,
            "until": until(block.until),
            "by": block.by.to_string(),
        })
    };
    json!({
        "mode": desk.engine.mode().name(),
        "off": desk.engine.is_off(),
        "switches": desk.engine.switches().iter().map(switch).collect::<Vec<_>>(),
        "blocks": desk.engine.blocks().iter().map(block).collect::<Vec<_>>(),
        "warnings": desk.ledger.warnings(now),
        "changes": desk.ledger.changes(),
    })
}
