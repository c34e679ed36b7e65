//! Answers the frames of one connection in batches: the frames of one read are answered together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use tracing::{error, warn};

use super::ServerState;
use super::membership::{ConnectionInfo, HelloRefusal, Membership};
use super::memory_charge::MemoryCharge;
use super::pending::PendingRequests;
use super::request::{RemoteCheck, RequestContext, write_done};
use super::telemetry::ClientKind;
use crate::clock::{Now, Timestamp};
use crate::engine::{AccountUse, Decider, KnownSelection, RemoteCheckResult, Shortfalls, Unmatched};
use crate::protocol::{
    Code, DescriptorList, FRAME_BYTES_MAX, Fault, FrameShape, FrameSplit, RequestFrame, VERSION, WireReply,
    decode_first, decode_request, encode_fault, encode_reply, split_frame,
};

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BatchResult {
    /// Bytes of the buffer that are answered.
    pub(super) consumed: usize,
    pub(super) next: NextStep,
    /// The start of the batch.
    pub(super) at: Timestamp,
}

/// The next step of a connection after a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Write the replies, yield to other connections, and answer another batch.
    #[default]
    Continue,
    /// Like `Continue`, but keep the replies: frames that were read together are answered in one write.
    Pause,
    /// No complete frame is left: write and read. The incomplete frame, if any, has this length.
    Read { frame_bytes: usize },
    /// Write the replies and close the connection.
    Close,
}

#[derive(Debug)]
pub(super) struct FrameHandler {
    /// The membership in the session, once HELLO is answered. It drops first, so that its leases are free when the
    /// connection is seen to close.
    member: Option<Membership>,
    shared: Arc<ServerState>,
    info: ConnectionInfo,
    grants: UnwrittenGrants,
    domains: SeenDomains,
    shape: FrameShape,
    /// What requests of that shape match.
    known_selection: KnownSelection,
    pub(super) pending: PendingRequests,
}

impl FrameHandler {
    /// Makes the handler of a connection whose HELLO was not received yet.
    pub(super) fn new(shared: Arc<ServerState>, info: ConnectionInfo) -> FrameHandler {
        let charge = MemoryCharge::new(&shared.engine, info.user, AccountUse::PendingRequests);
        FrameHandler {
            member: None,
            shared,
            info,
            grants: UnwrittenGrants::default(),
            domains: SeenDomains::default(),
            shape: FrameShape::default(),
            known_selection: KnownSelection::default(),
            pending: PendingRequests::new(charge),
        }
    }

    /// Whether HELLO was received and answered.
    pub(super) fn is_greeted(&self) -> bool {
        self.member.is_some()
    }

    /// Takes back the leases whose replies are incomplete after `written` bytes. Called when no more will be written.
    pub(super) fn revoke_unwritten(&mut self, written: usize) {
        if let Some(member) = &self.member {
            if written > 0 {
                member.count_missed();
            }
            for lease in self.grants.drain_unwritten(written) {
                let now = self.shared.clock.now();
                self.shared.engine.revoke_lease(&member.session, lease, now);
                member.record_dropped(lease, now.at);
            }
        }
    }

    /// Answers the complete frames in `buffer`, as many as one batch may have.
    pub(super) fn answer_batch(
        &mut self,
        decider: &mut Decider,
        buffer: &[u8],
        replies: &mut Vec<u8>,
    ) -> BatchResult {
        let now = self.shared.clock.now();
        let timed = decider.should_time_decision();
        let (mut consumed, mut answered, mut effort) = (0, 0, 0);
        let next = loop {
            if answered == FRAMES_PER_BATCH || replies.len() >= REPLY_BYTES_PER_BATCH {
                break NextStep::Continue;
            }
            if effort >= EFFORT_PER_CLOCK_READ {
                if self.shared.clock.now().at.since(now.at) >= BATCH_TIME_MAX {
                    break NextStep::Pause;
                }
                effort = 0;
            }
            match split_frame(buffer.get(consumed..).unwrap_or_default()) {
                FrameSplit::Frame { payload, consumed: frame } => {
                    consumed += frame;
                    effort += FRAME_EFFORT + frame;
                    answered += 1;
                    if self.shape.is_outdated() {
                        self.shape.learn(payload);
                        self.known_selection = KnownSelection::default();
                    }
                    if let AfterFrame::Close = self.answer_frame(decider, payload, replies, now) {
                        break NextStep::Close;
                    }
                }
                FrameSplit::More { needed } => break NextStep::Read { frame_bytes: needed },
                FrameSplit::Broken(fault) => {
                    answered += 1;
                    self.shared.options.telemetry.count_error(fault.code);
                    encode_fault(replies, &fault);
                    break NextStep::Close;
                }
            }
        };
        if timed && answered > 0 {
            let took = self.shared.clock.now().at.nanos_since(now.at);
            decider.record_duration(took, answered);
        }
        BatchResult { consumed, next, at: now.at }
    }

