//! All-or-nothing admission: every rule is judged on the unchanged state, then every state is committed.
//!
//! All shards that a request touches are locked throughout, in ascending order. Two requests therefore never
//! take the same last token, never see partial charges, and never deadlock.

use super::check::{CheckContext, StageCheck};
use super::gate::GateRefusal;
use super::judgement::retry_after;
use super::shards::{SHARDS, Shard, Shards};
use super::sync::MutexGuard;
use crate::clock::{Micros, Timestamp};
use crate::limit::Outcome;
use crate::limit::leaky_bucket::QueueWait;
use arrayvec::ArrayVec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Intent {
    /// Charge it if it is granted.
    Admit,
    /// As `Admit`, but change nothing if a remote check could turn the refusal into a grant.
    AdmitOrCheckRemotely,
    /// Change nothing.
    Peek,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Granted, to start after this wait.
    Granted(Micros),
    /// Refused by a limit.
    Refused,
    /// Refused by the load shedding of the pool.
    Shed(GateRefusal),
    /// All refusing rules are shares of fleet budgets that a remote check may extend. Nothing has changed.
    NeedsRemoteCheck,
}

impl Admission {
    /// When a request of now may start, if it is granted.
    pub(super) fn start(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Admission::Granted(wait) => Some(now.after(wait.into())),
            _ => None,
        }
    }
}

/// Judges every rule, then the gate if no rule refuses, and charges as intended. Afterwards each part holds
/// the level of its key.
pub(super) fn admit(
    context: &CheckContext<'_>,
    checks: &mut [StageCheck],
    intent: Intent,
    gate: &mut dyn FnMut() -> Option<GateRefusal>,
) -> Admission {
    let mut locked = LockedShards::new();
    locked.lock(context.shards, wanted_shards(checks));
    for check in &mut *checks {
        check.look_up(context, locked.of(check));
    }
    for check in &mut *checks {
        check.judge(context, locked.of(check));
    }
    let mut refusing = checks.iter().filter(|check| check.refuses()).count();
    if refusing > 0 && intent != Intent::Admit && !context.oversized {
        let definite = count_definite_refusals(context, checks, intent, &mut locked);
        if definite == 0 && intent == Intent::AdmitOrCheckRemotely {
            return Admission::NeedsRemoteCheck;
        }
        // A PEEK makes no remote check, nor does a request that another rule refuses: the last known level suggests a
        // grant, and missing tokens must not hide the rule that refuses.
        let undecided = checks.iter_mut().filter(|check| check.refuses() && check.missing_units > 0);
        undecided.for_each(|check| check.outcome = Outcome::Pass);
        refusing = definite;
    }
    let shed = if refusing == 0 { gate() } else { None };
    let granted = refusing == 0 && shed.is_none();
    // A shadow wait delays nothing.
    let waits = checks.iter().filter(|check| check.enforced).map(|check| check.wait);
    let wait = if refusing == 0 { waits.fold(QueueWait::NONE, QueueWait::longer) } else { QueueWait::NONE };
    if intent != Intent::Peek {
        for check in &mut *checks {
            commit(check, granted, wait, context, &mut locked);
        }
    }
    if refusing > 0 {
        extend_waits(context, checks, &mut locked);
    }
    for check in &mut *checks {
        check.read_level(context, locked.of(check));
    }
    match shed {
        Some(refusal) => Admission::Shed(refusal),
        None if refusing == 0 => Admission::Granted(wait.micros()),
        None => Admission::Refused,
    }
}

/// Returns the number of refusals that no remote check could turn into a grant. Stores in each other refusing part the
/// units that it lacks and that other hosts or Redis can provide.
#[cold]
#[inline(never)]
fn count_definite_refusals(
    context: &CheckContext<'_>,
    checks: &mut [StageCheck],
    intent: Intent,
    locked: &mut LockedShards<'_>,
) -> usize {
    let mut definite = 0;
    for check in checks.iter_mut().filter(|check| check.refuses()) {
        let shard = locked.of(check);
        check.missing_units = check.missing_fleet_units(intent == Intent::Peek, context, shard);
        definite += usize::from(check.missing_units == 0);
    }
    definite
}

/// Extends the wait until rules that charged the refused request, and soft parts that will have ended, let it pass too.
#[cold]
#[inline(never)]
fn extend_waits(context: &CheckContext<'_>, checks: &mut [StageCheck], locked: &mut LockedShards<'_>) {
    let rates = checks.iter().filter(|check| check.refuses() && !check.is_concurrency);
    let mut wait = rates.filter_map(|check| retry_after(check.outcome)).max().unwrap_or_default();
    let mut before = None;
    // Each rule extends it once at most.
    while before.replace(wait) != Some(wait) {
        for check in &mut *checks {
            check.extend_wait(wait, context, locked.of(check));
            wait = wait.max(check.extended_wait);
        }
    }
}

/// Charges one part if its request is granted, or if it counts refused requests.
fn commit(
    check: &mut StageCheck,
    granted: bool,
    wait: QueueWait,
    context: &CheckContext<'_>,
    locked: &mut LockedShards<'_>,
) {
    // Only a lease holds the permits of concurrency rules.
    let may_charge = granted && (context.leases || !check.is_concurrency);
    // A share that lacks units has nothing to charge.
    let counts_all = || check.missing_units == 0 && check.counts_refused(context);
    let is_charged = check.passes() && may_charge || counts_all();
    let shard = locked.of(check);
    if is_charged {
        check.charge(wait, context, shard);
    }
    if !check.passes() {
        check.mark_refusing(context, shard);
        check.block_key(context, shard);
    }
}

