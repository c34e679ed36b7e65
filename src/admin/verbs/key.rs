//! `POST /block`, `/unblock`, `/reset`, `/fleet/key`: one key of one rule, in the body, as a path would name the caller. No
//! answer and no line of the log names it but by its digest.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};

use super::why::{DIGITS_MIN, find_digest};
use super::{VerbRefusal, VerbResult, keep};
use crate::admin::fleet::FleetReading;
use crate::admin::switches::utc;
use crate::admin::{AdminState, answer};
use crate::engine::{BlockedKey, Engine, FleetChange, KeyError, NamedKey, RuleName, SwitchOrigin};
use crate::terms::hex;

pub(in crate::admin) fn block(admin: &AdminState, by: SwitchOrigin, body: &Value) -> VerbResult {
    let fields: VerbKey<'_> = super::fields(body)?;
    let (rule, key) = fields.rule_and_key(admin)?;
    let now = admin.clock.now();
    let until = super::end(fields.for_s, now)?;
    let (shown_until, mode) = (utc(until, now), mode_of(admin, &rule));
    let (digest, everywhere) = if fields.fleet {
        // Each host, this one included, records the block when it syncs it. Hosts see only the digest, so no value is shown.
        let key = admin.engine.fleet_key_digest(&rule, attributes(&key)?)?;
        let blocked = BlockedKey { rule: rule.clone(), key, text: None, until, by };
        let digest = blocked.format_digest();
        admin.control.change_fleet_overrides(FleetChange::Block(blocked)).map_err(VerbRefusal::failed)?;
        (digest, ", on all hosts")
    } else {
        let digest = admin.engine.block_key(&rule, key, until, by)?.format_digest();
        let what = format!("blocked the key {digest} of {rule} until {shown_until}");
        admin.ledger.enter(&by.to_string(), &what, now);
        (digest, "")
    };
    let message = format!("{rule}: this key is refused until {shown_until}{everywhere}{mode}");
    Ok(answer::done(json!({"said": message, "key": digest, "warning": keep(admin, !everywhere.is_empty())})))
}

pub(in crate::admin) fn unblock(admin: &AdminState, by: SwitchOrigin, body: &Value) -> VerbResult {
    let fields = VerbKey::without_time(body)?;
    if !fields.fleet {
        let message = ["was not blocked", "is free"];
        return undo(admin, by, &fields, "freed a key of", message, |engine, rule, key| {
            engine.unblock_key(rule, key)
        });
    }
    let rule = super::rule(admin, fields.rule)?;
    let key = match fields.digest {
        Some(_) if !fields.key.is_empty() => return Err(VerbRefusal::bad(KEY_OR_DIGEST)),
        Some(digest) => listed_block(admin, &rule, digest)?,
        None => admin.engine.fleet_key_digest(&rule, &fields.key)?,
    };
    let change = FleetChange::Unblock(rule.clone(), key);
    let some = admin.control.change_fleet_overrides(change).map_err(VerbRefusal::failed)?;
    if some {
        let what = format!("freed a key of {rule} on all hosts");
        admin.ledger.enter(&by.to_string(), &what, admin.clock.now());
    }
    let message = if some { "is unblocked on all hosts" } else { "was not blocked on all hosts" };
    let message = format!("{rule}: this key {message}");
    Ok(answer::done(json!({"said": message, "done": some, "warning": keep(admin, true)})))
}

/// Finds a block of all hosts by the digest, or its first digits, that `switch` and `fleet` list.
fn listed_block(admin: &AdminState, rule: &RuleName, digest: &str) -> Result<[u64; 2], VerbRefusal> {
    let begin = digest.to_ascii_lowercase();
    let blocks = admin.engine.fleet_overrides().blocks;
    let mut found = blocks.iter().filter(|block| {
        block.rule == *rule && begin.len() >= DIGITS_MIN && block.format_digest().starts_with(&begin)
    });
    match (found.next(), found.next()) {
        (Some(block), None) => Ok(block.key),
        (Some(_), Some(_)) => {
            Err(VerbRefusal::bad(format!("several blocked keys begin with {begin}: write more digits")))
        }
        (None, _) => Err(VerbRefusal::bad(format!(
            "no key of {rule} with this digest is blocked on all hosts: `tidegate switch` lists the blocks"
        ))),
    }
}

pub(in crate::admin) fn reset(admin: &AdminState, by: SwitchOrigin, body: &Value) -> VerbResult {
    let message = ["had no state", "starts fresh; leases stay"];
    let fields = VerbKey::without_time(body)?;
    undo(admin, by, &fields, "reset a key of", message, |engine, rule, key| engine.reset_key(rule, key))
}

type Undo = fn(&Engine, &RuleName, NamedKey<'_>) -> Result<bool, KeyError>;

fn undo(
    admin: &AdminState,
    by: SwitchOrigin,
    fields: &VerbKey<'_>,
    what: &str,
    message: [&str; 2],
    undo: Undo,
) -> VerbResult {
    if fields.fleet {
        return Err(VerbRefusal::bad("a key starts fresh on one host alone: leave `fleet` out"));
    }
    let (rule, key) = fields.rule_and_key(admin)?;
    let some = undo(&admin.engine, &rule, key)?;
    if some {
        admin.ledger.enter(&by.to_string(), &format!("{what} {rule}"), admin.clock.now());
    }
    let [nothing, done] = message;
    let mut still = attributes(&key).map_or("", |key| still_blocked(admin, &rule, key));
    if some && still.is_empty() && admin.engine.is_over_own_limit(&rule, key, admin.clock.now()) {
        still =
            "; it is still over the limit, and its next request is refused: `tidegate reset` starts it fresh";
    }
    let message = format!("{rule}: this key {}{still}", if some { done } else { nothing });
    Ok(answer::done(json!({"said": message, "done": some, "warning": keep(admin, false)})))
}

/// A rule and one of its keys, by attributes or by digest.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VerbKey<'a> {
    rule: &'a str,
    #[serde(borrow, default, deserialize_with = "pairs")]
    key: AttributePairs<'a>,
    digest: Option<&'a str>,
    for_s: Option<u64>,
    #[serde(default)]
    fleet: bool,
}