    fn answer_frame(
        &mut self,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
    ) -> AfterFrame {
        let check = RemoteCheck { result: None, may_wait: self.shared.options.remote_checker.is_some() };
        match self.answer_checked(decider, payload, replies, now, check) {
            AfterFrame::Wait(id, shortfalls) => {
                self.defer(decider, payload, replies, now, (id, &shortfalls), false)
            }
            after => after,
        }
    }

    /// Answers a request, possibly with the result of its remote check. A panic closes this connection only.
    #[inline]
    fn answer_checked(
        &mut self,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
        check: RemoteCheck<'_>,
    ) -> AfterFrame {
        let begin = replies.len();
        let mut id = None;
        let answer = AssertUnwindSafe(|| self.answer_request(&mut id, decider, payload, replies, now, check));
        if let Ok(after) = catch_unwind(answer) {
            return after;
        }
        replies.truncate(begin);
        decider.count_panic();
        self.shared.options.telemetry.count_error(Code::Internal);
        error!("a request panicked: its connection is closed, others are not affected");
        let message = "the daemon failed to answer this";
        encode_reply(replies, &WireReply::Error { id, code: Code::Internal, message });
        // The protocol keeps a connection open after `internal`, but after a panic its state is unknown.
        AfterFrame::Close
    }

    /// Answers a request. Sets `id` as soon as it is decoded, for the reply after a panic.
    #[inline]
    fn answer_request(
        &mut self,
        id: &mut Option<u64>,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
        check: RemoteCheck<'_>,
    ) -> AfterFrame {
        let Some(member) = &self.member else { return self.handle_first(payload, replies, now) };
        let grants = &mut self.grants;
        let mut descriptors = DescriptorList::new();
        let shaped = self.shape.read(payload, &mut descriptors);
        let decoded = shaped.ok_or_else(|| decode_request(payload, &mut descriptors));
        *id = match &decoded {
            Ok(check) => Some(check.id),
            Err(whole) => whole.as_ref().ok().and_then(RequestFrame::id),
        };
        if check.result.is_none() && id.is_some_and(|id| self.pending.has_id(id)) {
            self.shared.write_error(*id, Code::Invalid, ID_IN_FLIGHT, replies);
            return AfterFrame::Continue;
        }
        let context = RequestContext { client: member, payload, descriptors: &descriptors, now };
        let mut request = match &decoded {
            Ok(check) => context.shaped_request(check, &self.known_selection),
            Err(Ok(RequestFrame::Check(op, frame))) => {
                if check.result.is_none() {
                    context.apply_reports(&frame.options);
                }
                context.check_request(*op, frame)
            }
            Err(Ok(RequestFrame::Charge(charge))) => return context.charge(charge, decider, replies),
            Err(Ok(RequestFrame::Ping { id })) => return write_done(Some(*id), true, replies),
            Err(Ok(RequestFrame::Hello(hello))) => {
                return self.write_fault(&Fault::second_hello(hello.id), replies);
            }
            Err(Ok(RequestFrame::Release { id, lease, outcome })) => {
                return context.release(*id, *lease, *outcome, replies);
            }
            Err(Ok(RequestFrame::Renew { id, lease })) => return context.renew(*id, *lease, replies),
            Err(Ok(RequestFrame::Signal { id, pool, name, permille })) => {
                return context.signal(*id, pool, name, *permille, replies);
            }
            Err(Err(fault)) => return self.write_fault(fault, replies),
        };
        request.may_wait = check.may_wait;
        self.domains.add(request.domain, &self.shared, self.info.user);
        let after = context.decide(&request, check.result, decider, replies, grants);
        let AfterFrame::Unmatched(reason) = after else { return after };
        self.domains.log_unmatched(reason, request.domain, &descriptors, &self.shared, self.info.user);
        AfterFrame::Continue
    }

