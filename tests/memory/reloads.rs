//! Frequent reloads leave unchanged rules deciding as before, and leak no memory.

use std::sync::Arc;

use tidegate::clock::{Micros, Now};
use tidegate::engine::{Cost, Descriptors, EngineAnswer, NoteKind, Op, Request, Verdict};
use tidegate::limit::QuotaLevel;
use tidegate::rules::{Domain, read_text};

use crate::counting::held;
use crate::{SECOND, engine};

/// Rules that stay, one of every kind.
const STAYING: &str = "
  - {name: bucket, key: [u], rate: 3/s, burst: 5, over: {soft: 40%, for: 2s}, warn_at: 50%}
  - {name: login, key: [u], algorithm: sliding_log, rate: 40/min, refused: counted, block: 7s}
  - {name: window, key: [u], algorithm: fixed_window, rate: 90/min, candidate: {rate: 60/min}}
  - {name: sliding, key: [], algorithm: sliding_window, rate: 2000/min, mode: shadow}
  - {name: paced, match: {p: y}, key: [u], algorithm: leaky_bucket, rate: 5/s, queue: 3}
";

/// The domains in force after `number` reloads.
fn reloaded(number: u64) -> Vec<Arc<Domain>> {
    let mut text = format!("domain: api\nlimits:{STAYING}");
    // Rules beside them are added, change their numbers and algorithm, and are removed; they match no
    // request.
    if !number.is_multiple_of(3) {
        let quota =
            ["rate: 5/s", "algorithm: fixed_window, rate: 7/min", "algorithm: sliding_log, rate: 9/h"]
                [usize::try_from(number % 7 % 3).unwrap()];
        text += &format!("  - {{name: other, match: {{p: nobody}}, key: [u], {quota}}}\n");
        text += &format!("  - {{name: once{}, match: {{p: nobody}}, key: [u], rate: 1/s}}\n", number % 50);
    }
    let mut domains = read_text("api.yaml", &text).domains;
    if number % 2 == 1 {
        // A domain is added and removed.
        domains
            .extend(read_text("web.yaml", "domain: web\nlimits: [{name: a, key: [], rate: 1/s}]\n").domains);
    }
    assert_eq!(domains.len(), 1 + usize::from(number % 2 == 1));
    domains
}

/// The verdict, retry-after, notes and levels of a reply; its text would cost more than the decision.
type Reply = (Verdict, Option<Micros>, Vec<(NoteKind, String)>, Vec<QuotaLevel>);

/// Plays a fixed trace and passes on each reply. Checks the memory held, if there are reloads.
fn play(requests: u64, reloads_every: Option<u64>, mut hear: impl FnMut(u64, Reply)) {
    let engine = engine(STAYING, 4 << 20);
    engine.install_rules(reloaded(0));
    let mut decider = engine.decider();
    let (mut at, mut reloads, mut random) = (0, 0, 1_u64);
    let mut settled = None;
    for number in 0..requests {
        // A congruential generator (Knuth, MMIX): the same trace in every run.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        at += random >> 35;
        if let Some(every) = reloads_every
            && number % every == 0
        {
            reloads += 1;
            engine.install_rules(reloaded(reloads));
            if reloads % 300 == 0 {
                // The rules are the same after 300, 600 and 900 reloads, so the memory held is too.
                let first = *settled.get_or_insert(held());
                let grown = held() - first;
                assert!(grown.abs() < 4_096, "{grown} bytes more after {reloads} reloads");
            }
        }
        if number % 100 == 0 {
            engine.sweep(Now::at_nanos(at));
        }
        let user = (random >> 40 & 7).to_string();
        let p = if random >> 50 & 1 == 1 { "y" } else { "n" };
        let attributes = [("u", user.as_str()), ("p", p)];
        let op = if random >> 60 == 0 { Op::Peek } else { Op::Hit };
        let request = Request {
            cost: Cost::Requests(u32::try_from(random >> 55 & 1).unwrap() + 1),
            lists_all_limits: true,
            ..Request::new(op, "api", Descriptors::from_attributes(&attributes))
        };
        let EngineAnswer::Decided(decision) = decider.decide(&request, Now::at_nanos(at)) else {
            unreachable!()
        };
        let notes = decision.notes().map(|(kind, rule)| (kind, rule.to_owned())).collect();
        let levels = decision.limits().map(|limit| limit.view.level).collect();
        hear(number, (decision.verdict, decision.retry_after, notes, levels));
    }
    assert!(at > 60 * SECOND);
}

#[test]
fn frequent_reloads_change_no_decision_of_unchanged_rules() {
    let mut replies = Vec::new();
    play(10_000, None, |_, reply| replies.push(reply));
    play(10_000, Some(10), |number, reply| {
        assert_eq!(Some(&reply), replies.get(usize::try_from(number).unwrap()), "request {number}");
    });
    let refused = replies.iter().filter(|reply| reply.0 == Verdict::Limit).count();
    assert!((1_000..9_000).contains(&refused), "{refused} refused: a trace that says something");
}
