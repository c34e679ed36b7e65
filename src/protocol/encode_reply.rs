//! Encodes replies with all of their elements; absent ones are nil.

use std::fmt::Write as _;

use arrayvec::ArrayString;

use super::HEADER_BYTES;
use super::fault::{Code, Fault};
use super::message::{DecisionReply, LimitEntry, WireReply};
use super::writer::FrameWriter;
use crate::terms::{Mode, NoteKind};

/// Appends a reply as a whole frame. A reply that would be too large is cut: a decision as in [`encode_decision`],
/// others at the end of their text.
pub fn encode_reply(out: &mut Vec<u8>, reply: &WireReply<'_>) {
    match reply {
        WireReply::Welcome { id, version, server, boot, connection, frame_bytes_max, mode } => {
            let numbers = [*boot, *connection, *frame_bytes_max];
            write_welcome(out, *id, *version, clip(server), numbers, *mode);
        }
        WireReply::Decision(decision) => encode_decision(out, decision),
        WireReply::Done { id, ok } => {
            let mut writer = FrameWriter::begin(out, SMALL_FRAME_BYTES);
            writer.array(3);
            writer.unsigned(DONE);
            writer.unsigned(*id);
            writer.boolean(*ok);
            finish_clipped(writer);
        }
        WireReply::Error { id, code, message } => write_error(out, *id, *code, clip(message)),
        WireReply::Goodbye { reason } => {
            let reason = clip(reason);
            let mut writer = FrameWriter::begin(out, SMALL_FRAME_BYTES + reason.len());
            writer.array(3);
            writer.unsigned(GOODBYE);
            writer.nil();
            writer.text(reason);
            finish_clipped(writer);
        }
    }
}

/// Appends the ERROR for a fault, or nothing if the fault is silent.
pub fn encode_fault(out: &mut Vec<u8>, fault: &Fault) {
    if fault.silent {
        return;
    }
    let mut message = ArrayString::<FAULT_BYTES_MAX>::new();
    // A text that does not fit ends after its last whole piece.
    let _ = write!(message, "{fault}");
    write_error(out, fault.id, fault.code, &message);
}

/// Appends a decision as a whole frame. If it would be too large, omits `all`, then `notes`, then `help`.
#[inline]
pub fn encode_decision(out: &mut Vec<u8>, decision: &DecisionReply<'_>) {
    if !write_decision(out, decision) {
        encode_shortened(out, *decision);
    }
}

#[cold]
#[inline(never)]
fn encode_shortened(out: &mut Vec<u8>, decision: DecisionReply<'_>) {
    let mut cut = DecisionReply { all: None, ..decision };
    if write_decision(out, &cut) {
        return;
    }
    cut.notes = &[];
    if write_decision(out, &cut) {
        return;
    }
    // Names have bounds: only a help text of kilobytes gets here.
    cut.help = None;
    cut.rule = cut.rule.map(clip);
    cut.unit = cut.unit.map(clip);
    cut.rate = None;
    let _fits = write_decision(out, &cut);
}

#[inline]
#[must_use]
fn write_decision(out: &mut Vec<u8>, decision: &DecisionReply<'_>) -> bool {
    let room = DECISION_BYTES + decision.rule.map_or(0, str::len);
    let mut writer =
        FrameWriter::begin_with(out, room, DECISION_HEAD, decision.id, decision.verdict.number());
    writer.optional_text(decision.rule);
    let DecisionReply { limit, window_us, remaining, reset_us, retry_us, lease, .. } = *decision;
    let is_plain = decision.notes.is_empty() && decision.all.is_none() && !has_extra(decision);
    if is_plain && retry_us == Some(0) && lease.is_none() {
        // The common case: no wait, and nil for lease, notes, all and extra.
        writer.optional_unsigneds([limit, window_us, remaining, reset_us], [0, NIL, NIL, NIL, NIL]);
        return writer.finish();
    }
    writer.optional_unsigneds([limit, window_us, remaining, reset_us, retry_us, lease], []);
    write_rest(&mut writer, *decision);
    writer.finish()
}

/// By value: a reference would force every decision into memory, including those without a rest.
#[inline(never)]
fn write_rest(writer: &mut FrameWriter<'_>, decision: DecisionReply<'_>) {
    if decision.notes.is_empty() {
        writer.nil();
    } else {
        write_notes(writer, decision.notes);
    }
    match decision.all {
        None => writer.nil(),
        Some(entries) => write_all(writer, entries),
    }
    if has_extra(&decision) { write_extra(writer, &decision) } else { writer.nil() }
}

#[inline]
fn has_extra(decision: &DecisionReply<'_>) -> bool {
    let DecisionReply { help, hide, unit, rate, blocked, digest, .. } = decision;
    help.is_some() || *hide || unit.is_some() || rate.is_some() || *blocked || digest.is_some()
}

fn write_notes(writer: &mut FrameWriter<'_>, notes: &[(NoteKind, &str)]) {
    writer.array(2 * notes.len());
    for (kind, rule) in notes {
        writer.text(kind.name());
        writer.text(rule);
    }
}

fn write_all(writer: &mut FrameWriter<'_>, entries: &[LimitEntry<'_>]) {
    writer.array(entries.len());
    for entry in entries {
        let (is_node, refuses) = (entry.descriptors > 0, entry.refuses);
        writer.array(5 + usize::from(is_node || refuses) + usize::from(is_node));
        writer.text(entry.rule);
        for number in [entry.limit, entry.window_us, entry.remaining, entry.reset_us] {
            writer.unsigned(number);
        }
        if is_node || refuses {
            writer.boolean(refuses);
        }
        if is_node {
            writer.unsigned(entry.descriptors);
        }
    }
}

