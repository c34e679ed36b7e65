//! Frames in, replies out: what one read brought is answered together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use tracing::error;

use super::Shared;
use super::grants::Grants;
use super::held::Held;
use super::judge::{Asking, Waits};
use super::membership::{Line, Membership};
use super::parked::Parked;
use super::processes::SessionKey;
use super::telemetry::Client;
use crate::clock::{Now, Timestamp};
use crate::engine::{CallResult, Decider, Op, Ticket, Use};
use crate::protocol::{
    Code, Descriptors, Fault, Hello, Reply, Request, Split, decode_first, decode_request, encode_fault,
    encode_reply, split,
};
use crate::record::SESSION_BYTES;

/// What became of the bytes that were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// Bytes that are done with.
    pub(super) consumed: usize,
    /// What comes next.
    pub(super) next: Next,
    /// When it began.
    pub(super) at: Timestamp,
}

/// What a connection does once its replies are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Next {
    /// Another frame may be there already: let the other connections have a turn, then go on.
    #[default]
    Continue,
    /// The same, and the replies so far are held: frames that were read together are answered in one write.
    Pause,
    /// No whole frame is left: read. The one that has begun, if one has, is this long in all.
    Read { frame_bytes: usize },
    /// The connection is of no more use.
    Close,
}

/// One connection's way to its answers.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its place in its session, once HELLO was said and answered. It drops first: whoever sees the connection end finds
    /// free what it held.
    member: Option<Membership>,
    shared: Arc<Shared>,
    line: Line,
    /// Whether some domain is not open to the user at the other end.
    confined: bool,
    /// Who asks, for the names of repeated requests: the session that HELLO names, else the connection itself.
    named: [u8; SESSION_BYTES],
    grants: Grants,
    asked: Asked,
    /// Requests that wait for calls.
    pub(super) parked: Parked,
    /// What it is written in, as HELLO says.
    client: Client,
}

impl Peer {
    /// A peer that has yet to say HELLO.
    pub(super) fn new(shared: Arc<Shared>, line: Line) -> Peer {
        let named = SessionKey::new(None, line.user, line.number).named();
        let confined = shared.access.confines(line.user);
        let held = Held::nothing(Arc::clone(&shared), line.user, Use::Waits);
        let (grants, parked) = (Grants::default(), Parked::new(held));
        let asked = Asked::default();
        Peer { member: None, shared, line, confined, named, grants, asked, parked, client: Client::Other }
    }

    /// Whether HELLO was said and answered.
    pub(super) fn is_greeted(&self) -> bool {
        self.member.is_some()
    }

    /// So many bytes of the replies have been written, and no more will be.
    pub(super) fn told(&mut self, written: usize) {
        if let Some(member) = &self.member {
            for lease in self.grants.untold(written) {
                let now = self.shared.clock.now();
                self.shared.engine.take_back(member.session(), lease, now);
                member.note_dropped(&[lease], now.at);
            }
        }
    }

    /// Answers as many whole frames as fit into one turn.
    pub(super) fn answer(&mut self, decider: &mut Decider, buffer: &[u8], replies: &mut Vec<u8>) -> Turn {
        let now = self.shared.clock.now();
        let timed = decider.is_timed();
        let (turn, answered) = self.answer_at(now, decider, buffer, replies);
        if timed && answered > 0 {
            let took = self.shared.clock.now().at.as_nanos().saturating_sub(now.at.as_nanos());
            decider.took(took, answered);
        }
        turn
    }

    /// The same at a moment, and how many frames it were.
    fn answer_at(
        &mut self,
        now: Now,
        decider: &mut Decider,
        buffer: &[u8],
        replies: &mut Vec<u8>,
    ) -> (Turn, u64) {
        let mut consumed = 0;
        let mut effort = 0;
        for answered in 0..FRAMES_A_BATCH {
            if replies.len() >= REPLY_BYTES_A_BATCH || effort >= EFFORT_BETWEEN_LOOKS {
                if replies.len() >= REPLY_BYTES_A_BATCH {
                    return (Turn { consumed, next: Next::Continue, at: now.at }, answered);
                }
                if self.shared.clock.now().at.since(now.at) >= BATCH_TIME_MAX {
                    return (Turn { consumed, next: Next::Pause, at: now.at }, answered);
                }
                effort = 0;
            }
            match split(buffer.get(consumed..).unwrap_or_default()) {
                Split::Frame { payload, consumed: frame } => {
                    consumed += frame;
                    effort += FRAME_EFFORT + frame;
                    if self.answer_frame(decider, payload, replies, now) == Standing::Ended {
                        return (Turn { consumed, next: Next::Close, at: now.at }, answered + 1);
                    }
                }
                Split::More { needed } => {
                    return (
                        Turn { consumed, next: Next::Read { frame_bytes: needed }, at: now.at },
                        answered,
                    );
                }
                Split::Broken(fault) => {
                    self.shared.telemetry.error(fault.code);
                    encode_fault(replies, &fault);
                    return (Turn { consumed, next: Next::Close, at: now.at }, answered + 1);
                }
            }
        }
        (Turn { consumed, next: Next::Continue, at: now.at }, FRAMES_A_BATCH)
    }