type AttributePairs<'a> = Vec<(&'a str, &'a str)>;

/// Reads attributes: a list of pairs, in their order, or an object where that is free.
fn pairs<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<AttributePairs<'a>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "`key` is a list of pairs of texts: [[\"user\", \"u1\"]]")]
    enum Pairs<'a> {
        #[serde(borrow)]
        List(AttributePairs<'a>),
        Object(BTreeMap<&'a str, &'a str>),
    }
    Ok(match Pairs::deserialize(deserializer)? {
        Pairs::List(pairs) => pairs,
        Pairs::Object(pairs) => pairs.into_iter().collect(),
    })
}

impl<'a> VerbKey<'a> {
    /// Reads the fields of a verb that holds for good.
    fn without_time(body: &'a Value) -> Result<VerbKey<'a>, VerbRefusal> {
        let fields: VerbKey<'_> = super::fields(body)?;
        match fields.for_s {
            Some(_) => Err(VerbRefusal::bad("it holds for good: leave `for_s` out")),
            None => Ok(fields),
        }
    }

    fn rule_and_key(&self, admin: &AdminState) -> Result<(RuleName, NamedKey<'_>), VerbRefusal> {
        let rule = super::rule(admin, self.rule)?;
        match self.digest {
            None => Ok((rule, NamedKey::Attributes(&self.key))),
            Some(_) if !self.key.is_empty() => Err(VerbRefusal::bad(KEY_OR_DIGEST)),
            Some(digest) => Ok((rule, NamedKey::Digest(find_digest(admin, digest)?))),
        }
    }
}

/// The digest of a key in Redis is another one, which only its values give.
fn attributes<'a>(key: &NamedKey<'a>) -> Result<&'a [(&'a str, &'a str)], VerbRefusal> {
    match key {
        NamedKey::Attributes(attributes) => Ok(attributes),
        NamedKey::Digest(_) => Err(VerbRefusal::bad(
            "all hosts know the key by its values: name its attributes in place of the digest",
        )),
    }
}

/// Returns a note if a fleet override still blocks the key: local verbs do not lift fleet blocks.
fn still_blocked(admin: &AdminState, rule: &RuleName, key: &[(&str, &str)]) -> &'static str {
    let Ok(key) = admin.engine.fleet_key_digest(rule, key) else { return "" };
    let overrides = admin.engine.fleet_overrides();
    let is_blocked = overrides.blocks.iter().any(|block| block.rule == *rule && block.key == key);
    if is_blocked { "; it is blocked on all hosts: `tidegate unblock … --fleet`" } else { "" }
}

/// Returns a note if the rule's mode refuses no requests, so that a block has no effect.
fn mode_of(admin: &AdminState, rule: &RuleName) -> String {
    match admin.engine.effective_mode(rule) {
        Some(crate::rules::Mode::Enforce) | None => String::new(),
        Some(mode) => {
            format!("; but the rule is in {mode}, and refuses no request: `tidegate switch {rule} enforce`")
        }
    }
}

/// This host's state of one fleet key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FleetKeyStatus {
    pub(crate) rule: String,
    /// Its name in Redis.
    pub(crate) key: String,
    /// Its digest, as refusals show it.
    #[serde(default)]
    pub(crate) digest: String,
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

pub(in crate::admin) fn fleet_key(admin: &AdminState, _: SwitchOrigin, body: &Value) -> VerbResult {
    let fields = VerbKey::without_time(body)?;
    let (rule, key) = fields.rule_and_key(admin)?;
    let now = admin.clock.now();
    let fleet = FleetReading::take(admin, now.at);
    let shown = admin.engine.shown_digest(&rule, key)?;
    let (key, digest) = (NamedKey::Digest(shown), shown.to_hex().to_string());
    if let Some(here) = admin.engine.find_permits(&rule, key, now)? {
        return Ok(answer::done(json!(FleetKeyStatus {
            rule: rule.to_string(),
            key: hex(&here.name),
            digest,
            limit: here.max.into(),
            known: here.is_tracked || here.in_use > 0,
            in_touch: here.is_tracked,
            held: here.held.into(),
            kind: FleetKeyKind::Permits { in_use: here.in_use.into(), hosts: fleet.view.hosts.into() },
        })));
    }
    let here = admin.engine.find_share(&rule, key, now)?;
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
        key: hex(&here.name),
        digest,
        limit: here.limit.into(),
        known: here.report.is_some(),
        in_touch: here.is_tracked,
        held: there.borrowed.into(),
        kind: FleetKeyKind::Tokens { owed: there.debt.into(), redis },
    })))
}

const KEY_OR_DIGEST: &str = "write `key` or `digest`, not both";

/// Millionths of a token.
const MICRO: f64 = 1e6;

/// Thousandths of a token a second.
const MILLI: f64 = 1e3;
