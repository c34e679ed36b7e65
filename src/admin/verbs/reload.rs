//! `POST /reload`: reloads the rules, as SIGHUP does, and returns the result.

use serde_json::{Value, json};

use super::{Operator, VerbRefusal};
use crate::admin::AdminState;

pub(super) fn reload(desk: &AdminState, _by: Operator, _asked: &Value) -> Result<Value, VerbRefusal> {
    let reloaded = desk.control.reload().map_err(VerbRefusal::failed)?;
    if !reloaded.problems.is_empty() {
        return Err(VerbRefusal::failed(reloaded.problems.join("\n")));
    }
    Ok(json!({"changes": reloaded.changes}))
}
