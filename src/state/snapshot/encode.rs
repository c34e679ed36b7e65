//! Encoding of snapshot entries; the inverse of decode.rs.

use super::SnapshotHead;
use super::section::{SectionKind, SectionWriter};
use crate::engine::kept::{Digest, Grant, KeptLease, KeptPool, KeptSession, QuotaLevel, SnapshotEntry, Tie};
use crate::engine::{NoteKind, Verdict};

pub(super) fn encode_head(sections: &mut SectionWriter, head: &SnapshotHead) {
    let SnapshotHead { here, at, is_final, keys } = *head;
    sections.entry(SectionKind::Head, |to| {
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

/// Writes one entry into the section of its kind.
pub(super) fn encode_entry(sections: &mut SectionWriter, kept: SnapshotEntry) {
    match kept {
        SnapshotEntry::Bucket(key, arrival) => sections.entry(SectionKind::Bucket, |to| {
            to.extend(key.to_bytes());
            to.extend(arrival.to_le_bytes());
        }),
        SnapshotEntry::Window(key, began, count) => sections.entry(SectionKind::Window, |to| {
            to.extend(key.to_bytes());
            to.extend(began.as_nanos().to_le_bytes());
            to.extend(count.to_le_bytes());
        }),
        SnapshotEntry::SlidingWindow(key, began, counts) => {
            sections.entry(SectionKind::SlidingWindow, |to| {
                to.extend(key.to_bytes());
                to.extend(began.as_nanos().to_le_bytes());
                encode_list(&counts, to, |count, to| to.extend(count.to_le_bytes()));
            });
        }
        SnapshotEntry::Log(key, entries) => sections.entry(SectionKind::Log, |to| {
            to.extend(key.to_bytes());
            encode_list(&entries, to, |(nanos, units), to| {
                to.extend(nanos.to_le_bytes());
                to.extend(units.to_le_bytes());
            });
        }),
        SnapshotEntry::Block(key, until) => sections.entry(SectionKind::Block, |to| {
            to.extend(key.to_bytes());
            to.extend(until.as_nanos().to_le_bytes());
        }),
        SnapshotEntry::Soft(key, since, ends) => sections.entry(SectionKind::Soft, |to| {
            to.extend(key.to_bytes());
            to.extend(since.as_nanos().to_le_bytes());
            to.extend(ends.as_nanos().to_le_bytes());
        }),
        SnapshotEntry::Places(key, budget) => sections.entry(SectionKind::Places, |to| {
            to.extend(key.to_bytes());
            to.extend(budget.to_le_bytes());
        }),
        SnapshotEntry::Rules(names) => {
            sections.entry(SectionKind::Rules, |to| to.extend(names.to_le_bytes()));
        }
        SnapshotEntry::Rule(rule) => sections.entry(SectionKind::Rule, |to| {
            to.extend(rule.identity.to_le_bytes());
            let (print, mark) = rule.quotas;
            to.extend(print.to_le_bytes());
            to.push(mark);
            to.push(NO_CANDIDATE);
        }),
        SnapshotEntry::Pool(pool) => sections.entry(SectionKind::Pool, |to| encode_pool(&pool, to)),
        SnapshotEntry::Repeat(name, granted) => sections.entry(SectionKind::Repeat, |to| {
            to.extend(name.to_bytes());
            to.extend(granted.content_hash.to_le_bytes());
            encode_grant(&granted.grant, to);
        }),
        SnapshotEntry::Spent(name, spent) => sections.entry(SectionKind::Spent, |to| {
            to.extend(name.to_bytes());
            to.extend(spent.at.as_nanos().to_le_bytes());
            to.extend(spent.print.to_le_bytes());
            encode_list(&spent.costs, to, |(unit, cost), to| {
                to.extend(unit.to_le_bytes());
                to.extend(cost.to_le_bytes());
            });
        }),
        SnapshotEntry::Session(session) => {
            sections.entry(SectionKind::Session, |to| encode_session(&session, to));
        }
        SnapshotEntry::Lease(lease) => sections.entry(SectionKind::Lease, |to| encode_lease(&lease, to)),
    }
}

fn encode_pool(pool: &KeptPool, to: &mut Vec<u8>) {
    encode_text(&pool.name, to);
    pool.law.iter().chain([&pool.severity]).for_each(|number| to.extend(number.to_bits().to_le_bytes()));
    to.extend(pool.silent_nanos.to_le_bytes());
    to.extend(pool.stepped.as_nanos().to_le_bytes());
}

fn encode_grant(grant: &Grant, to: &mut Vec<u8>) {
    to.extend(grant.at.as_nanos().to_le_bytes());
    to.push(match grant.verdict {
        Verdict::Allow => 0,
        Verdict::Limit => 1,
        Verdict::Wait => 2,
        Verdict::Deny => 3,
        Verdict::Shed => 4,
    });
    to.extend(grant.wait.0.to_le_bytes());
    encode_optional(grant.lease, to, |lease, to| to.extend(lease.to_le_bytes()));
    encode_optional(grant.binding.as_ref(), to, |(number, name, shown), to| {
        to.extend(number.to_le_bytes());
        encode_text(name, to);
        encode_level(shown, to);
    });
    encode_optional(grant.listed.as_ref(), to, |name, to| encode_text(name, to));
    encode_list(&grant.notes, to, |(kind, number), to| {
        to.push(match kind {
            NoteKind::Shadow => 0,
            NoteKind::ShadowRule => 1,
            NoteKind::Over => 2,
            NoteKind::Near => 3,
            NoteKind::Quota => 4,
        });
        to.extend(number.to_le_bytes());
    });
    encode_list(&grant.all, to, |(number, shown), to| {
        to.extend(number.to_le_bytes());
        encode_level(shown, to);
    });
    to.push(u8::from(grant.rule_set != 0));
}

fn encode_level(level: &QuotaLevel, to: &mut Vec<u8>) {
    for number in [level.limit, level.window.0, level.remaining, level.reset.0] {
        to.extend(number.to_le_bytes());
    }
}

fn encode_session(session: &KeptSession, to: &mut Vec<u8>) {
    to.extend(session.name);
    to.extend(session.user.to_le_bytes());
    encode_optional(session.pid, to, |pid, to| to.extend(pid.to_le_bytes()));
    encode_text(&session.pool, to);
    to.extend(session.slots.to_le_bytes());
}

fn encode_lease(lease: &KeptLease, to: &mut Vec<u8>) {
    to.extend(lease.number.to_le_bytes());
    to.extend(lease.ends_at.as_nanos().to_le_bytes());
    to.extend(lease.lasts_millis.to_le_bytes());
    to.extend(lease.request.to_le_bytes());
    to.extend(lease.connection.to_le_bytes());
    to.push(u8::from(lease.is_other));
    // The cost is one tie more, so that files without costs are read alike.
    let cost = Some(lease.cost).filter(|cost| cost.fingerprint != 0);
    let ties: Vec<Option<Tie>> = lease.ties.iter().copied().map(Some).chain(cost.map(|_| None)).collect();
    encode_list(&ties, to, |tie, to| match tie {
        Some(Tie::Permit(key)) => encode_keyed(0, key, to),
        Some(Tie::IdempotencyKey(key)) => encode_keyed(1, key, to),
        Some(Tie::Refund(refund)) => {
            to.push(2);
            to.extend(refund.rule.to_le_bytes());
            to.extend(refund.digest.to_bytes());
            to.extend(refund.salt.bits().to_le_bytes());
            to.extend(refund.allowance.to_le_bytes());
            to.extend(refund.cost.to_le_bytes());
            to.push(NO_CANDIDATE);
            to.push(u8::from(refund.is_elastic));
        }
        Some(Tie::RefundableCost(key)) => encode_keyed(3, key, to),
        Some(Tie::Cost { unit, cost }) => encode_pair(4, *unit, *cost, to),
        None => encode_pair(5, lease.cost.fingerprint, lease.cost.cost, to),
    });
}

fn encode_keyed(kind: u8, key: &Digest, to: &mut Vec<u8>) {
    to.push(kind);
    to.extend(key.to_bytes());
}

fn encode_pair(kind: u8, print: u32, cost: u32, to: &mut Vec<u8>) {
    to.push(kind);
    to.extend(print.to_le_bytes());
    to.extend(cost.to_le_bytes());
}

fn encode_optional<T>(some: Option<T>, to: &mut Vec<u8>, write: impl FnOnce(T, &mut Vec<u8>)) {
    to.push(u8::from(some.is_some()));
    if let Some(some) = some {
        write(some, to);
    }
}

/// Writes a list, preceded by its length, which fits 16 bits: a log has at most 10 000 entries, a domain fewer rules.
fn encode_list<T>(list: &[T], to: &mut Vec<u8>, mut write: impl FnMut(&T, &mut Vec<u8>)) {
    let len = u16::try_from(list.len()).unwrap_or(u16::MAX);
    to.extend(len.to_le_bytes());
    list.iter().take(usize::from(len)).for_each(|item| write(item, to));
}

/// Writes a text, preceded by its length. Names have at most a few hundred bytes.
fn encode_text(text: &str, to: &mut Vec<u8>) {
    let end = text.floor_char_boundary(usize::from(u16::MAX));
    let text = text.get(..end).unwrap_or_default();
    to.extend(u16::try_from(text.len()).unwrap_or_default().to_le_bytes());
    to.extend(text.as_bytes());
}

/// The size of the entry of a bucket.
pub(super) const BUCKET_BYTES: u64 = 24;

/// The size of the entry of a fixed window.
pub(super) const WINDOW_BYTES: u64 = 28;

/// Stands where this version of the format had the state of a rule's candidate, which is a rule of its own now.
const NO_CANDIDATE: u8 = 0;
