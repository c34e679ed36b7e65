//! Remote checks: a pending request becomes a ticket with its missing tokens, the reply is added to the
//! shares of this host, and the request is judged again. Nothing blocks here.

use super::Engine;
use super::decider::Decider;
use super::decision::EngineAnswer;
use super::fleet::SharedKey;
use super::places::ClaimedPlace;
use super::request::Request;
use crate::clock::{Micros, Now, Timestamp};
use crate::limit::share;
use arrayvec::ArrayVec;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// The tokens and permits that one request lacks; all are granted, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// One entry per key.
    pub needs: ArrayVec<Need, NEEDS_MAX>,
    /// The longest wait for the reply: the shortest limit of all rules involved.
    pub patience: Duration,
}

/// The missing amount of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The key.
    pub key: SharedKey,
    /// The missing units.
    pub lacks: u32,
    /// Whether this is a permit of a fleet concurrency limit.
    pub is_place: bool,
}

/// The reply to a remote check, on its way into the shares of this host. Dropping it unused returns its
/// tokens.
#[derive(Debug)]
pub struct CheckReply {
    engine: Arc<Engine>,
    told: Vec<CheckOutcome>,
    /// Permits that are reserved for the pending request.
    places: Vec<ClaimedPlace>,
    at: Now,
}

#[derive(Clone, Copy, Debug)]
struct CheckOutcome {
    key: SharedKey,
    brought: share::KeyCheckReply,
}

/// The result of a remote check.
#[derive(Debug)]
pub enum CallResult<'t> {
    /// A reply arrived in time.
    Brought(CheckReply),
    /// No reply arrived in time.
    Missed(&'t Ticket),
}

/// Makes remote checks for pending requests.
pub trait RemoteChecker: Send + Sync + Debug {
    /// Starts a remote check that is pointless after `due`, without blocking. Returns false if no more can be
    /// taken.
    fn ask(&self, ticket: Arc<Ticket>, due: Timestamp, on_brought: OnBrought) -> bool;
}

/// A shared [`RemoteChecker`].
pub type SharedRemoteChecker = Arc<dyn RemoteChecker>;

/// Receives the reply; `None`: no command was sent.
pub type OnBrought = Box<dyn FnOnce(Option<CheckReply>) + Send>;

impl CheckReply {
    /// Makes an empty reply.
    #[must_use]
    pub fn new(engine: &Arc<Engine>, at: Now) -> CheckReply {
        CheckReply { engine: Arc::clone(engine), told: Vec::new(), places: Vec::new(), at }
    }

    /// Adds a permit that is reserved for the pending request.
    pub fn place(&mut self, place: ClaimedPlace) {
        self.places.push(place);
    }

    /// Adds a granted need: `level` units are left, in millionths; the command was sent at `sent`.
    pub fn paid(&mut self, need: &Need, level: i64, sent: Timestamp) {
        self.add(
            need,
            share::KeyCheckReply { granted: need.lacks, level, refused: None, sent, more: None, paid_us: 0 },
        );
    }

    /// Adds a refused need, with the time until it may be granted; `None`: never.
    pub fn refused(&mut self, need: &Need, wait: Option<Micros>, level: i64, sent: Timestamp) {
        let refused = Some((need.lacks, wait));
        self.add(need, share::KeyCheckReply { granted: 0, level, refused, sent, more: None, paid_us: 0 });
    }

    /// Adds a need that was not charged because another one was refused.
    pub fn not_taken(&mut self, need: &Need, level: i64, sent: Timestamp) {
        self.add(
            need,
            share::KeyCheckReply { granted: 0, level, refused: None, sent, more: None, paid_us: 0 },
        );
    }

    /// Extends the last entry for a window: when more tokens become available, and the time of the reply by
    /// the clock of Redis, in microseconds.
    pub fn of_window(&mut self, more: Option<share::More>, now_us: u64) {
        if let Some(CheckOutcome { brought, .. }) = self.told.last_mut() {
            (brought.more, brought.paid_us) = (more, now_us);
        }
    }

