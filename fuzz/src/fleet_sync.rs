//! A host of a fleet with a Redis that replies anything: no panic, and leases and counters agree at the end.

use std::sync::{Arc, Mutex};

use redis::Value;
use tidegate::clock::{Now, Timestamp};
use tidegate::engine::{
    CheckReply, ConnectionParams, Decider, Descriptors, Engine, EngineAnswer, HashKey, Op, RemoteCheckResult,
    Request, Session, Shortfalls, WorkOutcome,
};
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::heartbeat::Heartbeat;
use tidegate::fleet::member::HostMember;
use tidegate::fleet::remote_checks::WaitingRequest;
use tidegate::fleet::reply::{ReplyFault, ScriptReply};
use tidegate::fleet::secrets::SecretDigest;
use tidegate::fleet::sync;
use tidegate::rules::read_text;

use super::input::Input;
use super::rules::new_engine;

const RULES: &str = "\
domain: api
limits:
- {name: bucket, match: {kind: a}, key: [user], rate: 100/s, burst: 50, scope: fleet, fleet: {on_miss: refuse}}
- {name: asks, match: {kind: b}, key: [user], rate: 100/s, scope: fleet, fleet: {on_miss: ask}}
- {name: credit, match: {kind: c}, key: [user], rate: 1000/s, scope: fleet, fleet: {on_miss: admit}}
- {name: window, match: {kind: d}, key: [user], algorithm: fixed_window, rate: 1000/min, scope: fleet}
- {name: sliding, match: {kind: e}, key: [user], algorithm: sliding_window, rate: 1000/min, scope: fleet}
- {name: month, match: {kind: f}, key: [user], algorithm: fixed_window, rate: 1000/month, scope: fleet, fleet: {on_miss: admit}}
concurrency:
- {name: places, match: {kind: g}, key: [user], max: 40, scope: fleet}
";

const KINDS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
const USERS: [&str; 3] = ["u1", "u2", "u3"];
const STEPS_MAX: usize = 256;
const CALLS_MAX: usize = 64;
const WAITING_MAX: usize = 16;

/// Interprets the bytes as steps of a host: requests, time, and replies of Redis.
pub fn check(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut host = Host::new(input.byte());
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        host.step(&mut input);
    }
    host.finish();
}

/// A request that waits for a remote check.
struct Waiting {
    shortfalls: Arc<Shortfalls>,
    what: (usize, usize),
    is_second: bool,
    answer: Arc<Mutex<Option<Option<CheckReply>>>>,
}

struct Host {
    engine: Arc<Engine>,
    decider: Decider,
    member: HostMember,
    session: Session,
    now: Now,
    calls: Vec<ScriptCommand>,
    leases: Vec<u64>,
    waiting: Vec<Waiting>,
}

