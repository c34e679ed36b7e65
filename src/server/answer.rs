//! Frames in, replies out: what one read brought is answered together.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tracing::error;

use super::Shared;
use crate::clock::Now;
use crate::engine::{self, Answer, Decider, LimitView, Op};
use crate::protocol::{
    self, Code, Decision, Descriptors, Fault, Judge, LimitEntry, Reply, Request, Split, decode_first,
    decode_request, encode_decision, encode_fault, encode_reply, split,
};

/// What became of the bytes that were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Bytes that are done with.
    pub(super) consumed: usize,
    /// What comes next.
    pub(super) next: Next,
}

/// What a connection does once its replies are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Next {
    /// Another frame may be there already: let the other connections have a turn, then go on.
    #[default]
    Continue,
    /// No whole frame is left: read. The one that has begun, if one has, is this long in all.
    Read { frame_bytes: usize },
    /// The connection is of no more use.
    Close,
}

/// One connection's way to its answers.
#[derive(Debug, Default)]
pub(super) struct Peer {
    greeted: bool,
}

impl Peer {
    /// Whether HELLO was said and answered.
    pub(super) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Answers as many whole frames as fit into one turn.
    pub(super) fn answer(
        &mut self,
        shared: &Shared,
        decider: &mut Decider,
        buffer: &[u8],
        replies: &mut Vec<u8>,
    ) -> Turn {
        let now = shared.clock.now();
        let mut consumed = 0;
        for _ in 0..FRAMES_A_TURN {
            if replies.len() >= REPLY_BYTES_A_TURN {
                break;
            }
            match split(buffer.get(consumed..).unwrap_or_default()) {
                Split::Frame { payload, consumed: frame } => {
                    consumed += frame;
                    if self.answer_frame(shared, decider, payload, replies, now) == Standing::Ended {
                        return Turn { consumed, next: Next::Close };
                    }
                }
                Split::More { needed } => return Turn { consumed, next: Next::Read { frame_bytes: needed } },
                Split::Broken(fault) => {
                    encode_fault(replies, &fault);
                    return Turn { consumed, next: Next::Close };
                }
            }
        }
        Turn { consumed, next: Next::Continue }
    }

    fn answer_frame(
        &mut self,
        shared: &Shared,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
    ) -> Standing {
        if !self.greeted {
            return self.greet(shared, payload, replies);
        }
        let mut descriptors = Descriptors::new();
        match decode_request(payload, &mut descriptors) {
            Ok(Request::Hit(judge) | Request::Acquire(judge)) => {
                judge_request(shared, decider, Op::Hit, &judge, &descriptors, replies, now)
            }
            Ok(Request::Peek(judge)) => {
                judge_request(shared, decider, Op::Peek, &judge, &descriptors, replies, now)
            }
            Ok(Request::Ping { id }) => {
                encode_reply(replies, &Reply::Done { id, ok: true });
                Standing::Kept
            }
            Ok(Request::Hello(hello)) => refuse(&Fault::second_hello(hello.id), replies),
            Ok(Request::Renew { id, .. }) => not_supported(Some(id), "RENEW", replies),
            Ok(Request::Release { id, .. }) => not_supported(id, "RELEASE", replies),
            Ok(Request::Signal { id, .. }) => not_supported(id, "SIGNAL", replies),
            Ok(Request::Charge(charge)) => {
                // The report that rides on it has arrived all the same.
                shared.missed.report(&charge.options.missed);
                not_supported(charge.id, "CHARGE", replies)
            }
            Err(fault) => refuse(&fault, replies),
        }
    }

    /// The first frame: HELLO and nothing else.
    fn greet(&mut self, shared: &Shared, payload: &[u8], replies: &mut Vec<u8>) -> Standing {
        match decode_first(payload) {
            Ok(hello) => {
                encode_reply(replies, &shared.greeting.welcome(&hello));
                shared.missed.report(&hello.missed);
                self.greeted = true;
                Standing::Kept
            }
            Err(fault) => refuse(&fault, replies),
        }
    }
}

/// Whether a connection goes on after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Kept,
    Ended,
}