    /// Sets the time of the reply.
    #[must_use]
    pub fn at(mut self, at: Now) -> CheckReply {
        self.at = at;
        self
    }

    fn add(&mut self, need: &Need, brought: share::KeyCheckReply) {
        self.told.push(CheckOutcome { key: need.key, brought });
    }

    /// Releases reserved permits for any request.
    fn let_go_of_places(&mut self) {
        self.places.drain(..).for_each(|place| self.engine.unclaim_place(&place, self.at));
    }

    /// Applies all entries to the shares of this host and returns them.
    fn tell(
        &mut self,
        how: impl Fn(&mut share::Share, &share::ShareQuota, &share::KeyCheckReply),
    ) -> Vec<CheckOutcome> {
        let told = std::mem::take(&mut self.told);
        let (budgets, now) = (self.engine.budgets(), self.at);
        for CheckOutcome { key, brought } in &told {
            // A removed rule has no share.
            let Some(budget) = budgets.get(&key.budget()) else { continue };
            self.engine.change_share(key, budget, now, |share, quota| how(share, quota, brought));
        }
        told
    }
}

impl Drop for CheckReply {
    fn drop(&mut self) {
        let now = self.at.at;
        let told = self.tell(|share, quota, brought| share.bring_back(quota, now, brought));
        for CheckOutcome { key, brought } in told.iter().filter(|told| told.brought.granted > 0) {
            self.engine.fleet.returned.note(key, brought.paid_us);
        }
        self.let_go_of_places();
    }
}

/// Returns granted tokens that the judged request left unused.
fn hand_back(engine: &Engine, told: &[CheckOutcome], now: Now) {
    let paid = told.iter().filter(|told| told.brought.granted > 0);
    let budgets = engine.budgets();
    for CheckOutcome { key, brought } in paid {
        let Some(budget) = budgets.get(&key.budget()) else { continue };
        let goes_back = engine.change_share(key, budget, now, |share, _| {
            let before = share.look(now.at).returns;
            share.hand_back(now.at, brought.granted);
            share.look(now.at).returns > before
        });
        if goes_back {
            engine.fleet.returned.note(key, brought.paid_us);
        }
    }
}

/// Judges a request again with the result of its remote check. The answer may be another remote check.
pub(super) fn resume<'d>(
    decider: &'d mut Decider,
    engine: &Arc<Engine>,
    request: &Request<'_>,
    result: CallResult<'_>,
    now: Now,
) -> EngineAnswer<'d> {
    match result {
        CallResult::Brought(mut brought) => {
            brought.at = now;
            let told = brought.tell(|share, quota, brought| share.bring(quota, now.at, brought));
            // The request is judged immediately below.
            brought.let_go_of_places();
            let answer = decider.decide(request, now);
            hand_back(engine, &told, now);
            answer
        }
        CallResult::Missed(ticket) => {
            let kept = miss(engine, ticket, now);
            let answer = decider.decide(request, now);
            let budgets = engine.budgets();
            for (key, kept) in kept {
                let Some(budget) = budgets.get(&key.budget()) else { continue };
                engine.change_share(&key, budget, now, |share, _| share.judged(kept));
            }
            answer
        }
    }
}

/// Applies the local fallback of each key after a missed reply and reserves the admitted tokens for the
/// request that is judged next. Returns the reserved amounts.
fn miss(engine: &Engine, ticket: &Ticket, now: Now) -> ArrayVec<(SharedKey, u32), NEEDS_MAX> {
    let budgets = engine.budgets();
    let miss = |need: &Need| {
        let budget = budgets.get(&need.key.budget())?;
        let kept =
            engine.change_share(&need.key, budget, now, |share, quota| share.miss(quota, now.at, need.lacks));
        (kept > 0).then_some((need.key, kept))
    };
    ticket.needs.iter().filter_map(miss).collect()
}

/// The most keys per ticket, as one command takes no more. A request that lacks more is refused.
pub const NEEDS_MAX: usize = 8;
