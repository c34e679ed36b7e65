//! The file of switches and blocks, which outlive a restart: JSON with a checksum. An unusable file is reported and never
//! prevents a start.
//!
//! A kill switch survives upgrades and downgrades, so a file of another version is read as well, entry by entry. Unknown
//! fields must not make anything stricter: a switch to shadow or disabled holds despite them; a switch that enforces and
//! a block are dropped. A future field that narrows an entry must therefore go into a list of another name.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::io::{self, Read};
use std::path::Path;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::{open_regular, write_whole};
use crate::clock::{Now, Timestamp};
use crate::engine::{BlockedKey, HostOverrides, Mode, RuleName, Switch, SwitchOrigin, Target};
use crate::terms::without_number;

/// Why the file was not read.
#[derive(Debug, thiserror::Error)]
pub enum UnreadableSwitches {
    /// A file system error. A later attempt may succeed.
    #[error("{}", without_number(.0))]
    Io(#[from] io::Error),
    /// The content is damaged: set the file aside.
    #[error("{0}")]
    Damaged(&'static str),
}

/// The content of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchesRead {
    /// The entries that this version understands.
    pub overrides: HostOverrides,
    /// The version of the file.
    pub version: u32,
    /// Entries of another version that were not understood, or only in part.
    pub not_understood: usize,
}

/// Reads the file. A missing file has no entries.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn read_switches(path: &Path, now: Now) -> Result<SwitchesRead, UnreadableSwitches> {
    let mut bytes = Vec::new();
    match open_regular(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes)) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (overrides, version) = (HostOverrides::default(), SWITCHES_VERSION);
            return Ok(SwitchesRead { overrides, version, not_understood: 0 });
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let why = "it is not a regular file, or belongs neither to root nor to the daemon's user";
            return Err(UnreadableSwitches::Damaged(why));
        }
        Err(error) => return Err(error.into()),
    }
    let text = str::from_utf8(&bytes).map_err(|_| UnreadableSwitches::Damaged("it is not UTF-8 text"))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(UnreadableSwitches::Damaged("it is larger than tidegate writes"));
    }
    let document: SwitchesDocument =
        serde_json::from_str(text).map_err(|_| UnreadableSwitches::Damaged("it is cut short or damaged"))?;
    if document.sum != checksum(document.overrides.get()) {
        return Err(UnreadableSwitches::Damaged("its checksum does not match its content"));
    }
    let lists = serde_json::from_str(document.overrides.get())
        .map_err(|_| UnreadableSwitches::Damaged("its content is not in the format of any version"))?;
    let (stored, not_understood) = parse_lists(lists);
    Ok(SwitchesRead { overrides: stored.into_overrides(now), version: document.version, not_understood })
}

/// Writes the file atomically, as [`SWITCHES_VERSION`].
///
/// # Errors
/// File system errors; the old file stays then.
pub fn write_switches(path: &Path, overrides: &HostOverrides, now: Now) -> io::Result<()> {
    let overrides = to_raw_value(&SwitchesContent::from_overrides(overrides, now))?;
    let document = SwitchesDocument { version: SWITCHES_VERSION, sum: checksum(overrides.get()), overrides };
    write_whole(path, &serde_json::to_vec(&document)?)
}

#[derive(Serialize, Deserialize)]
struct SwitchesDocument {
    version: u32,
    sum: String,
    #[serde(rename = "orders")]
    overrides: Box<RawValue>,
}

/// Parses the lists of a file. Returns the understood entries and the number of others.
fn parse_lists(mut lists: BTreeMap<Box<str>, Box<RawValue>>) -> (SwitchesContent, usize) {
    let mut not_understood = 0;
    let mut switches: Vec<StoredSwitch> = parse_list(lists.remove("switches"), &mut not_understood);
    not_understood += switches.iter().filter(|switch| !switch.others.is_empty()).count();
    switches.retain(|switch| switch.others.is_empty() || switch.mode != Mode::Enforce);
    let blocks = parse_list(lists.remove("blocks"), &mut not_understood);
    let set_times = parse_list(lists.remove("said"), &mut not_understood);
    (SwitchesContent { switches, blocks, set_times }, not_understood + lists.len())
}

