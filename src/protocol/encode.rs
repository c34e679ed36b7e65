//! Encodes requests: the client's side, for the command line, the benchmarks and the tests.
//!
//! Uses the shortest form: trailing nils and map entries with default values are omitted; cost, amount and outcome are
//! always written.

use super::decode::{ACQUIRE, CHARGE, HELLO, HIT, PEEK, PING, RELEASE, RENEW, SIGNAL};
use super::descriptors::DescriptorList;
use super::entries::{Abandoned, ReplyEntry};
use super::message::{
    ChargeFrame, CheckRequest, HelloFrame, MissedCounts, RequestFrame, RequestOptions, UnitsField,
};
use super::writer::FrameWriter;
use super::{FRAME_BYTES_MAX, HEADER_BYTES};
use crate::terms::RefundReference;

/// The error of a frame that would exceed [`FRAME_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request exceeds {FRAME_BYTES_MAX} bytes")]
pub struct TooLarge;

/// Appends a request as a whole frame, with `descriptors` if its op has some.
///
/// Ranges are not checked: the receiver refuses values that version 1 does not allow.
///
/// # Errors [`TooLarge`]; `out` is then unchanged.
pub fn encode_request(
    out: &mut Vec<u8>,
    request: &RequestFrame<'_>,
    descriptors: &DescriptorList<'_>,
) -> Result<(), TooLarge> {
    let mut writer = FrameWriter::begin(out, TYPICAL_FRAME_BYTES);
    match request {
        RequestFrame::Hello(hello) => write_hello(&mut writer, hello),
        RequestFrame::Acquire(judge) => write_judge(&mut writer, ACQUIRE, judge, descriptors),
        RequestFrame::Hit(judge) => write_judge(&mut writer, HIT, judge, descriptors),
        RequestFrame::Peek(judge) => write_judge(&mut writer, PEEK, judge, descriptors),
        RequestFrame::Charge(charge) => write_charge(&mut writer, charge, descriptors),
        RequestFrame::Release { id, lease, outcome } => {
            write_head(&mut writer, 4, RELEASE, *id);
            writer.unsigned(*lease);
            writer.unsigned(u64::from(outcome.number()));
        }
        RequestFrame::Renew { id, lease } => {
            write_head(&mut writer, 3, RENEW, Some(*id));
            writer.unsigned(*lease);
        }
        RequestFrame::Signal { id, pool, name, permille } => {
            write_head(&mut writer, 5, SIGNAL, *id);
            writer.text(pool);
            writer.text(name);
            writer.unsigned(u64::from(*permille));
        }
        RequestFrame::Ping { id } => write_head(&mut writer, 2, PING, Some(*id)),
    }
    if writer.finish() { Ok(()) } else { Err(TooLarge) }
}

fn write_head(writer: &mut FrameWriter<'_>, elements: usize, op: u64, id: Option<u64>) {
    writer.array(elements);
    writer.unsigned(op);
    writer.optional_unsigned(id);
}

fn write_judge(
    writer: &mut FrameWriter<'_>,
    op: u64,
    judge: &CheckRequest<'_>,
    descriptors: &DescriptorList<'_>,
) {
    let options = judge.options != RequestOptions::default();
    let elements = match (options, judge.priority) {
        (true, _) => 7,
        (false, Some(_)) => 6,
        (false, None) => 5,
    };
    write_head(writer, elements, op, Some(judge.id));
    writer.text(judge.domain);
    write_descriptors(writer, descriptors);
    write_units_field(writer, judge.cost, FrameWriter::unsigned);
    if elements > 5 {
        writer.optional_text(judge.priority);
    }
    if options {
        write_options(writer, &judge.options);
    }
}

fn write_charge(writer: &mut FrameWriter<'_>, charge: &ChargeFrame<'_>, descriptors: &DescriptorList<'_>) {
    let options = charge.options != RequestOptions::default();
    write_head(writer, 5 + usize::from(options), CHARGE, charge.id);
    writer.text(charge.domain);
    write_descriptors(writer, descriptors);
    write_units_field(writer, charge.amount, FrameWriter::signed);
    if options {
        write_options(writer, &charge.options);
    }
}

