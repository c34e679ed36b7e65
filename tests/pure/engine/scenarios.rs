//! Requests to an engine and their answers, in virtual time, as the files in `scenarios/` have them.
//! `UPDATE_DOCS=1 cargo test --test pure scenarios` writes the answers anew.
//!
//! `#` begins a scenario with a new engine. `|` has the rules in force from there on: limits of the domain `api`, other
//! sections of it, or a whole file. `//` is a comment. Other lines are `[TIME] [Nx] COMMAND WORD… → ANSWER`. A time
//! holds until the next. A word is an attribute `NAME=VALUE`, an option `NAME:VALUE` or an argument. Equal answers of
//! a repeated command stand once. A refusal has its retry-after in microseconds, or `later` where it is a hint.

mod fleet;
mod operators;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use tidegate::clock::{Micros, Timestamp};
use tidegate::engine::{
    Amount, Charge, ConnectionParams, Cost, Descriptors, Engine, EngineAnswer, EngineOptions, IdempotencyKey,
    Op, RefundBy, RefundReference, RemoteCheckResult, Request, RuleName, Session, Target, Verdict,
    VerdictTotals, WorkOutcome,
};
use tidegate::rules::Mode;

use super::bench::{Ask, Bench, at, charge_of, shown};
use super::engines::{SECOND, options};
use crate::docs::keep_each;

pub(super) struct Stage {
    pub(super) bench: Bench,
    micros: u64,
    sessions: BTreeMap<String, Session>,
    /// The leases that commands name.
    pub(super) leases: BTreeMap<String, u64>,
    fleet: fleet::Fleet,
}

/// The words behind a command.
#[derive(Default)]
struct Words<'a> {
    arguments: Vec<&'a str>,
    attributes: Vec<(&'a str, &'a str)>,
    options: Vec<(&'a str, &'a str)>,
}

impl<'a> Words<'a> {
    fn new(words: impl Iterator<Item = &'a str>) -> Words<'a> {
        let mut all = Words::default();
        for word in words {
            match word.find(['=', ':']).map(|end| word.split_at(end)) {
                Some((name, value)) if value.starts_with('=') => all.attributes.push((name, &value[1..])),
                Some((name, value)) => all.options.push((name, &value[1..])),
                None => all.arguments.push(word),
            }
        }
        all
    }

    fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.options.iter().filter(move |(known, _)| *known == name).map(|(_, value)| *value)
    }

    fn option(&self, name: &str) -> Option<&'a str> {
        self.all(name).next()
    }

    fn number<T: FromStr>(&self, name: &str, default: T) -> T {
        self.option(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}:{value}")))
    }

    /// `NAME:UNIT:NUMBER`, for each unit.
    fn units<T: FromStr>(&self, name: &str) -> Vec<(&'a str, T)> {
        let units = self.all(name).filter_map(|value| value.split_once(':'));
        units.map(|(unit, number)| (unit, number.parse().ok().expect("a number"))).collect()
    }

    fn span(&self, name: &str) -> Option<u64> {
        self.option(name).map(micros)
    }

    fn until(&self) -> Option<Timestamp> {
        self.span("until").map(|micros| at(micros).at)
    }

    fn idempotency_key(&self) -> Option<IdempotencyKey<'a>> {
        let session = self.option("session").unwrap_or("s").as_bytes();
        let user = self.number("user", 7);
        self.option("idem").map(|name| IdempotencyKey { session, user, name: name.as_bytes() })
    }

    fn rule(&self) -> RuleName {
        RuleName { domain: "api".into(), rule: self.arguments[0].into() }
    }

    fn target(&self) -> Target {
        if self.arguments[0] == "everything" { Target::Daemon } else { Target::Rule(self.rule()) }
    }
}

/// Microseconds of `2min`, `2s`, `500ms` or `7us`; `2s-1us` is just before two seconds.
fn micros(text: &str) -> u64 {
    let (text, less) = text.split_once('-').map_or((text, 0), |(text, less)| (text, micros(less)));
    let (number, unit) = text.split_at(text.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(text.len()));
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000)];
    let (_, unit) = units.into_iter().find(|(name, _)| *name == unit).unwrap_or_else(|| panic!("{text}"));
    number.parse::<u64>().unwrap() * unit - less
}

/// The numbers above 0 with their names.
fn numbers<const N: usize>(named: [(&str, u64); N]) -> String {
    let named = named.iter().filter(|(_, number)| *number > 0);
    let all: Vec<_> = named.map(|(name, number)| format!("{name} {number}")).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(" ") }
}