fn write_extra(writer: &mut FrameWriter<'_>, decision: &DecisionReply<'_>) {
    let DecisionReply { help, hide, unit, rate, blocked, digest, .. } = *decision;
    let present = [help.is_some(), hide, unit.is_some(), rate.is_some(), blocked, digest.is_some()];
    writer.map(present.into_iter().filter(|is_present| *is_present).count());
    write_text(writer, "help", help);
    write_flag(writer, "hide", hide);
    write_text(writer, "unit", unit);
    write_text(writer, "rate", rate);
    write_flag(writer, "blocked", blocked);
    write_text(writer, "digest", digest);
}

fn write_text(writer: &mut FrameWriter<'_>, key: &str, text: Option<&str>) {
    if let Some(text) = text {
        writer.text(key);
        writer.text(text);
    }
}

fn write_flag(writer: &mut FrameWriter<'_>, key: &str, is_set: bool) {
    if is_set {
        writer.text(key);
        writer.boolean(true);
    }
}

fn write_welcome(out: &mut Vec<u8>, id: u64, version: u64, server: &str, numbers: [u64; 3], mode: Mode) {
    let mut writer = FrameWriter::begin(out, 2 * SMALL_FRAME_BYTES + server.len());
    writer.array(4);
    writer.unsigned(WELCOME);
    writer.unsigned(id);
    writer.unsigned(version);
    writer.map(5);
    writer.text("server");
    writer.text(server);
    for (key, number) in ["boot", "connection", "frame_bytes_max"].into_iter().zip(numbers) {
        writer.text(key);
        writer.unsigned(number);
    }
    writer.text("mode");
    writer.text(mode.name());
    finish_clipped(writer);
}

fn write_error(out: &mut Vec<u8>, id: Option<u64>, code: Code, message: &str) {
    let mut writer = FrameWriter::begin(out, SMALL_FRAME_BYTES + message.len());
    writer.array(4);
    writer.unsigned(ERROR);
    writer.optional_unsigned(id);
    writer.unsigned(u64::from(code.number()));
    writer.text(message);
    finish_clipped(writer);
}

fn finish_clipped(writer: FrameWriter<'_>) {
    let fits = writer.finish();
    debug_assert!(fits, "clipped texts fit");
}

fn clip(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or(text)
}

pub(super) const WELCOME: u64 = 0;
pub(super) const DECISION_KIND: u64 = 1;
pub(super) const DONE: u64 = 2;
pub(super) const ERROR: u64 = 3;
pub(super) const GOODBYE: u64 = 4;

/// An array of 13, and the kind: [`DECISION_KIND`].
const DECISION_HEAD: [u8; 2] = [0x9d, 1];

const NIL: u8 = 0xc0;

const TEXT_BYTES_MAX: usize = 1_024;

/// The buffer for the message of a fault; the longest takes half of it.
const FAULT_BYTES_MAX: usize = 256;

/// Room for a frame of four short elements.
const SMALL_FRAME_BYTES: usize = HEADER_BYTES + 60;

/// Room for a decision without its texts: seven integers of 9 bytes, seven single bytes, the length of the rule, and
/// the bytes written past the end and truncated.
const DECISION_BYTES: usize = HEADER_BYTES + 140;

#[cfg(test)]
mod tests {
    use super::{encode_decision, encode_reply};
    use crate::protocol::{
        Code, DecisionReply, FrameSplit, LimitEntry, NoteKind, ReplyScratch, Verdict, WireReply,
        decode_reply, split_frame,
    };

    #[test]
    fn omits_parts_of_oversized_decisions() {
        let long = "r".repeat(255);
        let entry = LimitEntry {
            rule: &long,
            limit: 1,
            window_us: 1,
            remaining: 1,
            reset_us: 1,
            refuses: true,
            descriptors: 1,
        };
        let (few, many) = ([entry; 2], [entry; 64]);
        let (note, notes) = ([(NoteKind::Near, &*long)], [(NoteKind::Near, &*long); 64]);
        let help = "h".repeat(20_000);
        // Entries, notes and bytes of help before encoding, and those that arrive.
        let table = [
            (&few[..], &note[..], &help[..9], (Some(2), 1, Some(9))),
            (&many[..], &note[..], &help[..9], (None, 1, Some(9))),
            (&few[..], &notes[..], &help[..9], (None, 0, Some(9))),
            (&many[..], &notes[..], &help[..9], (None, 0, Some(9))),
            (&few[..], &note[..], &help[..], (None, 0, None)),
        ];
        for (all, notes, help, expected) in table {
            let mut out = Vec::new();
            let decision = DecisionReply::new(7, Verdict::Limit);
            encode_decision(&mut out, &DecisionReply { all: Some(all), notes, help: Some(help), ..decision });
            let FrameSplit::Frame { payload, consumed } = split_frame(&out) else { panic!("{expected:?}") };
            assert_eq!(consumed, out.len());
            let mut scratch = ReplyScratch::default();
            let Ok(WireReply::Decision(read)) = decode_reply(payload, &mut scratch) else {
                panic!("{expected:?}")
            };
            assert_eq!((read.all.map(<[_]>::len), read.notes.len(), read.help.map(str::len)), expected);
        }
    }

    #[test]
    fn clips_long_text_at_character_boundary() {
        let message = "é".repeat(20_000);
        let mut out = Vec::new();
        encode_reply(&mut out, &WireReply::Error { id: None, code: Code::Internal, message: &message[..] });
        let FrameSplit::Frame { payload, .. } = split_frame(&out) else { panic!("a frame was written") };
        let mut scratch = ReplyScratch::default();
        let Ok(WireReply::Error { message, .. }) = decode_reply(payload, &mut scratch) else {
            panic!("an ERROR")
        };
        assert_eq!(message, "é".repeat(512));
    }
}
