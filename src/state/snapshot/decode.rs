//! Decoding of snapshot entries; the inverse of encode.rs.

use super::bytes::ByteReader;
use super::section::SectionKind;
use super::{Moment, SnapshotHead, Useless};
use crate::clock::{Micros, Timestamp};
use crate::engine::kept::{
    Digest, Grant, Granted, KeptLease, KeptPool, KeptRule, KeptSession, LeaseCharge, LeaseCost, QuotaLevel,
    RefundableCost, Salt, SnapshotEntry, Tie,
};
use crate::engine::{NoteKind, Verdict};

pub(super) fn decode_head(bytes: &mut ByteReader<'_>) -> Result<SnapshotHead, Useless> {
    let has_clock = bytes.bool()?;
    let clock = u128::from_le_bytes(bytes.array()?);
    let here = Moment {
        clock: has_clock.then_some(clock),
        boot_nanos: bytes.u64()?,
        unix_nanos: i64::from_le_bytes(bytes.array()?),
    };
    let (at, is_final) = (decode_time(bytes)?, bytes.bool()?);
    let keys = (decode_count(bytes)?, decode_count(bytes)?);
    if !bytes.is_empty() {
        return Err(Useless::Damaged("its head holds extra bytes"));
    }
    Ok(SnapshotHead { here, at, is_final, keys })
}

/// Decodes one entry of a section of this kind.
pub(super) fn decode_entry(kind: SectionKind, bytes: &mut ByteReader<'_>) -> Result<SnapshotEntry, Useless> {
    Ok(match kind {
        SectionKind::Bucket => SnapshotEntry::Bucket(decode_key(bytes)?, bytes.u64()?),
        SectionKind::Window => SnapshotEntry::Window(decode_key(bytes)?, decode_time(bytes)?, bytes.u32()?),
        SectionKind::SlidingWindow => SnapshotEntry::SlidingWindow(
            decode_key(bytes)?,
            decode_time(bytes)?,
            bytes.list(ByteReader::u32)?,
        ),
        SectionKind::Log => {
            SnapshotEntry::Log(decode_key(bytes)?, bytes.list(|bytes| Ok((bytes.u64()?, bytes.u32()?)))?)
        }
        SectionKind::Block => SnapshotEntry::Block(decode_key(bytes)?, decode_time(bytes)?),
        SectionKind::Soft => {
            SnapshotEntry::Soft(decode_key(bytes)?, decode_time(bytes)?, decode_time(bytes)?)
        }
        SectionKind::Places => SnapshotEntry::Places(decode_key(bytes)?, bytes.u64()?),
        SectionKind::Rules => SnapshotEntry::Rules(bytes.u64()?),
        SectionKind::Rule => {
            let rule = KeptRule { identity: bytes.u64()?, quotas: (bytes.u64()?, bytes.u8()?) };
            // An earlier daemon stored the candidate with its rule.
            bytes.optional(|bytes| Ok((bytes.u64()?, bytes.u8()?)))?;
            SnapshotEntry::Rule(rule)
        }
        SectionKind::Pool => SnapshotEntry::Pool(Box::new(decode_pool(bytes)?)),
        SectionKind::Repeat => {
            let (name, asks) = (decode_key(bytes)?, bytes.u64()?);
            SnapshotEntry::Repeat(name, Granted { content_hash: asks, grant: Box::new(decode_grant(bytes)?) })
        }
        SectionKind::Spent => {
            let (name, at, print) = (decode_key(bytes)?, decode_time(bytes)?, bytes.u32()?);
            let costs = bytes.list(|bytes| Ok((bytes.u32()?, bytes.u32()?)))?.into();
            SnapshotEntry::Spent(name, RefundableCost { at, print, costs })
        }
        SectionKind::Session => SnapshotEntry::Session(Box::new(KeptSession {
            name: bytes.array()?,
            user: bytes.u32()?,
            pid: bytes.optional(ByteReader::u32)?,
            pool: bytes.text()?,
            slots: bytes.u32()?,
        })),
        SectionKind::Lease => SnapshotEntry::Lease(Box::new(decode_lease(bytes)?)),
        SectionKind::Head | SectionKind::End => return Err(Useless::Damaged("it has a second head")),
    })
}

