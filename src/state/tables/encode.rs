//! Entries as bytes. What is here has its mirror in the file beside it.

use super::Head;
use super::section::{Kind, SectionWriter};
use crate::engine::kept::{Kept, KeptGrant, KeptKey, KeptLease, KeptLevel, KeptPool, KeptSession, KeptTie};
use crate::engine::{NoteKind, Verdict};

/// Writes the head.
pub(super) fn head(sections: &mut SectionWriter, head: &Head) {
    let Head { here, at, is_final, keys } = *head;
    sections.entry(Kind::Head, |to| {
        to.push(u8::from(here.clock.is_some()));
        to.extend(here.clock.unwrap_or_default().to_le_bytes());
        to.extend(here.boot_nanos.to_le_bytes());
        to.extend(here.unix_nanos.to_le_bytes());
        to.extend(at.as_nanos().to_le_bytes());
        to.push(u8::from(is_final));
        to.extend((keys.0 as u64).to_le_bytes());
        to.extend((keys.1 as u64).to_le_bytes());
    });
}

/// Writes one thing.
pub(super) fn entry(sections: &mut SectionWriter, kept: Kept) {
    match kept {
        Kept::Bucket(KeptKey(key), arrival) => sections.entry(Kind::Bucket, |to| {
            to.extend(key);
            to.extend(arrival.to_le_bytes());
        }),
        Kept::Window(KeptKey(key), began, count) => sections.entry(Kind::WindowBegan, |to| {
            to.extend(key);
            to.extend(began.as_nanos().to_le_bytes());
            to.extend(count.to_le_bytes());
        }),
        Kept::SlidingWindow(KeptKey(key), began, counts) => sections.entry(Kind::SlidingWindowBegan, |to| {
            to.extend(key);
            to.extend(began.as_nanos().to_le_bytes());
            list(&counts, to, |count, to| to.extend(count.to_le_bytes()));
        }),
        // They are read, and never copied out.
        Kept::OldWindow(..) | Kept::OldSlidingWindow(..) => {}
        Kept::Log(KeptKey(key), entries) => sections.entry(Kind::Log, |to| {
            to.extend(key);
            list(&entries, to, |(nanos, units), to| {
                to.extend(nanos.to_le_bytes());
                to.extend(units.to_le_bytes());
            });
        }),
        Kept::Block(KeptKey(key), until) => sections.entry(Kind::Block, |to| {
            to.extend(key);
            to.extend(until.as_nanos().to_le_bytes());
        }),
        Kept::Soft(KeptKey(key), since, ends) => sections.entry(Kind::Soft, |to| {
            to.extend(key);
            to.extend(since.as_nanos().to_le_bytes());
            to.extend(ends.as_nanos().to_le_bytes());
        }),
        Kept::Places(KeptKey(key), budget) => sections.entry(Kind::Places, |to| {
            to.extend(key);
            to.extend(budget.to_le_bytes());
        }),
        Kept::Rules(names) => sections.entry(Kind::Rules, |to| to.extend(names.to_le_bytes())),
        Kept::Rule(rule) => sections.entry(Kind::Rule, |to| {
            to.extend(rule.identity.to_le_bytes());
            let (print, mark) = rule.quotas;
            to.extend(print.to_le_bytes());
            to.push(mark);
            to.push(NO_CANDIDATE);
        }),
        Kept::Pool(pool) => sections.entry(Kind::Pool, |to| self::pool(&pool, to)),
        Kept::Repeat(grant) => sections.entry(Kind::Repeat, |to| self::grant(&grant, to)),
        Kept::Spent(spent) => sections.entry(Kind::Spent, |to| {
            to.extend(spent.name.0);
            to.extend(spent.at.as_nanos().to_le_bytes());
            to.extend(spent.print.to_le_bytes());
            list(&spent.costs, to, |(unit, cost), to| {
                to.extend(unit.to_le_bytes());
                to.extend(cost.to_le_bytes());
            });
        }),
        Kept::Session(session) => sections.entry(Kind::Session, |to| self::session(&session, to)),
        Kept::Lease(lease) => sections.entry(Kind::Lease, |to| self::lease(&lease, to)),
    }
}

fn pool(pool: &KeptPool, to: &mut Vec<u8>) {
    text(&pool.name, to);
    pool.law.iter().chain([&pool.severity]).for_each(|number| to.extend(number.to_bits().to_le_bytes()));
    to.extend(pool.silent_nanos.to_le_bytes());
    to.extend(pool.stepped.as_nanos().to_le_bytes());
}

