//! Decodes requests. The fast path reads each byte of a frame of the common shape once. For any other frame, including
//! one with an unknown part, the slow check first decides whether it is well-formed.

use arrayvec::ArrayVec;
use strum::VariantNames;

use super::descriptors::DescriptorList;
use super::entries::{Abandoned, WireEntry, WireList};
use super::fault::{Code, ExpectedField, Fault, FaultReason, FormatFault, expected};
use super::message::{
    AmountField, ChargeFrame, CheckRequest, CostField, HelloFrame, MissReason, MissedCounts, RequestFrame,
    RequestOptions, UnitsField,
};
use super::name::RANGE as NAME;
use super::reader::{Elements, PayloadReader, read_map};
use super::{
    CLIENT_BYTES_MAX, DESCRIPTORS_MAX, ID_MAX, IDEM_BYTES_MAX, PAIRS_MAX, PERMILLE_MAX, VALUE_BYTES_MAX,
    wellformed,
};
use crate::terms::{Op, RefundReference, WorkOutcome};

/// Decodes the payload of a frame that may be any request; its descriptors replace the contents of `descriptors`.
///
/// # Errors A [`Fault`] of code `malformed`, `unknown_op`, `invalid` or, from a HELLO, `version`.
#[inline]
pub fn decode_request<'a>(
    payload: &'a [u8],
    descriptors: &mut DescriptorList<'a>,
) -> Result<RequestFrame<'a>, Fault> {
    descriptors.clear();
    let mut elements = Elements::open(payload);
    let Ok((op @ (HIT | ACQUIRE | PEEK), id)) = elements.read_head() else {
        return read_other_op(payload, descriptors);
    };
    if let Ok(judge) = read_judge(&mut elements, id, descriptors)
        && elements.reader.is_finished_and_checked()
    {
        return Ok(to_request(op, judge));
    }
    read_judge_slowly(payload, descriptors)
}

/// Decodes a HIT, ACQUIRE or PEEK that left the fast path. Starts over: handing over the parts read so far would cost
/// every request on the fast path a copy.
#[cold]
#[inline(never)]
fn read_judge_slowly<'a>(
    payload: &'a [u8],
    descriptors: &mut DescriptorList<'a>,
) -> Result<RequestFrame<'a>, Fault> {
    descriptors.clear();
    let mut elements = Elements::open(payload);
    let judge = elements.read_head().and_then(|(op, id)| {
        let judge = read_judge(&mut elements, id, descriptors)?;
        Ok(to_request(op, judge))
    });
    check_slowly(payload, judge)
}

/// Decodes a request other than HIT, ACQUIRE and PEEK.
#[inline(never)]
fn read_other_op<'a>(
    payload: &'a [u8],
    descriptors: &mut DescriptorList<'a>,
) -> Result<RequestFrame<'a>, Fault> {
    let mut elements = Elements::open(payload);
    match read_by_op(&mut elements, descriptors) {
        Ok(request) if elements.reader.is_finished_and_checked() => Ok(request),
        outcome => check_slowly(payload, outcome),
    }
}

/// Decodes the payload of a connection's first frame, which must be HELLO.
///
/// # Errors A [`Fault`] of code `malformed`, `hello_required`, `version` or `invalid`.
pub fn decode_first(payload: &[u8]) -> Result<HelloFrame<'_>, Fault> {
    let mut elements = Elements::open(payload);
    let outcome = elements.read_head().and_then(|(op, id)| match op {
        HELLO => read_hello(&mut elements, id),
        _ => Err(FaultReason::HelloRequired),
    });
    // Once per connection: speed does not matter.
    check_slowly(payload, outcome)
}

/// Runs the slow check: a malformed payload takes precedence over the error of a field.
#[cold]
#[inline(never)]
fn check_slowly<T>(payload: &[u8], outcome: Result<T, FaultReason>) -> Result<T, Fault> {
    wellformed::check(payload).map_err(Fault::malformed)?;
    outcome.map_err(|reason| to_fault(payload, reason))
}

#[cold]
fn to_fault(payload: &[u8], reason: FaultReason) -> Fault {
    let head = Elements::open(payload).read_head().ok();
    let code = reason.code();
    let silent = code == Code::Invalid && matches!(head, Some((RELEASE | CHARGE | SIGNAL, None)));
    // A malformed payload closes the connection; its id cannot be trusted.
    let id = head.and_then(|(_, id)| id).filter(|id| *id <= ID_MAX && code != Code::Malformed);
    Fault { id, code, reason, silent }
}

fn read_by_op<'a>(
    elements: &mut Elements<'a>,
    descriptors: &mut DescriptorList<'a>,
) -> Result<RequestFrame<'a>, FaultReason> {
    let (op, id) = elements.read_head()?;
    match op {
        RELEASE => read_release(elements, id),
        HELLO => Ok(RequestFrame::Hello(read_hello(elements, id)?)),
        CHARGE => Ok(RequestFrame::Charge(read_charge(elements, id, descriptors)?)),
        RENEW => {
            let (id, lease) =
                (require_id(id)?, elements.required(&LEASE, |reader| reader.unsigned_to(ID_MAX))?);
            elements.finish()?;
            Ok(RequestFrame::Renew { id, lease })
        }
        SIGNAL => read_signal(elements, id),
        PING => {
            let id = require_id(id)?;
            elements.finish()?;
            Ok(RequestFrame::Ping { id })
        }
        op => Err(FaultReason::UnknownOp(op)),
    }
}

