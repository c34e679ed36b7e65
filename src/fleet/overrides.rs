//! Fleet overrides: switches and blocks of all hosts, as one authenticated document in one key of Redis.
//!
//! ```text
//!   document   version (8 bytes), entries (JSON), MAC (32 bytes)
//! ```
//! The MAC is HMAC-SHA-256 over the key's name, the version and the entries, under a key derived from the
//! fleet secret. Unauthenticated values change nothing on this host, and an older document never replaces a
//! newer one. Expiry times are Unix time by this host's clock, independent of the clock of Redis. The
//! document has no caller values: a block names its key by the digest that all hosts share.

use super::command::{Host, OF_ALL};
use super::counters::FleetCounters;
use super::link::{LinkError, RedisCommand, RedisLink};
use super::scripts;
use super::secrets::{MAC_BYTES, OverridesKey};
use super::task::OverrideChange;
use crate::clock::{Clock, Now, Timestamp};
use crate::engine::{
    BlockedKey, Engine, FleetChange, FleetOverrides, Mode, RuleName, Switch, SwitchOrigin, Target,
};
use redis::Value;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::warn;

/// An authenticated document. The default has version 0 and no bytes: no operator has changed anything.
#[derive(Debug, Default)]
pub struct OverridesDocument {
    pub bytes: Vec<u8>,
    /// The document of the highest version is in force.
    pub version: u64,
    entries: Vec<OverrideEntry>,
    /// Entries that this version of tidegate does not know.
    unknown: u64,
}

/// Times are µs of Unix time; an author is a user of a host, by the first bytes of its identity.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum OverrideEntry {
    Switch {
        // These fields are required: without them an entry would mean everything, and forever.
        #[serde(deserialize_with = "Target::deserialize")]
        rule: Target,
        mode: Mode,
        #[serde(deserialize_with = "Option::deserialize")]
        until: Option<i64>,
        said: i64,
        by: (u32, [u8; 4]),
    },
    Block {
        rule: RuleName,
        key: [u64; 2],
        #[serde(deserialize_with = "Option::deserialize")]
        until: Option<i64>,
        by: (u32, [u8; 4]),
    },
}

impl OverridesDocument {
    /// Reads a document; `None` if the key does not authenticate it.
    pub fn open(bytes: &[u8], key: &OverridesKey) -> Option<OverridesDocument> {
        let body = key.verify(REDIS_KEY, bytes).filter(|_| bytes.len() <= DOCUMENT_BYTES_MAX)?;
        let (version, json) = body.split_first_chunk()?;
        // Anything but a list counts as one unknown entry.
        let found = serde_json::from_slice(json).unwrap_or_else(|_| vec![serde_json::Value::Null]);
        let known = found.iter().filter_map(|entry| OverrideEntry::deserialize(entry).ok());
        let entries: Vec<_> = known.filter(OverrideEntry::is_valid).collect();
        let unknown = (found.len() - entries.len()) as u64;
        let (bytes, version) = (bytes.to_vec(), u64::from_be_bytes(*version));
        Some(OverridesDocument { bytes, version, entries, unknown })
    }

    pub fn overrides(&self, now: Now) -> FleetOverrides {
        let mut overrides =
            FleetOverrides { document: self.bytes.as_slice().into(), ..FleetOverrides::default() };
        let latest = now.at.after(LASTS_MAX);
        for entry in &self.entries {
            let until = entry.end(now);
            if until.is_some_and(|until| until <= now.at || until > latest) {
                continue;
            }
            match entry.clone() {
                OverrideEntry::Switch { rule: target, mode, said, by: (uid, host), .. } => {
                    let set_at = now.from_unix_nanos(said.saturating_mul(NANOS)).min(now.at);
                    let by = SwitchOrigin::Fleet { uid, host };
                    overrides.switches.push(Switch { target, mode, until, set_at, by });
                }
                OverrideEntry::Block { rule, key, by: (uid, host), .. } => {
                    let (until, by) = (until.unwrap_or(latest), SwitchOrigin::Fleet { uid, host });
                    overrides.blocks.push(BlockedKey { rule, key, text: None, until, by });
                }
            }
        }
        overrides
    }

