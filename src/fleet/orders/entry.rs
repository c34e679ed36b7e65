//! The list as bytes, and back without trust. What of it is not understood is left out and counted, and nothing becomes
//! stricter by it than an operator could have said: a block has an end, and no end is further away than any that is said.
//!
//! ```text
//!   each entry   its length behind this (2 bytes), kind, mode, user (4), host (4), said (8), until (8; 0: without end),
//!                length of the domain (1), domain, length of the rule (2), rule; of a block its key (16)
//! ```
//! Times are microseconds of the clock of Redis. Values of callers are not in it, nor anything that tells them.

use crate::clock::Timestamp;
use crate::engine::{Blocked, By, FleetOrders, Mode, RuleName, Switch, Target};
use crate::fleet::call::Host;
use crate::fleet::wire::EXACT_MAX;
use std::time::Duration;

/// One moment by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// By that of Redis.
    pub redis_us: u64,
    /// By our own.
    pub at: Timestamp,
}

/// What a list says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// As far as it is understood; without a stamp.
    pub orders: FleetOrders,
    /// Entries, or ends of the list, that say nothing that could be meant.
    pub refused: u64,
}

/// There is more to say than fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{ENTRIES_MAX} things are switched or blocked on all hosts, or {LIST_BYTES_MAX} bytes of them, and no more can be: \
     clear what is not needed, or write it into the files"
)]
pub struct TooLong;

impl Moment {
    fn redis(&self, at: Timestamp) -> u64 {
        let [ours, then] = [self.at, at].map(|at| i128::from(at.as_nanos() / NANOS));
        let us = i128::from(self.redis_us) + then - ours;
        u64::try_from(us.max(1)).unwrap_or(EXACT_MAX).min(EXACT_MAX)
    }

    fn ours(&self, redis_us: u64) -> Timestamp {
        let us = i128::from(self.at.as_nanos() / NANOS) + i128::from(redis_us) - i128::from(self.redis_us);
        Timestamp::from_nanos(u64::try_from(us.max(0)).unwrap_or(u64::MAX).saturating_mul(NANOS))
    }
}

/// The bytes of what is said. Whatever this host says itself, it says under this name.
///
/// # Errors
/// There is too much of it.
pub fn list_of(orders: &FleetOrders, host: &Host, moment: Moment) -> Result<Vec<u8>, TooLong> {
    let mut list = Vec::new();
    if orders.switches.len() + orders.blocks.len() > ENTRIES_MAX {
        return Err(TooLong);
    }
    for switch in &orders.switches {
        let (domain, rule) = match &switch.target {
            Target::Everything => ("", ""),
            Target::Rule(name) => (&*name.domain, &*name.rule),
        };
        let until = switch.until.map_or(0, |until| moment.redis(until));
        let head = (SWITCH, byte_of(switch.mode), switch.by, moment.redis(switch.said), until);
        push(&mut list, head, host, (domain, rule), &[])?;
    }
    for block in &orders.blocks {
        let head = (BLOCK, 0, block.by, moment.redis(moment.at), moment.redis(block.until));
        let [low, high] = block.key.map(u64::to_le_bytes);
        push(&mut list, head, host, (&block.rule.domain, &block.rule.rule), &[low, high].concat())?;
    }
    if list.len() > LIST_BYTES_MAX { Err(TooLong) } else { Ok(list) }
}

type Head = (u8, u8, By, u64, u64);

fn push(
    list: &mut Vec<u8>,
    (kind, mode, by, said, until): Head,
    host: &Host,
    (domain, rule): (&str, &str),
    key: &[u8],
) -> Result<(), TooLong> {
    let (uid, by_host) = match by {
        By::Fleet { uid, host } => (uid, host),
        By::User(uid) => (uid, shown(host)),
        // It speaks to its own host alone.
        By::Guard => (0, shown(host)),
    };
    let mut entry = vec![kind, mode];
    entry.extend(uid.to_le_bytes());
    entry.extend(by_host);
    entry.extend(said.to_le_bytes());
    entry.extend(until.to_le_bytes());
    entry.push(u8::try_from(domain.len()).map_err(|_| TooLong)?);
    entry.extend(domain.as_bytes());
    entry.extend(u16::try_from(rule.len()).map_err(|_| TooLong)?.to_le_bytes());
    entry.extend(rule.as_bytes());
    entry.extend(key);
    list.extend(u16::try_from(entry.len()).map_err(|_| TooLong)?.to_le_bytes());
    list.extend(entry);
    Ok(())
}

/// By what operators see which host said it.
pub(super) fn shown(host: &Host) -> [u8; 4] {
    host.first_chunk().copied().unwrap_or_default()
}

