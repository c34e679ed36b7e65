//! `POST /fleet/key`: returns this host's state of one fleet key. It changes nothing, but it is a verb like the others on
//! keys, because a path would name the caller.

use serde_json::{Value, json};

use super::asked::RequestFields;
use super::key::{refused, rule_and_key};
use super::{Operator, VerbRefusal};
use crate::admin::Desk;
use crate::engine::{HostPermits, RedisLevel};

pub(super) fn key(desk: &Desk, _: Operator, asked: &Value) -> Result<Value, VerbRefusal> {
    let asked = RequestFields::of(asked, &["rule", "key"])?;
    let (rule, key) = rule_and_key(desk, &asked)?;
    let now = desk.clock.now();
    if let Some(here) = desk.engine.find_permits(&rule, &key, now).map_err(|error| refused(&error))? {
        return Ok(of_places(&rule.to_string(), &here, desk.control.fleet().hosts));
    }
    let here = desk.engine.find_share(&rule, &key, now).map_err(|error| refused(&error))?;
    let here = here.ok_or_else(|| {
        let why = match desk.control.fleet().is_set {
            true => "it has no `scope: fleet`",
            false => "this host shares with nobody; `tidegate status` says why",
        };
        VerbRefusal::bad(format!("{rule} shares no budget: {why}"))
    })?;
    let there = here.report.unwrap_or_default();
    let Some(RedisLevel { level, demand, received_at: at }) = here.redis_level else {
        return Ok(told(&rule.to_string(), &here, (there.borrowed, there.debt), &Value::Null));
    };
    let redis = json!({
        "level": level as f64 / MICRO,
        "demand": demand as f64 / MILLI,
        "age_s": now.at.since(at).as_secs_f64(),
    });
    Ok(told(&rule.to_string(), &here, (there.borrowed, there.debt), &redis))
}

fn told(rule: &str, here: &crate::engine::HostShare, (held, owed): (u32, u32), redis: &Value) -> Value {
    json!({
        "rule": rule,
        "key": name(&here.name),
        "limit": here.limit,
        "known": here.report.is_some(),
        "in_touch": here.is_tracked,
        "held": held,
        "owed": owed,
        "redis": redis,
    })
}

/// Returns the permits of a key that this host holds.
fn of_places(rule: &str, here: &HostPermits, hosts: u32) -> Value {
    json!({
        "rule": rule,
        "key": name(&here.name),
        "limit": here.max,
        "known": here.is_tracked || here.in_use > 0,
        "in_touch": here.is_tracked,
        "held": here.held,
        "in_use": here.in_use,
        "hosts": hosts,
    })
}

fn name(name: &[u8; 16]) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Millionths of a token.
const MICRO: f64 = 1e6;

/// Thousandths of a token a second.
const MILLI: f64 = 1e3;