/// Writes a number with `write_number`, or a map of units to such numbers.
fn write_units_field<'a, 'o, N: Copy>(
    writer: &mut FrameWriter<'o>,
    field: UnitsField<'a, N>,
    write_number: impl Fn(&mut FrameWriter<'o>, N),
) where
    (&'a str, N): ReplyEntry<'a>,
{
    match field {
        UnitsField::Requests(number) => write_number(writer, number),
        UnitsField::Units(units) => {
            writer.map(units.len());
            for (unit, number) in units.iter() {
                writer.text(unit);
                write_number(writer, number);
            }
        }
    }
}

fn write_descriptors(writer: &mut FrameWriter<'_>, descriptors: &DescriptorList<'_>) {
    writer.array(descriptors.len());
    for descriptor in descriptors.iter() {
        writer.array(2 * descriptor.len());
        for (key, value) in descriptor {
            writer.text(key);
            writer.text(value);
        }
    }
}

fn write_options(writer: &mut FrameWriter<'_>, options: &RequestOptions<'_>) {
    let RequestOptions { idem, of, queued_us, max_wait_us, all, missed, abandoned } = options;
    let reports = usize::from(!missed.is_empty()) + usize::from(!abandoned.is_empty());
    let times = usize::from(queued_us.is_some()) + usize::from(max_wait_us.is_some());
    let names = usize::from(idem.is_some()) + usize::from(of.is_some());
    writer.map(names + times + usize::from(*all) + reports);
    if let Some(idem) = idem {
        writer.text("idem");
        write_idem(writer, idem);
    }
    match of {
        Some(RefundReference::IdempotencyKey(idem)) => {
            writer.text("of");
            write_idem(writer, idem);
        }
        Some(RefundReference::Lease(lease)) => {
            writer.text("of");
            writer.unsigned(*lease);
        }
        None => {}
    }
    for (key, time) in [("queued_us", queued_us), ("max_wait_us", max_wait_us)] {
        if let Some(time) = time {
            writer.text(key);
            writer.unsigned(*time);
        }
    }
    if *all {
        writer.text("all");
        writer.boolean(true);
    }
    write_reports(writer, missed, abandoned);
}

fn write_idem(writer: &mut FrameWriter<'_>, idem: &[u8]) {
    match std::str::from_utf8(idem) {
        Ok(text) => writer.text(text),
        Err(_) => writer.binary(idem),
    }
}

fn write_reports(writer: &mut FrameWriter<'_>, missed: &MissedCounts, abandoned: &Abandoned<'_>) {
    if !missed.is_empty() {
        writer.text("missed");
        writer.map(missed.iter().count());
        for (reason, count) in missed.iter() {
            writer.text(reason.name());
            writer.unsigned(count);
        }
    }
    if !abandoned.is_empty() {
        writer.text("abandoned");
        writer.array(abandoned.len());
        for (connection, id) in abandoned.iter() {
            writer.array(2);
            writer.unsigned(connection);
            writer.unsigned(id);
        }
    }
}

fn write_hello(writer: &mut FrameWriter<'_>, hello: &HelloFrame<'_>) {
    let HelloFrame { id, version, client, session, pid, pool, slots, connection, missed, abandoned } = hello;
    let pool = Some(*pool).filter(|pool| *pool != HelloFrame::POOL);
    let slots = Some(*slots).filter(|slots| *slots > 0);
    let connection = Some(*connection).filter(|connection| *connection > 0);
    let texts = usize::from(client.is_some()) + usize::from(session.is_some()) + usize::from(pool.is_some());
    let numbers =
        usize::from(pid.is_some()) + usize::from(slots.is_some()) + usize::from(connection.is_some());
    let reports = usize::from(!missed.is_empty()) + usize::from(!abandoned.is_empty());
    let keys = texts + numbers + reports;
    write_head(writer, if keys > 0 { 4 } else { 3 }, HELLO, Some(*id));
    writer.unsigned(*version);
    if keys == 0 {
        return;
    }
    writer.map(keys);
    if let Some(client) = client {
        writer.text("client");
        writer.text(client);
    }
    if let Some(session) = session {
        writer.text("session");
        writer.binary(session);
    }
    if let Some(pid) = pid {
        writer.text("pid");
        writer.unsigned(u64::from(*pid));
    }
    if let Some(pool) = pool {
        writer.text("pool");
        writer.text(pool);
    }
    if let Some(slots) = slots {
        writer.text("slots");
        writer.unsigned(u64::from(slots));
    }
    if let Some(connection) = connection {
        writer.text("connection");
        writer.unsigned(connection);
    }
    write_reports(writer, missed, abandoned);
}

/// Room for a typical request; a larger one grows the buffer.
const TYPICAL_FRAME_BYTES: usize = HEADER_BYTES + 252;