    fn answer_frame(
        &mut self,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
    ) -> Standing {
        let mut ticket = None;
        let may_wait = self.shared.asker.is_some();
        let call = Waits { result: None, may_wait, ticket: &mut ticket };
        let standing = self.answer_call(decider, payload, replies, now, call);
        match ticket {
            None => standing,
            Some(ticket) => self.park(decider, payload, replies, now, &ticket),
        }
    }

    /// Answers a request that may have waited for a call. A panic on the way ends this connection and nothing else.
    #[inline]
    fn answer_call(
        &mut self,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
        call: Waits<'_>,
    ) -> Standing {
        let begin = replies.len();
        let mut id = None;
        let answer = AssertUnwindSafe(|| self.answer_request(&mut id, decider, payload, replies, now, call));
        if let Ok(standing) = catch_unwind(answer) {
            return standing;
        }
        replies.truncate(begin);
        decider.panicked();
        self.shared.telemetry.error(Code::Internal);
        error!("a request panicked: its connection is closed, nothing else is touched");
        let message = "the daemon failed to answer this";
        encode_reply(replies, &Reply::Error { id, code: Code::Internal, message });
        // The protocol keeps a connection after `internal`; after a panic its state is unknown.
        Standing::Ended
    }

    /// Answers a request, and sets `id` as soon as it is known.
    #[inline]
    fn answer_request(
        &mut self,
        id: &mut Option<u64>,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
        call: Waits<'_>,
    ) -> Standing {
        let Some(member) = &self.member else { return self.greet(payload, replies, now) };
        let grants = &mut self.grants;
        let mut descriptors = Descriptors::new();
        let request = decode_request(payload, &mut descriptors);
        *id = request.as_ref().ok().and_then(Request::id);
        if let Ok(Request::Hit(judge) | Request::Acquire(judge) | Request::Peek(judge)) = &request {
            self.asked.note(judge.domain, &self.shared, self.line.user);
        }
        let asking = Asking {
            shared: &self.shared,
            payload,
            descriptors: &descriptors,
            user: self.line.user,
            confined: self.confined,
            session: member.session(),
            named: &self.named,
            client: self.client,
            now,
        };
        match request {
            Ok(Request::Hit(judge)) => asking.judge(Op::Hit, &judge, call, decider, replies, grants),
            Ok(Request::Acquire(judge)) => asking.judge(Op::Acquire, &judge, call, decider, replies, grants),
            Ok(Request::Peek(judge)) => asking.judge(Op::Peek, &judge, call, decider, replies, grants),
            Ok(Request::Charge(charge)) => asking.charge(&charge, decider, replies),
            Ok(Request::Ping { id }) => {
                encode_reply(replies, &Reply::Done { id, ok: true });
                Standing::Kept
            }
            Ok(Request::Hello(hello)) => self.refuse(&Fault::second_hello(hello.id), replies),
            Ok(Request::Release { id, lease, outcome }) => asking.release(id, lease, outcome, replies),
            Ok(Request::Renew { id, lease }) => asking.renew(id, lease, replies),
            Ok(Request::Signal { id, pool, name, permille }) => {
                asking.signal(id, pool, name, permille, replies)
            }
            Err(fault) => self.refuse(&fault, replies),
        }
    }

    /// Puts a request aside until the call that it needs has come to something. What nobody takes the call for is judged as
    /// if it had not been answered in time.
    #[cold]
    #[inline(never)]
    fn park(
        &mut self,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
        ticket: &Arc<Ticket>,
    ) -> Standing {
        if self.is_parked(payload, ticket, false, now) {
            return Standing::Kept;
        }
        self.answer_missed(decider, payload, replies, now, ticket)
    }

    /// Puts it aside, if that may be.
    fn is_parked(&mut self, payload: &[u8], ticket: &Arc<Ticket>, is_second: bool, now: Now) -> bool {
        let Some(asker) = self.shared.asker.clone() else { return false };
        let parked = self.parked.park(payload, ticket, is_second, now.at, &asker);
        parked.inspect_err(|why| self.shared.note_not_parked(*why, now.at)).is_ok()
    }

