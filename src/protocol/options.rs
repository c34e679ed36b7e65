//! Decodes the two maps of requests: `options`, and the `info` of HELLO.

use strum::VariantNames;

use super::elements::read_map;
use super::entries::{Abandoned, WireList};
use super::fault::{ExpectedField, FaultReason, expected};
use super::message::{HelloFrame, MissReason, MissedCounts, RequestOptions};
use super::reader::PayloadReader;
use super::{CLIENT_BYTES_MAX, ID_MAX, IDEM_BYTES_MAX};
use crate::terms::RefundReference;

/// Reads `options`, which is not nil.
#[inline(never)]
pub(super) fn read_options<'a>(reader: &mut PayloadReader<'a>) -> Result<RequestOptions<'a>, FaultReason> {
    let mut options = RequestOptions::default();
    read_map(reader, &OPTIONS, &OPTION_KEYS, |reader, key| {
        match key {
            "idem" => options.idem = Some(read_idem(reader).ok_or(FaultReason::Field(&IDEM))?),
            "of" => options.of = Some(read_of(reader).ok_or(FaultReason::Field(&OF))?),
            "queued_us" => options.queued_us = Some(reader.unsigned().ok_or(FaultReason::Field(&QUEUED))?),
            "max_wait_us" => {
                options.max_wait_us = Some(reader.unsigned().ok_or(FaultReason::Field(&MAX_WAIT))?);
            }
            "all" => options.all = reader.boolean().ok_or(FaultReason::Field(&ALL))?,
            "missed" => options.missed = read_missed(reader)?,
            _ => options.abandoned = read_abandoned(reader)?,
        }
        Ok(())
    })?;
    Ok(options)
}

pub(super) fn read_info<'a>(
    reader: &mut PayloadReader<'a>,
    hello: &mut HelloFrame<'a>,
) -> Result<(), FaultReason> {
    read_map(reader, &INFO, &INFO_KEYS, |reader, key| {
        match key {
            "client" => {
                let client = reader.text().filter(|client| client.len() <= CLIENT_BYTES_MAX);
                hello.client = Some(client.ok_or(FaultReason::Field(&CLIENT))?);
            }
            "session" => {
                let name = reader.binary().and_then(|name| name.try_into().ok());
                hello.session = Some(name.ok_or(FaultReason::Field(&SESSION))?);
            }
            "pid" => hello.pid = Some(read_unsigned32(reader).ok_or(FaultReason::Field(&PID))?),
            "pool" => hello.pool = reader.name().ok_or(FaultReason::Field(&POOL))?,
            "slots" => hello.slots = read_unsigned32(reader).ok_or(FaultReason::Field(&SLOTS))?,
            "connection" => {
                let number = reader.unsigned().filter(|number| *number > 0);
                hello.connection = number.ok_or(FaultReason::Field(&CONNECTION))?;
            }
            "missed" => hello.missed = read_missed(reader)?,
            _ => hello.abandoned = read_abandoned(reader)?,
        }
        Ok(())
    })
}

fn read_idem<'a>(reader: &mut PayloadReader<'a>) -> Option<&'a [u8]> {
    let mut binary = *reader;
    let bytes = match binary.binary() {
        Some(bytes) => {
            *reader = binary;
            bytes
        }
        None => reader.text()?.as_bytes(),
    };
    (1..=IDEM_BYTES_MAX).contains(&bytes.len()).then_some(bytes)
}

fn read_of<'a>(reader: &mut PayloadReader<'a>) -> Option<RefundReference<'a>> {
    let mut lease = *reader;
    if let Some(number) = lease.unsigned_to(ID_MAX) {
        *reader = lease;
        return Some(RefundReference::Lease(number));
    }
    read_idem(reader).map(RefundReference::IdempotencyKey)
}

fn read_unsigned32(reader: &mut PayloadReader<'_>) -> Option<u32> {
    u32::try_from(reader.unsigned()?).ok()
}

fn read_missed(reader: &mut PayloadReader<'_>) -> Result<MissedCounts, FaultReason> {
    let mut missed = MissedCounts::default();
    read_map(reader, &MISSED, MissReason::VARIANTS, |reader, key| {
        let count = reader.unsigned().ok_or(FaultReason::Field(&MISSED))?;
        if let Ok(reason) = key.parse() {
            missed.set(reason, count);
        }
        Ok(())
    })?;
    Ok(missed)
}

fn read_abandoned<'a>(reader: &mut PayloadReader<'a>) -> Result<Abandoned<'a>, FaultReason> {
    // Rare, and its entries may be longer than known: leave them to the slow check.
    reader.mark_unchecked();
    let count = reader.array().ok_or(FaultReason::Field(&ABANDONED))?;
    WireList::checked(reader, count).ok_or(FaultReason::Field(&ABANDONED))
}

const OPTION_KEYS: [&str; 7] = ["idem", "of", "queued_us", "max_wait_us", "all", "missed", "abandoned"];
const INFO_KEYS: [&str; 8] =
    ["client", "session", "pid", "pool", "slots", "connection", "missed", "abandoned"];

const OPTIONS: ExpectedField = expected("options", "nil or a map");
const IDEM: ExpectedField = expected("options.idem", "a text or bytes, 1 to 64 bytes long");
const OF: ExpectedField = expected(
    "options.of",
    "a text or bytes, 1 to 64 bytes long, or a lease: an unsigned integer up to 9223372036854775807",
);
const QUEUED: ExpectedField = expected("options.queued_us", "an unsigned integer");
const MAX_WAIT: ExpectedField = expected("options.max_wait_us", "nil or an unsigned integer");
const ALL: ExpectedField = expected("options.all", "true or false");
const MISSED: ExpectedField = expected("missed", "a map of reasons to unsigned integers");
const ABANDONED: ExpectedField = expected(
    "abandoned",
    "an array of [connection, id], unsigned integers, the id up to 9223372036854775807",
);
const INFO: ExpectedField = expected("info", "nil or a map");
const CLIENT: ExpectedField = expected("info.client", "a text of at most 255 bytes");
const SESSION: ExpectedField = expected("info.session", "16 bytes (bin)");
const PID: ExpectedField = expected("info.pid", "an unsigned integer up to 4294967295");
const POOL: ExpectedField = expected("info.pool", super::name::RANGE);
const SLOTS: ExpectedField = expected("info.slots", "an unsigned integer up to 4294967295");
const CONNECTION: ExpectedField = expected("info.connection", "an unsigned integer, 1 or more");
