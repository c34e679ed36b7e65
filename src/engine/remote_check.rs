//! Remote checks: the missing tokens of a pending request are asked for, the reply is added to the
//! shares of this host, and the request is judged again. Nothing blocks here.

use super::Engine;
use super::decider::Decider;
use super::decision::EngineAnswer;
use super::fleet::SharedKey;
use super::permits::ClaimedPermit;
use super::request::Request;
use crate::clock::{Now, Timestamp};
use crate::limit::share::{self, KeyCheckReply};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The tokens and permits that one request lacks; all are granted, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfalls {
    /// One entry per key.
    pub needs: Vec<Shortfall>,
    /// The longest wait for the reply: the shortest limit of all rules involved.
    pub patience: Duration,
}

/// The missing amount of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The key.
    pub key: SharedKey,
    /// The missing units.
    pub missing_units: u32,
    /// The units that the request costs. This host has those that are not missing.
    pub cost: u32,
    /// Whether this is a permit of a fleet concurrency limit.
    pub is_permit: bool,
}

/// The reply to a remote check, on its way into the shares of this host. Dropping it unused returns its
/// tokens.
#[derive(Debug)]
pub struct CheckReply {
    engine: Arc<Engine>,
    outcomes: Vec<(SharedKey, KeyCheckReply)>,
    permits: Vec<ClaimedPermit>,
    at: Now,
}

/// The result of a remote check.
#[derive(Debug)]
pub enum RemoteCheckResult<'t> {
    /// A reply arrived in time.
    Borrowed(CheckReply),
    /// No reply arrived in time.
    TimedOut(&'t Shortfalls),
}

/// Makes remote checks for pending requests.
pub trait RemoteChecker: Send + Sync + Debug {
    /// Starts a remote check that is pointless after `due`, without blocking. Returns false if no more can be
    /// taken.
    fn start_check(&self, shortfalls: Arc<Shortfalls>, due: Timestamp, on_reply: OnCheckReply) -> bool;
}

/// A shared [`RemoteChecker`].
pub type SharedRemoteChecker = Arc<dyn RemoteChecker>;

/// Receives the reply; `None`: there is none in time. Returns whether the request still waited.
pub type OnCheckReply = Box<dyn FnOnce(Option<CheckReply>) -> bool + Send>;

impl CheckReply {
    /// Makes an empty reply.
    pub fn new(engine: &Arc<Engine>, at: Now) -> CheckReply {
        CheckReply { engine: Arc::clone(engine), outcomes: Vec::new(), permits: Vec::new(), at }
    }

    /// Adds a permit that is reserved for the pending request.
    pub fn add_permit(&mut self, place: ClaimedPermit) {
        self.permits.push(place);
    }

    /// Adds the reply about one key.
    pub fn add(&mut self, key: SharedKey, reply: KeyCheckReply) {
        self.outcomes.push((key, reply));
    }

    /// Sets the time of the reply.
    #[must_use]
    pub fn with_time(mut self, at: Now) -> CheckReply {
        self.at = at;
        self
    }

    /// Applies all entries to the shares of this host and returns them.
    fn apply_outcomes(
        &mut self,
        how: impl Fn(&mut share::ShareState, &share::ShareQuota, &KeyCheckReply),
    ) -> Vec<(SharedKey, KeyCheckReply)> {
        let applied = std::mem::take(&mut self.outcomes);
        for (key, reply) in &applied {
            self.engine.change_share(key, self.at, |share, quota| how(share, quota, reply));
        }
        applied
    }
}

impl Drop for CheckReply {
    fn drop(&mut self) {
        let now = self.at.at;
        let applied = self.apply_outcomes(|share, quota, reply| share.refund_remote_reply(quota, now, reply));
        for (key, reply) in applied.iter().filter(|(_, reply)| reply.granted > 0) {
            self.engine.fleet.refund_times.record_refund(key, reply.paid_us);
        }
        self.permits.drain(..).for_each(|permit| self.engine.unclaim_permit(&permit, self.at));
    }
}

/// Returns granted tokens that the judged request left unused.
fn return_unused_tokens(engine: &Engine, applied: &[(SharedKey, KeyCheckReply)], now: Now) {
    for (key, reply) in applied.iter().filter(|(_, reply)| reply.granted > 0) {
        let goes_back = engine.change_share(key, now, |share, _| {
            let before = share.peek_report(now.at).refund;
            share.refund_unspent(now.at, reply.granted);
            share.peek_report(now.at).refund > before
        });
        if goes_back == Some(true) {
            engine.fleet.refund_times.record_refund(key, reply.paid_us);
        }
    }
}

/// Judges a request again with the result of its remote check. The answer may be another remote check.
pub(super) fn resume<'d>(
    decider: &'d mut Decider,
    engine: &Arc<Engine>,
    request: &Request<'_>,
    result: RemoteCheckResult<'_>,
    now: Now,
) -> EngineAnswer<'d> {
    match result {
        RemoteCheckResult::Borrowed(mut reply) => {
            reply.at = now;
            let applied =
                reply.apply_outcomes(|share, quota, reply| share.apply_remote_reply(quota, now.at, reply));
            let offered = std::mem::take(&mut reply.permits);
            offered.iter().for_each(|permit| engine.offer_permit(permit));
            let answer = decider.decide(request, now);
            offered.iter().for_each(|permit| engine.end_permit_offer(permit, now));
            return_unused_tokens(engine, &applied, now);
            answer
        }
        RemoteCheckResult::TimedOut(shortfalls) => {
            let kept = record_missing_reply(engine, shortfalls, now);
            let answer = decider.decide(request, now);
            for (key, kept) in kept {
                engine.change_share(&key, now, |share, _| share.release_reservation(kept));
            }
            answer
        }
    }
}

/// Applies the local fallback of each key after a missed reply and reserves the admitted tokens for the
/// request that is judged next. Returns the reserved amounts.
fn record_missing_reply(engine: &Engine, shortfalls: &Shortfalls, now: Now) -> Vec<(SharedKey, u32)> {
    let limits = engine.fleet_concurrency_limits();
    for need in shortfalls.needs.iter().filter(|need| need.is_permit) {
        if limits.contains_key(&need.key.budget()) {
            engine.record_unanswered_permit(&need.key, now);
        }
    }
    let miss = |need: &Shortfall| {
        let kept = engine.change_share(&need.key, now, |share, quota| {
            share.apply_timeout(quota, now.at, need.missing_units)
        })?;
        (kept > 0).then_some((need.key, kept))
    };
    shortfalls.needs.iter().filter_map(miss).collect()
}
