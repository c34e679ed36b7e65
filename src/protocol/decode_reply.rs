//! Decodes replies: the client's side, for the command line, the benchmarks and the tests. May allocate.

use super::decode::ID;
use super::encode_reply::{DECISION_KIND, DONE, ERROR, GOODBYE, WELCOME};
use super::fault::{Code, ExpectedField, Fault, FaultReason, expected};
use super::message::{DecisionReply, LimitEntry, WireReply};
use super::reader::{Elements, PayloadReader, read_map};
use super::{ID_MAX, wellformed};
use crate::terms::{NoteKind, Verdict};

/// The buffers for the lists of one decoded decision.
#[derive(Debug, Default)]
pub struct ReplyScratch<'a> {
    notes: Vec<(NoteKind, &'a str)>,
    all: Vec<LimitEntry<'a>>,
}

/// Decodes the payload of a reply. Notes of a kind unknown to version 1 are skipped.
///
/// # Errors A [`Fault`]: the client has to close the connection and use its fallback, as for any doubtful reply.
pub fn decode_reply<'s, 'a: 's>(
    payload: &'a [u8],
    scratch: &'s mut ReplyScratch<'a>,
) -> Result<WireReply<'s>, Fault> {
    wellformed::check(payload).map_err(Fault::malformed)?;
    let mut elements = Elements::open(payload);
    read_reply(&mut elements, scratch).map_err(|reason| {
        let id = Elements::open(payload).read_head().ok().and_then(|(_, id)| id);
        Fault::new(id, reason)
    })
}

fn read_reply<'s, 'a: 's>(
    elements: &mut Elements<'a>,
    scratch: &'s mut ReplyScratch<'a>,
) -> Result<WireReply<'s>, FaultReason> {
    let (kind, id) = elements.read_head()?;
    if id > Some(ID_MAX) {
        return Err(FaultReason::Field(&ID));
    }
    match kind {
        WELCOME => read_welcome(elements, require_id(id)?),
        DECISION_KIND => read_decision(elements, require_id(id)?, scratch),
        DONE => {
            Ok(WireReply::Done { id: require_id(id)?, ok: elements.required(&OK, PayloadReader::boolean)? })
        }
        ERROR => {
            let code = elements.required(&CODE, |reader| Code::from_repr(reader.unsigned8()?))?;
            Ok(WireReply::Error { id, code, message: elements.required(&MESSAGE, PayloadReader::text)? })
        }
        GOODBYE => Ok(WireReply::Goodbye { reason: elements.required(&REASON, PayloadReader::text)? }),
        kind => Err(FaultReason::UnknownKind(kind)),
    }
}

fn require_id(id: Option<u64>) -> Result<u64, FaultReason> {
    id.ok_or(FaultReason::Field(&ID))
}

fn read_welcome<'a>(elements: &mut Elements<'a>, id: u64) -> Result<WireReply<'a>, FaultReason> {
    let version = elements.required(&VERSION, |reader| reader.unsigned().filter(|version| *version > 0))?;
    let (mut server, mut mode) = (None, None);
    let (mut boot, mut connection, mut frame_bytes_max) = (None, None, None);
    if elements.next_is_present() {
        read_map(&mut elements.reader, &INFO, &INFO_KEYS, |reader, key| {
            let stored = match key {
                "server" => store(&mut server, reader.text()),
                "boot" => store(&mut boot, reader.unsigned()),
                "connection" => store(&mut connection, reader.unsigned()),
                "frame_bytes_max" => store(&mut frame_bytes_max, reader.unsigned()),
                _ => store(&mut mode, reader.text().and_then(|name| name.parse().ok())),
            };
            stored.ok_or(FaultReason::Field(&INFO))
        })?;
    }
    let info = (server, boot, connection, frame_bytes_max, mode);
    let (Some(server), Some(boot), Some(connection), Some(frame_bytes_max), Some(mode)) = info else {
        return Err(FaultReason::Field(&INFO));
    };
    Ok(WireReply::Welcome { id, version, server, boot, connection, frame_bytes_max, mode })
}

fn store<T>(slot: &mut Option<T>, value: Option<T>) -> Option<()> {
    *slot = Some(value?);
    Some(())
}