fn refuse(fault: &Fault, replies: &mut Vec<u8>) -> Standing {
    encode_fault(replies, fault);
    if fault.code.closes() { Standing::Ended } else { Standing::Kept }
}

/// What the protocol has and this daemon has not yet. Whoever wants no reply gets none.
fn not_supported(id: Option<u64>, op: &str, replies: &mut Vec<u8>) -> Standing {
    if id.is_some() {
        let message = format!("{op} is not supported yet");
        encode_reply(replies, &Reply::Error { id, code: Code::Invalid, message: &message });
    }
    Standing::Kept
}

/// Judges, and writes what comes of it. A panic on the way concerns this connection alone.
fn judge_request(
    shared: &Shared,
    decider: &mut Decider,
    op: Op,
    judge: &Judge<'_>,
    descriptors: &Descriptors<'_>,
    replies: &mut Vec<u8>,
    now: Now,
) -> Standing {
    shared.missed.report(&judge.options.missed);
    let cost = match &judge.cost {
        protocol::Cost::Requests(cost) => engine::Cost::Requests(*cost),
        protocol::Cost::Units(named) => engine::Cost::Units(named),
    };
    let attributes = descriptors.attributes();
    let request = engine::Request { op, domain: judge.domain, attributes, cost, all: judge.options.all };
    let begin = replies.len();
    let judged = catch_unwind(AssertUnwindSafe(|| {
        let Answer::Decided(decision) = decider.decide(&request, now);
        write_decision(replies, judge, &decision);
    }));
    if judged.is_ok() {
        return Standing::Kept;
    }
    replies.truncate(begin);
    decider.panicked();
    error!("a judgement panicked: its connection is closed, nothing else is touched");
    let message = "the daemon failed to judge this";
    encode_reply(replies, &Reply::Error { id: Some(judge.id), code: Code::Internal, message });
    // The protocol keeps a connection after `internal`; after a panic nobody vouches for this one.
    Standing::Ended
}

fn write_decision(replies: &mut Vec<u8>, judge: &Judge<'_>, decision: &engine::Decision<'_>) {
    let notes: Vec<_> = decision.notes().map(|(kind, rule)| (note_kind(kind), rule)).collect();
    let all: Option<Vec<_>> = judge.options.all.then(|| decision.all().map(limit_entry).collect());
    let mut reply = Decision {
        retry_us: decision.retry.map(|retry| retry.0),
        notes: &notes,
        all: all.as_deref(),
        ..Decision::new(judge.id, verdict(decision.verdict))
    };
    if let Some(LimitView { rule, level }) = decision.binding {
        reply.rule = Some(&rule.name);
        reply.limit = Some(level.limit);
        reply.window_us = Some(level.window.0);
        reply.remaining = Some(level.remaining);
        reply.reset_us = Some(level.reset.0);
        reply.help = rule.help.as_deref();
    }
    encode_decision(replies, &reply);
}

impl engine::UnitCosts for protocol::Units<'_> {
    fn of(&self, unit: &str) -> Option<u32> {
        self.iter().find(|(name, _)| *name == unit).map(|(_, cost)| cost)
    }
}

fn limit_entry(view: LimitView<'_>) -> LimitEntry<'_> {
    LimitEntry {
        rule: &view.rule.name,
        limit: view.level.limit,
        window_us: view.level.window.0,
        remaining: view.level.remaining,
        reset_us: view.level.reset.0,
    }
}

fn verdict(verdict: engine::Verdict) -> protocol::Verdict {
    match verdict {
        engine::Verdict::Allow => protocol::Verdict::Allow,
        engine::Verdict::Limit => protocol::Verdict::Limit,
    }
}

fn note_kind(kind: engine::NoteKind) -> protocol::NoteKind {
    match kind {
        engine::NoteKind::Shadow => protocol::NoteKind::Shadow,
    }
}

/// Frames answered before other connections have their turn: a flood on one holds the rest up for some 30 µs.
const FRAMES_A_TURN: usize = 64;

/// Replies waiting to be written. One more than this is never begun.
const REPLY_BYTES_A_TURN: usize = 64 * 1_024;
