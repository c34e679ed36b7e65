//! What holds over the rules, kept over a restart: a small file that says of itself whether it is whole. What is wrong
//! with it is told, and never stops a start.
//!
//! A kill switch outlives an upgrade and the way back, so a file of another version is read as well, entry by entry.
//! What is not understood of an entry makes nothing stricter: a switch that lets pass holds without it, one that
//! enforces and a block do not. Whoever adds what narrows an entry puts it into a list of another name.

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
use crate::engine::{Blocked, By, Mode, Orders, RuleName, Switch, Target};

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file system says so. It may be another time.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not what was written: to be set aside.
    #[error("{0}")]
    Damaged(&'static str),
}

/// What a file says.
#[derive(Clone, Debug, PartialEq)]
pub struct OrdersRead {
    /// What is understood of it.
    pub orders: Orders,
    /// The version of the file.
    pub version: u32,
    /// How many entries are not understood, or not all of them: another version has written them.
    pub not_understood: usize,
}

/// Reads it. No file is nothing that holds.
///
/// # Errors
/// It cannot be read, or is damaged.
pub fn read_orders(path: &Path, now: Now) -> Result<OrdersRead, Unreadable> {
    let mut text = String::new();
    match open_regular(path) {
        Ok(file) => file.take(BYTES_MAX + 1).read_to_string(&mut text).map(drop).or_else(not_text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(OrdersRead { orders: Orders::default(), version: ORDERS_VERSION, not_understood: 0 });
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(Unreadable::Damaged("it is no regular file"));
        }
        Err(error) => return Err(error.into()),
    }
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > BYTES_MAX {
        return Err(Unreadable::Damaged("it is longer than any that is written"));
    }
    let document: Document =
        serde_json::from_str(&text).map_err(|_| Unreadable::Damaged("it is cut short or damaged"))?;
    if document.sum != sum(document.orders.get()) {
        return Err(Unreadable::Damaged("its checksum is not that of what it says"));
    }
    let lists = serde_json::from_str(document.orders.get())
        .map_err(|_| Unreadable::Damaged("it says what no tidegate writes"))?;
    let (kept, not_understood) = understood(lists);
    Ok(OrdersRead { orders: kept.orders(now), version: document.version, not_understood })
}

/// Writes it, whole or not at all, as this version; mostly [`ORDERS_VERSION`].
///
/// # Errors
/// What the file system says: what was written before stands then.
pub fn write_orders(path: &Path, version: u32, orders: &Orders, now: Now) -> io::Result<()> {
    let orders = to_raw_value(&Kept::of(orders, now))?;
    let document = Document { version, sum: sum(orders.get()), orders };
    write_whole(path, &serde_json::to_vec(&document)?)
}

