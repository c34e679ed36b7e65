//! One decision thread's way into the engine: what it needs again and again stays with it.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use super::Engine;
use super::admission::{Part, admit};
use super::counters::{Check, Counters};
use super::decision::{Answer, Decision, LimitView, NoteKind, Unmatched, Verdict};
use super::request::{Op, Request, UNIT_REQUESTS};
use super::ruling::{Ruling, Terms};
use crate::clock::{Micros, Now};
use crate::limit::token_bucket::Gcra;
use crate::limit::{Level, Outcome, Quota};
use crate::rules::{Domain, Rule, Selection};

/// Asks the engine. Each decision thread has its own: a view of the rules in force that costs one load to check,
/// counters that no other thread writes, and lists that are used again.
pub struct Decider {
    engine: Arc<Engine>,
    ruling: Cache<Arc<ArcSwap<Ruling>>, Arc<Ruling>>,
    counters: Arc<Counters>,
    lists: Lists,
}

/// Lists that one decision fills and the next one uses again.
#[derive(Default)]
struct Lists {
    matching: Vec<u32>,
    parts: Vec<Part>,
    notes: Vec<(NoteKind, u32)>,
    all: Vec<(u32, Level)>,
}

impl Decider {
    pub(super) fn new(engine: Arc<Engine>, counters: Arc<Counters>) -> Decider {
        let ruling = Cache::new(Arc::clone(&engine.ruling));
        Decider { engine, ruling, counters, lists: Lists::default() }
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
        if ruling.disabled {
            return allow_unmatched(counters, None);
        }
        let Some((domain, terms)) = ruling.find(request.domain) else {
            return allow_unmatched(counters, Some(Unmatched::Domain));
        };
        let lists = &mut self.lists;
        let mut selection = Selection::default();
        domain.select(request.attributes, &mut selection, &mut lists.matching);
        lists.gather(domain, terms, &selection, request, now);
        if lists.parts.is_empty() {
            return allow_unmatched(counters, Some(Unmatched::Rule));
        }
        #[cfg(debug_assertions)]
        panic_if_asked(request);
        let passes =
            admit(&self.engine.shards, domain.rules(), &mut lists.parts, request.op != Op::Peek, now);
        if let Some(counters) = counters {
            counters.verdict(if passes { Verdict::Allow } else { Verdict::Limit });
        }
        lists.note(counters);
        if request.all {
            lists.list_all(domain, now);
        }
        Answer::Decided(lists.decision(domain, passes, now))
    }

    /// Counts a judgement that panicked. The engine is whole: states change by single steps, after all is judged.
    pub fn panicked(&self) {
        self.counters.panicked();
    }
}

impl Lists {
    /// Makes a part of every matching rule whose unit the request names.
    fn gather(
        &mut self,
        domain: &Domain,
        terms: &[Terms],
        selection: &Selection<'_>,
        request: &Request<'_>,
        now: Now,
    ) {
        self.parts.clear();
        self.notes.clear();
        self.all.clear();
        let Some(cost) = request.cost.in_unit(UNIT_REQUESTS) else { return };
        for number in &self.matching {
            let Some(terms) = terms.get(*number as usize) else { continue };
            let digest = terms.key_hash.digest(terms.scale, domain.key_values(*number, selection));
            self.parts.push(Part::new(*number, terms, cost, digest, Gcra::full(terms.scale, now.at)));
        }
    }

    /// Counts what each rule said, and notes those that would have refused.
    #[inline]
    fn note(&mut self, counters: Option<&Counters>) {
        for part in &self.parts {
            let check = match part.outcome {
                Outcome::Pass => Check::Pass,
                _ if part.enforced => Check::Refuse,
                _ => {
                    self.notes.push((NoteKind::Shadow, part.rule));
                    Check::WouldRefuse
                }
            };
            if let Some(counters) = counters {
                counters.check(part.slot, check);
            }
        }
    }

    fn list_all(&mut self, domain: &Domain, now: Now) {
        for part in &self.parts {
            if let Some(view) = part.view(domain, now) {
                self.all.push((part.rule, view.level));
            }
        }
    }

    #[inline]
    fn decision<'d>(&'d self, domain: &'d Domain, passes: bool, now: Now) -> Decision<'d> {
        let (verdict, binding, retry) = if passes {
            (Verdict::Allow, least_left(&self.parts, domain, now), Some(Micros::ZERO))
        } else {
            let (binding, retry) = longest_wait(&self.parts);
            (Verdict::Limit, binding.and_then(|part| part.view(domain, now)), retry)
        };
        Decision { verdict, binding, retry, domain: Some(domain), notes: &self.notes, all: &self.all }
    }
}

impl Part {
    #[inline]
    fn view<'d>(&self, domain: &'d Domain, now: Now) -> Option<LimitView<'d>> {
        let rule: &Rule = domain.rules().get(self.rule as usize)?;
        let Quota::TokenBucket(quota) = rule.limit.quota()? else { return None };
        Some(LimitView { rule, level: self.state.level(quota, now.at) })
    }
}

/// Of the enforced rules the one with the smallest share left; ties go to the first in the file.
#[inline]
fn least_left<'d>(parts: &[Part], domain: &'d Domain, now: Now) -> Option<LimitView<'d>> {
    let mut enforced = parts.iter().filter(|part| part.enforced).filter_map(|part| part.view(domain, now));
    let mut least = enforced.next()?;
    for view in enforced {
        // remaining ÷ limit, multiplied out; neither is above 2³², so the products fit.
        if view.level.remaining * least.level.limit < least.level.remaining * view.level.limit {
            least = view;
        }
    }
    Some(least)
}

/// Of the rules that refuse the one with the longest wait, `None` (never) being the longest.
fn longest_wait(parts: &[Part]) -> (Option<&Part>, Option<Micros>) {
    let mut longest: Option<(&Part, Option<Micros>)> = None;
    for part in parts.iter().filter(|part| part.refuses()) {
        let wait = match part.outcome {
            Outcome::Later(wait) => Some(wait),
            Outcome::Never | Outcome::Pass | Outcome::Queued(_) => None,
        };
        let is_longer = match (longest, wait) {
            (None, _) => true,
            (Some((_, None)), _) => false,
            (Some((_, Some(_))), None) => true,
            (Some((_, Some(longest))), Some(wait)) => wait > longest,
        };
        if is_longer {
            longest = Some((part, wait));
        }
    }
    longest.map_or((None, None), |(part, wait)| (Some(part), wait))
}

fn allow_unmatched<'d>(counters: Option<&Counters>, reason: Option<Unmatched>) -> Answer<'d> {
    if let Some(counters) = counters {
        counters.verdict(Verdict::Allow);
        if let Some(reason) = reason {
            counters.unmatched(reason);
        }
    }
    Answer::Decided(Decision::unlimited())
}

/// The hook by which tests see that a panic while judging hurts nobody else. Not in a release build.
#[cfg(debug_assertions)]
fn panic_if_asked(request: &Request<'_>) {
    #[allow(clippy::panic, reason = "that is what it is for")]
    if let Some((_, value)) = request.attributes.iter().find(|(name, _)| *name == PANIC_ATTRIBUTE) {
        // As a message may that a library puts together from what it was given.
        panic!("asked to panic while judging {value}");
    }
}

/// The attribute that makes a debug build panic while judging.
#[cfg(debug_assertions)]
const PANIC_ATTRIBUTE: &str = "debug-panic";