    /// Keeps a request until its remote check completes. If it cannot wait, it is decided at once, as after a timeout of
    /// the check.
    #[cold]
    #[inline(never)]
    fn defer(
        &mut self,
        decider: &mut Decider,
        payload: &[u8],
        replies: &mut Vec<u8>,
        now: Now,
        (id, shortfalls): (u64, &Arc<Shortfalls>),
        is_second: bool,
    ) -> AfterFrame {
        if let Some(remote_checker) = &self.shared.options.remote_checker {
            match self.pending.add(payload, (id, shortfalls), is_second, now.at, remote_checker) {
                Ok(()) => return AfterFrame::Continue,
                Err(reason) => self.shared.count_not_pending(reason),
            }
        }
        let check = RemoteCheck { result: Some(RemoteCheckResult::TimedOut(shortfalls)), may_wait: false };
        self.answer_checked(decider, payload, replies, now, check)
    }

    /// Answers the pending requests whose remote checks have completed or timed out, or `all` pending requests. Returns
    /// false if the connection must close.
    #[cold]
    #[inline(never)]
    pub(super) fn answer_pending(&mut self, all: bool, decider: &mut Decider, replies: &mut Vec<u8>) -> bool {
        let now = self.shared.clock.now();
        for (pending, borrowed) in self.pending.take_ready(all, now.at) {
            let may_wait = borrowed.is_some() && !pending.is_second && !all;
            let result = borrowed
                .map_or(RemoteCheckResult::TimedOut(&pending.shortfalls), RemoteCheckResult::Borrowed);
            let check = RemoteCheck { result: Some(result), may_wait };
            let mut after = self.answer_checked(decider, &pending.payload, replies, now, check);
            if let AfterFrame::Wait(id, shortfalls) = after {
                // Another request has spent the borrowed tokens: the request waits for a second check, and for no third.
                after = self.defer(decider, &pending.payload, replies, now, (id, &shortfalls), true);
            }
            if let AfterFrame::Close = after {
                return false;
            }
        }
        true
    }

    /// Handles the first frame, which must be HELLO.
    fn handle_first(&mut self, payload: &[u8], replies: &mut Vec<u8>, now: Now) -> AfterFrame {
        let hello = match decode_first(payload) {
            Ok(hello) => hello,
            Err(fault) => return self.write_fault(&fault, replies),
        };
        let shared = &self.shared;
        let library = ClientKind::parse(hello.client);
        let member = match Membership::join(shared, &self.info, &hello, library, now) {
            Ok(member) => member,
            Err(HelloRefusal(code, message)) => {
                shared.write_error(Some(hello.id), code, &message, replies);
                return if code.closes() { AfterFrame::Close } else { AfterFrame::Continue };
            }
        };
        member.note_missed(&hello.missed);
        member.abandon_requests(&hello.abandoned, now);
        let welcome = WireReply::Welcome {
            id: hello.id,
            version: hello.version.min(VERSION),
            server: SERVER,
            boot: shared.boot,
            connection: hello.connection,
            frame_bytes_max: FRAME_BYTES_MAX as u64,
            mode: shared.engine.mode(),
        };
        encode_reply(replies, &welcome);
        self.member = Some(member);
        AfterFrame::Continue
    }

    fn write_fault(&self, fault: &Fault, replies: &mut Vec<u8>) -> AfterFrame {
        self.shared.options.telemetry.count_error(fault.code);
        encode_fault(replies, fault);
        if fault.code.closes() { AfterFrame::Close } else { AfterFrame::Continue }
    }
}

/// Leases granted in the replies of one batch, each with the end of its reply: one whose reply cannot be written is taken
/// back.
#[derive(Debug, Default)]
pub(super) struct UnwrittenGrants(Vec<UnwrittenGrant>);

#[derive(Clone, Copy, Debug)]
struct UnwrittenGrant {
    lease: u64,
    /// The offset of the end of its reply; `usize::MAX` until the reply is encoded.
    reply_end: usize,
}

impl UnwrittenGrants {
    /// Adds a granted lease whose reply is not encoded yet.
    pub(super) fn add(&mut self, lease: u64) {
        self.0.push(UnwrittenGrant { lease, reply_end: usize::MAX });
    }

    /// Sets the end of the reply to the last lease.
    pub(super) fn set_reply_end(&mut self, reply_end: usize) {
        if let Some(last) = self.0.last_mut() {
            last.reply_end = reply_end;
        }
    }

