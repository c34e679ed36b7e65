//! Fleet overrides: switches and blocks of all hosts, as one authenticated document in one key of Redis.
//!
//! ```text
//!   document   version (8 bytes), entries (JSON), MAC (32 bytes)
//! ```
//! The MAC is HMAC-SHA-256 over the key's name, the version and the entries, under a key derived from the
//! fleet secret. Unauthenticated values change nothing on this host, and an older document never replaces a
//! newer one. Expiry times are Unix time by this host's clock, independent of the clock of Redis. The
//! document has no caller values: a block names its key by the digest that all hosts share.

mod exchange;

pub use exchange::OverridesView;
pub(super) use exchange::{Exchange, OverrideChange};

use super::command::Host;
use super::link::RedisCommand;
use super::reply::{Received, ReplyFault, ScriptReply};
use super::scripts;
use crate::clock::{Now, Timestamp};
use crate::engine::{BlockedKey, FleetChange, FleetOverrides, Mode, RuleName, Switch, SwitchOrigin, Target};
use ring::hmac;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The key that authenticates documents, derived from the fleet secret.
#[derive(Clone)]
pub struct OverridesKey(hmac::Key);

/// An authenticated document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverridesDocument {
    bytes: Vec<u8>,
    version: u64,
    entries: Vec<OverrideEntry>,
    /// Entries that this version of tidegate does not know.
    unknown: u64,
}

type OverrideName = (Box<str>, Box<str>);

/// Times are µs of Unix time. A switch without a rule applies to everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum OverrideEntry {
    Switch {
        #[serde(deserialize_with = "Option::deserialize")]
        rule: Option<OverrideName>,
        mode: Mode,
        #[serde(deserialize_with = "Option::deserialize")]
        until: Option<i64>,
        said: i64,
        by: (u32, [u8; 4]),
    },
    Block {
        rule: OverrideName,
        key: [u64; 2],
        until: i64,
        by: (u32, [u8; 4]),
    },
}

/// The document would exceed its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "all hosts have {ENTRIES_MAX} fleet overrides, or {DOCUMENT_BYTES_MAX} bytes of them, and no more fit: clear what is not \
     needed, or write it into the files"
)]
pub struct TooLong;

/// A command that reads or replaces the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverridesCommand {
    /// The stamp of the value that this host last saw.
    pub seen: String,
    /// The new value, if any.
    pub put: Option<Vec<u8>>,
}

/// The reply to [`OverridesCommand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverridesReply {
    /// The value is unchanged since `seen`.
    Same,
    /// The value is another one; empty if absent.
    Changed(Vec<u8>),
    /// The new value was written.
    Written,
    /// The value is no string, or longer than any document.
    Unreadable,
}

impl OverridesKey {
    /// Derives the key from a fleet secret.
    #[must_use]
    pub fn new(secret: &[u8]) -> OverridesKey {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), PURPOSE);
        OverridesKey(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()))
    }

    fn document(&self, version: u64, entries: Vec<OverrideEntry>) -> Result<OverridesDocument, TooLong> {
        let json = serde_json::to_vec(&entries).map_err(|_| TooLong)?;
        let mut bytes = [&version.to_be_bytes()[..], &json].concat();
        let mac = hmac::sign(&self.0, &[KEY, &bytes].concat());
        bytes.extend(mac.as_ref());
        let fits = bytes.len() <= DOCUMENT_BYTES_MAX && entries.len() <= ENTRIES_MAX;
        let document = OverridesDocument { bytes, version, entries, unknown: 0 };
        if fits { Ok(document) } else { Err(TooLong) }
    }
}

impl fmt::Debug for OverridesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(…)")
    }
}

impl OverridesDocument {
    /// Reads a document; `None` if the secret does not authenticate it.
    #[must_use]
    pub fn open(bytes: &[u8], seal: &OverridesKey) -> Option<OverridesDocument> {
        let (body, mac) =
            bytes.split_last_chunk::<MAC_BYTES>().filter(|_| bytes.len() <= DOCUMENT_BYTES_MAX)?;
        let (version, json) = body.split_first_chunk::<8>()?;
        let signed = [KEY, body].concat();
        hmac::verify(&seal.0, &signed, mac).ok()?;
        let found: Option<Vec<serde_json::Value>> = serde_json::from_slice(json).ok();
        let (mut entries, mut unknown) = (Vec::new(), u64::from(found.is_none()));
        for entry in found.unwrap_or_default() {
            let entry = serde_json::from_value(entry).ok().filter(OverrideEntry::is_meant);
            unknown += u64::from(entry.is_none());
            entries.extend(entry);
        }
        let version = u64::from_be_bytes(*version);
        Some(OverridesDocument { bytes: bytes.to_vec(), version, entries, unknown })
    }