fn not_text(error: io::Error) -> Result<(), Unreadable> {
    match error.kind() {
        io::ErrorKind::InvalidData => Err(Unreadable::Damaged("it is no text")),
        _ => Err(error.into()),
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    sum: String,
    orders: Box<RawValue>,
}

/// What this version understands of the lists in a file, and how much it does not.
fn understood(mut lists: BTreeMap<Box<str>, Box<RawValue>>) -> (Kept, usize) {
    let (switches, blocks) = (lists.remove(SWITCHES), lists.remove(BLOCKS));
    let mut not_understood = 0;
    let said = lists.remove(SAID);
    let mut kept = Kept { switches: Vec::new(), blocks: Vec::new(), said: Vec::new() };
    not_understood += lists.len();
    for entry in entries(switches, &mut not_understood) {
        let switch: Option<KeptSwitch> = read(&entry);
        let is_whole = switch.is_some() && has_only(&entry, SWITCH_FIELDS);
        not_understood += usize::from(!is_whole);
        kept.switches.extend(switch.filter(|switch| is_whole || switch.mode != Mode::Enforce));
    }
    for entry in entries(blocks, &mut not_understood) {
        let block: Option<KeptBlock> = read(&entry).filter(|_| has_only(&entry, BLOCK_FIELDS));
        not_understood += usize::from(block.is_none());
        kept.blocks.extend(block);
    }
    for entry in entries(said, &mut not_understood) {
        let said: Option<KeptSaid> = read(&entry).filter(|_| has_only(&entry, SAID_FIELDS));
        not_understood += usize::from(said.is_none());
        kept.said.extend(said);
    }
    (kept, not_understood)
}

fn entries(list: Option<Box<RawValue>>, not_understood: &mut usize) -> Vec<Box<RawValue>> {
    let Some(list) = list else { return Vec::new() };
    read(&list).unwrap_or_else(|| {
        *not_understood += 1;
        Vec::new()
    })
}

fn read<T: DeserializeOwned>(text: &RawValue) -> Option<T> {
    serde_json::from_str(text.get()).ok()
}

fn has_only(entry: &RawValue, fields: &[&str]) -> bool {
    let found: Option<BTreeMap<Box<str>, IgnoredAny>> = read(entry);
    found.is_some_and(|found| found.keys().all(|field| fields.contains(&&**field)))
}

#[derive(Serialize)]
struct Kept {
    switches: Vec<KeptSwitch>,
    blocks: Vec<KeptBlock>,
    /// When what stands in `switches` was said: of two words, to this host and to all, the later one holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    said: Vec<KeptSaid>,
}

const SWITCHES: &str = "switches";
const BLOCKS: &str = "blocks";
const SAID: &str = "said";

/// `rule: null` is everything; `by: null` is the guard; times are of Unix, in nanoseconds.
#[derive(Serialize, Deserialize)]
struct KeptSwitch {
    // It must be there: an entry that names what it is about in another way is not about everything.
    #[serde(deserialize_with = "Option::deserialize")]
    rule: Option<(Box<str>, Box<str>)>,
    mode: Mode,
    until: Option<i64>,
    by: Option<u32>,
}

const SWITCH_FIELDS: &[&str] = &["rule", "mode", "until", "by"];

#[derive(Serialize, Deserialize)]
struct KeptBlock {
    rule: (Box<str>, Box<str>),
    key: [u64; 2],
    text: Option<Box<str>>,
    until: i64,
    by: Option<u32>,
}

const BLOCK_FIELDS: &[&str] = &["rule", "key", "text", "until", "by"];

#[derive(Serialize, Deserialize)]
struct KeptSaid {
    #[serde(deserialize_with = "Option::deserialize")]
    rule: Option<(Box<str>, Box<str>)>,
    at: i64,
}

const SAID_FIELDS: &[&str] = &["rule", "at"];

impl Kept {
    fn of(orders: &Orders, now: Now) -> Kept {
        let rule = |target: &Target| match target {
            Target::Everything => None,
            Target::Rule(name) => Some((name.domain.clone(), name.rule.clone())),
        };
        let said = orders.switches.iter().filter(|switch| switch.said > Timestamp::ORIGIN);
        let said = said.map(|switch| KeptSaid { rule: rule(&switch.target), at: unix(switch.said, now) });
        let switch = |switch: &Switch| KeptSwitch {
            rule: rule(&switch.target),
            mode: switch.mode,
            until: switch.until.map(|until| unix(until, now)),
            by: user(switch.by),
        };
        let block = |block: &Blocked| KeptBlock {
            rule: (block.rule.domain.clone(), block.rule.rule.clone()),
            key: block.key,
            text: block.text.clone(),
            until: unix(block.until, now),
            by: user(block.by),
        };
        Kept {
            switches: orders.switches.iter().map(switch).collect(),
            blocks: orders.blocks.iter().map(block).collect(),
            said: said.collect(),
        }
    }

    /// What has ended meanwhile ends with the first tick, and is told then.
    fn orders(self, now: Now) -> Orders {
        let name = |(domain, rule)| RuleName { domain, rule };
        let target = |rule: Option<_>| rule.map_or(Target::Everything, |rule| Target::Rule(name(rule)));
        let switch = |kept: KeptSwitch| Switch {
            target: target(kept.rule),
            mode: kept.mode,
            until: kept.until.map(|until| timestamp(until, now)),
            // Before anything that is known to have been said at a time.
            said: Timestamp::ORIGIN,
            by: by(kept.by),
        };
        let block = |kept: KeptBlock| Blocked {
            rule: name(kept.rule),
            key: kept.key,
            text: kept.text,
            until: timestamp(kept.until, now),
            by: by(kept.by),
        };
        let mut orders = Orders {
            switches: self.switches.into_iter().map(switch).collect(),
            blocks: self.blocks.into_iter().map(block).collect(),
        };
        for KeptSaid { rule, at } in self.said {
            let target = target(rule);
            let switch = orders.switches.iter_mut().find(|switch| switch.target == target);
            switch.into_iter().for_each(|switch| switch.said = timestamp(at, now));
        }
        orders
    }
}

fn unix(at: Timestamp, now: Now) -> i64 {
    i64::try_from(at.as_nanos()).unwrap_or(i64::MAX).saturating_add(now.utc)
}

fn timestamp(unix: i64, now: Now) -> Timestamp {
    Timestamp::from_nanos(u64::try_from(unix.saturating_sub(now.utc)).unwrap_or(0))
}

fn user(by: By) -> Option<u32> {
    match by {
        By::User(uid) | By::Fleet { uid, .. } => Some(uid),
        By::Guard => None,
    }
}

fn by(user: Option<u32>) -> By {
    user.map_or(By::Guard, By::User)
}

/// Against damage, not against people: whoever may write the file may switch as well.
fn sum(text: &str) -> String {
    let mut hasher = SipHasher13::new();
    hasher.write(text.as_bytes());
    format!("{:032x}", hasher.finish128().as_u128())
}

/// What this tidegate writes.
pub const ORDERS_VERSION: u32 = 1;

/// Some thousand blocks of some hundred bytes, and room.
const BYTES_MAX: u64 = 4 << 20;
