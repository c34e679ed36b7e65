//! Entries as bytes. What is here has its mirror in the file beside it.

use super::Head;
use super::section::{Kind, SectionWriter};
use crate::engine::kept::{Digest, Grant, Kept, KeptLease, KeptPool, KeptSession, Level, Tie};
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
        Kept::Bucket(key, arrival) => sections.entry(Kind::Bucket, |to| {
            to.extend(key.to_bytes());
            to.extend(arrival.to_le_bytes());
        }),
        Kept::Window(key, began, count) => sections.entry(Kind::Window, |to| {
            to.extend(key.to_bytes());
            to.extend(began.as_nanos().to_le_bytes());
            to.extend(count.to_le_bytes());
        }),
        Kept::SlidingWindow(key, began, counts) => sections.entry(Kind::SlidingWindow, |to| {
            to.extend(key.to_bytes());
            to.extend(began.as_nanos().to_le_bytes());
            list(&counts, to, |count, to| to.extend(count.to_le_bytes()));
        }),
        Kept::Log(key, entries) => sections.entry(Kind::Log, |to| {
            to.extend(key.to_bytes());
            list(&entries, to, |(nanos, units), to| {
                to.extend(nanos.to_le_bytes());
                to.extend(units.to_le_bytes());
            });
        }),
        Kept::Block(key, until) => sections.entry(Kind::Block, |to| {
            to.extend(key.to_bytes());
            to.extend(until.as_nanos().to_le_bytes());
        }),
        Kept::Soft(key, since, ends) => sections.entry(Kind::Soft, |to| {
            to.extend(key.to_bytes());
            to.extend(since.as_nanos().to_le_bytes());
            to.extend(ends.as_nanos().to_le_bytes());
        }),
        Kept::Places(key, budget) => sections.entry(Kind::Places, |to| {
            to.extend(key.to_bytes());
            to.extend(budget.to_le_bytes());
        }),
        Kept::Rules(names) => sections.entry(Kind::Rules, |to| to.extend(names.to_le_bytes())),
        Kept::Rule(rule) => sections.entry(Kind::Rule, |to| {
            to.extend(rule.identity.to_le_bytes());
            let mark = |(print, mark): (u64, u8), to: &mut Vec<u8>| {
                to.extend(print.to_le_bytes());
                to.push(mark);
            };
            mark(rule.own, to);
            maybe(rule.candidate, to, mark);
        }),
        Kept::Pool(pool) => sections.entry(Kind::Pool, |to| self::pool(&pool, to)),
        Kept::Repeat(name, granted) => sections.entry(Kind::Repeat, |to| {
            to.extend(name.to_bytes());
            to.extend(granted.asks.to_le_bytes());
            grant(&granted.grant, to);
        }),
        Kept::Spent(name, spent) => sections.entry(Kind::Spent, |to| {
            to.extend(name.to_bytes());
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

fn grant(grant: &Grant, to: &mut Vec<u8>) {
    to.extend(grant.at.as_nanos().to_le_bytes());
    to.push(match grant.verdict {
        Verdict::Allow => 0,
        Verdict::Limit => 1,
        Verdict::Wait => 2,
        Verdict::Deny => 3,
        Verdict::Shed => 4,
    });
    to.extend(grant.wait.0.to_le_bytes());
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
    to.push(u8::from(grant.ruling != 0));
}

fn level(level: &Level, to: &mut Vec<u8>) {
    for number in [level.limit, level.window.0, level.remaining, level.reset.0] {
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
    // The cost is one tie more, so that files without costs are read alike.
    let cost = Some(lease.cost).filter(|cost| cost.print != 0);
    let ties: Vec<Option<Tie>> = lease.ties.iter().copied().map(Some).chain(cost.map(|_| None)).collect();
    list(&ties, to, |tie, to| match tie {
        Some(Tie::Place(key)) => keyed(0, key, to),
        Some(Tie::Repeat(key)) => keyed(1, key, to),
        Some(Tie::Refund(refund)) => {
            to.push(2);
            to.extend(refund.rule.to_le_bytes());
            to.extend(refund.digest.to_bytes());
            to.extend(refund.salt.bits().to_le_bytes());
            to.extend(refund.allowance.to_le_bytes());
            to.extend(refund.cost.to_le_bytes());
            to.push(u8::from(refund.of_candidate));
            to.push(u8::from(refund.is_beyond));
        }
        Some(Tie::Spent(key)) => keyed(3, key, to),
        Some(Tie::Cost { unit, cost }) => pair(4, *unit, *cost, to),
        None => pair(5, lease.cost.print, lease.cost.cost, to),
    });
}

fn keyed(kind: u8, key: &Digest, to: &mut Vec<u8>) {
    to.push(kind);
    to.extend(key.to_bytes());
}

fn pair(kind: u8, print: u32, cost: u32, to: &mut Vec<u8>) {
    to.push(kind);
    to.extend(print.to_le_bytes());
    to.extend(cost.to_le_bytes());
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