    /// The next version after a change; `None` if it changes nothing.
    ///
    /// # Errors
    /// The document, or the blocks in it, would be too long.
    pub fn after(
        &self,
        change: &FleetChange,
        host: &Host,
        key: &OverridesKey,
        now: Now,
    ) -> Result<Option<OverridesDocument>, &'static str> {
        let (changed, mut entries): (Vec<_>, Vec<_>) =
            self.kept(now).cloned().partition(|entry| entry.is_about(change));
        let added = OverrideEntry::new(change, host, now);
        if added.is_none() && changed.is_empty() {
            return Ok(None);
        }
        entries.extend(added);
        if matches!(change, FleetChange::Block(_)) && block_bytes(&entries) > BLOCK_BYTES_MAX {
            return Err(BLOCKS_FULL);
        }
        let version = self.version.saturating_add(1);
        let json = serde_json::to_vec(&entries).map_err(|_| TOO_LONG)?;
        let bytes = key.sign(REDIS_KEY, [&version.to_be_bytes()[..], &json].concat());
        let fits = bytes.len() <= DOCUMENT_BYTES_MAX;
        if fits { Ok(Some(OverridesDocument { bytes, version, entries, unknown: 0 })) } else { Err(TOO_LONG) }
    }

    /// The part of [`BLOCK_BYTES_MAX`] that blocks still need at `now`.
    fn blocks_ratio(&self, now: Now) -> f64 {
        block_bytes(self.kept(now)) as f64 / BLOCK_BYTES_MAX as f64
    }

    /// The entries that the next version keeps.
    fn kept(&self, now: Now) -> impl Iterator<Item = &OverrideEntry> {
        let is_kept = move |end: Timestamp| now.at < end.after(ENDED_FOR);
        self.entries.iter().filter(move |entry| entry.end(now).is_none_or(is_kept))
    }

    /// The order of documents: all hosts prefer the larger MAC of two documents of the same version.
    fn rank(&self) -> (u64, Option<&[u8; MAC_BYTES]>) {
        (self.version, self.bytes.last_chunk())
    }
}

/// The bytes of the blocks among these entries, each with its separator.
fn block_bytes<'e>(entries: impl IntoIterator<Item = &'e OverrideEntry>) -> usize {
    let blocks = entries.into_iter().filter(|entry| matches!(entry, OverrideEntry::Block { .. }));
    blocks.map(|block| serde_json::to_vec(block).map_or(0, |json| json.len() + 1)).sum()
}

impl OverrideEntry {
    /// The entry that a change adds; `None` if it only removes one.
    fn new(change: &FleetChange, host: &Host, now: Now) -> Option<OverrideEntry> {
        let micros = |at| now.to_unix_nanos(at) / NANOS;
        let host = host.first_chunk().copied().unwrap_or_default();
        let author = |by: SwitchOrigin| (by.uid().unwrap_or(0), host);
        match change {
            FleetChange::Switch(Switch { target: Target::Daemon, mode: Mode::Enforce, .. })
            | FleetChange::Clear(_)
            | FleetChange::Unblock(..) => None,
            FleetChange::Switch(switch) => Some(OverrideEntry::Switch {
                rule: switch.target.clone(),
                mode: switch.mode,
                until: switch.until.map(micros),
                said: micros(switch.set_at),
                by: author(switch.by),
            }),
            FleetChange::Block(block) => Some(OverrideEntry::Block {
                rule: block.rule.clone(),
                key: block.key,
                until: Some(micros(block.until)),
                by: author(block.by),
            }),
        }
    }

    fn is_about(&self, change: &FleetChange) -> bool {
        match (self, change) {
            (Self::Switch { rule, .. }, FleetChange::Switch(new)) => *rule == new.target,
            (Self::Switch { rule, .. }, FleetChange::Clear(target)) => rule == target,
            (Self::Block { rule, key, .. }, FleetChange::Block(new)) => *rule == new.rule && *key == new.key,
            (Self::Block { rule, key, .. }, FleetChange::Unblock(of, blocked)) => {
                rule == of && key == blocked
            }
            _ => false,
        }
    }