fn grant(grant: &KeptGrant, to: &mut Vec<u8>) {
    to.extend(grant.name.0);
    to.extend(grant.asks.to_le_bytes());
    to.extend(grant.at.as_nanos().to_le_bytes());
    to.push(match grant.verdict {
        Verdict::Allow => 0,
        Verdict::Limit => 1,
        Verdict::Wait => 2,
        Verdict::Deny => 3,
        Verdict::Shed => 4,
    });
    to.extend(grant.wait_micros.to_le_bytes());
    maybe(grant.lease, to, |lease, to| to.extend(lease.to_le_bytes()));
    maybe(grant.binding.as_ref(), to, |(number, name, shown), to| {
        to.extend(number.to_le_bytes());
        text(name, to);
        level(shown, to);
    });
    maybe(grant.listed.as_ref(), to, |name, to| text(name, to));
    list(&grant.notes, to, |(kind, number), to| {
        to.push(match kind {
            NoteKind::Shadow => 0,
            NoteKind::Candidate => 1,
            NoteKind::Over => 2,
            NoteKind::Near => 3,
            NoteKind::Quota => 4,
        });
        to.extend(number.to_le_bytes());
    });
    list(&grant.all, to, |(number, shown), to| {
        to.extend(number.to_le_bytes());
        level(shown, to);
    });
    to.push(u8::from(grant.is_current));
}

fn level(level: &KeptLevel, to: &mut Vec<u8>) {
    for number in [level.limit, level.window_micros, level.remaining, level.reset_micros] {
        to.extend(number.to_le_bytes());
    }
}

fn session(session: &KeptSession, to: &mut Vec<u8>) {
    to.extend(session.name);
    to.extend(session.user.to_le_bytes());
    maybe(session.pid, to, |pid, to| to.extend(pid.to_le_bytes()));
    text(&session.pool, to);
    to.extend(session.slots.to_le_bytes());
}

fn lease(lease: &KeptLease, to: &mut Vec<u8>) {
    to.extend(lease.number.to_le_bytes());
    to.extend(lease.ends_at.as_nanos().to_le_bytes());
    to.extend(lease.lasts_millis.to_le_bytes());
    to.extend(lease.request.to_le_bytes());
    to.extend(lease.connection.to_le_bytes());
    to.push(u8::from(lease.is_other));
    list(&lease.ties, to, |tie, to| match tie {
        KeptTie::Place(KeptKey(key)) => {
            to.push(0);
            to.extend(key);
        }
        KeptTie::Repeat(KeptKey(key)) => {
            to.push(1);
            to.extend(key);
        }
        KeptTie::Spent(KeptKey(key)) => {
            to.push(3);
            to.extend(key);
        }
        KeptTie::Cost { unit, cost } => {
            to.push(4);
            to.extend(unit.to_le_bytes());
            to.extend(cost.to_le_bytes());
        }
        KeptTie::Print { print, cost } => {
            to.push(5);
            to.extend(print.to_le_bytes());
            to.extend(cost.to_le_bytes());
        }
        KeptTie::Refund { rule, key: KeptKey(key), salt, allowance, cost, is_beyond } => {
            to.push(2);
            to.extend(rule.to_le_bytes());
            to.extend(key);
            to.extend(salt.to_le_bytes());
            to.extend(allowance.to_le_bytes());
            to.extend(cost.to_le_bytes());
            to.push(NO_CANDIDATE);
            to.push(u8::from(*is_beyond));
        }
    });
}

fn maybe<T>(some: Option<T>, to: &mut Vec<u8>, write: impl FnOnce(T, &mut Vec<u8>)) {
    to.push(u8::from(some.is_some()));
    if let Some(some) = some {
        write(some, to);
    }
}

/// A list, its length before it. None is longer: a log has at most ten thousand entries, a domain fewer rules.
fn list<T>(list: &[T], to: &mut Vec<u8>, mut write: impl FnMut(&T, &mut Vec<u8>)) {
    let len = u16::try_from(list.len()).unwrap_or(u16::MAX);
    to.extend(len.to_le_bytes());
    list.iter().take(usize::from(len)).for_each(|item| write(item, to));
}

/// A text, its length before it. Names have at most a few hundred bytes.
fn text(text: &str, to: &mut Vec<u8>) {
    let end = text.floor_char_boundary(usize::from(u16::MAX));
    let text = text.get(..end).unwrap_or_default();
    to.extend(u16::try_from(text.len()).unwrap_or_default().to_le_bytes());
    to.extend(text.as_bytes());
}

/// Of one bucket.
pub(super) const BUCKET_BYTES: u64 = 24;

/// Of one fixed window.
pub(super) const WINDOW_BYTES: u64 = 28;

/// Stands where this version of the format had the state of a rule's candidate, which is a rule of its own now.
const NO_CANDIDATE: u8 = 0;
