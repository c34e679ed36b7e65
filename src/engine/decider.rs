//! One decision thread's way into the engine: what it needs again and again stays with it.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use super::Engine;
use super::asking::{self, CallResult};
use super::counters::Counters;
use super::decision::{Answer, NotCharged};
use super::judgement::Judgement;
use super::request::{Charge, Op, Request};
use super::ruling::Ruling;
use super::spent;
use super::workspace::Workspace;
use crate::clock::Now;
use crate::rules::Selection;

/// Asks the engine. Each decision thread has its own: a view of the rules in force that costs one load to check,
/// counters that no other thread writes, and lists that are used again.
pub struct Decider {
    engine: Arc<Engine>,
    ruling: Cache<Arc<ArcSwap<Ruling>>, Arc<Ruling>>,
    counters: Arc<Counters>,
    workspace: Workspace,
    /// Counts batches of requests.
    batches: u64,
}

impl Decider {
    /// Each has a number of its own.
    pub(super) fn new(engine: Arc<Engine>, counters: Arc<Counters>, number: u64) -> Decider {
        let ruling = Cache::new(Arc::clone(&engine.ruling));
        Decider { engine, ruling, counters, workspace: Workspace::new(number), batches: 0 }
    }

    /// The engine it asks.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Judges one request: all rules that match are charged, or none is.
    pub fn decide(&mut self, request: &Request<'_>, now: Now) -> Answer<'_> {
        let ruling: &Ruling = self.ruling.load();
        let counters = (request.op != Op::Peek).then_some(&*self.counters);
        let (domain, terms) = ruling.find_or_unlimited(request.domain);
        let workspace = &mut self.workspace;
        let mut selection = Selection::default();
        domain.select(request.descriptors.attributes, &mut selection, &mut workspace.matching);
        #[cfg(all(debug_assertions, feature = "test-hooks"))]
        panic_if_asked(request, false);
        let judgement = Judgement { engine: &self.engine, ruling, domain, terms, counters, now };
        match judgement.one_rule(&workspace.matching, request) {
            Some(one) => judgement.of_one(&one, &selection, request, workspace),
            None => judgement.of_any(&selection, request, workspace),
        }
    }

    /// Judges a request once more that was told to ask, with what came of it. Who may wait may be told so again.
    pub fn resume(&mut self, request: &Request<'_>, result: CallResult<'_>, now: Now) -> Answer<'_> {
        let engine = Arc::clone(&self.engine);
        asking::resume(self, &engine, request, result, now)
    }

    /// Charges, or gives back, what a piece of work turned out to cost. Returns whether a rule was there to charge.
    ///
    /// # Errors
    /// The name that should make it a repeat belongs to another charge, or it gives back and does not say of what: nothing
    /// is charged.
    pub fn charge(&mut self, charge: &Charge<'_>, now: Now) -> Result<bool, NotCharged> {
        if charge.of.is_none() && !charge.trusted && spent::is_negative(&charge.amount) {
            return Err(NotCharged::RefundsNothing);
        }
        let ruling: &Ruling = self.ruling.load();
        let (domain, terms) = ruling.find_or_unlimited(charge.domain);
        let workspace = &mut self.workspace;
        let mut selection = Selection::default();
        domain.select(charge.descriptors.attributes, &mut selection, &mut workspace.matching);
        let engine = &*self.engine;
        let judgement = Judgement { engine, ruling, domain, terms, counters: None, now };
        judgement.charge(&selection, charge, workspace)
    }

    /// Whether the batch of requests that comes now is to be timed.
    #[inline]
    pub fn is_timed(&mut self) -> bool {
        self.batches = self.batches.wrapping_add(1);
        self.batches.is_multiple_of(TIMED_ONE_IN)
    }

    /// A batch that was timed: how many were answered, and how long all of them took together, in nanoseconds. Each has
    /// waited for the last.
    pub fn took(&self, nanos: u64, decisions: u64) {
        self.counters.took(nanos, decisions);
    }

    /// Counts a judgement that panicked. The engine is whole: states change by single steps, after all is judged.
    pub fn panicked(&self) {
        self.counters.panicked();
    }
}

/// One batch in so many is timed: two readings of the clock are dearer than a decision.
const TIMED_ONE_IN: u64 = 64;

/// A value as it is: where a debug build panics under the locks of a judgement, if it is asked to.
#[inline]
pub(super) fn under_locks<T>(_request: &Request<'_>, value: T) -> T {
    #[cfg(all(debug_assertions, feature = "test-hooks"))]
    panic_if_asked(_request, true);
    value
}

/// The hook by which tests see that a panic while judging hurts nobody else: with the value `locked` under the locks of all
/// its states, else before. Not in a release build.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
fn panic_if_asked(request: &Request<'_>, is_locked: bool) {
    #[allow(clippy::panic, reason = "that is what it is for")]
    if let Some((_, value)) = request.descriptors.attributes.iter().find(|(name, _)| *name == PANIC_ATTRIBUTE)
        && (*value == "locked") == is_locked
    {
        // As a message may that a library puts together from what it was given.
        panic!("asked to panic while judging {value}");
    }
}

/// The attribute that makes a debug build panic while judging.
#[cfg(all(debug_assertions, feature = "test-hooks"))]
const PANIC_ATTRIBUTE: &str = "debug-panic";
