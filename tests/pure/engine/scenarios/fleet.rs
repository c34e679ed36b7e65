//! Commands about budgets and permits that a fleet shares. `KEYS` are numbered as `calls` and waiting requests name
//! them; a command is about the first unless `key:` says otherwise.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Micros;
use tidegate::engine::{
    CheckReply, HashKey, KeyCheckReply, Op, PermitReply, RemoteCheckResult, ShareReply, SharedKey, Shortfalls,
};
use tidegate::limit::share::FleetStatus;

use super::{Stage, Words, at, said};

/// The host as a member of a fleet.
#[derive(Default)]
pub(super) struct Fleet {
    status: Option<Arc<FleetStatus>>,
    keys: Vec<SharedKey>,
    /// What the last waiting request lacks, and the reply to it.
    shortfalls: Option<Arc<Shortfalls>>,
    reply: Option<CheckReply>,
}

impl Fleet {
    fn know(&mut self, keys: impl IntoIterator<Item = SharedKey>) {
        for key in keys {
            if !self.keys.contains(&key) {
                self.keys.push(key);
            }
        }
    }

    /// Records what a request lacks, and describes it.
    pub(super) fn wait(&mut self, shortfalls: Arc<Shortfalls>) -> String {
        self.know(shortfalls.needs.iter().map(|need| need.key));
        let lacks: Vec<_> = shortfalls.needs.iter().map(|need| need.missing_units.to_string()).collect();
        let what = if shortfalls.needs[0].is_permit { " permit" } else { "" };
        let text = format!("waits {:?} for {}{what}", shortfalls.patience, lacks.join(" "));
        self.shortfalls = Some(shortfalls);
        text
    }
}

impl Stage {
    pub(super) fn share(&mut self, command: &str, words: &Words<'_>) -> String {
        let (engine, now) = (Arc::clone(&self.bench.engine), at(self.micros));
        let status = self.fleet.status.get_or_insert_with(|| engine.join_fleet(HashKey::from_bytes([9; 16])));
        let key = self.fleet.keys.get(words.number("key", 0)).copied();
        let argument = words.arguments.first().copied().unwrap_or_default();
        match command {
            "fleet" | "up" => drop(status.set_redis_reachable(true)),
            "down" => drop(status.set_redis_reachable(false)),
            "hosts" => status.set_hosts(argument.parse().unwrap()),
            "calls" => {
                let mut calls = Vec::new();
                engine.take_due_share_keys(&mut calls);
                engine.take_due_permit_keys(&mut calls);
                self.fleet.know(calls.iter().copied());
                return calls.len().to_string();
            }
            "grant" => self.grant(&key.unwrap(), argument.parse().unwrap(), words),
            "share" | "report" => {
                let (key, budgets) = (key.unwrap(), engine.fleet_budgets());
                let budget = &budgets[&key.budget()];
                let mut shown = String::new();
                let share = match command {
                    "share" => engine.peek_share(&key, budget, now),
                    _ => engine.report_share(&key, budget, words.number("returns", 0), now).map(
                        |(report, returned)| {
                            let paid = report.paid_us.map(|paid| format!(" paid {paid}")).unwrap_or_default();
                            shown = format!(", returns {returned}{paid}");
                            report
                        },
                    ),
                };
                let share = share.unwrap();
                return format!(
                    "borrowed {} requested {} debt {} refund {}{shown}",
                    share.borrowed, share.requested, share.debt, share.refund
                );
            }
            "remove" => {
                let (key, limits) = (key.unwrap(), engine.fleet_concurrency_limits());
                let removed = match limits.get(&key.budget()) {
                    Some(_) => engine.remove_permits(&key, now),
                    None => engine.remove_share(&key, &engine.fleet_budgets()[&key.budget()], now),
                };
                return said(removed);
            }
            "permits" => {
                return match engine.find_permits(&words.rule(), words.attributes.as_slice(), now) {
                    Ok(Some(here)) => format!(
                        "{} in use of {} of {}, tracked: {}",
                        here.in_use, here.held, here.max, here.is_tracked
                    ),
                    other => format!("{other:?}"),
                };
            }
            "reply" => self.fleet.reply = Some(self.reply(words)),
            "drop" => self.fleet.reply = None,
            _ => return self.resume(words),
        }
        String::new()
    }

    /// Redis grants tokens, or permits beside two free ones.
    fn grant(&self, key: &SharedKey, granted: u32, words: &Words<'_>) {
        let (engine, now) = (&self.bench.engine, at(self.micros));
        let (budgets, limits) = (engine.fleet_budgets(), engine.fleet_concurrency_limits());
        if limits.contains_key(&key.budget()) {
            engine.create_permits(key, now);
            let (needed, _) = engine.report_permits(key, now).unwrap();
            let held = needed + granted;
            let reply = PermitReply { held, free: 2, reported_at: now.at, refused_for: Duration::ZERO };
            engine.apply_permit_reply(key, &reply, now);
            return;
        }
        let budget = &budgets[&key.budget()];
        let paid = engine.report_share(key, budget, 0, now).unwrap().0.debt;
        let level = words.number("level", 50) * 1_000_000;
        let (sent_at, demand, low_mark) = (now.at, 0, 0);
        let reply = ShareReply { paid, granted, level, demand, sent_at, low_mark, next_increase: None };
        engine.apply_share_reply(key, budget, &reply, now);
    }

    /// The reply to the waiting request, sent at zero: `granted`, `permit`, `refused:WAIT`, or neither.
    fn reply(&self, words: &Words<'_>) -> CheckReply {
        let (engine, now) = (&self.bench.engine, at(self.micros));
        let mut reply = CheckReply::new(engine, now);
        for need in &self.fleet.shortfalls.as_ref().unwrap().needs {
            if need.is_permit {
                reply.add_permit(engine.claim_permit(&need.key, now).unwrap());
                continue;
            }
            let granted = if words.arguments.contains(&"granted") { need.missing_units } else { 0 };
            let of_key = KeyCheckReply {
                granted,
                level: words.number("level", 0) * 1_000_000,
                refused: words.span("refused").map(|wait| (need.missing_units, Some(Micros(wait)))),
                sent_at: at(0).at,
                next_increase: None,
                paid_us: words.span("paid").unwrap_or_default(),
            };
            reply.add(need.key, of_key);
        }
        reply
    }

    /// Resumes a request with its reply, or as one that timed out.
    fn resume(&mut self, words: &Words<'_>) -> String {
        let shortfalls = Arc::clone(self.fleet.shortfalls.as_ref().unwrap());
        let result = match self.fleet.reply.take() {
            Some(reply) => RemoteCheckResult::Borrowed(reply),
            None => RemoteCheckResult::TimedOut(&shortfalls),
        };
        let op = if words.arguments.contains(&"acquire") { Op::Acquire } else { Op::Hit };
        self.decide_by(op, words, Some(result))
    }
}
