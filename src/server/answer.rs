//! Frames in, replies out: what one read brought is answered together.

use super::Shared;
use super::access::DomainAccess;
use super::judge::Asking;
use crate::clock::Now;
use crate::engine::{Decider, Op};
use crate::protocol::{
    Code, Descriptors, Fault, Reply, Request, Split, decode_first, decode_request, encode_fault,
    encode_reply, split,
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
#[derive(Debug)]
pub(super) struct Peer {
    greeted: bool,
    /// The user at the other end.
    user: u32,
    /// Whether some domain is not open to that user.
    confined: bool,
    /// Who asks: the session that HELLO names, else the connection itself.
    session: [u8; SESSION_BYTES],
}

impl Peer {
    /// A peer that has yet to say HELLO, over a connection of this number.
    pub(super) fn new(user: u32, connection: u64, access: &DomainAccess) -> Peer {
        let session = session_of(false, &connection.to_le_bytes());
        Peer { greeted: false, user, confined: access.confines(user), session }
    }

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
        let request = decode_request(payload, &mut descriptors);
        let asking = Asking {
            shared,
            descriptors: &descriptors,
            user: self.user,
            confined: self.confined,
            session: &self.session,
            now,
        };
        match request {
            Ok(Request::Hit(judge)) => asking.judge(Op::Hit, &judge, decider, replies),
            Ok(Request::Acquire(judge)) => asking.judge(Op::Acquire, &judge, decider, replies),
            Ok(Request::Peek(judge)) => asking.judge(Op::Peek, &judge, decider, replies),
            Ok(Request::Charge(charge)) => asking.charge(&charge, decider, replies),
            Ok(Request::Ping { id }) => {
                encode_reply(replies, &Reply::Done { id, ok: true });
                Standing::Kept
            }
            Ok(Request::Hello(hello)) => refuse(&Fault::second_hello(hello.id), replies),
            Ok(Request::Renew { id, .. }) => not_supported(Some(id), "RENEW", replies),
            Ok(Request::Release { id, .. }) => not_supported(id, "RELEASE", replies),
            Ok(Request::Signal { id, .. }) => not_supported(id, "SIGNAL", replies),
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
                if let Some(session) = hello.session {
                    self.session = session_of(true, &session);
                }
                Standing::Kept
            }
            Err(fault) => refuse(&fault, replies),
        }
    }
}

/// A session by name, or a connection that is its own: neither is ever taken for the other.
fn session_of(named: bool, bytes: &[u8]) -> [u8; SESSION_BYTES] {
    let mut session = [0; SESSION_BYTES];
    let bytes = [u8::from(named)].into_iter().chain(bytes.iter().copied());
    session.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    session
}

/// Whether a connection goes on after a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
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

/// Frames answered before other connections have their turn: a flood on one holds the rest up for some 30 µs.
const FRAMES_A_TURN: usize = 64;

/// Replies waiting to be written. One more than this is never begun.
const REPLY_BYTES_A_TURN: usize = 64 * 1_024;

/// The sixteen of HELLO, and one that says whether HELLO named it.
const SESSION_BYTES: usize = 17;