    /// The bytes as stored in Redis.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its version. The document of the highest version is in force.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The overrides in force at `now`.
    #[must_use]
    pub fn overrides(&self, now: Now) -> FleetOverrides {
        let mut overrides =
            FleetOverrides { document: self.bytes.as_slice().into(), ..FleetOverrides::default() };
        for entry in &self.entries {
            match entry {
                OverrideEntry::Switch { rule, mode, until, said, by } => {
                    let until = until.map(|until| timestamp(until, now));
                    // Only a wrong clock makes an expiry time beyond an operator's limit: ignore the switch.
                    if until.is_none_or(|until| now.at < until && until <= now.at.after(LASTS_MAX)) {
                        let (target, said) = (target(rule.as_ref()), timestamp(*said, now).min(now.at));
                        overrides.switches.push(Switch {
                            target,
                            mode: *mode,
                            until,
                            set_at: said,
                            by: by_fleet(*by),
                        });
                    }
                }
                OverrideEntry::Block { rule, key, until, by } => {
                    let until = timestamp(*until, now).min(now.at.after(LASTS_MAX));
                    if now.at < until {
                        let (rule, by) = (name(rule), by_fleet(*by));
                        overrides.blocks.push(BlockedKey { rule, key: *key, text: None, until, by });
                    }
                }
            }
        }
        overrides
    }

    /// The next version after a change; `None` if it changes nothing.
    ///
    /// # Errors
    /// The document would be too long.
    pub fn after(
        known: Option<&OverridesDocument>,
        change: &FleetChange,
        host: &Host,
        seal: &OverridesKey,
        now: Now,
    ) -> Result<Option<OverridesDocument>, TooLong> {
        let mut entries = known.map(|known| known.entries.clone()).unwrap_or_default();
        entries.retain(|entry| {
            entry.until().is_none_or(|until| timestamp(until, now).after(ENDED_FOR) > now.at)
        });
        let before = entries.len();
        entries.retain(|entry| !entry.is_about(change));
        let was_there = entries.len() < before;
        let added = OverrideEntry::of(change, host, now);
        if added.is_none() && !was_there {
            return Ok(None);
        }
        entries.extend(added);
        let version = known.map_or(0, |known| known.version).saturating_add(1);
        seal.document(version, entries).map(Some)
    }

    /// The order of documents: all hosts prefer the larger MAC of two documents of the same version.
    fn rank(&self) -> (u64, Option<&[u8; MAC_BYTES]>) {
        (self.version, self.bytes.last_chunk())
    }
}

impl OverrideEntry {
    fn of(change: &FleetChange, host: &Host, now: Now) -> Option<OverrideEntry> {
        match change {
            FleetChange::Switch(Switch { target: Target::Daemon, mode: Mode::Enforce, .. })
            | FleetChange::Clear(_)
            | FleetChange::Unblock(..) => None,
            FleetChange::Switch(switch) => Some(OverrideEntry::Switch {
                rule: match &switch.target {
                    Target::Daemon => None,
                    Target::Rule(name) => Some((name.domain.clone(), name.rule.clone())),
                },
                mode: switch.mode,
                until: switch.until.map(|until| unix_micros(until, now)),
                said: unix_micros(switch.set_at, now),
                by: (uid(switch.by), shown(host)),
            }),
            FleetChange::Block(block) => Some(OverrideEntry::Block {
                rule: (block.rule.domain.clone(), block.rule.rule.clone()),
                key: block.key,
                until: unix_micros(block.until, now),
                by: (uid(block.by), shown(host)),
            }),
        }
    }

    fn is_about(&self, change: &FleetChange) -> bool {
        match (self, change) {
            (
                OverrideEntry::Switch { rule, .. },
                FleetChange::Switch(Switch { target: changed, .. }) | FleetChange::Clear(changed),
            ) => target(rule.as_ref()) == *changed,
            (
                OverrideEntry::Block { rule, key, .. },
                FleetChange::Block(BlockedKey { rule: of, key: changed, .. })
                | FleetChange::Unblock(of, changed),
            ) => name(rule) == *of && key == changed,
            _ => false,
        }
    }