    /// Removes all leases after `written` bytes of the replies were written. Returns those whose reply is incomplete.
    pub(super) fn drain_unwritten(&mut self, written: usize) -> impl Iterator<Item = u64> {
        self.0.drain(..).filter(move |grant| grant.reply_end > written).map(|grant| grant.lease)
    }
}

/// The domains that a connection has used, so that each is counted once.
#[derive(Debug, Default)]
struct SeenDomains(ArrayVec<SeenDomain, SEEN_DOMAINS_MAX>);

#[derive(Debug)]
struct SeenDomain {
    name: Box<str>,
    /// Whether a request met no rule of it.
    is_unmatched: bool,
}

impl SeenDomains {
    #[inline]
    fn add(&mut self, domain: &str, shared: &ServerState, user: u32) {
        if self.0.last().is_none_or(|last| *last.name != *domain) {
            self.add_new(domain, shared, user);
        }
    }

    /// Adds the user of a domain that has rules.
    #[cold]
    fn add_new(&mut self, domain: &str, shared: &ServerState, user: u32) {
        if self.0.is_full() || self.0.iter().any(|known| *known.name == *domain) {
            return;
        }
        if shared.engine.has_domain(domain) {
            shared.options.telemetry.add_domain_user(domain, user);
        }
        self.0.push(SeenDomain { name: domain.into(), is_unmatched: false });
    }

    /// Logs the first request for a domain without rules, and the first of a domain that no rule matched, by the names of its
    /// attributes.
    #[cold]
    #[inline(never)]
    fn log_unmatched(
        &mut self,
        reason: Unmatched,
        domain: &str,
        descriptors: &DescriptorList<'_>,
        shared: &ServerState,
        user: u32,
    ) {
        let telemetry = &shared.options.telemetry;
        if reason == Unmatched::Domain {
            if telemetry.add_unknown_domain(domain) {
                warn!(user, "not limited: {}", shared.engine.describe_missing(domain));
            }
            return;
        }
        let known = self.0.iter_mut().find(|known| *known.name == *domain);
        if known.is_some_and(|known| std::mem::replace(&mut known.is_unmatched, true)) {
            return;
        }
        let in_force = shared.engine.in_force();
        let describe = || in_force.describe_unmatched(domain, descriptors.attributes());
        if let Some(message) = telemetry.add_unmatched(domain, describe) {
            warn!("not limited: {message}");
        }
    }
}

/// Whether a connection goes on after a frame.
#[derive(Debug)]
pub(super) enum AfterFrame {
    Continue,
    Close,
    /// As `Continue`: nothing limits the request.
    Unmatched(Unmatched),
    /// The request with this id has no reply yet: it waits for a remote check.
    Wait(u64, Arc<Shortfalls>),
}

const SERVER: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));

const ID_IN_FLIGHT: &str = "`id` is that of a request in flight on this connection";

/// Domains remembered for one connection: most applications use one.
const SEEN_DOMAINS_MAX: usize = 4;

/// The most frames of a batch. Their bytes are bounded by the buffer: one frame of the largest size.
const FRAMES_PER_BATCH: u64 = 64;

/// The size of unwritten replies at which a batch ends.
const REPLY_BYTES_PER_BATCH: usize = 64 * 1_024;

/// A batch ends after the frame in which it reaches this time. A full batch of ordinary frames takes 45 µs.
const BATCH_TIME_MAX: Duration = Duration::from_micros(250);

/// The fixed effort of a frame, in bytes that take as long to decode.
const FRAME_EFFORT: usize = 400;

/// The effort of frames after which the clock is read again: at most 16 frames.
const EFFORT_PER_CLOCK_READ: usize = 16 * FRAME_EFFORT;

#[cfg(test)]
mod tests {
    use super::UnwrittenGrants;

    #[test]
    fn drains_leases_with_incomplete_replies() {
        for (written, unwritten) in [
            (0, &[1, 2, 3][..]),
            (19, &[1, 2, 3]),
            (20, &[2, 3]),
            (99, &[2, 3]),
            (100, &[3]),
            // The last lease has no complete reply, however many bytes were written.
            (usize::MAX - 1, &[3]),
        ] {
            let mut grants = UnwrittenGrants::default();
            grants.add(1);
            grants.set_reply_end(20);
            grants.add(2);
            grants.set_reply_end(100);
            grants.add(3);
            let drained: Vec<_> = grants.drain_unwritten(written).collect();
            assert_eq!(drained, unwritten, "{written} bytes written");
            assert_eq!(grants.drain_unwritten(0).count(), 0, "each lease is returned once");
        }
    }
}