/// Parses the entries of one list, and counts those that are not understood.
fn parse_list<T: DeserializeOwned>(list: Option<Box<RawValue>>, not_understood: &mut usize) -> Vec<T> {
    let Some(list) = list else { return Vec::new() };
    let Some(entries) = parse::<Vec<Box<RawValue>>>(&list) else {
        *not_understood += 1;
        return Vec::new();
    };
    let parsed: Vec<T> = entries.iter().filter_map(|entry| parse(entry)).collect();
    *not_understood += entries.len() - parsed.len();
    parsed
}

fn parse<T: DeserializeOwned>(text: &RawValue) -> Option<T> {
    serde_json::from_str(text.get()).ok()
}

#[derive(Serialize)]
struct SwitchesContent {
    switches: Vec<StoredSwitch>,
    blocks: Vec<StoredBlock>,
    /// When the entries of `switches` were set: the later of a host's switch and a fleet override holds.
    #[serde(rename = "said", skip_serializing_if = "Vec::is_empty")]
    set_times: Vec<StoredSwitchTime>,
}

/// A switch. `rule: null` means everything; `by: null` the guard; times are Unix times in nanoseconds.
#[derive(Serialize, Deserialize)]
struct StoredSwitch {
    // The field is required: an entry of another version without it does not mean everything.
    #[serde(deserialize_with = "Target::deserialize")]
    rule: Target,
    mode: Mode,
    until: Option<i64>,
    by: Option<u32>,
    /// Fields of another version.
    #[serde(flatten, skip_serializing)]
    others: BTreeMap<Box<str>, IgnoredAny>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredBlock {
    rule: RuleName,
    key: [u64; 2],
    text: Option<Box<str>>,
    until: i64,
    by: Option<u32>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSwitchTime {
    #[serde(deserialize_with = "Target::deserialize")]
    rule: Target,
    at: i64,
}

impl SwitchesContent {
    fn from_overrides(overrides: &HostOverrides, now: Now) -> SwitchesContent {
        let set_times = overrides.switches.iter().filter(|switch| switch.set_at > Timestamp::ORIGIN);
        let set_times = set_times.map(|switch| StoredSwitchTime {
            rule: switch.target.clone(),
            at: now.to_unix_nanos(switch.set_at),
        });
        let switch = |switch: &Switch| StoredSwitch {
            rule: switch.target.clone(),
            mode: switch.mode,
            until: switch.until.map(|until| now.to_unix_nanos(until)),
            by: switch.by.uid(),
            others: BTreeMap::new(),
        };
        let block = |block: &BlockedKey| StoredBlock {
            rule: block.rule.clone(),
            key: block.key,
            text: block.text.clone(),
            until: now.to_unix_nanos(block.until),
            by: block.by.uid(),
        };
        SwitchesContent {
            switches: overrides.switches.iter().map(switch).collect(),
            blocks: overrides.blocks.iter().map(block).collect(),
            set_times: set_times.collect(),
        }
    }

    /// Converts to the engine's form. Entries that have expired meanwhile end, with a log line, at the first tick.
    fn into_overrides(self, now: Now) -> HostOverrides {
        let switch = |stored: StoredSwitch| Switch {
            target: stored.rule,
            mode: stored.mode,
            until: stored.until.map(|until| now.from_unix_nanos(until)),
            // Older than any switch with a known time.
            set_at: Timestamp::ORIGIN,
            by: from_uid(stored.by),
        };
        let block = |stored: StoredBlock| BlockedKey {
            rule: stored.rule,
            key: stored.key,
            text: stored.text,
            until: now.from_unix_nanos(stored.until),
            by: from_uid(stored.by),
        };
        let mut overrides = HostOverrides {
            switches: self.switches.into_iter().map(switch).collect(),
            blocks: self.blocks.into_iter().map(block).collect(),
        };
        for StoredSwitchTime { rule, at } in self.set_times {
            let switch = overrides.switches.iter_mut().find(|switch| switch.target == rule);
            switch.into_iter().for_each(|switch| switch.set_at = now.from_unix_nanos(at));
        }
        overrides
    }
}

fn from_uid(uid: Option<u32>) -> SwitchOrigin {
    uid.map_or(SwitchOrigin::Guard, SwitchOrigin::User)
}

/// Returns a checksum against damage, not against forgery: a user who may write the file may also set switches.
fn checksum(text: &str) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write(text.as_bytes());
    format!("{:032x}", hasher.finish128().as_u128())
}

/// The version that this tidegate writes.
pub const SWITCHES_VERSION: u32 = 1;

/// Room for several thousand blocks of several hundred bytes.
const BYTES_MAX: u64 = 4 << 20;