#[inline(always)]
fn to_request(op: u64, judge: CheckRequest<'_>) -> RequestFrame<'_> {
    let op = match op {
        HIT => Op::Hit,
        ACQUIRE => Op::Acquire,
        _ => Op::Peek,
    };
    RequestFrame::Check(op, judge)
}

#[inline]
fn require_id(id: Option<u64>) -> Result<u64, FaultReason> {
    id.filter(|id| *id <= ID_MAX).ok_or(FaultReason::Field(&ID))
}

fn check_optional_id(id: Option<u64>) -> Result<Option<u64>, FaultReason> {
    if id.is_none_or(|id| id <= ID_MAX) { Ok(id) } else { Err(FaultReason::Field(&OPTIONAL_ID)) }
}

#[inline(always)]
fn read_judge<'a>(
    elements: &mut Elements<'a>,
    id: Option<u64>,
    descriptors: &mut DescriptorList<'a>,
) -> Result<CheckRequest<'a>, FaultReason> {
    let id = require_id(id)?;
    let domain = elements.required(&DOMAIN, PayloadReader::name)?;
    read_descriptors(elements, descriptors)?;
    let cost = if elements.next_is_present() {
        read_units_field(&mut elements.reader, &COST, PayloadReader::unsigned)?
    } else {
        CostField::Requests(1)
    };
    let priority = if elements.next_is_present() { read_priority(&mut elements.reader)? } else { None };
    let options = if elements.next_is_present() {
        read_options(&mut elements.reader)?
    } else {
        RequestOptions::default()
    };
    elements.finish()?;
    Ok(CheckRequest { id, domain, cost, priority, options })
}

#[inline]
fn read_descriptors<'a>(
    elements: &mut Elements<'a>,
    descriptors: &mut DescriptorList<'a>,
) -> Result<(), FaultReason> {
    let count = elements.required(&DESCRIPTORS, PayloadReader::array)?;
    if count > DESCRIPTORS_MAX {
        return Err(FaultReason::Field(&DESCRIPTORS));
    }
    // A copy stays in registers.
    let mut reader = elements.reader;
    for _ in 0..count {
        let texts = reader.array().ok_or(FaultReason::Field(&DESCRIPTORS))?;
        if texts % 2 != 0 || texts > 2 * PAIRS_MAX {
            return Err(FaultReason::Field(&DESCRIPTORS));
        }
        for _ in 0..texts / 2 {
            let key = reader.name().ok_or(FaultReason::Field(&KEY))?;
            let value = reader.text().filter(|value| value.len() <= VALUE_BYTES_MAX);
            if !descriptors.push_pair(key, value.ok_or(FaultReason::Field(&VALUE))?) {
                return Err(FaultReason::Field(&DESCRIPTORS));
            }
        }
        if !descriptors.end() {
            return Err(FaultReason::Field(&DESCRIPTORS));
        }
    }
    elements.reader = reader;
    Ok(())
}

/// Reads a number with `read_number`, or a map of units to such numbers.
#[inline]
fn read_units_field<'a, N: Copy>(
    reader: &mut PayloadReader<'a>,
    expected: &'static ExpectedField,
    read_number: impl Fn(&mut PayloadReader<'a>) -> Option<N>,
) -> Result<UnitsField<'a, N>, FaultReason>
where
    (&'a str, N): WireEntry<'a>,
{
    let field = if reader.at_map() {
        read_units(reader).map(UnitsField::Units)
    } else {
        read_number(reader).map(UnitsField::Requests)
    };
    field.ok_or(FaultReason::Field(expected))
}

/// Reads the priority. A value that is not a name counts as absent, and the rules decide: it must not fail the request.
#[inline]
fn read_priority<'a>(reader: &mut PayloadReader<'a>) -> Result<Option<&'a str>, FaultReason> {
    let mut name = *reader;
    if let Some(priority) = name.name() {
        *reader = name;
        return Ok(Some(priority));
    }
    reader.mark_unchecked();
    reader.skip().ok_or(FaultReason::Flaw(FormatFault::Truncated))?;
    Ok(None)
}

#[inline(never)]
fn read_units<'a, N: Copy>(reader: &mut PayloadReader<'a>) -> Option<WireList<'a, (&'a str, N)>>
where
    (&'a str, N): WireEntry<'a>,
{
    let count = reader.map()?;
    let entries = WireList::checked(reader, count)?;
    let mut seen = ArrayVec::<&str, UNITS_COMPARED_MAX>::new();
    let differ = entries.iter().all(|(unit, _)| !seen.contains(&unit) && seen.try_push(unit).is_ok());
    if !differ {
        // A duplicate, or too many to compare here: leave it to the slow check.
        reader.mark_unchecked();
    }
    Some(entries)
}

/// Reads `options`, which is not nil.
#[inline(never)]
fn read_options<'a>(reader: &mut PayloadReader<'a>) -> Result<RequestOptions<'a>, FaultReason> {
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

