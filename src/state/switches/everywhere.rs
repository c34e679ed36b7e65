//! What was last heard of all hosts, in lists of its own beside what was said to this host alone: who does not know them
//! leaves them out. A list of which something is not understood loses its stamp, so that Redis is asked for all of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{entries, has_only, read, timestamp, unix};
use crate::clock::Now;
use crate::engine::{Blocked, By, FleetOrders, Mode, Orders, RuleName, Switch, Target};

/// The lists; none of them is written where nothing was heard.
#[derive(Default, Serialize)]
pub(super) struct KeptEverywhere {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fleet_list: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fleet_switches: Vec<KeptSwitch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fleet_blocks: Vec<KeptBlock>,
    /// When what stands in `switches` was said: the later word holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    said: Vec<KeptSaid>,
}

type Name = (Box<str>, Box<str>);

#[derive(Serialize, Deserialize)]
struct KeptSwitch {
    #[serde(deserialize_with = "Option::deserialize")]
    rule: Option<Name>,
    mode: Mode,
    until: Option<i64>,
    said: i64,
    by: (u32, [u8; 4]),
}

#[derive(Serialize, Deserialize)]
struct KeptBlock {
    rule: Name,
    key: [u64; 2],
    until: i64,
    by: (u32, [u8; 4]),
}

#[derive(Serialize, Deserialize)]
struct KeptSaid {
    #[serde(deserialize_with = "Option::deserialize")]
    rule: Option<Name>,
    at: i64,
}

const SWITCH_FIELDS: &[&str] = &["rule", "mode", "until", "said", "by"];
const BLOCK_FIELDS: &[&str] = &["rule", "key", "until", "by"];
const SAID_FIELDS: &[&str] = &["rule", "at"];

impl KeptEverywhere {
    pub(super) fn of(orders: &Orders, now: Now) -> KeptEverywhere {
        let FleetOrders { stamp, switches, blocks } = &orders.fleet;
        if *stamp == <[u8; 32]>::default() {
            return KeptEverywhere::default();
        }
        let switch = |switch: &Switch| KeptSwitch {
            rule: name_of(&switch.target),
            mode: switch.mode,
            until: switch.until.map(|until| unix(until, now)),
            said: unix(switch.said, now),
            by: by_of(switch.by),
        };
        let block = |block: &Blocked| KeptBlock {
            rule: (block.rule.domain.clone(), block.rule.rule.clone()),
            key: block.key,
            until: unix(block.until, now),
            by: by_of(block.by),
        };
        let said = |switch: &Switch| KeptSaid { rule: name_of(&switch.target), at: unix(switch.said, now) };
        KeptEverywhere {
            fleet_list: vec![stamp.iter().map(|byte| format!("{byte:02x}")).collect()],
            fleet_switches: switches.iter().map(switch).collect(),
            fleet_blocks: blocks.iter().map(block).collect(),
            said: orders.switches.iter().map(said).collect(),
        }
    }

    /// Takes the lists out of those of a file.
    pub(super) fn take(lists: &mut BTreeMap<Box<str>, Box<RawValue>>, not_understood: &mut usize) -> Self {
        let before = *not_understood;
        let mut kept = KeptEverywhere::default();
        for entry in entries(lists.remove("fleet_switches"), not_understood) {
            let switch: Option<KeptSwitch> = read(&entry);
            let is_whole = switch.is_some() && has_only(&entry, SWITCH_FIELDS);
            *not_understood += usize::from(!is_whole);
            kept.fleet_switches.extend(switch.filter(|switch| is_whole || switch.mode != Mode::Enforce));
        }
        for entry in entries(lists.remove("fleet_blocks"), not_understood) {
            let block: Option<KeptBlock> = read(&entry).filter(|_| has_only(&entry, BLOCK_FIELDS));
            *not_understood += usize::from(block.is_none());
            kept.fleet_blocks.extend(block);
        }
        let list = entries(lists.remove("fleet_list"), not_understood);
        if *not_understood == before {
            kept.fleet_list = list.iter().filter_map(|entry| read(entry)).collect();
        }
        for entry in entries(lists.remove("said"), not_understood) {
            let said: Option<KeptSaid> = read(&entry).filter(|_| has_only(&entry, SAID_FIELDS));
            *not_understood += usize::from(said.is_none());
            kept.said.extend(said);
        }
        kept
    }

    /// What was heard; and when what is switched here was said, as far as that is known.
    pub(super) fn put_into(self, orders: &mut Orders, now: Now) {
        for KeptSaid { rule, at } in self.said {
            let target = target(rule);
            let switch = orders.switches.iter_mut().find(|switch| switch.target == target);
            switch.into_iter().for_each(|switch| switch.said = timestamp(at, now));
        }
        let switch = |kept: KeptSwitch| Switch {
            target: target(kept.rule),
            mode: kept.mode,
            until: kept.until.map(|until| timestamp(until, now)),
            said: timestamp(kept.said, now),
            by: by(kept.by),
        };
        let block = |kept: KeptBlock| Blocked {
            rule: RuleName { domain: kept.rule.0, rule: kept.rule.1 },
            key: kept.key,
            text: None,
            until: timestamp(kept.until, now),
            by: by(kept.by),
        };
        orders.fleet = FleetOrders {
            stamp: self.fleet_list.first().and_then(|text| stamp(text)).unwrap_or_default(),
            switches: self.fleet_switches.into_iter().map(switch).collect(),
            blocks: self.fleet_blocks.into_iter().map(block).collect(),
        };
    }
}

fn stamp(text: &str) -> Option<[u8; 32]> {
    let mut stamp = [0; 32];
    let digits = text.as_bytes().chunks_exact(2);
    if digits.len() != stamp.len() || !digits.remainder().is_empty() {
        return None;
    }
    for (byte, digits) in stamp.iter_mut().zip(digits) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(stamp)
}

fn name_of(target: &Target) -> Option<Name> {
    match target {
        Target::Everything => None,
        Target::Rule(name) => Some((name.domain.clone(), name.rule.clone())),
    }
}

fn target(rule: Option<Name>) -> Target {
    rule.map_or(Target::Everything, |(domain, rule)| Target::Rule(RuleName { domain, rule }))
}

fn by_of(by: By) -> (u32, [u8; 4]) {
    match by {
        By::Fleet { uid, host } => (uid, host),
        // Nothing of the fleet's is said so.
        By::User(uid) => (uid, [0; 4]),
        By::Guard => (0, [0; 4]),
    }
}

fn by((uid, host): (u32, [u8; 4])) -> By {
    By::Fleet { uid, host }
}
