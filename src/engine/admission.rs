//! All or nothing: every limit is judged on the state as it was, then every state is committed.
//!
//! All shards that a request touches are locked for the whole of it, in ascending order, so no two requests can
//! both take the last token, none sees half of another's charges, and none waits in a circle.

use super::gate::Refusal;
use super::part::{Case, Part};
use super::shards::{SHARDS, Shard, Shards};
use super::sync::MutexGuard;
use crate::clock::Micros;
use crate::limit::Outcome;
use crate::limit::leaky_bucket::Wait;
use arrayvec::ArrayVec;

/// What is to become of a request that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// It is charged if it is granted.
    Admit,
    /// The same, but nothing is done yet where a call could turn a refusal into a grant.
    AdmitOrAsk,
    /// Nothing changes.
    Look,
}

/// What all limits together say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Granted, to start after this wait.
    Granted(Micros),
    /// Refused by a limit.
    Refused,
    /// Refused by what watches over the pool.
    Shed(Refusal),
    /// Whatever refuses it is a share of a budget of which a call may bring more. Nothing has changed.
    Asks,
}

/// Judges every part, and what no limit refuses at the gate; charges as is intended. Every part then knows where its key
/// stands.
pub(super) fn admit(
    case: &Case<'_>,
    parts: &mut [Part],
    intent: Intent,
    gate: &mut dyn FnMut() -> Option<Refusal>,
) -> Admission {
    let mut locked = Locked::new();
    locked.lock(case.shards, parts);
    for part in &mut *parts {
        part.look_up(case, locked.shard(case.shards, part));
    }
    for part in &mut *parts {
        let shard = locked.shard(case.shards, part);
        part.judge(case, shard);
    }
    let mut refusing = parts.iter().filter(|part| part.refuses()).count();
    if refusing > 0
        && intent != Intent::Admit
        && !case.oversized
        && a_call_may_help(case, parts, intent, &mut locked)
    {
        if intent == Intent::AdmitOrAsk {
            return Admission::Asks;
        }
        // Who only looks goes by what is known.
        parts.iter_mut().filter(|part| part.refuses()).for_each(|part| part.outcome = Outcome::Pass);
        refusing = 0;
    }
    let shed = if refusing == 0 { gate() } else { None };
    let granted = refusing == 0 && shed.is_none();
    // A shadow wait delays nothing.
    let waits = parts.iter().filter(|part| part.enforced).map(|part| part.wait);
    let wait = if refusing == 0 { waits.fold(Wait::NONE, Wait::longer) } else { Wait::NONE };
    if intent != Intent::Look {
        for part in &mut *parts {
            commit(part, granted, wait, case, &mut locked);
        }
    }
    for part in &mut *parts {
        let shard = locked.shard(case.shards, part);
        part.read_level(case, shard);
    }
    match shed {
        Some(refusal) => Admission::Shed(refusal),
        None if refusing == 0 => Admission::Granted(wait.micros()),
        None => Admission::Refused,
    }
}

/// Whether a call might let a request pass that is refused: each part that refuses it lacks what a call can bring. Notes
/// in each how much that is.
#[cold]
#[inline(never)]
fn a_call_may_help(case: &Case<'_>, parts: &mut [Part], intent: Intent, locked: &mut Locked<'_>) -> bool {
    parts.iter_mut().filter(|part| part.refuses()).all(|part| {
        let shard = locked.shard(case.shards, part);
        part.lacks = part.lacks_elsewhere(intent == Intent::Look, case, shard);
        part.lacks > 0
    })
}

/// Charges one part, where it is to be.
fn commit(part: &mut Part, granted: bool, wait: Wait, case: &Case<'_>, locked: &mut Locked<'_>) {
    // A lease holds the permits of concurrency rules.
    let may_charge = granted && (case.leases || !part.is_concurrency);
    let is_charged = part.counts_refused(case) || part.passes() && may_charge;
    let shard = locked.shard(case.shards, part);
    if is_charged {
        part.charge(granted, wait, case, shard);
    }
    if !part.passes() {
        part.mark_refusing(case, shard);
        part.block(case, shard);
    }
}

/// Charges, or gives back, after the fact: all parts under one lock.
pub(super) fn settle_up(case: &Case<'_>, parts: &mut [Part], amounts: &[i64]) {
    assert_eq!(parts.len(), amounts.len(), "each part has its amount");
    let mut locked = Locked::new();
    locked.lock(case.shards, parts);
    for (part, amount) in parts.iter_mut().zip(amounts) {
        let shard = locked.shard(case.shards, part);
        part.settle_up(*amount, case, shard);
    }
}