    fn until(&self) -> Option<i64> {
        match self {
            OverrideEntry::Switch { until, .. } => *until,
            OverrideEntry::Block { until, .. } => Some(*until),
        }
    }

    /// Whether an operator could have made the entry: a switch of everything needs an expiry and never
    /// enforces.
    fn is_meant(&self) -> bool {
        match self {
            OverrideEntry::Switch { rule: None, mode, until, .. } => {
                *mode != Mode::Enforce && until.is_some()
            }
            OverrideEntry::Switch { rule: Some(rule), .. } | OverrideEntry::Block { rule, .. } => {
                is_fit(&rule.0, DOMAIN_BYTES_MAX) && is_fit(&rule.1, RULE_BYTES_MAX)
            }
        }
    }
}

impl OverridesCommand {
    pub(super) fn encode(&self) -> RedisCommand<'static> {
        let seen = self.seen.clone().into_bytes();
        let args = std::iter::once(seen).chain(self.put.clone()).collect();
        RedisCommand { script: &scripts::OVERRIDES, keys: vec![KEY.to_vec()], args }
    }
}

impl OverridesReply {
    pub(super) fn decode(bytes: &[u8]) -> Result<Received, ReplyFault> {
        let said = match bytes.split_first() {
            Some((&SAME, [])) => OverridesReply::Same,
            Some((&CHANGED, value)) if value.len() <= DOCUMENT_BYTES_MAX => {
                OverridesReply::Changed(value.to_vec())
            }
            Some((&WRITTEN, [])) => OverridesReply::Written,
            Some((&UNREADABLE, [])) => OverridesReply::Unreadable,
            Some((other, [])) => return Err(ReplyFault::Kind(*other)),
            _ => return Err(ReplyFault::Length { expected: 1, found: bytes.len() }),
        };
        Ok(Received { reply: ScriptReply::Overrides(said), clamped: 0 })
    }
}

fn target(rule: Option<&OverrideName>) -> Target {
    rule.map_or(Target::Daemon, |rule| Target::Rule(name(rule)))
}

fn name((domain, rule): &OverrideName) -> RuleName {
    RuleName { domain: domain.clone(), rule: rule.clone() }
}

/// Whether a name is valid in rules, and so safe in logs and on screens.
fn is_fit(name: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&name.len()) && !name.chars().any(char::is_control)
}

fn by_fleet((uid, host): (u32, [u8; 4])) -> SwitchOrigin {
    SwitchOrigin::Fleet { uid, host }
}

fn uid(by: SwitchOrigin) -> u32 {
    match by {
        SwitchOrigin::User(uid) | SwitchOrigin::Fleet { uid, .. } => uid,
        SwitchOrigin::Guard => 0,
    }
}

/// The part of the host name that operators see.
fn shown(host: &Host) -> [u8; 4] {
    host.first_chunk().copied().unwrap_or_default()
}

fn unix_micros(at: Timestamp, now: Now) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(i64::MAX).saturating_add(now.utc_offset_nanos) / NANOS
}

fn timestamp(unix_micros: i64, now: Now) -> Timestamp {
    let nanos = unix_micros.saturating_mul(NANOS).saturating_sub(now.utc_offset_nanos);
    Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// The most entries of one document.
pub const ENTRIES_MAX: usize = 512;
/// The most bytes of one document, so that values of Redis are bounded before they are read.
pub const DOCUMENT_BYTES_MAX: usize = 65_536;

const KEY: &[u8] = b"tg:{tm}:overrides";
/// Separates the derived key from other uses of the secret.
const PURPOSE: &[u8] = b"tidegate: the MAC of fleet overrides, version 1";
const MAC_BYTES: usize = 32;
const NANOS: i64 = 1_000;
const DOMAIN_BYTES_MAX: usize = 64;
const RULE_BYTES_MAX: usize = 512;

/// The longest duration that an operator can set.
const LASTS_MAX: Duration = Duration::from_secs(366 * 86_400);
/// Time from an entry's expiry to its removal, so that a host whose clock is ahead ends no entry for others.
const ENDED_FOR: Duration = Duration::from_secs(600);

const SAME: u8 = 0;
const CHANGED: u8 = 1;
const WRITTEN: u8 = 2;
const UNREADABLE: u8 = 3;
