//! Encodes requests: the client's side, for the command line, the benchmarks and the tests.
//!
//! Uses the shortest form: trailing nils and map entries with default values are omitted; cost, amount and outcome are
//! always written.

use super::decode::{CHARGE, HELLO, PING, RELEASE, RENEW, SIGNAL};
use super::descriptors::DescriptorList;
use super::entries::{Abandoned, WireEntry};
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
        RequestFrame::Check(op, judge) => write_judge(&mut writer, *op as u64, judge, descriptors),
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
    (&'a str, N): WireEntry<'a>,
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

#[derive(Clone, Copy)]
enum FieldValue<'v> {
    Text(&'v str),
    Binary(&'v [u8]),
    Unsigned(u64),
    True,
    Missed(&'v MissedCounts),
    Abandoned(&'v Abandoned<'v>),
}

/// A key, and its value unless it is the default.
type Field<'v> = (&'static str, Option<FieldValue<'v>>);

fn write_options(writer: &mut FrameWriter<'_>, options: &RequestOptions<'_>) {
    let RequestOptions { idem, of, queued_us, max_wait_us, all, missed, abandoned } = options;
    let of = of.map(|of| match of {
        RefundReference::IdempotencyKey(idem) => idem_value(idem),
        RefundReference::Lease(lease) => FieldValue::Unsigned(lease),
    });
    let [missed, abandoned] = report_fields(missed, abandoned);
    let fields = [
        ("idem", idem.map(idem_value)),
        ("of", of),
        ("queued_us", queued_us.map(FieldValue::Unsigned)),
        ("max_wait_us", max_wait_us.map(FieldValue::Unsigned)),
        ("all", all.then_some(FieldValue::True)),
        missed,
        abandoned,
    ];
    write_fields(writer, &fields);
}

fn idem_value(idem: &[u8]) -> FieldValue<'_> {
    std::str::from_utf8(idem).map_or(FieldValue::Binary(idem), FieldValue::Text)
}

fn report_fields<'v>(missed: &'v MissedCounts, abandoned: &'v Abandoned<'v>) -> [Field<'v>; 2] {
    let missed = (!missed.is_empty()).then_some(FieldValue::Missed(missed));
    let abandoned = (!abandoned.is_empty()).then_some(FieldValue::Abandoned(abandoned));
    [("missed", missed), ("abandoned", abandoned)]
}

fn write_hello(writer: &mut FrameWriter<'_>, hello: &HelloFrame<'_>) {
    let HelloFrame { id, version, client, session, pid, pool, slots, connection, missed, abandoned } = hello;
    let positive = |number: u64| (number > 0).then_some(FieldValue::Unsigned(number));
    let [missed, abandoned] = report_fields(missed, abandoned);
    let fields = [
        ("client", client.map(FieldValue::Text)),
        ("session", session.as_ref().map(|session| FieldValue::Binary(session))),
        ("pid", pid.map(|pid| FieldValue::Unsigned(pid.into()))),
        ("pool", (*pool != HelloFrame::POOL).then_some(FieldValue::Text(pool))),
        ("slots", positive((*slots).into())),
        ("connection", positive(*connection)),
        missed,
        abandoned,
    ];
    let has_info = fields.iter().any(|(_, value)| value.is_some());
    write_head(writer, 3 + usize::from(has_info), HELLO, Some(*id));
    writer.unsigned(*version);
    if has_info {
        write_fields(writer, &fields);
    }
}

fn write_fields(writer: &mut FrameWriter<'_>, fields: &[Field<'_>]) {
    writer.map(fields.iter().filter(|(_, value)| value.is_some()).count());
    for (key, value) in fields.iter().filter_map(|(key, value)| Some((key, (*value)?))) {
        writer.text(key);
        match value {
            FieldValue::Text(text) => writer.text(text),
            FieldValue::Binary(bytes) => writer.binary(bytes),
            FieldValue::Unsigned(number) => writer.unsigned(number),
            FieldValue::True => writer.boolean(true),
            FieldValue::Missed(missed) => {
                writer.map(missed.iter().count());
                for (reason, count) in missed.iter() {
                    writer.text(reason.name());
                    writer.unsigned(count);
                }
            }
            FieldValue::Abandoned(abandoned) => {
                writer.array(abandoned.len());
                for (connection, id) in abandoned.iter() {
                    writer.array(2);
                    writer.unsigned(connection);
                    writer.unsigned(id);
                }
            }
        }
    }
}

/// Room for a typical request; a larger one grows the buffer.
const TYPICAL_FRAME_BYTES: usize = HEADER_BYTES + 252;