    /// Whether an operator could have made the entry: a switch of everything ends, and never enforces.
    fn is_valid(&self) -> bool {
        let Self::Switch { rule: Target::Daemon, mode, until, .. } = self else { return true };
        *mode != Mode::Enforce && until.is_some()
    }

    fn end(&self, now: Now) -> Option<Timestamp> {
        let (Self::Switch { until, .. } | Self::Block { until, .. }) = self;
        until.map(|micros| now.from_unix_nanos(micros.saturating_mul(NANOS)))
    }
}

struct OverridesSync {
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    counters: Arc<FleetCounters>,
    key: OverridesKey,
    link: Arc<RedisLink>,
    known: OverridesDocument,
    /// The [`Now::utc_offset_nanos`] by which the expiry times of `known` were last converted.
    utc: i64,
    /// The stamp of the value in Redis when this host last saw it.
    seen: String,
    /// When Redis last had a value that no host of this fleet wrote.
    alarmed: Option<Timestamp>,
}

/// Keeps the overrides of this host equal to those in Redis, forever, and makes the changes of its operators. Starts
/// with those in force, which a previous process may have stored.
pub(super) async fn sync_overrides(
    (engine, clock, counters): (Arc<Engine>, Arc<Clock>, Arc<FleetCounters>),
    key: OverridesKey,
    link: Arc<RedisLink>,
    changes: &mut mpsc::Receiver<OverrideChange>,
) {
    let known = OverridesDocument::open(&engine.fleet_overrides().document, &key).unwrap_or_default();
    counters.overrides.lock().version = known.version;
    let (utc, seen) = (clock.now().utc_offset_nanos, stamp(&known.bytes));
    let mut sync = OverridesSync { engine, clock, counters, key, link, known, utc, seen, alarmed: None };
    loop {
        tokio::select! {
            biased;
            Some((change, since, answer)) = changes.recv() => {
                let left = PATIENCE.saturating_sub(sync.clock.now().at.since(since));
                let mut is_unsure = false;
                let outcome = timeout(left, sync.change(&change, &mut is_unsure)).await;
                let silent = |_| Err(if is_unsure { NOT_SURE } else { NOT_SAID }.to_owned());
                // The operator may have disconnected.
                let _ = answer.try_send(outcome.unwrap_or_else(silent));
            }
            // A change interrupts it, as it may wait for a reply.
            () = sync.poll() => {}
        }
    }
}

impl OverridesSync {
    /// Makes a change, again if another host wrote first. `is_unsure`: Redis may have it, but has not replied.
    async fn change(&mut self, change: &FleetChange, is_unsure: &mut bool) -> Result<bool, String> {
        loop {
            while self.exchange(None).await.is_err() {
                sleep(RETRY_AFTER).await;
            }
            if self.known.bytes.is_empty() && self.seen != stamp(&[]) {
                return Err(FOREIGN.to_owned());
            }
            let host = self.counters.read().host;
            let Some(next) = self.known.after(change, &host, &self.key, self.clock.now())? else {
                return Ok(*is_unsure);
            };
            *is_unsure = true;
            match self.exchange(Some(next.bytes)).await {
                Ok(true) => return Ok(true),
                Ok(false) => *is_unsure = false,
                Err(error) => *is_unsure = error.may_have_run,
            }
        }
    }

    /// Reads the document, or writes it into a Redis that has lost it or has another value.
    async fn poll(&mut self) {
        let is_lost = !self.known.bytes.is_empty() && self.seen != stamp(&self.known.bytes);
        // The link counts and logs failures.
        let _ = self.exchange(is_lost.then(|| self.known.bytes.clone())).await;
        let now = self.clock.now();
        if now.utc_offset_nanos != self.utc {
            self.apply(now);
        }
        self.counters.overrides.lock().blocks_ratio = self.known.blocks_ratio(now);
        if self.alarmed.is_none_or(|alarmed| now.at.since(alarmed) >= ALARM_LASTS) {
            self.counters.overrides.lock().is_forged = false;
        }
        sleep(EVERY).await;
    }

