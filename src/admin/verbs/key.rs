//! `POST /block`, `/unblock`, `/reset`: one key of one rule. No answer and no line of the log names it but by its digest.

use serde_json::{Value, json};

use super::asked::{Asked, Pairs, rule};
use super::{By, Refusal};
use crate::admin::Desk;
use crate::admin::ledger::utc;
use crate::engine::{self, KeyError, RuleName};

pub(super) fn block(desk: &Desk, by: By, asked: &Value) -> Result<Value, Refusal> {
    let asked = Asked::of(asked, &["rule", "key", "for_s"])?;
    let (rule, key) = rule_and_key(desk, &asked)?;
    let now = desk.clock.now();
    let until = asked.until(now)?.ok_or_else(|| Refusal::bad("for how long: write `for_s`, in seconds"))?;
    let by = engine::By::User(by.uid);
    let blocked = desk.engine.block(&rule, &key, until, by).map_err(|error| refused(&error))?;
    let until = utc(until, now);
    desk.ledger.enter(
        &by.to_string(),
        &format!("blocked the key {} of {rule} until {until}", blocked.digest()),
        now,
    );
    let mode = mode_of(desk, &rule);
    Ok(json!({
        "said": format!("{rule}: this key is refused until {until}{mode}"),
        "key": blocked.digest(),
        "warning": desk.control.keep().err(),
    }))
}

pub(super) fn unblock(desk: &Desk, by: By, asked: &Value) -> Result<Value, Refusal> {
    let said = ["was not blocked", "is free"];
    undo(desk, by, asked, "freed a key of", said, engine::Engine::unblock)
}

pub(super) fn reset(desk: &Desk, by: By, asked: &Value) -> Result<Value, Refusal> {
    let said = ["had nothing to be forgotten", "is counted afresh; leases stay"];
    undo(desk, by, asked, "reset a key of", said, engine::Engine::reset)
}

type Undo = fn(&engine::Engine, &RuleName, &[(&str, &str)]) -> Result<bool, KeyError>;

fn undo(
    desk: &Desk,
    by: By,
    asked: &Value,
    what: &str,
    said: [&str; 2],
    undo: Undo,
) -> Result<Value, Refusal> {
    let asked = Asked::of(asked, &["rule", "key"])?;
    let (rule, key) = rule_and_key(desk, &asked)?;
    let some = undo(&desk.engine, &rule, &key).map_err(|error| refused(&error))?;
    if some {
        let by = engine::By::User(by.uid);
        desk.ledger.enter(&by.to_string(), &format!("{what} {rule}"), desk.clock.now());
    }
    let [nothing, done] = said;
    let said = format!("{rule}: this key {}", if some { done } else { nothing });
    Ok(json!({"said": said, "done": some, "warning": desk.control.keep().err()}))
}

fn rule_and_key<'a>(desk: &Desk, asked: &Asked<'a>) -> Result<(RuleName, Pairs<'a>), Refusal> {
    let name = asked.text("rule")?.ok_or_else(|| Refusal::bad("of which rule: write `rule`"))?;
    Ok((rule(desk, name)?, asked.pairs("key")?))
}

/// What a block comes to where its rule refuses nothing.
fn mode_of(desk: &Desk, rule: &RuleName) -> String {
    match desk.engine.mode_of(rule) {
        Some(crate::rules::Mode::Enforce) | None => String::new(),
        Some(mode) => {
            format!("; but the rule is in {mode}, and refuses nobody: `tidegate switch {rule} enforce`")
        }
    }
}

fn refused(error: &KeyError) -> Refusal {
    Refusal::bad(error.to_string())
}