/// What a list says. What has ended is not in it any more.
#[must_use]
pub fn read(list: &[u8], moment: Moment) -> Read {
    let mut read = Read::default();
    let mut rest = Bytes(list);
    let mut entries = 0;
    while !rest.0.is_empty() {
        let entry = rest.number::<2>().and_then(|length| rest.take(usize::try_from(length).ok()?));
        let Some(entry) = entry else {
            // Where one ends is where the next begins.
            read.refused += 1;
            break;
        };
        entries += 1;
        let understood = if entries > ENTRIES_MAX { None } else { one(entry, moment) };
        match understood {
            Some(Entry::Switch(switch))
                if !is_known(&read.orders.switches, |it| it.target == switch.target) =>
            {
                read.orders.switches.push(switch);
            }
            Some(Entry::Block(block))
                if !is_known(&read.orders.blocks, |it| it.rule == block.rule && it.key == block.key) =>
            {
                read.orders.blocks.push(block);
            }
            Some(Entry::Over) => {}
            Some(_) | None => read.refused += 1,
        }
    }
    read
}

fn is_known<T>(all: &[T], is_it: impl Fn(&T) -> bool) -> bool {
    all.iter().any(is_it)
}

enum Entry {
    Switch(Switch),
    Block(Blocked),
    /// It has had its time.
    Over,
}

fn one(entry: &[u8], moment: Moment) -> Option<Entry> {
    let mut from = Bytes(entry);
    let [kind, mode] = *from.take(2)?.first_chunk()?;
    let uid = u32::try_from(from.number::<4>()?).ok()?;
    let host = *from.take(4)?.first_chunk()?;
    let said = from.number::<8>()?;
    let until = from.number::<8>()?;
    let length = usize::try_from(from.number::<1>()?).ok()?;
    let domain = name(from.take(length)?, DOMAIN_BYTES_MAX)?;
    let length = usize::try_from(from.number::<2>()?).ok()?;
    let rule = name(from.take(length)?, RULE_BYTES_MAX)?;
    let is_over = until > 0 && until <= moment.redis_us;
    let by = By::Fleet { uid, host };
    // Said in a time to come, or to end in one that nobody can say: as late as can be said now.
    let said = moment.ours(said).min(moment.at);
    let until = (until > 0).then(|| moment.ours(until).min(moment.at.after(LASTS_MAX)));
    match kind {
        SWITCH => {
            let mode = mode_of(mode)?;
            let target = match (domain.is_empty(), rule.is_empty()) {
                // Everything is never switched to enforce.
                (true, true) if mode != Mode::Enforce => Target::Everything,
                (false, false) => Target::Rule(RuleName { domain: domain.into(), rule: rule.into() }),
                _ => return None,
            };
            let is_whole = from.0.is_empty();
            let switch = Switch { target, mode, until, said, by };
            is_whole.then_some(if is_over { Entry::Over } else { Entry::Switch(switch) })
        }
        BLOCK => {
            let key = [from.number::<8>()?, from.number::<8>()?];
            let is_whole = from.0.is_empty() && !domain.is_empty() && !rule.is_empty();
            let rule = RuleName { domain: domain.into(), rule: rule.into() };
            let block = Blocked { rule, key, text: None, until: until?, by };
            is_whole.then_some(if is_over { Entry::Over } else { Entry::Block(block) })
        }
        _ => None,
    }
}

/// A name as rules may have it: it comes into logs and onto screens.
fn name(bytes: &[u8], bytes_max: usize) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_fit = text.len() <= bytes_max && !text.chars().any(char::is_control);
    is_fit.then_some(text)
}

fn byte_of(mode: Mode) -> u8 {
    match mode {
        Mode::Enforce => 0,
        Mode::Shadow => 1,
        Mode::Disabled => 2,
    }
}

fn mode_of(byte: u8) -> Option<Mode> {
    [Mode::Enforce, Mode::Shadow, Mode::Disabled].into_iter().find(|mode| byte_of(*mode) == byte)
}

/// What is left to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// Of so many bytes, the lowest first.
    fn number<const N: usize>(&mut self) -> Option<u64> {
        let bytes = self.take(N)?;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

/// Entries of one list.
pub const ENTRIES_MAX: usize = 512;
/// Bytes of one list.
pub const LIST_BYTES_MAX: usize = 65_536;

const SWITCH: u8 = 1;
const BLOCK: u8 = 2;
const NANOS: u64 = 1_000;
const DOMAIN_BYTES_MAX: usize = 64;
const RULE_BYTES_MAX: usize = 512;

/// As long as anything can be said to last.
const LASTS_MAX: Duration = Duration::from_secs(366 * 86_400);