fn decode_pool(bytes: &mut ByteReader<'_>) -> Result<KeptPool, Useless> {
    let name = bytes.text()?;
    let mut law = [0.0; 5];
    for number in &mut law {
        *number = bytes.f64()?;
    }
    Ok(KeptPool {
        name,
        law,
        severity: bytes.f64()?,
        silent_nanos: bytes.u64()?,
        stepped: decode_time(bytes)?,
    })
}

fn decode_grant(bytes: &mut ByteReader<'_>) -> Result<Grant, Useless> {
    Ok(Grant {
        at: decode_time(bytes)?,
        verdict: match bytes.u8()? {
            0 => Verdict::Allow,
            1 => Verdict::Limit,
            2 => Verdict::Wait,
            3 => Verdict::Deny,
            4 => Verdict::Shed,
            _ => return Err(Useless::Damaged("a verdict has an unknown number")),
        },
        wait: Micros(bytes.u64()?),
        lease: bytes.optional(ByteReader::u64)?,
        binding: bytes.optional(|bytes| Ok((bytes.u32()?, bytes.text()?, decode_level(bytes)?)))?,
        listed: bytes.optional(ByteReader::text)?,
        notes: bytes
            .list(|bytes| {
                let kind = match bytes.u8()? {
                    0 => NoteKind::Shadow,
                    1 => NoteKind::ShadowRule,
                    2 => NoteKind::Over,
                    3 => NoteKind::Near,
                    4 => NoteKind::Quota,
                    _ => return Err(Useless::Damaged("a note has an unknown number")),
                };
                Ok((kind, bytes.u32()?))
            })?
            .into(),
        all: bytes.list(|bytes| Ok((bytes.u32()?, decode_level(bytes)?)))?.into(),
        rule_set: u64::from(bytes.bool()?),
    })
}

fn decode_level(bytes: &mut ByteReader<'_>) -> Result<QuotaLevel, Useless> {
    Ok(QuotaLevel {
        limit: bytes.u64()?,
        window: Micros(bytes.u64()?),
        remaining: bytes.u64()?,
        reset: Micros(bytes.u64()?),
    })
}

fn decode_lease(bytes: &mut ByteReader<'_>) -> Result<KeptLease, Useless> {
    let mut lease = KeptLease {
        number: bytes.u64()?,
        ends_at: decode_time(bytes)?,
        lasts_millis: bytes.u32()?,
        request: bytes.u64()?,
        connection: bytes.u32()?,
        is_other: bytes.bool()?,
        ties: Vec::new(),
        cost: LeaseCost::default(),
    };
    bytes.list(|bytes| {
        lease.ties.push(match bytes.u8()? {
            0 => Tie::Permit(decode_key(bytes)?),
            1 => Tie::IdempotencyKey(decode_key(bytes)?),
            2 => Tie::Refund(LeaseCharge {
                rule: bytes.u64()?,
                digest: decode_key(bytes)?,
                salt: Salt::from_bits(bytes.u64()?),
                allowance: bytes.u32()?,
                cost: match (bytes.u32()?, bytes.bool()?) {
                    (cost, false) => cost,
                    // An earlier daemon charged the candidate, whose state is gone.
                    (_, true) => 0,
                },
                is_elastic: bytes.bool()?,
            }),
            3 => Tie::RefundableCost(decode_key(bytes)?),
            4 => Tie::Cost { unit: bytes.u32()?, cost: bytes.u32()? },
            5 => {
                lease.cost = LeaseCost { fingerprint: bytes.u32()?, cost: bytes.u32()? };
                return Ok(());
            }
            _ => return Err(Useless::Damaged("a tie has an unknown number")),
        });
        Ok(())
    })?;
    Ok(lease)
}

#[inline]
fn decode_key(bytes: &mut ByteReader<'_>) -> Result<Digest, Useless> {
    bytes.array().map(Digest::from_bytes)
}

fn decode_time(bytes: &mut ByteReader<'_>) -> Result<Timestamp, Useless> {
    bytes.u64().map(Timestamp::from_nanos)
}

fn decode_count(bytes: &mut ByteReader<'_>) -> Result<usize, Useless> {
    bytes.u64().map(|count| usize::try_from(count).unwrap_or(usize::MAX))
}
