//! All limits together, as designed: all are checked, then all are charged or none is.

use std::collections::HashMap;

use super::limit::{Ask, ReferenceLimit, State, micros};
use super::spec::{Spec, Terms};

/// The contents of a reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) verdict: &'static str,
    pub(super) rule: Option<(String, u64, u64)>,
    pub(super) retry: Option<u64>,
    pub(super) notes: Vec<(&'static str, String)>,
    /// Rule, limit, window, remaining, reset.
    pub(super) all: Vec<(String, u64, u64, u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Reference {
    specs: Vec<Spec>,
    utc: u64,
    pub(super) room: bool,
    /// By rule, whether it is its shadow rule's, and key.
    states: HashMap<(usize, bool, &'static str), State>,
}

/// Attributes of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub(super) at: u64,
    pub(super) user: &'static str,
    pub(super) p: &'static str,
}

struct Part {
    rule: usize,
    key: (usize, bool, &'static str),
    limit: ReferenceLimit,
    ask: Ask,
    passes: bool,
    beyond: bool,
    wait: i128,
}

pub(super) const NAMES: [&str; 4] = ["a", "b", "c", "d"];

impl Reference {
    pub(super) fn new(specs: Vec<Spec>, utc: u64) -> Reference {
        Reference { specs, utc, room: false, states: HashMap::new() }
    }

    /// The limits that match a request: a rule's own, then its shadow rule's. Unlimited keys have none.
    fn limits(&self, about: About) -> Vec<(usize, bool, ReferenceLimit)> {
        let mut limits = Vec::new();
        for (rule, spec) in self.specs.iter().enumerate() {
            if spec.matching && about.p != "y" || spec.unlimited && about.user == "3" {
                continue;
            }
            let other = spec.other.filter(|_| about.user == "2");
            let both = [(false, Some(spec.written)), (true, spec.candidate())];
            for (is_candidate, written) in both {
                let Some(written) = written else { continue };
                let terms = other.unwrap_or(written.terms);
                let all: Vec<Terms> = spec.other.into_iter().chain([written.terms]).collect();
                let limit = ReferenceLimit::new(&written, other.is_none(), terms, &all, self.utc);
                limits.push((rule, is_candidate, limit));
            }
        }
        limits
    }

    fn key(&self, rule: usize, is_candidate: bool, about: About) -> (usize, bool, &'static str) {
        (rule, is_candidate, if self.specs[rule].keyed { about.user } else { "" })
    }

    /// The charge to a rule, in its unit.
    fn amount<T: Copy>(&self, rule: usize, requests: T, tokens: Option<T>) -> Option<T> {
        if self.specs[rule].tokens { tokens } else { Some(requests) }
    }

    fn is_enforced(&self, part: &Part) -> bool {
        !part.key.1 && !self.specs[part.rule].shadow
    }

    fn state(&self, part: &Part) -> State {
        self.states.get(&part.key).cloned().unwrap_or_default()
    }

    pub(super) fn decide(
        &mut self,
        about: About,
        peek: bool,
        requests: u32,
        tokens: Option<u32>,
        wait_max: Option<u64>,
    ) -> Reply {
        let at = about.at;
        let mut parts = Vec::new();
        for (rule, is_candidate, limit) in self.limits(about) {
            let Some(cost) = self.amount(rule, requests, tokens) else { continue };
            let ask = Ask { cost: u64::from(cost), wait_max, room: self.room };
            let key = self.key(rule, is_candidate, about);
            let state = self.states.get(&key).cloned().unwrap_or_default();
            let (passes, beyond) = (limit.passes(&state, at, ask), limit.is_beyond(&state, at, ask));
            let wait = limit.wait(&state, at, ask);
            parts.push(Part { rule, key, limit, ask, passes, beyond, wait });
        }
        let granted = parts.iter().all(|part| part.passes || !self.is_enforced(part));
        let waits = parts.iter().filter(|part| self.is_enforced(part)).map(|part| part.wait);
        let wait = if granted { waits.max().unwrap_or(0) } else { 0 };
        if !peek {
            for part in &parts {
                let state = self.states.entry(part.key).or_default();
                if part.limit.counted || part.passes && granted {
                    part.limit.charge(state, at, part.ask, wait);
                }
                if !part.passes {
                    part.limit.refuse(state, at, part.ask);
                }
            }
        }
        let mut reply = Reply {
            verdict: match (granted, micros(wait)) {
                (false, _) => "limit",
                (true, 0) => "allow",
                (true, _) => "wait",
            },
            retry: Some(micros(wait)),
            ..Reply::default()
        };
        self.name_binding(&parts, granted, at, &mut reply);
        self.add_notes(&parts, granted, at, &mut reply);
        reply
    }

    fn name_binding(&self, parts: &[Part], granted: bool, at: u64, reply: &mut Reply) {
        let enforced: Vec<&Part> = parts.iter().filter(|part| self.is_enforced(part)).collect();
        let named = |part: &Part| {
            let (remaining, _) = part.limit.level(&self.state(part), at);
            (NAMES[part.rule].to_owned(), remaining, part.limit.quota.limit)
        };
        if granted {
            let share = |part: &Part| {
                let (_, remaining, limit) = named(part);
                // As a fraction of a common multiple of all limits here.
                (!self.specs[part.rule].advertise, remaining * 1_000_000_007 / limit, part.rule)
            };
            reply.rule = enforced.into_iter().min_by_key(|part| share(part)).map(named);
            return;
        }
        let retries = enforced.iter().map(|part| (*part, part.limit.retry(&self.state(part), at, part.ask)));
        let retries: Vec<(&Part, Option<u64>)> = retries.collect();
        let refusing: Vec<_> = retries.iter().filter(|(part, _)| !part.passes).collect();
        let longest = refusing.iter().map(|(_, retry)| retry.unwrap_or(u64::MAX)).max().unwrap();
        let (part, retry) = refusing.iter().find(|(_, retry)| retry.unwrap_or(u64::MAX) == longest).unwrap();
        // Rules that only count the refusal may refuse a retry for longer.
        let mut longest = retries.iter().filter_map(|(_, retry)| *retry).max();
        // A soft part that passes now may have ended by then.
        while let Some(wait) = longest {
            let then = at + wait * 1_000;
            let more = enforced.iter().filter_map(|part| part.limit.retry(&self.state(part), then, part.ask));
            let Some(more @ 1..) = more.max() else { break };
            longest = Some(wait + more);
        }
        (reply.rule, reply.retry) = (Some(named(part)), retry.and(longest));
    }

    fn add_notes(&self, parts: &[Part], granted: bool, at: u64, reply: &mut Reply) {
        for part in parts {
            let spec = &self.specs[part.rule];
            let (remaining, reset) = part.limit.level(&self.state(part), at);
            let limit = part.limit.quota.limit;
            let mut name = NAMES[part.rule].to_owned();
            let is_near = spec.warn_at.is_some_and(|share| (limit - remaining) * 100 > limit * share);
            let note = match (part.key.1, part.passes) {
                (true, false) => Some("candidate"),
                (true, true) => (granted && part.beyond).then(|| {
                    name.push_str("@candidate");
                    "over"
                }),
                (false, false) => spec.shadow.then_some("shadow"),
                (false, true) if granted && part.beyond => Some("over"),
                (false, true) => (granted && is_near).then_some("near"),
            };
            reply.notes.extend(note.map(|note| (note, name.clone())));
            if !part.key.1 && spec.advertise {
                reply.all.push((name, limit, part.limit.quota.window_us, remaining, reset));
            }
        }
    }

    /// Charges after the fact. `None`: the contract leaves the result open.
    pub(super) fn charge(&mut self, about: About, requests: i64, tokens: Option<i64>) -> Option<()> {
        for (rule, is_candidate, limit) in self.limits(about) {
            let Some(amount) = self.amount(rule, requests, tokens) else { continue };
            let key = self.key(rule, is_candidate, about);
            let state = self.states.entry(key).or_default();
            if state.is_merged {
                return None;
            }
            limit.settle_up(state, about.at, amount);
        }
        Some(())
    }
}
