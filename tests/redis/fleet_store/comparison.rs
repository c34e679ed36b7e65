//! Runs each command in a real Redis and in the Rust model of its scripts, and compares everything.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;

use tidegate::fleet::cell::{CellQuota, CellRate, CellReport, GENERATION_US};
use tidegate::fleet::command::{CheckPayment, CommandHead, KeyPayment, Payment, ScriptCommand, SyncBatch};
use tidegate::fleet::heartbeat::{Heartbeat, PoolReport};
use tidegate::fleet::link::Script;
use tidegate::fleet::permits::PermitCommand;
use tidegate::fleet::reply::{CommandReply, CostCover, ScriptReply};
use tidegate::fleet::scripts;
use tidegate::fleet::secrets::SecretDigest;
use tidegate::fleet::version::{self, VersionCommand};
use tidegate::fleet::window::WindowStatus;

use super::commands::{Act, Birth, Number, Step, after, bucket, dated, head, host_of, key_of};
use super::store::{HOSTS, Store};
use crate::redis_server::Redis as Server;

pub(crate) struct Twins {
    redis: redis::Connection,
    _server: Server,
    shas: HashMap<&'static str, String>,
    store: Store,
    now: u64,
    heartbeats: HashMap<u8, LastBeat>,
    reports: HashMap<(u8, [u8; 16]), CellReport>,
    born_us: u64,
    /// Number of results of each kind.
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug, Default)]
struct LastBeat {
    epoch: u64,
    seq: u64,
    sent: Option<ScriptCommand>,
}

pub(crate) fn start() -> (Server, redis::Connection) {
    let server = Server::start(&[]);
    let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    (server, connection)
}

pub(crate) fn load(redis: &mut redis::Connection, text: &str) -> String {
    redis::cmd("SCRIPT").arg("LOAD").arg(text).query(redis).unwrap()
}

/// Loads a script that reads its time from the hash `clock` instead of `TIME`: both reply with seconds and
/// microseconds, and a script calls `TIME` at most once.
fn load_with_clock(redis: &mut redis::Connection, script: &Script) -> String {
    const TIME: &str = "redis.call('TIME')";
    let calls = usize::from(!matches!(script.name, "version" | "overrides"));
    assert_eq!(script.text.matches(TIME).count(), calls, "{script:?}");
    load(redis, &script.text.replace(TIME, "redis.call('HMGET', 'clock', 's', 'us')"))
}

impl Twins {
    pub(crate) fn new() -> Twins {
        let (server, mut redis) = start();
        let shas = scripts::all().map(|script| (script.name, load_with_clock(&mut redis, script)));
        Twins {
            redis,
            _server: server,
            shas: shas.into(),
            store: Store::default(),
            now: 0,
            heartbeats: HashMap::new(),
            reports: HashMap::new(),
            born_us: 0,
            seen: BTreeMap::new(),
        }
    }

    fn order(&mut self, command: &redis::Cmd) {
        command.exec(&mut self.redis).unwrap();
    }

    fn set_clock(&mut self) {
        let (seconds, rest) = (self.now / 1_000_000, self.now % 1_000_000);
        self.order(redis::cmd("HSET").arg("clock").arg("s").arg(seconds).arg("us").arg(rest));
    }

