//! `POST /reload`: reloads the rules, as SIGHUP does, and returns the result.

use serde_json::{Value, json};

use super::{By, Refusal};
use crate::admin::Desk;

pub(super) fn reload(desk: &Desk, _by: By, _asked: &Value) -> Result<Value, Refusal> {
    let reloaded = desk.control.reload().map_err(Refusal::failed)?;
    if !reloaded.problems.is_empty() {
        return Err(Refusal::failed(reloaded.problems.join("\n")));
    }
    Ok(json!({"changes": reloaded.changes}))
}
