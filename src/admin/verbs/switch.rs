//! `POST /switch`: a rule, or everything, in another mode than the files say. For the next decision, and for a time.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{VerbRefusal, VerbResult, keep};
use crate::admin::switches::utc;
use crate::admin::{AdminState, answer};
use crate::clock::Now;
use crate::engine::{FleetChange, Switch, SwitchOrigin, SwitchView, Target};
use crate::rules::Mode;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct SwitchFields<'a> {
    #[serde(borrow)]
    rule: Option<&'a str>,
    all: bool,
    mode: Option<Mode>,
    clear: bool,
    for_s: Option<u64>,
    fleet: bool,
}

pub(in crate::admin) fn switch(admin: &AdminState, by: SwitchOrigin, body: &Value) -> VerbResult {
    let SwitchFields { rule, all, mode, clear, for_s, fleet } = super::fields(body)?;
    let target = match (rule, all) {
        (Some(name), false) => Target::Rule(super::rule(admin, name)?),
        (None, true) => Target::Daemon,
        (Some(_), true) => return Err(VerbRefusal::bad("`rule` and `all`: write one of the two")),
        (None, false) => {
            return Err(VerbRefusal::bad("no target: write `rule`, or `\"all\": true`"));
        }
    };
    let now = admin.clock.now();
    let until = super::until(for_s, now)?;
    let outcome = match (mode, clear) {
        (Some(mode), false) => {
            let switch = Switch { target, mode, until, set_at: now.at, by };
            if fleet { set_everywhere(admin, &switch, now)? } else { set(admin, &switch, now)? }
        }
        (None, true) if until.is_some() => {
            return Err(VerbRefusal::bad("`clear` holds for good: leave `for_s` out"));
        }
        (None, true) if fleet => clear_everywhere(admin, &target, by, now)?,
        (None, true) => self::clear(admin, &target, by, now),
        (Some(_), true) => return Err(VerbRefusal::bad("`mode` and `clear`: write one of the two")),
        (None, false) => {
            return Err(VerbRefusal::bad(
                "no mode: write `mode` (enforce, shadow or disabled), or `\"clear\": true`",
            ));
        }
    };
    Ok(answer::done(json!({"said": outcome, "warning": keep(admin, fleet)})))
}

fn set(admin: &AdminState, switch: &Switch, now: Now) -> Result<String, VerbRefusal> {
    let view = admin.engine.set_switch(switch)?;
    let until = until(switch, now);
    let Switch { target, mode, by, .. } = switch;
    let (what, outcome) = if is_back(switch) {
        let what = "switched everything back to what the settings and files say";
        (what.to_owned(), "everything: back to what the settings and the files say".to_owned())
    } else {
        (format!("switched {target} to {mode} {until}"), format!("{target}: {mode} {until}"))
    };
    admin.ledger.enter(&by.to_string(), &what, now);
    Ok(outcome + &written(&view) + &milder(&view, *mode))
}

fn until(switch: &Switch, now: Now) -> String {
    let until = switch.until.map(|until| format!("until {}", utc(until, now)));
    until.unwrap_or_else(|| "until it is cleared".to_owned())
}

/// Reports whether this clears the switch of the whole daemon: enforce is its mode without a switch.
fn is_back(switch: &Switch) -> bool {
    switch.target == Target::Daemon && switch.mode == Mode::Enforce
}

/// Each host, this one included, records the switch when it syncs it.
fn set_everywhere(admin: &AdminState, switch: &Switch, now: Now) -> Result<String, VerbRefusal> {
    if switch.target == Target::Daemon && !is_back(switch) && switch.until.is_none() {
        let message = "everything is switched on all hosts for a time only. help: say for how long: `--for 30m`, or `for_s` over HTTP";
        return Err(VerbRefusal::bad(message));
    }
    let view = admin.engine.preview_switch(switch)?;
    let is_change = admin
        .control
        .change_fleet_overrides(FleetChange::Switch(switch.clone()))
        .map_err(VerbRefusal::failed)?;
    if is_back(switch) {
        return Ok(cleared_everywhere(&switch.target, is_change));
    }
    let (target, mode, until) = (&switch.target, switch.mode, until(switch, now));
    Ok(format!("{target}: {mode} {until}, on all hosts") + &written(&view))
}

fn clear_everywhere(
    admin: &AdminState,
    target: &Target,
    by: SwitchOrigin,
    now: Now,
) -> Result<String, VerbRefusal> {
    let is_change = admin
        .control
        .change_fleet_overrides(FleetChange::Clear(target.clone()))
        .map_err(VerbRefusal::failed)?;
    if is_change {
        let what = format!("cleared the switch of {target} on all hosts");
        admin.ledger.enter(&by.to_string(), &what, now);
    }
    Ok(cleared_everywhere(target, is_change))
}

fn cleared_everywhere(target: &Target, is_change: bool) -> String {
    match is_change {
        true => format!("{target}: back to what each host says, on all hosts"),
        false => format!("{target}: was not switched on all hosts"),
    }
}

fn written(view: &SwitchView) -> String {
    match (&view.switch.target, view.configured_mode) {
        (Target::Daemon, Some(mode)) => format!("; the settings say {mode}"),
        (Target::Rule(_), Some(mode)) => format!("; its file says {mode}"),
        (_, None) => String::new(),
    }
}

/// Returns a note if the effective mode is milder than the requested one.
fn milder(view: &SwitchView, body: Mode) -> String {
    if view.holds == body {
        return String::new();
    }
    format!(
        "; but the whole daemon is in {}, so this is too: see `mode` of the settings, and `tidegate switch`",
        view.holds
    )
}

fn clear(admin: &AdminState, target: &Target, by: SwitchOrigin, now: Now) -> String {
    let everywhere = admin.engine.fleet_switches().into_iter().find(|view| view.switch.target == *target);
    let words = match target {
        Target::Daemon => "--all".to_owned(),
        Target::Rule(rule) => rule.to_string(),
    };
    let still = everywhere.map(|view| {
        let mode = view.switch.mode;
        format!("; it is switched to {mode} on all hosts: `tidegate switch {words} --clear --fleet`")
    });
    let still = still.unwrap_or_default();
    if !admin.engine.clear_switch(target) {
        return format!("{target}: was not switched{still}");
    }
    admin.ledger.enter(&by.to_string(), &format!("cleared the switch of {target}"), now);
    match target {
        Target::Daemon => format!("everything: back to what the settings and the files say{still}"),
        Target::Rule(rule) => format!("{rule}: back to what its file says{still}"),
    }
}
