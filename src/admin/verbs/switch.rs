//! `POST /switch`: a rule, or everything, in another mode than the files say. For the next decision, and for a time.

use serde_json::{Value, json};

use super::asked::{Asked, rule};
use super::{By, Refusal};
use crate::admin::Desk;
use crate::admin::ledger::utc;
use crate::clock::Now;
use crate::engine::{self, Switch, SwitchView, Target};
use crate::rules::Mode;

pub(super) fn switch(desk: &Desk, by: By, asked: &Value) -> Result<Value, Refusal> {
    let asked = Asked::of(asked, &["rule", "all", "mode", "clear", "for_s"])?;
    let target = match (asked.text("rule")?, asked.flag("all")?) {
        (Some(name), false) => Target::Rule(rule(desk, name)?),
        (None, true) => Target::Everything,
        (Some(_), true) => return Err(Refusal::bad("`rule` and `all`: write one of the two")),
        (None, false) => {
            return Err(Refusal::bad("what is to be switched: write `rule`, or `\"all\": true`"));
        }
    };
    let now = desk.clock.now();
    let said = match (asked.text("mode")?, asked.flag("clear")?) {
        (Some(word), false) => {
            let switch =
                Switch { target, mode: mode(word)?, until: asked.until(now)?, by: engine::By::User(by.uid) };
            set(desk, &switch, now)?
        }
        (None, true) if asked.until(now)?.is_none() => clear(desk, &target, by, now),
        (None, true) => return Err(Refusal::bad("`clear` holds for good: leave `for_s` out")),
        (Some(_), true) => return Err(Refusal::bad("`mode` and `clear`: write one of the two")),
        (None, false) => {
            return Err(Refusal::bad(
                "to what: write `mode` (enforce, shadow or disabled), or `\"clear\": true`",
            ));
        }
    };
    Ok(json!({"said": said, "warning": desk.control.keep().err()}))
}

fn set(desk: &Desk, switch: &Switch, now: Now) -> Result<String, Refusal> {
    let view = desk.engine.switch(switch).map_err(|error| Refusal::bad(error.to_string()))?;
    let until = switch
        .until
        .map_or_else(|| "until it is cleared".to_owned(), |until| format!("until {}", utc(until, now)));
    let is_back = switch.target == Target::Everything && switch.mode == Mode::Enforce;
    let what = match is_back {
        true => "switched everything back to what the settings and files say".to_owned(),
        false => format!("switched {} to {} {until}", switch.target, switch.mode),
    };
    desk.ledger.enter(&switch.by.to_string(), &what, now);
    let said = match is_back {
        true => "everything: back to what the settings and the files say".to_owned(),
        false => format!("{}: {} {until}", switch.target, switch.mode),
    };
    Ok(said + &written(&view) + &milder(&view, switch.mode))
}

fn written(view: &SwitchView) -> String {
    match (&view.switch.target, view.written) {
        (Target::Everything, Some(mode)) => format!("; the settings say {mode}"),
        (Target::Rule(_), Some(mode)) => format!("; its file says {mode}"),
        (_, None) => String::new(),
    }
}

/// Why it is milder than asked for.
fn milder(view: &SwitchView, asked: Mode) -> String {
    if view.holds == asked {
        return String::new();
    }
    format!(
        "; but the whole daemon is in {}, so this is too: see `mode` of the settings, and `tidegate switch`",
        view.holds
    )
}

fn clear(desk: &Desk, target: &Target, by: By, now: Now) -> String {
    if !desk.engine.clear(target) {
        return format!("{target}: was not switched");
    }
    desk.ledger.enter(&engine::By::User(by.uid).to_string(), &format!("cleared the switch of {target}"), now);
    match target {
        Target::Everything => "everything: back to what the settings and the files say".to_owned(),
        Target::Rule(rule) => format!("{rule}: back to what its file says"),
    }
}

fn mode(word: &str) -> Result<Mode, Refusal> {
    let modes = [Mode::Enforce, Mode::Shadow, Mode::Disabled];
    modes
        .into_iter()
        .find(|mode| mode.name() == word)
        .ok_or_else(|| Refusal::bad(format!("unknown mode `{word}`: write enforce, shadow or disabled")))
}