    fn answer_missed(
        &mut self,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
        ticket: &Ticket,
    ) -> Standing {
        let result = Some(CallResult::Missed(ticket));
        let call = Waits { result, may_wait: false, ticket: &mut None };
        self.answer_call(decider, payload, replies, now, call)
    }

    /// Answers the requests whose calls have come to something, or `all` that wait. Returns whether the connection goes on.
    #[cold]
    #[inline(never)]
    pub(super) fn answer_parked(&mut self, all: bool, decider: &mut Decider, replies: &mut Vec<u8>) -> bool {
        let now = self.shared.clock.now();
        while let Some((parked, brought)) = self.parked.next(all, now.at) {
            let Some(brought) = brought else {
                if self.answer_missed(decider, &parked.payload, replies, now, &parked.ticket)
                    == Standing::Ended
                {
                    return false;
                }
                continue;
            };
            let mut ticket = None;
            let result = Some(CallResult::Brought(brought));
            let call = Waits { result, may_wait: !parked.is_second && !all, ticket: &mut ticket };
            if self.answer_call(decider, &parked.payload, replies, now, call) == Standing::Ended {
                return false;
            }
            let Some(ticket) = ticket else { continue };
            // Somebody else has taken what was brought: once more, and no more often.
            if !self.is_parked(&parked.payload, &ticket, true, now)
                && self.answer_missed(decider, &parked.payload, replies, now, &ticket) == Standing::Ended
            {
                return false;
            }
        }
        true
    }

    /// The first frame: HELLO and nothing else.
    fn greet(&mut self, payload: &[u8], replies: &mut Vec<u8>, now: Now) -> Standing {
        match decode_first(payload) {
            Ok(hello) => self.join(&hello, replies, now),
            Err(fault) => self.refuse(&fault, replies),
        }
    }

    fn join(&mut self, hello: &Hello<'_>, replies: &mut Vec<u8>, now: Now) -> Standing {
        let shared = &self.shared;
        self.client = Client::of(hello.client);
        shared.report(self.client, &hello.missed);
        let member = match Membership::begin(shared, &self.line, hello, now) {
            Ok(member) => member,
            Err(not) => {
                let (code, message) = (not.code(), not.to_string());
                shared.telemetry.error(code);
                encode_reply(replies, &Reply::Error { id: Some(hello.id), code, message: &message });
                return if code.closes() { Standing::Ended } else { Standing::Kept };
            }
        };
        if !hello.abandoned.is_empty() {
            let ended = shared.engine.abandon(member.session(), &mut hello.abandoned.iter(), now);
            member.note_dropped(&ended, now.at);
        }
        encode_reply(replies, &shared.greeting.welcome(hello, shared.engine.mode()));
        self.named = member.named();
        self.member = Some(member);
        Standing::Kept
    }

    fn refuse(&self, fault: &Fault, replies: &mut Vec<u8>) -> Standing {
        self.shared.telemetry.error(fault.code);
        encode_fault(replies, fault);
        if fault.code.closes() { Standing::Ended } else { Standing::Kept }
    }
}

/// The domains that a connection has asked about, so that each is noted once.
#[derive(Debug, Default)]
struct Asked(ArrayVec<Box<str>, ASKED_MAX>);

impl Asked {
    #[inline]
    fn note(&mut self, domain: &str, shared: &Shared, user: u32) {
        if self.0.last().is_none_or(|last| **last != *domain) {
            self.note_another(domain, shared, user);
        }
    }

    /// A domain that has no rules is no domain: its name is a text of the client's.
    #[cold]
    fn note_another(&mut self, domain: &str, shared: &Shared, user: u32) {
        let is_known = self.0.iter().any(|known| **known == *domain);
        if !is_known && !self.0.is_full() && shared.engine.has_domain(domain) {
            shared.telemetry.asked_about(domain, user);
            self.0.push(domain.into());
        }
    }
}

/// Whether a connection goes on after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Kept,
    Ended,
}

/// Domains of one connection that are noted: most applications ask about one.
const ASKED_MAX: usize = 4;

/// Frames of a batch. Their bytes are bounded by the buffer: one frame of the largest size.
const FRAMES_A_BATCH: u64 = 64;

/// Replies waiting to be written. One more than this is never begun.
const REPLY_BYTES_A_BATCH: usize = 64 * 1_024;

/// A batch ends after the frame in which it reaches this time. A full batch of ordinary frames takes 45 µs.
const BATCH_TIME_MAX: Duration = Duration::from_micros(250);

/// The fixed effort of a frame, in bytes that take as long to decode.
const FRAME_EFFORT: usize = 400;

/// The clock is read each time the frames since the last reading have reached this effort: after at most 16 frames.
const EFFORT_BETWEEN_LOOKS: usize = 16 * FRAME_EFFORT;