fn verdicts(totals: &VerdictTotals) -> String {
    let VerdictTotals { allow, limit, wait, deny, shed } = *totals;
    numbers([("allow", allow), ("limit", limit), ("wait", wait), ("deny", deny), ("shed", shed)])
}

fn said(done: bool) -> String {
    if done { "done" } else { "nothing" }.to_owned()
}

impl Stage {
    pub(super) fn new(mode: Mode) -> Stage {
        Stage::with_memory(mode, options().memory_bytes_max)
    }

    pub(super) fn with_memory(mode: Mode, memory_bytes_max: usize) -> Stage {
        let engine = Engine::new(EngineOptions { mode, memory_bytes_max, ..options() });
        let bench = Bench::with(Arc::new(engine));
        Stage {
            bench,
            micros: 0,
            sessions: BTreeMap::new(),
            leases: BTreeMap::new(),
            fleet: Default::default(),
        }
    }

    pub(super) fn install(&self, rules: &str) {
        self.bench.install_at(rules, at(self.micros));
    }

    pub(super) fn with(rules: &str) -> Stage {
        let stage = Stage::new(Mode::Enforce);
        stage.install(rules);
        stage
    }

    #[track_caller]
    pub(super) fn check(&mut self, line: &str, expected: &str) {
        assert_eq!(self.run(line), expected, "{line}");
    }

    /// Runs a line without its answer; returns the answer, or nothing.
    fn run(&mut self, line: &str) -> String {
        let mut words = line.split_whitespace().peekable();
        let is_time =
            |word: &&str| word.starts_with(|sign: char| sign.is_ascii_digit()) && !word.ends_with('x');
        if let Some(time) = words.next_if(is_time) {
            self.micros = micros(time);
        }
        let times = words
            .next_if(|word| word.len() > 1 && word.ends_with('x') && word.as_bytes()[0].is_ascii_digit());
        let times: u32 = times.map_or(1, |times| times.trim_end_matches('x').parse().unwrap());
        let (command, words) = (words.next().unwrap_or_default(), Words::new(words));
        let mut answers: Vec<String> = (0..times).map(|_| self.command(command, &words)).collect();
        answers.dedup();
        answers.join(" | ")
    }

    fn command(&mut self, command: &str, words: &Words<'_>) -> String {
        match command {
            "hit" => self.decide(Op::Hit, words),
            "peek" => self.decide(Op::Peek, words),
            "acquire" => self.decide(Op::Acquire, words),
            "charge" => self.charge(words),
            "fleet" | "up" | "down" | "hosts" | "calls" | "grant" | "share" | "report" | "remove"
            | "permits" | "reply" | "drop" | "resume" => self.share(command, words),
            "release" | "renew" | "abandon" | "open" | "close" | "end" | "defer" => self.work(command, words),
            "tick" | "sweep" | "expire" | "signal" | "count" | "pool" | "controller" | "totals" => {
                self.look(command, words)
            }
            _ => self.operate(command, words),
        }
    }

    fn session(&self, words: &Words<'_>) -> Option<&Session> {
        self.sessions.get(words.option("by").unwrap_or("1"))
    }

    fn decide(&mut self, op: Op, words: &Words<'_>) -> String {
        self.decide_by(op, words, None)
    }

    /// Decides a request, or resumes it with the result of its remote check.
    fn decide_by(&mut self, op: Op, words: &Words<'_>, result: Option<RemoteCheckResult<'_>>) -> String {
        let (units, domain) = (words.units("cost"), words.option("domain").unwrap_or("api"));
        // A cost above the range of the protocol is clamped to it.
        let oversized = words.arguments.contains(&"oversized");
        let cost = match units.as_slice() {
            _ if oversized => Cost::Requests(u32::MAX),
            [] => Cost::Requests(words.number("cost", 1)),
            _ => Cost::Units(&units),
        };
        let request = Request {
            cost,
            oversized,
            may_wait: words.arguments.contains(&"waits"),
            wait_max: words.span("wait").map(Micros),
            idempotency_key: words.idempotency_key(),
            session: self.sessions.get(words.option("by").unwrap_or("1")),
            id: words.number("id", 1),
            priority: words.option("priority"),
            queued: words.span("queued").map(Micros),
            ..Request::new(op, domain, Descriptors::from_attributes(&words.attributes))
        };
        let (decider, now) = (&mut self.bench.decider, at(self.micros));
        let answer = match result {
            Some(result) => decider.resume(&request, result, now),
            None => decider.decide(&request, now),
        };
        let decision = match answer {
            EngineAnswer::Decided(decision) => decision,
            EngineAnswer::RemoteCheck(shortfalls) => return self.fleet.wait(shortfalls),
            other => return format!("{other:?}").to_lowercase(),
        };
        let is_hint = decision.verdict == Verdict::Shed
            || decision.verdict == Verdict::Limit
                && decision.binding.is_some_and(|view| view.level.window.0 == 0);
        let mut text = shown(&decision, !is_hint || decision.blocked);
        text += if is_hint && !decision.blocked { " later" } else { "" };
        let is_granted = matches!(decision.verdict, Verdict::Allow | Verdict::Wait);
        assert!(is_granted || decision.lease.is_none(), "a lease without a grant: {decision:?}");
        if op == Op::Acquire && is_granted && decision.lease.is_none() {
            text += " without lease";
        }
        if let (Some(lease), Some(name)) = (decision.lease, words.option("as")) {
            let before = self.leases.insert(name.to_owned(), lease);
            text +=
                before.map_or("", |before| if before == lease { " same lease" } else { " another lease" });
        }
        text
    }