    pub(crate) fn forget_all(&mut self) {
        self.order(&redis::cmd("FLUSHALL"));
        self.store.flush();
        self.now = 1_700_000_000_000_000;
        self.heartbeats.clear();
        self.reports.clear();
        self.born_us = 0;
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each kind of step")]
    pub(crate) fn step(&mut self, step: &Step) -> Result<(), String> {
        self.now = after(self.now, &step.time);
        self.set_clock();
        self.expire();
        match &step.act {
            Act::Sync { host, birth, asks } => {
                let head = self.head(*birth);
                let mut keys = HashSet::new();
                let asks = asks.iter().filter(|asking| keys.insert(asking.ask.key));
                let asks = asks.map(|asking| {
                    let mut ask = asking.ask;
                    if asking.honest {
                        ask.last = self.reports.get(&(*host, ask.key)).copied();
                    } else if let Some(last) = &mut ask.last {
                        last.generation = (self.now / GENERATION_US).saturating_sub(last.generation);
                    }
                    if let Some(asked) = &mut ask.window {
                        asked.window = dated(asked.window, self.now);
                        asked.paid_us = asked.paid_us.map(|ago| self.now.saturating_sub(ago));
                    }
                    ask
                });
                let asks: Vec<_> = asks.collect();
                let numbers = vec![0; asks.len()];
                let batch = SyncBatch { head, asks, numbers };
                let reply = self.execute(&ScriptCommand::Sync(batch.clone()))?;
                let ScriptReply::Sync(reply) = reply else { return Err(format!("{reply:?} to a sync")) };
                self.born_us = reply.born_us;
                for (ask, reply) in batch.asks.iter().zip(reply.results) {
                    let hold = ask.hold.saturating_add(reply.grant);
                    let report = CellReport { hold, demand: ask.demand, generation: reply.generation };
                    self.reports.insert((*host, ask.key), report);
                }
                Ok(())
            }
            Act::Exact { birth, costs } => {
                let head = self.head(*birth);
                let mut keys = HashSet::new();
                let costs = costs.iter().filter(|cost| keys.insert(cost.key)).map(|cost| {
                    let window = cost.window.map(|window| dated(window, self.now));
                    KeyPayment { window, ..*cost }
                });
                let costs: Vec<_> = costs.collect();
                // Of one, two or three keys each.
                let of_check = costs.first().map_or(1, |cost| usize::from(cost.key[15]) % 3 + 1);
                let checks = costs.chunks(of_check).map(|costs| CheckPayment {
                    number: 0,
                    costs: costs.to_vec(),
                    needs: Vec::new(),
                });
                let mut checks: Vec<_> = checks.collect();
                // Often one check more of the first keys.
                checks.extend(checks.first().filter(|_| costs.len() > 1).cloned());
                let payment = Payment { head, checks };
                self.execute(&ScriptCommand::Exact(payment)).map(drop)
            }
            Act::Permits { host, birth, requests } => {
                let head = self.head(*birth);
                let mut keys = HashSet::new();
                let requests = requests.iter().filter(|request| keys.insert(request.key)).cloned().collect();
                let command = PermitCommand { head, host: host_of(*host), requests };
                self.execute(&ScriptCommand::Permits(command)).map(drop)
            }
            Act::Heartbeat { host, number, pools, secret } => self.heartbeat(*host, *number, pools, *secret),
            Act::Version { rule, cell_quota, before } => {
                let before = before.map(|(cell_quota, known)| (fingerprint(cell_quota), known));
                let version =
                    VersionCommand { rule: (*rule).into(), numbers: fingerprint(*cell_quota), before };
                self.execute(&ScriptCommand::Version(version)).map(drop)
            }
            Act::Evict { key } => {
                self.delete(&cell_name('q', *key));
                self.delete(&cell_name('m', *key));
                self.delete(&cell_name('w', *key));
                self.store.evict(bucket().0, key_of(*key));
                Ok(())
            }
            Act::Garbage { key, bytes } => {
                // An invalid cell counts as none. So do 84 bytes that begin with zeros: no rate is zero.
                let bytes: Vec<u8> = [0; 16].iter().chain(bytes.iter().skip(16)).copied().collect();
                self.delete(&cell_name('m', *key));
                for kind in ['q', 'w'] {
                    self.order(redis::cmd("SET").arg(cell_name(kind, *key)).arg(&bytes));
                }
                self.store.evict(bucket().0, key_of(*key));
                Ok(())
            }
            Act::Flush => {
                self.order(&redis::cmd("FLUSHALL"));
                self.set_clock();
                self.store.flush();
                Ok(())
            }
        }
    }

    fn head(&self, birth: Birth) -> CommandHead {
        head(match birth {
            Birth::Last => self.born_us,
            Birth::None => 0,
            Birth::Another => 1,
        })
    }

    fn heartbeat(
        &mut self,
        host: u8,
        number: Number,
        pools: &[super::commands::PoolStep],
        secret: u8,
    ) -> Result<(), String> {
        let last =
            self.heartbeats.get(&host).cloned().unwrap_or(LastBeat { epoch: 5, ..LastBeat::default() });
        let (epoch, seq) = match number {
            Number::Next | Number::Again => (last.epoch, last.seq + 1),
            Number::Before if last.seq > 1 => (last.epoch, last.seq - 1),
            Number::NewEpoch => (last.epoch + 1, 1),
            // Older than any that was used: no host reports twice under one number.
            Number::OldEpoch | Number::Before => (1, last.seq + 1),
        };
        let mut names = HashSet::new();
        let pools = pools
            .iter()
            .filter(|(pool, _)| names.insert(*pool))
            .map(|(pool, load)| PoolReport { pool: format!("api/{pool}"), load: *load });
        let secret = SecretDigest::of_secret(&[secret]);
        let heartbeat = ScriptCommand::Heartbeat(Heartbeat {
            host: host_of(host),
            epoch,
            seq,
            pools: pools.collect(),
            secret,
        });
        let again = last.sent.filter(|_| matches!(number, Number::Again));
        let is_later = again.is_none() && !matches!(number, Number::Before | Number::OldEpoch);
        let heartbeat = again.unwrap_or(heartbeat);
        if is_later {
            self.heartbeats.insert(host, LastBeat { epoch, seq, sent: Some(heartbeat.clone()) });
        }
        self.execute(&heartbeat).map(drop)
    }

    fn execute(&mut self, command: &ScriptCommand) -> Result<ScriptReply, String> {
        let encoded = command.encode();
        let mut evalsha = redis::cmd("EVALSHA");
        evalsha.arg(&self.shas[encoded.script.name]).arg(encoded.keys.len());
        for word in encoded.keys.iter().chain(&encoded.args) {
            evalsha.arg(word.as_slice());
        }
        let bytes: Vec<u8> =
            evalsha.query(&mut self.redis).map_err(|error| format!("{command:?}: {error}"))?;
        let received =
            ScriptReply::decode(command, &bytes).map_err(|fault| format!("{command:?}: {fault}"))?;
        let reply = self.store.execute(command, self.now);
        if received.0 != reply || received.1 > 0 {
            return Err(format!("{command:?}\n  in Redis: {received:?}\n  in Rust:  {reply:?}"));
        }
        self.count(&reply);
        self.compare().map_err(|why| format!("after {command:?} at {}: {why}", self.now))?;
        Ok(reply)
    }

    fn compare(&mut self) -> Result<(), String> {
        self.compare_keys("GET", &[], self.store.strings())?;
        self.compare_keys("HGETALL", &[], self.store.hashes())?;
        self.compare_keys("ZRANGE", &["0", "-1", "WITHSCORES"], self.store.sets())
    }

    /// Compares keys of one kind and their expiry. Redis then keeps them until the test deletes them, so that
    /// the next comparison shows which keys a command touched.
    fn compare_keys<T: redis::FromRedisValue + PartialEq + Debug>(
        &mut self,
        read: &str,
        rest: &[&str],
        expected: BTreeMap<String, (T, u64)>,
    ) -> Result<(), String> {
        if expected.is_empty() {
            return Ok(());
        }
        let mut pipe = redis::pipe();
        for name in expected.keys() {
            pipe.cmd(read).arg(name).arg(rest).cmd("PTTL").arg(name);
            pipe.cmd("PEXPIRE").arg(name).arg(FOREVER_MS).ignore();
        }
        let found: Vec<redis::Value> = pipe.query(&mut self.redis).unwrap();
        let mut found = found.into_iter();
        for (name, (expected, until_ms)) in expected {
            let (value, ttl) = (found.next().unwrap(), found.next().unwrap());
            let found: T = redis::from_redis_value(value).unwrap();
            let ttl: i64 = redis::from_redis_value(ttl).unwrap();
            if found != expected {
                return Err(format!("{name} is {found:?} in Redis and {expected:?} in Rust"));
            }
            let kept = until_ms.saturating_sub(self.now / 1_000).cast_signed();
            let is_untouched = ttl > FOREVER_MS / 10 * 9;
            if !(is_untouched || ttl <= kept && ttl > kept - 5_000) {
                return Err(format!("{name} is kept for {ttl} ms in Redis and {kept} in Rust"));
            }
        }
        Ok(())
    }

    /// The test controls time, so it removes expired keys itself.
    fn expire(&mut self) {
        let names = |store: &Store| {
            let mut names: HashSet<String> = store.strings().into_keys().collect();
            names.extend(store.hashes().into_keys().chain(store.sets().into_keys()));
            if names.contains(HOSTS) {
                names.insert("tg:{tm}:epochs".into());
            }
            names
        };
        let before = names(&self.store);
        self.store.expire(self.now);
        for gone in before.difference(&names(&self.store)) {
            self.delete(gone);
            *self.seen.entry("expired").or_default() += 1;
        }
    }

    fn delete(&mut self, name: &str) {
        self.order(redis::cmd("DEL").arg(name));
    }

    fn count(&mut self, reply: &ScriptReply) {
        let mut saw = |what: &'static str, times: usize| *self.seen.entry(what).or_default() += times as u64;
        match reply {
            ScriptReply::Sync(CommandReply { results, .. }) => {
                saw("done", 1);
                saw("granted", results.iter().filter(|reply| reply.grant > 0).count());
                saw("lost", results.iter().filter(|reply| reply.lost).count());
                let windows = || results.iter().filter_map(|reply| Some((reply, reply.window?)));
                saw("windows granted", windows().filter(|(reply, _)| reply.grant > 0).count());
                saw("windows lost", windows().filter(|(reply, _)| reply.lost).count());
                let that = |stands| windows().filter(|(_, window)| window.stands == stands).count();
                saw("windows spent out", that(WindowStatus::SpentOut));
                saw("other windows", that(WindowStatus::OtherWindow));
            }
            ScriptReply::Exact(CommandReply { results, .. }) => {
                let all = results.iter().all(|paid| paid.wait == CostCover::No);
                let windows = results.iter().filter(|paid| paid.window.is_some()).count();
                for (what, holds) in [("paid", all), ("refused", !all)] {
                    saw(what, usize::from(holds));
                }
                for (what, holds) in [("windows paid", all), ("windows refused", !all)] {
                    saw(what, if holds { windows } else { 0 });
                }
                saw("never", results.iter().filter(|paid| paid.wait == CostCover::Never).count());
            }
            ScriptReply::Permits(CommandReply { results, .. }) => {
                saw(
                    "permits",
                    results.iter().filter(|result| result.added.is_some_and(|added| added > 0)).count(),
                );
                saw("no permits", results.iter().filter(|result| result.added == Some(0)).count());
                saw("permits lost", results.iter().filter(|result| result.added.is_none()).count());
            }
            ScriptReply::Heartbeat(beaten) => {
                saw("hosts", beaten.hosts.saturating_sub(1) as usize);
                // Its sums are a field beside those of its hosts.
                let pools = self.store.pools();
                saw("pools of several", pools.filter(|(_, (fields, _))| fields.len() > 2).count());
                saw("may lack", beaten.pools.iter().filter(|reply| reply.may_lack).count());
                // A host that changed its secret before the clock stepped back may remain only in the set of
                // its old secret.
                saw("other secrets", beaten.hosts.saturating_sub(beaten.alike) as usize);
                saw("names taken", usize::from(beaten.is_name_taken));
                saw("overtaken", beaten.pools.iter().filter(|reply| reply.is_overtaken).count());
            }
            ScriptReply::Version(_) => {}
        }
    }
}

fn fingerprint(terms: u8) -> String {
    let rate = CellRate::new(u64::from(terms) + 1, 1).unwrap();
    version::fingerprint([(CellQuota { version: 0, rate, burst: 1 }, None)])
}

fn cell_name(kind: char, key: u8) -> String {
    format!("tg:{{t{:02x}}}:{kind}:{}", bucket().0, hex(&key_of(key)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Longer than any test.
const FOREVER_MS: i64 = 99_999_999_999;