impl Host {
    fn new(hosts: u8) -> Host {
        let engine = new_engine();
        let standing = engine.join_fleet(HashKey::from_bytes([1; 16]));
        let loaded = read_text("rules.yaml", RULES);
        assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
        drop(engine.install_rules(loaded.domains));
        let now =
            Now { at: Timestamp::from_nanos(1_000_000_000), utc_offset_nanos: 1_772_539_200_000_000_000 };
        let options = sync::SyncOptions { host: [5; 16], buckets: 4, seed: 7 };
        let mut member = HostMember::new(Arc::clone(&engine), standing, options);
        member.expect(u32::from(hosts).max(1), now.at);
        let opening = ConnectionParams {
            name: Some([4; 16]),
            user: 1,
            pool: "web",
            slots: 8,
            connection: 1,
            pid: None,
        };
        let session = engine.open_session(&opening, now).unwrap();
        let decider = engine.decider();
        Host {
            engine,
            decider,
            member,
            session,
            now,
            calls: Vec::new(),
            leases: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 12 {
            0..=2 => {
                let what = (usize::from(input.byte()) % KINDS.len(), usize::from(input.byte()) % USERS.len());
                self.ask(what);
            }
            3 | 4 => self.advance(u64::from(input.byte()) * 1_000_000),
            5 => self.advance(u64::from(input.byte()) * 1_000_000_000),
            6 | 7 => self.reply(input),
            8 => self.fail(),
            9 => drop(self.member.set_reachable(input.byte().is_multiple_of(2), self.now.at)),
            10 => self.heartbeat(input),
            _ => self.rare(input.byte()),
        }
        std::mem::take(&mut self.waiting).into_iter().for_each(|waiting| self.resume(waiting));
    }

    /// Makes one request; under a concurrency limit it acquires a lease.
    fn ask(&mut self, what: (usize, usize)) {
        if let Some(shortfalls) = self.judge(what, None, self.waiting.len() < WAITING_MAX) {
            self.wait(shortfalls, what, false);
        }
    }

    fn judge(
        &mut self,
        (kind, user): (usize, usize),
        result: Option<RemoteCheckResult<'_>>,
        may_wait: bool,
    ) -> Option<Arc<Shortfalls>> {
        let attributes = [("kind", KINDS[kind]), ("user", USERS[user])];
        let op = if KINDS[kind] == "g" { Op::Acquire } else { Op::Hit };
        let session = Some(&self.session);
        let request = Request {
            may_wait,
            session,
            lists_all_limits: true,
            ..Request::new(op, "api", Descriptors::from_attributes(&attributes))
        };
        let answer = match result {
            None => self.decider.decide(&request, self.now),
            Some(result) => self.decider.resume(&request, result, self.now),
        };
        match answer {
            EngineAnswer::Decided(decision) => self.leases.extend(decision.lease),
            EngineAnswer::RemoteCheck(shortfalls) => return Some(shortfalls),
            _ => {}
        }
        None
    }

    fn wait(&mut self, shortfalls: Arc<Shortfalls>, what: (usize, usize), is_second: bool) {
        let answer = Arc::new(Mutex::new(None));
        let to = Arc::clone(&answer);
        let on_reply = Box::new(move |brought| {
            *to.lock().unwrap() = Some(brought);
            true
        });
        let due = self.now.at.after(shortfalls.patience);
        let request = WaitingRequest { shortfalls: Arc::clone(&shortfalls), due, on_reply };
        self.member.start_check(request, self.now, &mut self.calls);
        self.member.tend_permits(self.now, &mut self.calls);
        self.waiting.push(Waiting { shortfalls, what, is_second, answer });
    }

    /// Decides a request again after its remote check.
    fn resume(&mut self, waiting: Waiting) {
        let Some(brought) = waiting.answer.lock().unwrap().take() else { return self.waiting.push(waiting) };
        let shortfalls = match brought {
            Some(brought) => {
                self.judge(waiting.what, Some(RemoteCheckResult::Borrowed(brought)), !waiting.is_second)
            }
            None => self.judge(waiting.what, Some(RemoteCheckResult::TimedOut(&waiting.shortfalls)), false),
        };
        if let Some(shortfalls) = shortfalls {
            self.wait(shortfalls, waiting.what, true);
        }
    }

    fn advance(&mut self, nanos: u64) {
        self.now.at = Timestamp::from_nanos(self.now.at.as_nanos() + nanos);
        self.member.tick(self.now, &mut self.calls);
        self.member.ask_versions(&mut self.calls);
        self.engine.tick(self.now);
        self.engine.sweep(self.now);
        while self.calls.len() > CALLS_MAX {
            self.fail();
        }
    }

    /// Answers one of the commands with the next bytes, in the length that the command expects.
    fn reply(&mut self, input: &mut Input<'_>) {
        if self.calls.is_empty() {
            return;
        }
        let call = self.calls.swap_remove(usize::from(input.byte()) % self.calls.len());
        let _ = call.encode();
        let Some(reply) = decoded(&call, input) else { return self.member.failed(&call, self.now.at) };
        self.member.answered(&call, reply, self.now, &mut self.calls);
    }

    fn fail(&mut self) {
        if let Some(call) = self.calls.pop() {
            self.member.failed(&call, self.now.at);
        }
    }

    fn heartbeat(&mut self, input: &mut Input<'_>) {
        let secret = SecretDigest::default();
        let call = ScriptCommand::Heartbeat(Heartbeat {
            host: [5; 16],
            epoch: 3,
            seq: 1,
            pools: Vec::new(),
            secret,
            rules: 0,
        });
        if let Some(ScriptReply::Heartbeat(reply)) = decoded(&call, input) {
            self.member.apply_heartbeat(&reply, self.now.at);
        }
    }

    fn rare(&mut self, what: u8) {
        match what % 8 {
            0 => self.now.utc_offset_nanos += 3_600_000_000_000,
            1 => self.now.utc_offset_nanos -= 3_600_000_000_000,
            2 => self.member.sync.host = [what; 16],
            3 => self.member.expect(u32::from(what), self.now.at),
            4 => drop(self.member.leave(self.now, &mut self.calls)),
            _ => {
                if let Some(lease) = self.leases.pop() {
                    self.engine.release_lease(&self.session, lease, WorkOutcome::Ok, self.now);
                }
            }
        }
    }

    fn finish(mut self) {
        self.engine.end_session(&self.session, self.now);
        self.waiting.clear();
        self.advance(3_600_000_000_000);
        assert_eq!((self.engine.leases().live, self.engine.in_progress()), (0, 0));
    }
}

/// Decodes these bytes as a reply through the RESP reader.
fn decoded(call: &ScriptCommand, input: &mut Input<'_>) -> Option<ScriptReply> {
    let first = input.byte();
    let expected = match ScriptReply::decode(call, &[first]) {
        Err(ReplyFault { expected, .. }) => expected,
        _ => 1,
    };
    let mut bytes = [&[first], input.bytes(expected.saturating_sub(1))].concat();
    bytes.resize(expected, 0);
    let resp = [format!("${}\r\n", bytes.len()).into_bytes(), bytes, b"\r\n".to_vec()].concat();
    let Ok(Value::BulkString(bytes)) = redis::parse_redis_value(&resp) else { panic!("{resp:?}") };
    ScriptReply::decode(call, &bytes).ok().map(|(reply, _)| reply)
}