/// The shards of one judgement, locked.
struct Locked<'e> {
    /// A bit for each shard held: guards stand in the order of their bits.
    held: u64,
    guards: ArrayVec<MutexGuard<'e, Shard>, SHARDS>,
}

impl<'e> Locked<'e> {
    #[inline]
    fn new() -> Locked<'e> {
        Locked { held: 0, guards: ArrayVec::new_const() }
    }

    /// Locks the shards of all parts. In place: half a kilobyte of guards is not to be moved.
    #[inline]
    fn lock(&mut self, shards: &'e Shards, parts: &[Part]) {
        self.held = parts.iter().fold(0, |held, part| held | 1 << part.shard(shards));
        let mut wanted = self.held;
        while wanted != 0 {
            self.guards.push(shards.lock(wanted.trailing_zeros() as usize));
            wanted &= wanted - 1;
        }
    }

    #[inline]
    fn shard(&mut self, shards: &Shards, part: &Part) -> &mut Shard {
        let below = self.held & ((1 << part.shard(shards)) - 1);
        let guard = below.count_ones() as usize;
        #[allow(clippy::indexing_slicing, reason = "every part's shard was locked, so its guard is there")]
        &mut self.guards[guard]
    }
}

#[cfg(test)]
#[cfg(not(feature = "interleavings"))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::super::judgement::Judgement;
    use super::super::{Answer, Descriptors, Engine, HashKey, Mode, Op, Options, Request, Verdict};
    use super::{Admission, Intent, Part, admit, settle_up};
    use crate::clock::{Now, Timestamp};
    use crate::rules::{RuleSet, read_text};

    /// Has parts of a rule with a burst of two admitted, or settled, as no rule set makes them; then the rule is whole.
    #[track_caller]
    fn check(name: &str, broken: impl FnOnce(&Judgement<'_>, &mut [Part]) -> Option<Admission>) {
        let options = Options {
            hash_key: HashKey::from_bytes([7; 16]),
            mode: Mode::Enforce,
            memory_bytes_max: 1 << 20,
        };
        let engine = Arc::new(Engine::new(options));
        let rules = "domain: api\nlimits:\n- {name: a, key: [user], rate: 1/h, burst: 2}\n";
        engine.install(RuleSet::new(read_text("a.yaml", rules).domains));
        let now = Now { at: Timestamp::ORIGIN, utc: 0 };
        let ruling = engine.ruling.load();
        let (domain, terms) = ruling.find("api").unwrap();
        let judgement = Judgement { engine: &engine, ruling: &ruling, domain, terms, counters: None, now };
        let of_rule = &terms.rules[0];
        let key = of_rule.key_hash.digest(["u1"].into_iter());
        let good = Part::new(0, of_rule, key, 0, 1);
        let bad = Part::new(0, of_rule, key, 7, 1);
        let came_of_it = catch_unwind(AssertUnwindSafe(|| broken(&judgement, &mut [good, bad])));
        assert!(came_of_it.is_err(), "{name}: {came_of_it:?}");
        // Nothing was charged, no lock is held.
        let mut decider = engine.decider();
        let attributes = [("user", "u1")];
        let request = Request::new(Op::Hit, "api", Descriptors::one(&attributes));
        let mut decide = || match decider.decide(&request, now) {
            Answer::Decided(decision) => decision.verdict,
            _ => unreachable!("it has no name and asks nobody"),
        };
        let verdicts = [decide(), decide(), decide()];
        assert_eq!(verdicts, [Verdict::Allow, Verdict::Allow, Verdict::Limit], "{name}");
    }

    #[test]
    fn admits_nothing_whose_rule_or_allowance_is_missing() {
        check("no rule", |judgement, parts| {
            let mut case = judgement.case(None);
            case.rules = &[];
            Some(admit(&case, &mut parts[..1], Intent::Admit, &mut || None))
        });
        check("no such allowance", |judgement, parts| {
            Some(admit(&judgement.case(None), parts, Intent::Admit, &mut || None))
        });
        check("an amount too few", |judgement, parts| {
            settle_up(&judgement.case(None), &mut parts[..1], &[]);
            None
        });
    }
}