fn read_decision<'s, 'a: 's>(
    elements: &mut Elements<'a>,
    id: u64,
    scratch: &'s mut ReplyScratch<'a>,
) -> Result<WireReply<'s>, FaultReason> {
    let verdict = elements.required(&VERDICT, |reader| Verdict::from_repr(reader.unsigned8()?))?;
    let rule = elements.optional(&RULE, PayloadReader::text)?;
    let [limit, window_us, remaining, reset_us, retry_us] = read_numbers(elements)?;
    let lease = elements.optional(&LEASE, |reader| reader.unsigned_to(ID_MAX).filter(|lease| *lease > 0))?;
    scratch.notes.clear();
    if elements.next_is_present() {
        read_notes(&mut elements.reader, &mut scratch.notes).ok_or(FaultReason::Field(&NOTES))?;
    }
    scratch.all.clear();
    let all = elements.next_is_present();
    if all {
        read_all(&mut elements.reader, &mut scratch.all).ok_or(FaultReason::Field(&ALL))?;
    }
    let (mut help, mut unit, mut rate, mut hide, mut blocked, mut digest) =
        (None, None, None, None, None, None);
    if elements.next_is_present() {
        read_map(
            &mut elements.reader,
            &EXTRA,
            &["help", "hide", "unit", "rate", "blocked", "digest"],
            |reader, key| {
                let stored = match key {
                    "help" => store(&mut help, reader.text()),
                    "hide" => store(&mut hide, reader.boolean()),
                    "blocked" => store(&mut blocked, reader.boolean()),
                    "rate" => store(&mut rate, reader.text()),
                    "digest" => store(&mut digest, reader.text()),
                    _ => store(&mut unit, reader.text()),
                };
                stored.ok_or(FaultReason::Field(&EXTRA))
            },
        )?;
    }
    Ok(WireReply::Decision(DecisionReply {
        id,
        verdict,
        rule,
        limit,
        window_us,
        remaining,
        reset_us,
        retry_us,
        lease,
        notes: &scratch.notes,
        all: all.then_some(scratch.all.as_slice()),
        help,
        hide: hide.unwrap_or_default(),
        unit,
        rate,
        blocked: blocked.unwrap_or_default(),
        digest,
    }))
}

fn read_numbers<const N: usize>(elements: &mut Elements<'_>) -> Result<[Option<u64>; N], FaultReason> {
    let mut numbers = [None; N];
    for number in &mut numbers {
        *number = elements.optional(&NUMBER, PayloadReader::unsigned)?;
    }
    Ok(numbers)
}

fn read_notes<'a>(reader: &mut PayloadReader<'a>, notes: &mut Vec<(NoteKind, &'a str)>) -> Option<()> {
    let texts = reader.array()?;
    if texts % 2 != 0 {
        return None;
    }
    for _ in 0..texts / 2 {
        let (name, rule) = (reader.text()?, reader.text()?);
        notes.extend(name.parse().ok().map(|kind| (kind, rule)));
    }
    Some(())
}

fn read_all<'a>(reader: &mut PayloadReader<'a>, all: &mut Vec<LimitEntry<'a>>) -> Option<()> {
    for _ in 0..reader.array()? {
        let more = reader.array()?.checked_sub(5)?;
        let rule = reader.text()?;
        let (limit, window_us) = (reader.unsigned()?, reader.unsigned()?);
        let (remaining, reset_us) = (reader.unsigned()?, reader.unsigned()?);
        let refuses = if more > 0 { reader.boolean()? } else { false };
        let descriptors = if more > 1 { reader.unsigned()? } else { 0 };
        all.push(LimitEntry { rule, limit, window_us, remaining, reset_us, refuses, descriptors });
        for _ in 2..more {
            reader.skip()?;
        }
    }
    Some(())
}

const INFO_KEYS: [&str; 5] = ["server", "boot", "connection", "frame_bytes_max", "mode"];

const VERSION: ExpectedField = expected("version", "an unsigned integer, 1 or more");
const INFO: ExpectedField = expected(
    "info",
    "a map with server, boot, connection, frame_bytes_max and mode (enforce, shadow or disabled)",
);
const VERDICT: ExpectedField = expected("verdict", "an integer from 0 to 4");
const RULE: ExpectedField = expected("rule", "nil or a text");
const NUMBER: ExpectedField =
    expected("each of limit, window_us, remaining, reset_us and retry_us", "nil or an unsigned integer");
const LEASE: ExpectedField = expected("lease", "nil or an unsigned integer from 1 to 9223372036854775807");
const NOTES: ExpectedField = expected("notes", "nil or an array of kinds and rules, in turn");
const ALL: ExpectedField =
    expected("all", "nil or an array of [rule, limit, window_us, remaining, reset_us, refuses, descriptors]");
const EXTRA: ExpectedField =
    expected("extra", "nil or a map: texts help, unit, rate and digest; hide and blocked true or false");
const OK: ExpectedField = expected("ok", "true or false");
const CODE: ExpectedField = expected("code", "an integer from 1 to 11");
const MESSAGE: ExpectedField = expected("message", "a text");
const REASON: ExpectedField = expected("reason", "a text");
