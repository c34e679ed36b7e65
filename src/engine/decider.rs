//! One decision thread's way into the engine: what it needs again and again stays with it.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use super::Engine;
use super::asking::{self, CallResult};
use super::counters::Counters;
use super::decision::{Answer, Decision, NotCharged, Unmatched, Verdict};
use super::judgement::Judgement;
use super::leases::Session;
use super::repeats::{Grant, Known, Named};
use super::request::{Charge, Op, Request};
use super::ruling::Ruling;
use super::slots::Slot;
use super::spent;
use super::work::Holding;
use super::workspace::Workspace;
use crate::clock::Now;
use crate::rules::{Domain, Mode, Selection};

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
        if request.op == Op::Acquire
            && let Some(session) = request.session
        {
            return self.begin(request, session, now);
        }
        let ruling: &Ruling = self.ruling.load();
        let counters = (request.op != Op::Peek).then_some(&*self.counters);
        if ruling.disabled {
            return allow_unmatched(counters, None, None);
        }
        let Some((domain, terms)) = ruling.find(request.domain) else {
            if ruling.refuses_uncounted(request) {
                return refuse_unmatched(counters);
            }
            return allow_unmatched(counters, Some(Unmatched::Domain), None);
        };
        let workspace = &mut self.workspace;
        let mut selection = Selection::default();
        domain.select(request.descriptors.attributes, &mut selection, &mut workspace.matching);
        #[cfg(debug_assertions)]
        panic_if_asked(request, false);
        let judgement = Judgement { engine: &self.engine, ruling, domain, terms, counters, now };
        match judgement.one_rule(&workspace.matching, request) {
            Some(one) => judgement.of_one(&one, &selection, request, workspace),
            None => judgement.of_all(&selection, request, workspace, None),
        }
    }

    /// Judges a request once more that was told to ask, with what came of it. Who may wait may be told so again.
    pub fn resume(&mut self, request: &Request<'_>, result: CallResult<'_>, now: Now) -> Answer<'_> {
        let engine = Arc::clone(&self.engine);
        asking::resume(self, &engine, request, result, now)
    }

    /// Judges work that has an end: what is granted is held until then. Apart from the rest, which has less to do.
    #[inline(never)]
    fn begin(&mut self, request: &Request<'_>, session: &Session, now: Now) -> Answer<'_> {
        let ruling: &Ruling = self.ruling.load();
        let (engine, counters, workspace) = (&*self.engine, Some(&*self.counters), &mut self.workspace);
        let found = if ruling.disabled { None } else { ruling.find(request.domain) };
        let domain = found.map(|(domain, _)| domain);
        let mut selection = Selection::default();
        if let Some(domain) = domain {
            select(domain, request.descriptors.attributes, &mut selection, &mut workspace.matching);
            #[cfg(debug_assertions)]
            panic_if_asked(request, false);
        }
        // Held to the end: of two that come at once, one is judged and the other is its repeat.
        let mut named = engine.repeats.named(request, &mut workspace.written);
        match named.as_ref().map_or(Known::Not, |named| named.find(now)) {
            Known::Not => {}
            Known::Other => return Answer::Conflict,
            Known::Granted(grant) => {
                let mut decision = grant.again(ruling.number, domain, now, workspace);
                decision.lease = decision.lease.filter(|lease| engine.leases.is_live(session, *lease, now));
                match found {
                    Some((domain, terms)) => {
                        let judgement = Judgement { engine, ruling, domain, terms, counters, now };
                        decision.priority = judgement
                            .count_again(&decision, domain.priority_place(request.priority, &selection));
                    }
                    None => drop(self.counters.decided(Slot::NOBODY, decision.verdict)),
                }
                return Answer::Decided(decision);
            }
        }
        let Some(reserved) = engine.leases.reserve(session) else { return Answer::Quota };
        let holding = Holding { reserved, name: named.as_ref().map(Named::digest) };
        let answer = match found {
            Some((domain, terms)) => {
                let judgement = Judgement { engine, ruling, domain, terms, counters, now };
                judgement.of_all(&selection, request, workspace, Some(holding))
            }
            None if ruling.refuses_uncounted(request) => refuse_unmatched(counters),
            None => {
                let lease = engine.grant_unlimited(Some(holding), request.id, true, now);
                allow_unmatched(counters, (!ruling.disabled).then_some(Unmatched::Domain), lease)
            }
        };
        if let (Some(named), Answer::Decided(decision)) = (&mut named, &answer)
            && decision.lease.is_some()
        {
            engine.keep_spent(request, decision, &mut Vec::new(), now);
            // One that was given up on before it was granted is known by its name no more.
            named.keep(Grant::of(decision, ruling.number, now), &engine.shards, now);
        }
        answer
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
        let Some((domain, terms)) = ruling.find(charge.domain).filter(|_| !ruling.disabled) else {
            return Ok(false);
        };
        let workspace = &mut self.workspace;
        let mut selection = Selection::default();
        select(domain, charge.descriptors.attributes, &mut selection, &mut workspace.matching);
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

/// Finds the rules that match, apart from the way of most requests, which has it in line.
#[inline(never)]
fn select<'a>(
    domain: &Domain,
    attributes: &[(&'a str, &'a str)],
    selection: &mut Selection<'a>,
    matching: &mut Vec<u32>,
) {
    domain.select(attributes, selection, matching);
}

fn allow_unmatched<'d>(
    counters: Option<&Counters>,
    reason: Option<Unmatched>,
    lease: Option<u64>,
) -> Answer<'d> {
    if let Some(counters) = counters {
        counters.decided(Slot::NOBODY, Verdict::Allow);
        if let Some(reason) = reason {
            counters.unmatched(reason);
        }
    }
    Answer::Decided(Decision { lease, ..Decision::unlimited() })
}

impl Ruling {
    /// Whether a request is refused unless rules in shadow alone count it: its cost is above what any can count.
    pub(super) fn refuses_uncounted(&self, request: &Request<'_>) -> bool {
        request.oversized && self.mode == Mode::Enforce
    }
}

/// Refuses for good what costs more than any rule can count, in a domain that has none.
#[cold]
fn refuse_unmatched<'d>(counters: Option<&Counters>) -> Answer<'d> {
    if let Some(counters) = counters {
        counters.decided(Slot::NOBODY, Verdict::Limit);
        counters.unmatched(Unmatched::Domain);
    }
    Answer::Decided(Decision { verdict: Verdict::Limit, retry: None, ..Decision::unlimited() })
}

/// One batch in so many is timed: two readings of the clock are dearer than a decision.
const TIMED_ONE_IN: u64 = 64;

/// A value as it is: where a debug build panics under the locks of a judgement, if it is asked to.
#[inline]
pub(super) fn under_locks<T>(_request: &Request<'_>, value: T) -> T {
    #[cfg(debug_assertions)]
    panic_if_asked(_request, true);
    value
}

/// The hook by which tests see that a panic while judging hurts nobody else: with the value `locked` under the locks of all
/// its states, else before. Not in a release build.
#[cfg(debug_assertions)]
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
#[cfg(debug_assertions)]
const PANIC_ATTRIBUTE: &str = "debug-panic";