fn read_info<'a>(reader: &mut PayloadReader<'a>, hello: &mut HelloFrame<'a>) -> Result<(), FaultReason> {
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
            "pool" => hello.pool = reader.name().ok_or(FaultReason::Field(&INFO_POOL))?,
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

fn read_hello<'a>(elements: &mut Elements<'a>, id: Option<u64>) -> Result<HelloFrame<'a>, FaultReason> {
    let mut hello = HelloFrame::new(require_id(id)?);
    hello.version = elements.required(&VERSION, PayloadReader::unsigned)?;
    // Before the rest, whose meaning in that version is unknown.
    if hello.version == 0 {
        return Err(FaultReason::Version);
    }
    if elements.next_is_present() {
        read_info(&mut elements.reader, &mut hello)?;
    }
    elements.finish()?;
    Ok(hello)
}

fn read_release<'a>(elements: &mut Elements<'a>, id: Option<u64>) -> Result<RequestFrame<'a>, FaultReason> {
    let id = check_optional_id(id)?;
    let lease = elements.required(&LEASE, |reader| reader.unsigned_to(ID_MAX))?;
    let outcome = elements.optional(&OUTCOME, |reader| WorkOutcome::from_repr(reader.unsigned8()?))?;
    elements.finish()?;
    Ok(RequestFrame::Release { id, lease, outcome: outcome.unwrap_or_default() })
}

fn read_charge<'a>(
    elements: &mut Elements<'a>,
    id: Option<u64>,
    descriptors: &mut DescriptorList<'a>,
) -> Result<ChargeFrame<'a>, FaultReason> {
    let id = check_optional_id(id)?;
    let domain = elements.required(&DOMAIN, PayloadReader::name)?;
    read_descriptors(elements, descriptors)?;
    let amount = if elements.next_is_present() {
        read_units_field(&mut elements.reader, &AMOUNT, PayloadReader::amount)?
    } else {
        AmountField::Requests(1)
    };
    let options = if elements.next_is_present() {
        read_options(&mut elements.reader)?
    } else {
        RequestOptions::default()
    };
    elements.finish()?;
    Ok(ChargeFrame { id, domain, amount, options })
}

fn read_signal<'a>(elements: &mut Elements<'a>, id: Option<u64>) -> Result<RequestFrame<'a>, FaultReason> {
    let id = check_optional_id(id)?;
    let pool = elements.required(&POOL, PayloadReader::name)?;
    let name = elements.required(&SIGNAL_NAME, PayloadReader::name)?;
    let permille = elements.required(&PERMILLE, |reader| {
        u16::try_from(reader.unsigned()?).ok().filter(|permille| *permille <= PERMILLE_MAX)
    })?;
    elements.finish()?;
    Ok(RequestFrame::Signal { id, pool, name, permille })
}

pub(super) const HELLO: u64 = 0;
const ACQUIRE: u64 = Op::Acquire as u64;
pub(super) const RELEASE: u64 = 2;
const HIT: u64 = Op::Hit as u64;
const PEEK: u64 = Op::Peek as u64;
pub(super) const CHARGE: u64 = 5;
pub(super) const RENEW: u64 = 6;
pub(super) const SIGNAL: u64 = 7;
pub(super) const PING: u64 = 8;

/// The number of units compared pairwise on the fast path; requests rarely name more.
const UNITS_COMPARED_MAX: usize = 8;

pub(super) const ID: ExpectedField = expected("id", "an unsigned integer up to 9223372036854775807");
const OPTIONAL_ID: ExpectedField = expected("id", "nil or an unsigned integer up to 9223372036854775807");
const VERSION: ExpectedField = expected("version", "an unsigned integer");
const DOMAIN: ExpectedField = expected("domain", NAME);
const DESCRIPTORS: ExpectedField = expected(
    "descriptors",
    "an array of at most 8 arrays, each of at most 16 keys and as many values, in turn",
);
const KEY: ExpectedField = expected("an attribute key in descriptors", NAME);
const VALUE: ExpectedField = expected("an attribute value in descriptors", "a text of at most 1024 bytes");
const COST: ExpectedField = expected("cost", "an unsigned integer, or a map of unit names to such integers");
const AMOUNT: ExpectedField = expected("amount", "an integer, or a map of unit names to integers");
const LEASE: ExpectedField = expected("lease", "an unsigned integer up to 9223372036854775807");
const OUTCOME: ExpectedField = expected("outcome", "nil, 0, 1 or 2");
const POOL: ExpectedField = expected("pool", NAME);
const SIGNAL_NAME: ExpectedField = expected("name", NAME);
const PERMILLE: ExpectedField = expected("permille", "an unsigned integer up to 1000");

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
const INFO_POOL: ExpectedField = expected("info.pool", NAME);
const SLOTS: ExpectedField = expected("info.slots", "an unsigned integer up to 4294967295");
const CONNECTION: ExpectedField = expected("info.connection", "an unsigned integer, 1 or more");
