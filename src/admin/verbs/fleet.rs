//! `POST /fleet/key`: returns this host's state of one fleet key. It changes nothing, but it is a verb like the others on
//! keys, because a path would name the caller.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::key::rule_and_key;
use super::{RequestFields, VerbRefusal, VerbResult};
use crate::admin::fleet::FleetReading;
use crate::admin::{AdminState, answer};
use crate::engine::SwitchOrigin;

/// This host's state of one fleet key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FleetKeyStatus {
    pub(crate) rule: String,
    pub(crate) key: String,
    pub(crate) limit: u64,
    pub(crate) known: bool,
    pub(crate) in_touch: bool,
    pub(crate) held: u64,
    #[serde(flatten)]
    pub(crate) kind: FleetKeyKind,
}

/// The part that depends on the kind of the rule.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum FleetKeyKind {
    /// Of a concurrency rule.
    Permits { in_use: u64, hosts: u64 },
    /// Of a rate; `redis` is null until Redis replies.
    Tokens { owed: u64, redis: Option<RedisLevelStatus> },
}

/// The level in Redis, in tokens, and the demand of all hosts, in tokens per second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RedisLevelStatus {
    pub(crate) level: f64,
    pub(crate) demand: f64,
    pub(crate) age_s: f64,
}

pub(in crate::admin) fn key(admin: &AdminState, _: SwitchOrigin, asked: &Value) -> VerbResult {
    let asked = RequestFields::of(asked, &["rule", "key"])?;
    let (rule, key) = rule_and_key(admin, &asked)?;
    let now = admin.clock.now();
    let fleet = FleetReading::take(admin, now.at);
    if let Some(here) = admin.engine.find_permits(&rule, &key, now)? {
        return Ok(answer::done(json!(FleetKeyStatus {
            rule: rule.to_string(),
            key: name(&here.name),
            limit: here.max.into(),
            known: here.is_tracked || here.in_use > 0,
            in_touch: here.is_tracked,
            held: here.held.into(),
            kind: FleetKeyKind::Permits { in_use: here.in_use.into(), hosts: fleet.view.hosts.into() },
        })));
    }
    let here = admin.engine.find_share(&rule, &key, now)?;
    let here = here.ok_or_else(|| {
        let why = match fleet.is_set {
            true => "it has no `scope: fleet`",
            false => "this host shares with no other host; `tidegate status` says why",
        };
        VerbRefusal::bad(format!("{rule} shares no budget: {why}"))
    })?;
    let there = here.report.unwrap_or_default();
    let redis = here.redis_level.map(|seen| RedisLevelStatus {
        level: seen.level as f64 / MICRO,
        demand: seen.demand as f64 / MILLI,
        age_s: now.at.since(seen.received_at).as_secs_f64(),
    });
    Ok(answer::done(json!(FleetKeyStatus {
        rule: rule.to_string(),
        key: name(&here.name),
        limit: here.limit.into(),
        known: here.report.is_some(),
        in_touch: here.is_tracked,
        held: there.borrowed.into(),
        kind: FleetKeyKind::Tokens { owed: there.debt.into(), redis },
    })))
}

fn name(name: &[u8; 16]) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Millionths of a token.
const MICRO: f64 = 1e6;

/// Thousandths of a token a second.
const MILLI: f64 = 1e3;
