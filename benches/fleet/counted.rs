//! Eight hosts in virtual time over a Redis in virtual time: cells per second, and the CPU time
//! of their synchronization, independent of the load of this machine. Connections are not included.

use std::io;
use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{
    Decider, Descriptors, Engine, EngineAnswer, EngineOptions, FleetStatus, HashKey, Mode, Op, Request,
    Verdict,
};
use tidegate::fleet::command::{CELLS_MAX, ScriptCommand};
use tidegate::fleet::member::HostMember;
use tidegate::fleet::reply::ScriptReply;
use tidegate::fleet::sync;
use tidegate::rules::read_text;

use crate::hosts::{HOSTS, REQUESTS, TRIALS, Trial, Zipf};
use crate::report::{Bound, Row};
use crate::stopwatch::cpu_nanos;
use crate::store::Store;
use crate::workload::{DOMAIN, Random, UserName};

pub(crate) fn run(seconds: u64) -> io::Result<Vec<Row>> {
    Ok(TRIALS.iter().flat_map(|trial| of(trial, seconds.max(SECONDS_MIN))).collect())
}

fn of(trial: &Trial, seconds: u64) -> Vec<Row> {
    let mut hosts: Vec<Host> = (0..HOSTS).map(|number| Host::new(number, trial.limit)).collect();
    let mut store = Store::default();
    let zipf = trial.is_zipf.then(|| Zipf::new(trial.callers));
    let mut random = Random::new(1);
    let mut counts = Counts::default();
    let warm_up_millis = seconds * 1_000 / 2;
    for millis in 0..warm_up_millis + seconds * 1_000 {
        if millis == warm_up_millis {
            counts = Counts::default();
        }
        for turn in 0..REQUESTS / 1_000 {
            let user = match &zipf {
                Some(zipf) => zipf.draw(&mut random),
                None => random.below(trial.callers),
            };
            let host = random.below(u32::from(HOSTS)) as usize;
            let now = at_micros(millis * 1_000 + turn * 5);
            counts.refused += u64::from(!hosts[host].is_let_through(user, now));
            counts.requests += 1;
        }
        for (number, host) in hosts.iter_mut().enumerate() {
            if millis % TICK_MILLIS == number as u64 {
                host.talk(&mut store, millis * 1_000 + 500, &mut counts);
            }
        }
    }
    counts.rows(trial, seconds, hosts.iter().map(|host| host.member.sync.keys()).sum())
}

#[derive(Default)]
struct Counts {
    requests: u64,
    refused: u64,
    cells: u64,
    calls: u64,
    talk_nanos: f64,
}

impl Counts {
    fn rows(&self, trial: &Trial, seconds: u64, keys: usize) -> Vec<Row> {
        let of = |what: &str| format!("{what}: {}", trial.text());
        let per_host = |count: f64| count / f64::from(HOSTS) / seconds as f64;
        vec![
            trial.bound(Row::alone(&of("cells"), "/s", &[self.cells as f64 / seconds as f64])),
            Row::alone("cells for each request", "", &[self.cells as f64 / self.requests as f64]),
            Row::alone(
                &format!("cells of a call of {CELLS_MAX} at most"),
                "",
                &[self.cells as f64 / self.calls as f64],
            ),
            Row::alone("refused", "%", &[100.0 * self.refused as f64 / self.requests as f64]),
            Row::alone("keys that a host is in touch about", "", &[keys as f64 / f64::from(HOSTS)]),
            Row::alone("CPU of a host's part, connections apart", "%", &[per_host(self.talk_nanos) / 1e7])
                .must(Bound::AtMost(5.0)),
            Row::alone("of that for each cell", "µs", &[self.talk_nanos / 1e3 / self.cells as f64]),
        ]
    }
}

struct Host {
    decider: Decider,
    standing: Arc<FleetStatus>,
    member: HostMember,
    calls: Vec<ScriptCommand>,
}

impl Host {
    fn new(number: u8, limit: &str) -> Host {
        let hash_key = HashKey::from_bytes([number; 16]);
        let engine =
            Arc::new(Engine::new(EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 30 }));
        let standing = engine.join_fleet(HashKey::from_bytes([9; 16]));
        let yaml = format!(
            "domain: {DOMAIN}\nlimits:\n- {{name: per-user, key: [user], rate: {limit}, scope: fleet, fleet: {{on_miss: admit}}}}\n"
        );
        let loaded = read_text("benchmark.yaml", &yaml);
        assert!(!loaded.has_errors(), "the benchmark's own rules: {:?}", loaded.problems.first());
        engine.install_rules(loaded.domains);
        let options =
            sync::SyncOptions { host: [number + 1; 16], buckets: sync::BUCKETS, seed: u64::from(number) + 1 };
        let decider = engine.decider();
        let mut member = HostMember::new(engine, Arc::clone(&standing), options);
        member.expect(u32::from(HOSTS), at_micros(0).at);
        member.set_reachable(true, at_micros(0).at);
        Host { decider, standing, member, calls: Vec::new() }
    }

    fn is_let_through(&mut self, user: u32, now: Now) -> bool {
        let user = UserName::new(user);
        let attributes = [("user", user.as_str())];
        let request = Request::new(Op::Hit, DOMAIN, Descriptors::from_attributes(&attributes));
        match self.decider.decide(&request, now) {
            EngineAnswer::Decided(decision) => decision.verdict == Verdict::Allow,
            _ => panic!("a conflict"),
        }
    }

    /// Sends due commands; their replies arrive 0.5 ms later.
    fn talk(&mut self, store: &mut Store, micros: u64, counts: &mut Counts) {
        assert!(self.standing.is_redis_reachable(), "nothing fails here");
        let mut calls = std::mem::take(&mut self.calls);
        let mut bytes = 0;
        counts.talk_nanos += cpu_nanos(|| {
            self.member.tick(at_micros(micros), &mut calls);
            for call in &calls {
                let encoded = call.encode();
                bytes += encoded.keys.len() + encoded.args.len();
            }
        });
        let mut more = Vec::new();
        for call in calls.drain(..) {
            let reply = store.execute(&call, UNIX_MICROS + micros + 250);
            assert!(
                matches!((&call, &reply), (ScriptCommand::Sync(_), ScriptReply::Sync(_))),
                "another call or reply"
            );
            counts.cells += call.cells() as u64;
            counts.calls += 1;
            let now = at_micros(micros + 499);
            counts.talk_nanos += cpu_nanos(|| self.member.answered(&call, reply, now, &mut more));
        }
        assert!(more.is_empty(), "no answer makes a host ask at once");
        std::hint::black_box(bytes);
        self.calls = calls;
    }
}

fn at_micros(micros: u64) -> Now {
    Now::at_nanos((START_MICROS + micros) * 1_000)
}

const TICK_MILLIS: u64 = 10;

const START_MICROS: u64 = 1_000_000;

const UNIX_MICROS: u64 = 1_700_000_000_000_000;

const SECONDS_MIN: u64 = 10;
