//! Entries from bytes. What is here has its mirror in the file beside it.

use super::bytes::Bytes;
use super::section::Kind;
use super::{Head, Moment, Useless};
use crate::clock::{Micros, Timestamp};
use crate::engine::kept::{
    Digest, Grant, Granted, Kept, KeptLease, KeptPool, KeptRule, KeptSession, LeaseCost, Level, Refund, Salt,
    Spent, Tie,
};
use crate::engine::{NoteKind, Verdict};

/// Reads the head.
pub(super) fn head(bytes: &mut Bytes<'_>) -> Result<Head, Useless> {
    let has_clock = bytes.bool()?;
    let clock = u128::from_le_bytes(bytes.array()?);
    let here = Moment {
        clock: has_clock.then_some(clock),
        boot_nanos: bytes.u64()?,
        unix_nanos: i64::from_le_bytes(bytes.array()?),
    };
    let (at, is_final) = (time(bytes)?, bytes.bool()?);
    let keys = (count(bytes)?, count(bytes)?);
    if !bytes.is_empty() {
        return Err(Useless::Damaged("its head is longer than it is"));
    }
    Ok(Head { here, at, is_final, keys })
}

/// Reads one thing.
pub(super) fn entry(kind: Kind, bytes: &mut Bytes<'_>) -> Result<Kept, Useless> {
    Ok(match kind {
        Kind::Bucket => Kept::Bucket(key(bytes)?, bytes.u64()?),
        Kind::Window => Kept::Window(key(bytes)?, time(bytes)?, bytes.u32()?),
        Kind::SlidingWindow => Kept::SlidingWindow(key(bytes)?, time(bytes)?, bytes.list(Bytes::u32)?),
        Kind::Log => Kept::Log(key(bytes)?, bytes.list(|bytes| Ok((bytes.u64()?, bytes.u32()?)))?),
        Kind::Block => Kept::Block(key(bytes)?, time(bytes)?),
        Kind::Soft => Kept::Soft(key(bytes)?, time(bytes)?, time(bytes)?),
        Kind::Places => Kept::Places(key(bytes)?, bytes.u64()?),
        Kind::Rules => Kept::Rules(bytes.u64()?),
        Kind::Rule => Kept::Rule(KeptRule {
            identity: bytes.u64()?,
            own: (bytes.u64()?, bytes.u8()?),
            candidate: bytes.maybe(|bytes| Ok((bytes.u64()?, bytes.u8()?)))?,
        }),
        Kind::Pool => Kept::Pool(Box::new(pool(bytes)?)),
        Kind::Repeat => {
            let (name, asks) = (key(bytes)?, bytes.u64()?);
            Kept::Repeat(name, Granted { asks, grant: Box::new(grant(bytes)?) })
        }
        Kind::Spent => {
            let (name, at, print) = (key(bytes)?, time(bytes)?, bytes.u32()?);
            let costs = bytes.list(|bytes| Ok((bytes.u32()?, bytes.u32()?)))?.into();
            Kept::Spent(name, Spent { at, print, costs })
        }
        Kind::Session => Kept::Session(Box::new(KeptSession {
            name: bytes.array()?,
            user: bytes.u32()?,
            pid: bytes.maybe(Bytes::u32)?,
            pool: bytes.text()?,
            slots: bytes.u32()?,
        })),
        Kind::Lease => Kept::Lease(Box::new(lease(bytes)?)),
        Kind::Head | Kind::End => return Err(Useless::Damaged("it has a second head")),
    })
}

fn pool(bytes: &mut Bytes<'_>) -> Result<KeptPool, Useless> {
    let name = bytes.text()?;
    let mut law = [0.0; 5];
    for number in &mut law {
        *number = bytes.f64()?;
    }
    Ok(KeptPool { name, law, severity: bytes.f64()?, silent_nanos: bytes.u64()?, stepped: time(bytes)? })
}

fn grant(bytes: &mut Bytes<'_>) -> Result<Grant, Useless> {
    Ok(Grant {
        at: time(bytes)?,
        verdict: match bytes.u8()? {
            0 => Verdict::Allow,
            1 => Verdict::Limit,
            2 => Verdict::Wait,
            3 => Verdict::Deny,
            4 => Verdict::Shed,
            _ => return Err(Useless::Damaged("a verdict is none")),
        },
        wait: Micros(bytes.u64()?),
        lease: bytes.maybe(Bytes::u64)?,
        binding: bytes.maybe(|bytes| Ok((bytes.u32()?, bytes.text()?, level(bytes)?)))?,
        listed: bytes.maybe(Bytes::text)?,
        notes: bytes
            .list(|bytes| {
                let kind = match bytes.u8()? {
                    0 => NoteKind::Shadow,
                    1 => NoteKind::Candidate,
                    2 => NoteKind::Over,
                    3 => NoteKind::Near,
                    4 => NoteKind::Quota,
                    _ => return Err(Useless::Damaged("a note is none")),
                };
                Ok((kind, bytes.u32()?))
            })?
            .into(),
        all: bytes.list(|bytes| Ok((bytes.u32()?, level(bytes)?)))?.into(),
        ruling: u64::from(bytes.bool()?),
    })
}

fn level(bytes: &mut Bytes<'_>) -> Result<Level, Useless> {
    Ok(Level {
        limit: bytes.u64()?,
        window: Micros(bytes.u64()?),
        remaining: bytes.u64()?,
        reset: Micros(bytes.u64()?),
    })
}

fn lease(bytes: &mut Bytes<'_>) -> Result<KeptLease, Useless> {
    let mut lease = KeptLease {
        number: bytes.u64()?,
        ends_at: time(bytes)?,
        lasts_millis: bytes.u32()?,
        request: bytes.u64()?,
        connection: bytes.u32()?,
        is_other: bytes.bool()?,
        ties: Vec::new(),
        cost: LeaseCost::default(),
    };
    bytes.list(|bytes| {
        lease.ties.push(match bytes.u8()? {
            0 => Tie::Place(key(bytes)?),
            1 => Tie::Repeat(key(bytes)?),
            2 => Tie::Refund(Refund {
                rule: bytes.u64()?,
                digest: key(bytes)?,
                salt: Salt::of_bits(bytes.u64()?),
                allowance: bytes.u32()?,
                cost: bytes.u32()?,
                of_candidate: bytes.bool()?,
                is_beyond: bytes.bool()?,
            }),
            3 => Tie::Spent(key(bytes)?),
            4 => Tie::Cost { unit: bytes.u32()?, cost: bytes.u32()? },
            5 => {
                lease.cost = LeaseCost { print: bytes.u32()?, cost: bytes.u32()? };
                return Ok(());
            }
            _ => return Err(Useless::Damaged("a tie is none")),
        });
        Ok(())
    })?;
    Ok(lease)
}

#[inline]
fn key(bytes: &mut Bytes<'_>) -> Result<Digest, Useless> {
    bytes.array().map(Digest::of_bytes)
}

fn time(bytes: &mut Bytes<'_>) -> Result<Timestamp, Useless> {
    bytes.u64().map(Timestamp::from_nanos)
}

fn count(bytes: &mut Bytes<'_>) -> Result<usize, Useless> {
    bytes.u64().map(|count| usize::try_from(count).unwrap_or(usize::MAX))
}
