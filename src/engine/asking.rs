//! Requests that wait for one call: what they lack goes out as a ticket, what the call brings goes into the shares of this
//! host, and the request is judged again from there. Nothing waits here.

use super::Engine;
use super::decider::Decider;
use super::decision::Answer;
use super::fleet::SharedKey;
use super::places::ClaimedPlace;
use super::request::Request;
use crate::clock::{Micros, Now, Timestamp};
use crate::limit::share;
use arrayvec::ArrayVec;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// What one request lacks: all of it is to be had, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Each of another key.
    pub needs: ArrayVec<Need, NEEDS_MAX>,
    /// How long to wait for it: as long as all that is lacked may be waited for.
    pub patience: Duration,
}

/// What is lacking of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Which key.
    pub key: SharedKey,
    /// How many units.
    pub lacks: u32,
    /// It is a place of a limit on work at once.
    pub is_place: bool,
}

/// What a call has brought, on its way into the shares of this host. If nobody waits for it any more it gets there all the
/// same, and goes back from there.
#[derive(Debug)]
pub struct Brought {
    engine: Arc<Engine>,
    told: Vec<Told>,
    /// The states whose hosts keep a place for whoever waits for this.
    places: Vec<ClaimedPlace>,
    at: Now,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    key: SharedKey,
    brought: share::Brought,
}

/// What has become of a ticket.
#[derive(Debug)]
pub enum CallResult<'t> {
    /// An answer has come in time.
    Brought(Brought),
    /// None has.
    Missed(&'t Ticket),
}

/// Makes the calls that requests wait for.
pub trait Ask: Send + Sync + Debug {
    /// Takes a call whose answer nobody waits for after `due`, and never waits itself. False, where it cannot take another.
    fn ask(&self, ticket: Arc<Ticket>, due: Timestamp, on_brought: OnBrought) -> bool;
}

/// Whoever makes them.
pub type Asker = Arc<dyn Ask>;

/// Where the answer is to go; `None`: nobody was called.
pub type OnBrought = Box<dyn FnOnce(Option<Brought>) + Send>;

impl Brought {
    /// Nothing yet.
    #[must_use]
    pub fn new(engine: &Arc<Engine>, at: Now) -> Brought {
        Brought { engine: Arc::clone(engine), told: Vec::new(), places: Vec::new(), at }
    }

    /// A place is here, and is kept for who waits for this.
    pub fn place(&mut self, place: ClaimedPlace) {
        self.places.push(place);
    }

    /// A need was met by a call that was sent then; so much is left, in millionths of a unit.
    pub fn paid(&mut self, need: &Need, level: i64, sent: Timestamp) {
        self.add(
            need,
            share::Brought { granted: need.lacks, level, refused: None, sent, more: None, paid_us: 0 },
        );
    }

    /// A need was not met: it would be after a wait, or never.
    pub fn refused(&mut self, need: &Need, wait: Option<Micros>, level: i64, sent: Timestamp) {
        let refused = Some((need.lacks, wait));
        self.add(need, share::Brought { granted: 0, level, refused, sent, more: None, paid_us: 0 });
    }

    /// A need was not met because of another one.
    pub fn not_taken(&mut self, need: &Need, level: i64, sent: Timestamp) {
        self.add(need, share::Brought { granted: 0, level, refused: None, sent, more: None, paid_us: 0 });
    }

    /// What was said last is of a window: when there is more of it, and when it was said by the clock of Redis.
    pub fn of_window(&mut self, more: Option<share::More>, now_us: u64) {
        if let Some(Told { brought, .. }) = self.told.last_mut() {
            (brought.more, brought.paid_us) = (more, now_us);
        }
    }

    /// Says it all at one moment.
    #[must_use]
    pub fn at(mut self, at: Now) -> Brought {
        self.at = at;
        self
    }

    fn add(&mut self, need: &Need, brought: share::Brought) {
        self.told.push(Told { key: need.key, brought });
    }

    /// Places that were kept are anybody's.
    fn let_go_of_places(&mut self) {
        self.places.drain(..).for_each(|place| self.engine.unclaim_place(&place, self.at));
    }

    /// Tells the shares of this host.
    fn tell(&mut self, how: impl Fn(&mut share::Share, &share::Quota, &share::Brought)) -> Vec<Told> {
        let told = std::mem::take(&mut self.told);
        let (budgets, now) = (self.engine.budgets(), self.at);
        for Told { key, brought } in &told {
            // Of a rule that is gone nobody has a share.
            let Some(budget) = budgets.get(&key.budget()) else { continue };
            self.engine.change_share(key, budget, now, |share, quota| how(share, quota, brought));
        }
        told
    }
}

impl Drop for Brought {
    fn drop(&mut self) {
        let now = self.at.at;
        let told = self.tell(|share, quota, brought| share.bring_back(quota, now, brought));
        for Told { key, brought } in told.iter().filter(|told| told.brought.granted > 0) {
            self.engine.fleet.returned.note(key, brought.paid_us);
        }
        self.let_go_of_places();
    }
}

/// Who waited has been judged: what was brought for him and is there still goes back.
fn hand_back(engine: &Engine, told: &[Told], now: Now) {
    let paid = told.iter().filter(|told| told.brought.granted > 0);
    let budgets = engine.budgets();
    for Told { key, brought } in paid {
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

/// The call that a request waited for has come to something: it is judged again as if it had just come. It may be told to
/// ask once more.
pub(super) fn resume<'d>(
    decider: &'d mut Decider,
    engine: &Arc<Engine>,
    request: &Request<'_>,
    result: CallResult<'_>,
    now: Now,
) -> Answer<'d> {
    match result {
        CallResult::Brought(mut brought) => {
            brought.at = now;
            let told = brought.tell(|share, quota, brought| share.bring(quota, now.at, brought));
            // It is judged at once.
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

/// No answer came in time: what each key lets pass then is kept for who is judged next. Returns how much that is.
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

/// Keys of one ticket: as many as one call takes. A request that lacks more is refused where a call might have helped.
pub const NEEDS_MAX: usize = 8;