    /// Reads the value in Redis if it is another than this host last saw; a newer document is in force then.
    /// Otherwise writes `put`, and returns true.
    async fn exchange(&mut self, put: Option<Vec<u8>>) -> Result<bool, LinkError> {
        let mut args = vec![self.seen.clone().into_bytes()];
        args.extend(put.clone());
        let command = RedisCommand { script: &scripts::OVERRIDES, keys: vec![REDIS_KEY.to_vec()], args };
        let reply = self.link.send(self.link.node_of(OF_ALL), &command).await?;
        let now = self.clock.now();
        self.counters.record_reply(now.at);
        let (value, is_same) = match (reply, put) {
            (Value::BulkString(value), _) => (value, false),
            (_, Some(put)) => (put, true),
            (_, None) => return Ok(true),
        };
        let document = OverridesDocument::open(&value, &self.key);
        self.seen = stamp(&value);
        let mut view = self.counters.overrides.lock();
        let [forged, stale, unreadable, unknown] = &mut view.rejected;
        match document {
            Some(document) if document.rank() > self.known.rank() => {
                *unknown += document.unknown;
                view.version = document.version;
                drop(view);
                self.known = document;
                self.apply(now);
            }
            Some(document) => *stale += u64::from(document.version < self.known.version),
            None if value.is_empty() => {}
            None => {
                *if value == UNREADABLE { unreadable } else { forged } += 1;
                self.alarmed = Some(now.at);
                let was_forged = std::mem::replace(&mut view.is_forged, true);
                drop(view);
                if !was_forged {
                    warn!("{FORGED}");
                }
            }
        }
        Ok(is_same)
    }

    fn apply(&mut self, now: Now) {
        self.utc = now.utc_offset_nanos;
        self.engine.apply_fleet_overrides(&self.known.overrides(now));
    }
}

/// The stamp of a value, as the script computes it.
fn stamp(value: &[u8]) -> String {
    sha1_smol::Sha1::from(value).digest().to_string()
}

/// The most bytes of one document, so that values of Redis are bounded before they are read.
pub const DOCUMENT_BYTES_MAX: usize = 65_536;
/// The most bytes of all blocks: a document full of blocks must not stop a switch.
pub const BLOCK_BYTES_MAX: usize = 49_152;
const TOO_LONG: &str =
    "the fleet overrides have reached their limit of 64 KiB: clear some, or write them into the files";
const BLOCKS_FULL: &str = "the blocks of all hosts have reached their limit of 48 KiB, and the rest is for switches. help: write a `deny` \
                           list; or `tidegate switch` lists the blocks, and `tidegate unblock RULE --digest HEX --fleet` removes one";

const REDIS_KEY: &[u8] = b"tg:{tm}:overrides";
const NANOS: i64 = 1_000;

/// The longest duration that an operator can set, and a day for clocks that differ. An entry with a later end is
/// of a wrong clock, and ignored.
const LASTS_MAX: Duration = Duration::from_secs(367 * 86_400);
/// Time from an entry's expiry to its removal, so that a host whose clock is ahead ends no entry for others.
const ENDED_FOR: Duration = Duration::from_secs(600);

const EVERY: Duration = Duration::from_secs(1);
/// A change not written within this time fails.
const PATIENCE: Duration = Duration::from_millis(2_500);
const RETRY_AFTER: Duration = Duration::from_millis(100);
const ALARM_LASTS: Duration = Duration::from_secs(600);
/// The script replies this for a value that is no string, or longer than any document.
const UNREADABLE: &[u8] = b"-";

const NOT_SAID: &str = "Redis does not answer: the other hosts have not changed. help: run `tidegate doctor`; without `--fleet` the \
                        change holds on this host alone";
const NOT_SURE: &str = "Redis did not answer in time: the other hosts may have changed or not. help: `tidegate switch` shows it \
                        within seconds once Redis answers; repeating the command does no harm";
const FORGED: &str = "FORGED FLEET OVERRIDES in Redis are ignored: the fleet secret of this host does not authenticate them. help: find \
                      the program that writes to tg:{tm}:overrides";
const FOREIGN: &str = "the fleet overrides in Redis are not authenticated by the fleet secret of this host. help: give this host the secret \
                       of the others, and each fleet a Redis of its own; if the value is no fleet's, delete the key tg:{tm}:overrides";