/// Charges or refunds after the fact, with all shards locked.
pub(super) fn settle_up(context: &CheckContext<'_>, checks: &mut [StageCheck], amounts: &[i64]) {
    assert_eq!(checks.len(), amounts.len(), "each check has its amount");
    let mut locked = LockedShards::new();
    locked.lock(context.shards, wanted_shards(checks));
    for (check, amount) in checks.iter_mut().zip(amounts) {
        check.charge_amount(*amount, context, locked.of(check));
    }
}

/// The shards of all checks, one bit for each.
fn wanted_shards(checks: &[StageCheck]) -> u64 {
    checks.iter().fold(0, |wanted, check| wanted | 1 << check.shard())
}

/// The held shards in ascending order.
pub(super) struct LockedShards<'e> {
    guards: ArrayVec<MutexGuard<'e, Shard>, SHARDS>,
    /// The index of the guard of each shard.
    positions: [u8; SHARDS],
}

impl<'e> LockedShards<'e> {
    #[inline]
    pub(super) fn new() -> LockedShards<'e> {
        LockedShards { guards: ArrayVec::new_const(), positions: [0; SHARDS] }
    }

    /// Locks a set of shards, one bit for each, in ascending order. In place: moving half a kilobyte of guards is slow.
    #[inline]
    pub(super) fn lock(&mut self, shards: &'e Shards, wanted: u64) {
        let mut left = wanted;
        for position in 0.. {
            if left == 0 {
                return;
            }
            let shard = left.trailing_zeros() as usize;
            self.guards.push(shards.lock(shard));
            #[allow(clippy::indexing_slicing, reason = "each of SHARDS shards has a bit, and a position")]
            {
                self.positions[shard] = position;
            }
            left &= left - 1;
        }
    }

    /// Returns the shard of a check, which is locked.
    fn of(&mut self, check: &StageCheck) -> &mut Shard {
        self.shard(check.shard())
    }

    /// Returns a shard that is locked.
    #[inline]
    pub(super) fn shard(&mut self, shard: usize) -> &mut Shard {
        #[allow(clippy::indexing_slicing, reason = "every check's shard was locked, so its guard is there")]
        &mut self.guards[usize::from(self.positions[shard])]
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::super::judgement::Judgement;
    use super::super::{
        Descriptors, Engine, EngineAnswer, EngineOptions, HashKey, Mode, Op, Request, Verdict,
    };
    use super::{Admission, Intent, StageCheck, admit, settle_up};
    use crate::clock::{Now, Timestamp};
    use crate::rules::read_text;

    /// Admits or settles invalid parts of a rule with a burst of two and expects a panic; the rule then works
    /// as before.
    #[track_caller]
    fn check(name: &str, broken: impl FnOnce(&Judgement<'_>, &mut [StageCheck]) -> Option<Admission>) {
        let options = EngineOptions {
            hash_key: HashKey::from_bytes([7; 16]),
            mode: Mode::Enforce,
            memory_bytes_max: 1 << 20,
        };
        let engine = Arc::new(Engine::new(options));
        let rules = "domain: api\nlimits:\n- {name: a, key: [user], rate: 1/h, burst: 2}\n";
        engine.install_rules(read_text("a.yaml", rules).domains);
        let now = Now { at: Timestamp::ORIGIN, utc_offset_nanos: 0 };
        let rule_set = engine.rule_set.load();
        let compiled = rule_set.find_domain("api").unwrap();
        let judgement = Judgement { engine: &engine, rule_set: &rule_set, compiled, counters: None, now };
        let of_rule = &compiled.rules[0];
        let key = of_rule.key_hash.digest(["u1"].into_iter());
        let good = StageCheck::new(0, of_rule, key, Timestamp::ORIGIN, 0, 1);
        let bad = StageCheck::new(0, of_rule, key, Timestamp::ORIGIN, 7, 1);
        let came_of_it = catch_unwind(AssertUnwindSafe(|| broken(&judgement, &mut [good, bad])));
        assert!(came_of_it.is_err(), "{name}: {came_of_it:?}");
        // Nothing was charged, no lock is held.
        let mut decider = engine.decider();
        let attributes = [("user", "u1")];
        let request = Request::new(Op::Hit, "api", Descriptors::from_attributes(&attributes));
        let mut decide = || match decider.decide(&request, now) {
            EngineAnswer::Decided(decision) => decision.verdict,
            _ => unreachable!("it has no name and asks nobody"),
        };
        let verdicts = [decide(), decide(), decide()];
        assert_eq!(verdicts, [Verdict::Allow, Verdict::Allow, Verdict::Limit], "{name}");
    }

    #[test]
    fn admits_nothing_whose_rule_or_allowance_is_missing() {
        check("no rule", |judgement, checks| {
            let mut context = judgement.check_context(None);
            context.rules = &[];
            Some(admit(&context, &mut checks[..1], Intent::Admit, &mut || None))
        });
        check("no such allowance", |judgement, checks| {
            Some(admit(&judgement.check_context(None), checks, Intent::Admit, &mut || None))
        });
        check("an amount too few", |judgement, checks| {
            settle_up(&judgement.check_context(None), &mut checks[..1], &[]);
            None
        });
    }
}