    /// Charges as an untrusted user, unless told otherwise.
    fn charge(&mut self, words: &Words<'_>) -> String {
        let units = words.units("amount");
        let of_lease = words
            .option("of_lease")
            .map(|name| RefundReference::Lease(self.leases.get(name).map_or(5, |lease| *lease)));
        let of = of_lease.or(words.option("of").map(|name| RefundReference::IdempotencyKey(name.as_bytes())));
        let amount = match units.is_empty() {
            true => Amount::Requests(words.number("amount", 1)),
            false => Amount::Units(&units),
        };
        let charge = Charge {
            idempotency_key: words.idempotency_key(),
            refund_of: of.map(|reference| RefundBy { user: words.number("user", 7), reference }),
            trusted: words.arguments.contains(&"trusted"),
            ..charge_of(&words.attributes, amount)
        };
        self.bench.decider.charge(&charge, at(self.micros)).map_or_else(|error| error.to_string(), said)
    }

    /// Sessions and leases.
    fn work(&mut self, command: &str, words: &Words<'_>) -> String {
        let (engine, now) = (Arc::clone(&self.bench.engine), at(self.micros));
        if command == "open" {
            let name = words.arguments[0];
            let number: u8 = name.parse().unwrap();
            let opening = ConnectionParams {
                name: (number > 0).then_some([number; 16]),
                user: words.number("user", 7),
                pool: words.option("pool").unwrap_or("web"),
                slots: words.number("slots", 0),
                connection: words.number("connection", 1),
                pid: None,
            };
            let opened = engine.open_session(&opening, now);
            let error = opened.as_ref().err().map(|error| format!("{error:?}")).unwrap_or_default();
            self.sessions.extend(opened.ok().map(|session| (name.to_owned(), session)));
            return error;
        }
        let session = self.session(words).unwrap();
        let lease =
            words.arguments.first().and_then(|name| self.leases.get(*name)).copied().unwrap_or_default();
        match command {
            "release" => {
                let outcome = words.arguments.get(1).map_or(WorkOutcome::Ok, |word| word.parse().unwrap());
                return said(engine.release_lease(session, lease, outcome, now));
            }
            "renew" => return said(engine.renew_lease(session, lease, now)),
            "abandon" => {
                let number = |text: &str| text.parse::<u64>().unwrap();
                let mut ids = words.options.iter().map(|(connection, id)| (number(connection), number(id)));
                drop(engine.abandon_requests(session, &mut ids, now));
            }
            "close" => drop(engine.close_connection(session, now)),
            "end" => engine.end_session(session, now),
            _ => engine.defer_lease_ends(words.until().unwrap()),
        }
        String::new()
    }

    /// Ticks every 250 ms, as the daemon does, while a number of slots is busy and connections wait.
    fn pass(&mut self, words: &Words<'_>) {
        let (engine, until) = (Arc::clone(&self.bench.engine), words.span("until").unwrap_or(self.micros));
        let (busy, queue) =
            (words.number("busy", 0), words.option("queue").map(|waiting| waiting.parse().unwrap()));
        let (begin, mut leases) = (self.micros, Vec::new());
        for micros in (begin..=until).step_by(250_000) {
            self.micros = micros;
            let session = self.session(words);
            // Renewed before they expire.
            if (micros - begin).is_multiple_of(40_000_000) || micros == until {
                leases.drain(..).for_each(|lease| {
                    assert!(engine.release_lease(session.unwrap(), lease, WorkOutcome::Ok, at(micros)));
                });
                for _ in (0..busy).filter(|_| micros < until) {
                    let ask = Ask { priority: Some("critical"), ..Ask::acquire("job=worker") };
                    let answer =
                        self.bench.decide(self.sessions.get("1"), at(micros), ask, |_| String::new());
                    leases.push(answer.lease.unwrap());
                }
            }
            if queue.is_some() {
                engine.record_host_signal("web", "accept_queue", queue, at(micros));
            }
            engine.tick(at(micros));
            if words.arguments.contains(&"sweeps") {
                engine.sweep(at(micros));
            }
        }
        self.micros = until;
    }

    /// The passage of time, and what the engine counts.
    fn look(&mut self, command: &str, words: &Words<'_>) -> String {
        let (engine, now) = (Arc::clone(&self.bench.engine), at(self.micros));
        let mut totals = engine.totals();
        match (command, words.arguments.as_slice()) {
            ("tick", _) => self.pass(words),
            ("sweep", _) => engine.sweep(now),
            ("expire", _) => engine.end_expired_leases(now),
            ("signal", [pool, name, permille]) => {
                let session = self.session(words).unwrap();
                engine.record_pushed_signal(session, pool, name, permille.parse().unwrap(), now).unwrap();
            }
            ("count", ["permits"]) => return engine.in_progress().to_string(),
            ("count", ["leases"]) => return engine.leases().live.to_string(),
            ("count", ["sessions"]) => return engine.leases().sessions.to_string(),
            ("count", ["not_held"]) => {
                let counts = engine.leases().not_held;
                return numbers([
                    ("ended", counts.ended),
                    ("foreign", counts.foreign),
                    ("unknown", counts.unknown),
                ]);
            }
            ("count", ["expired"]) => return engine.leases().expired.to_string(),
            ("count", ["alarms"]) => {
                return totals.rules.iter().map(|rule| rule.guard).sum::<u64>().to_string();
            }
            ("count", _) => return engine.keys().to_string(),
            ("pool", _) => {
                let pool = engine.pools(now).remove(0);
                let slots = pool.slots.map_or("unknown".to_owned(), |slots| slots.to_string());
                return format!(
                    "critical {} others {} busy {} of {slots}",
                    pool.critical, pool.noncritical, pool.busy
                );
            }
            ("controller", _) => {
                let pool = engine.pools(now).remove(0);
                let chances = pool
                    .shed_probabilities
                    .iter()
                    .map(|(priority, chance)| format!("{priority} {chance:.3}"));
                // Never minus zero.
                let severity = (pool.severity * 1_000.0).round() / 1_000.0 + 0.0;
                return format!("severity {severity:.3} {}", chances.collect::<Vec<_>>().join(" "));
            }
            (_, [name]) => {
                let of = |all: &[(Box<str>, VerdictTotals)]| {
                    all.iter().find(|(known, _)| **known == **name).map(|(_, totals)| verdicts(totals))
                };
                if let Some(seen) = of(&totals.priorities).or(of(&totals.unnamed)) {
                    return seen;
                }
                let rule = totals.rules.drain(..).find(|rule| *rule.rule == **name).unwrap();
                let outcomes = numbers([
                    ("pass", rule.pass),
                    ("near", rule.near),
                    ("over", rule.over),
                    ("refuse", rule.refuse),
                    ("would refuse", rule.would_refuse),
                ]);
                return format!("{} / {outcomes}", verdicts(&rule.verdicts));
            }
            _ => return verdicts(&totals.verdicts),
        }
        String::new()
    }
}

/// A file with the current answers, and the lines that differ.
fn play(file: &str) -> (String, String) {
    let (mut stage, mut rules) = (Stage::new(Mode::Enforce), String::new());
    let (mut renewed, mut differing, mut scenario) = (String::new(), String::new(), "");
    for line in file.lines() {
        if !line.starts_with('|') && !rules.is_empty() {
            stage.install(&std::mem::take(&mut rules));
        }
        let mut now = line.to_owned();
        if let Some(rule) = line.strip_prefix("| ") {
            rules += &format!("{rule}\n");
        } else if line.starts_with('#') {
            (stage, scenario) = (Stage::new(Mode::Enforce), line);
        } else if !line.is_empty() && !line.starts_with("//") {
            let command = line.split('→').next().unwrap().trim_end();
            let answer = stage.run(command);
            now = if answer.is_empty() { command.to_owned() } else { format!("{command:<40} → {answer}") };
        }
        if !now.split_whitespace().eq(line.split_whitespace()) {
            differing += &format!("{scenario}\n- {line}\n+ {now}\n");
        }
        renewed += &format!("{now}\n");
    }
    (renewed, differing)
}

#[test]
fn answers_as_each_scenario_has_them() {
    keep_each("tests/pure/engine/scenarios", |_, file| play(file));
}
