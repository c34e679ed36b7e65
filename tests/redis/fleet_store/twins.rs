//! A real Redis with the scripts, and the same rules in Rust: each call goes to both, and everything must be alike.

use std::collections::{BTreeMap, HashMap, HashSet};

use tidegate::fleet::cell::{CellQuota, CellRate, CellReport, GENERATION_US};
use tidegate::fleet::command::{CommandHead, KeyPayment, Payment, ScriptCommand, SyncBatch};
use tidegate::fleet::heartbeat::{Heartbeat, PoolReport};
use tidegate::fleet::permits::PermitCommand;
use tidegate::fleet::reply::{CommandReply, ScriptReply};
use tidegate::fleet::scripts;
use tidegate::fleet::secrets::SecretDigest;
use tidegate::fleet::version::{NumbersFingerprint, VersionCommand};
use tidegate::fleet::window::WindowStatus;

use super::calls::{Act, Birth, Number, Step, after, bucket, dated, head, host_of, key_of};
use super::redis::{Redis, Value, evalsha};
use super::store::Store;

pub(crate) struct Twins {
    redis: Redis,
    shas: HashMap<&'static str, Vec<u8>>,
    store: Store,
    now: u64,
    beats: HashMap<u8, LastBeat>,
    reports: HashMap<(u8, [u8; 16]), CellReport>,
    born_us: u64,
    /// How often each thing came to pass that a test like this is for.
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

/// The last heartbeat of a host.
#[derive(Clone, Debug, Default)]
struct LastBeat {
    epoch: u64,
    seq: u64,
    sent: Option<ScriptCommand>,
}

impl Twins {
    pub(crate) fn new() -> Twins {
        let mut redis = Redis::start();
        let shas = scripts::all().map(|script| (script.name, redis.load_with_clock(script)));
        let seen = [
            "done",
            "granted",
            "lost",
            "paid",
            "refused",
            "never",
            "hosts",
            "expired",
            "permits",
            "no permits",
            "windows granted",
            "windows lost",
            "windows spent out",
            "other windows",
            "windows paid",
            "windows refused",
            "permits lost",
            "names taken",
            "pools of several",
            "overtaken",
            "may lack",
            "other secrets",
        ];
        Twins {
            redis,
            shas: shas.into(),
            store: Store::default(),
            now: 0,
            beats: HashMap::new(),
            reports: HashMap::new(),
            born_us: 0,
            seen: seen.into_iter().map(|what| (what, 0)).collect(),
        }
    }

    pub(crate) fn forget_all(&mut self) {
        self.redis.command(&[b"FLUSHALL"]);
        self.store.flush();
        self.now = 1_700_000_000_000_000;
        self.beats.clear();
        self.reports.clear();
        self.born_us = 0;
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each kind of step")]
    pub(crate) fn step(&mut self, step: &Step) -> Result<(), String> {
        self.now = after(self.now, &step.time);
        self.redis.set_clock(self.now);
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
                        asked.returned.paid_us =
                            asked.returned.paid_us.map(|ago| self.now.saturating_sub(ago));
                    }
                    ask
                });
                let asks: Vec<_> = asks.collect();
                let numbers = vec![0; asks.len()];
                let batch = SyncBatch { head, asks, numbers };
                let reply = self.call(&ScriptCommand::Sync(batch.clone()))?;
                let ScriptReply::Sync(reply) = reply else { return Err(format!("{reply:?} to a sync")) };
                self.born_us = reply.born_us;
                for (ask, said) in batch.asks.iter().zip(reply.results) {
                    let hold = ask.hold.saturating_add(said.grant);
                    let report = CellReport { hold, demand: ask.demand, generation: said.generation };
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
                let payment = Payment { head, costs: costs.collect(), check: (0, Vec::new()) };
                self.call(&ScriptCommand::Exact(payment)).map(drop)
            }
            Act::Permits { host, birth, requests } => {
                let head = self.head(*birth);
                let mut keys = HashSet::new();
                let requests = requests.iter().filter(|request| keys.insert(request.key)).cloned().collect();
                let command = PermitCommand { head, host: host_of(*host), requests };
                self.call(&ScriptCommand::Permits(command)).map(drop)
            }
            Act::Beat { host, number, pools, secret } => self.beat(*host, *number, pools, *secret),
            Act::Version { rule, terms, before } => {
                let before = before.map(|(terms, known)| (fingerprint(terms), known));
                let call = VersionCommand { rule: [*rule; 16], terms: fingerprint(*terms), before };
                self.call(&ScriptCommand::Version(call)).map(drop)
            }
            Act::Evict { key } => {
                self.delete(&cell_name('q', *key));
                self.delete(&cell_name('m', *key));
                self.delete(&cell_name('w', *key));
                self.store.evict(bucket().number(), key_of(*key));
                Ok(())
            }
            Act::Garbage { key, bytes } => {
                // What is no cell is as good as none. 84 bytes that begin with zeros are none either: no rate is zero.
                let bytes: Vec<u8> = [0; 16].iter().chain(bytes.iter().skip(16)).copied().collect();
                self.delete(&cell_name('m', *key));
                for kind in ['q', 'w'] {
                    self.redis.command(&[b"SET", cell_name(kind, *key).as_bytes(), &bytes]);
                }
                self.store.evict(bucket().number(), key_of(*key));
                Ok(())
            }
            Act::Flush => {
                self.redis.command(&[b"FLUSHALL"]);
                self.redis.set_clock(self.now);
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

    fn beat(
        &mut self,
        host: u8,
        number: Number,
        pools: &[super::calls::PoolStep],
        secret: u8,
    ) -> Result<(), String> {
        let last = self.beats.get(&host).cloned().unwrap_or(LastBeat { epoch: 5, ..LastBeat::default() });
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
        let beat = ScriptCommand::Beat(Heartbeat {
            host: host_of(host),
            epoch,
            seq,
            pools: pools.collect(),
            secret,
        });
        let again = last.sent.filter(|_| matches!(number, Number::Again));
        let is_later = again.is_none() && !matches!(number, Number::Before | Number::OldEpoch);
        let beat = again.unwrap_or(beat);
        if is_later {
            self.beats.insert(host, LastBeat { epoch, seq, sent: Some(beat.clone()) });
        }
        self.call(&beat).map(drop)
    }

    /// Puts a call to both.
    fn call(&mut self, call: &ScriptCommand) -> Result<ScriptReply, String> {
        let encoded = call.encode().unwrap();
        let count = encoded.keys.len().to_string();
        let bytes = self.redis.command(&evalsha(&self.shas[encoded.script.name], &count, &encoded));
        let Value::Bytes(bytes) = bytes else { return Err(format!("{call:?}: {bytes:?}")) };
        let received = ScriptReply::decode(call, &bytes).map_err(|fault| format!("{call:?}: {fault}"))?;
        let reply = self.store.call(call, self.now);
        if received.reply != reply || received.clamped > 0 {
            return Err(format!("{call:?}\n  in Redis: {received:?}\n  in Rust:  {reply:?}"));
        }
        self.count(&reply);
        self.compare().map_err(|why| format!("after {call:?} at {}: {why}", self.now))?;
        Ok(reply)
    }

    fn compare(&mut self) -> Result<(), String> {
        let expected = self.store.strings();
        let names: Vec<&str> = expected.keys().map(String::as_str).collect();
        let commands: Vec<Vec<&[u8]>> = names
            .iter()
            .flat_map(|name| [vec![b"GET".as_slice(), name.as_bytes()], vec![b"PTTL", name.as_bytes()]])
            // What this call did not touch stays for ever by Redis' own clock, so that the next time shows who was touched.
            .chain(names.iter().map(|name| vec![b"PEXPIRE".as_slice(), name.as_bytes(), FOR_EVER]))
            .chain([vec![b"ZRANGE".as_slice(), b"tg:{tm}:hosts", b"0", b"-1", b"WITHSCORES"]])
            .collect();
        let mut found = self.redis.commands(&commands).into_iter();
        for (name, (bytes, until_ms)) in &expected {
            let (value, ttl) = (found.next().unwrap(), found.next().unwrap().integer());
            if value != Value::Bytes(bytes.clone()) {
                return Err(format!("{name} is {value:?} in Redis and {bytes:?} in Rust"));
            }
            let kept = until_ms.saturating_sub(self.now / 1_000).cast_signed();
            let untouched = ttl > 90_000_000_000;
            if !(untouched || ttl <= kept && ttl > kept - 5_000) {
                return Err(format!("{name} is kept for {ttl} ms in Redis and {kept} in Rust"));
            }
        }
        let mut rest = found.skip(names.len());
        let scores = rest.next().unwrap().list();
        let scores = scores.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]).parse().unwrap()));
        let scores: BTreeMap<String, u64> = scores.collect();
        let hosts = self.store.hosts();
        if scores != hosts {
            return Err(format!("{scores:?} in Redis and {hosts:?} in Rust"));
        }
        self.compare_pools()?;
        self.compare_sets()?;
        for rule in 0..2 {
            let name = format!("tg:{{tm}}:v:{}", hex(&[rule; 16]));
            let fields = self.redis.command(&[b"HGETALL", name.as_bytes()]).list();
            let fields = fields.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]).parse().unwrap()));
            let fields: BTreeMap<String, u64> = fields.collect();
            if fields != self.store.versions_of([rule; 16]).unwrap_or_default() {
                return Err(format!(
                    "{fields:?} in Redis and {:?} in Rust",
                    self.store.versions_of([rule; 16])
                ));
            }
        }
        Ok(())
    }

    fn compare_sets(&mut self) -> Result<(), String> {
        for (name, (expected, until_ms)) in self.store.sets() {
            let name = name.as_bytes();
            let found = self.redis.command(&[b"ZRANGE", name, b"0", b"-1", b"WITHSCORES"]).list();
            let found =
                found.chunks(2).map(|pair| (hex(&pair[0].clone().bytes()), text(&pair[1]).parse().unwrap()));
            let found: BTreeMap<String, u64> = found.collect();
            if found != expected {
                return Err(format!("{name:?} is {found:?} in Redis and {expected:?} in Rust"));
            }
            self.compare_ttl(name, until_ms)?;
        }
        Ok(())
    }

    /// Compares when a key runs out, and keeps it in Redis until the test takes it away.
    fn compare_ttl(&mut self, name: &[u8], until_ms: u64) -> Result<(), String> {
        let ttl = self.redis.command(&[b"PTTL", name]).integer();
        self.redis.command(&[b"PEXPIRE", name, FOR_EVER]);
        let kept = until_ms.saturating_sub(self.now / 1_000).cast_signed();
        if !(ttl > 90_000_000_000 || ttl <= kept && ttl > kept - 5_000) {
            return Err(format!("{name:?} is kept for {ttl} ms in Redis and {kept} in Rust"));
        }
        Ok(())
    }

    fn compare_pools(&mut self) -> Result<(), String> {
        for (name, (expected, until_ms)) in self.store.pools() {
            let name = name.as_bytes();
            let fields = self.redis.command(&[b"HGETALL", name]).list();
            let fields = fields.chunks(2).map(|pair| (text(&pair[0]), pair[1].clone().bytes()));
            let fields: BTreeMap<String, Vec<u8>> = fields.collect();
            if fields != expected {
                return Err(format!("{name:?} is {fields:?} in Redis and {expected:?} in Rust"));
            }
            self.compare_ttl(name, until_ms)?;
        }
        Ok(())
    }

    /// Time is ours and not that of Redis, so what has run out is taken away by hand.
    fn expire(&mut self) {
        let names = |store: &Store| {
            let mut names: HashSet<String> = store.strings().into_keys().collect();
            names.extend(store.pools().into_keys());
            names.extend(store.sets().into_keys());
            names.extend(store.hosts().keys().take(1).map(|_| "tg:{tm}:hosts".into()));
            names.extend(store.hosts().keys().take(1).map(|_| "tg:{tm}:epochs".into()));
            let kept = |rule: &u8| store.versions_of([*rule; 16]).is_some();
            names.extend((0..2).filter(kept).map(|rule| format!("tg:{{tm}}:v:{}", hex(&[rule; 16]))));
            names
        };
        let before = names(&self.store);
        self.store.expire(self.now);
        for gone in before.difference(&names(&self.store)) {
            self.delete(gone);
            *self.seen.get_mut("expired").unwrap() += 1;
        }
    }

    fn delete(&mut self, name: &str) {
        self.redis.command(&[b"DEL", name.as_bytes()]);
    }

    fn count(&mut self, reply: &ScriptReply) {
        let mut saw = |what: &'static str, times: usize| *self.seen.entry(what).or_default() += times as u64;
        match reply {
            ScriptReply::Sync(CommandReply { results, .. }) => {
                saw("done", 1);
                saw("granted", results.iter().filter(|said| said.grant > 0).count());
                saw("lost", results.iter().filter(|said| said.lost).count());
                let windows = || results.iter().filter_map(|said| Some((said, said.window?)));
                saw("windows granted", windows().filter(|(said, _)| said.grant > 0).count());
                saw("windows lost", windows().filter(|(said, _)| said.lost).count());
                let that = |stands| windows().filter(|(_, window)| window.stands == stands).count();
                saw("windows spent out", that(WindowStatus::SpentOut));
                saw("other windows", that(WindowStatus::OtherWindow));
            }
            ScriptReply::Exact(CommandReply { results, .. }) => {
                use tidegate::fleet::reply::CostCover;
                let all = results.iter().all(|paid| paid.wait == CostCover::No);
                saw(if all { "paid" } else { "refused" }, 1);
                let windows = results.iter().filter(|paid| paid.window.is_some()).count();
                saw(if all { "windows paid" } else { "windows refused" }, windows);
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
            ScriptReply::Beat(beaten) => {
                saw("hosts", beaten.hosts.saturating_sub(1) as usize);
                saw("pools of several", beaten.pools.iter().filter(|said| said.hosts > 1).count());
                saw("may lack", beaten.pools.iter().filter(|said| said.may_lack).count());
                // A host that changed its secret before the clock stepped back may be left in the set of its former secret alone.
                saw("other secrets", beaten.hosts.saturating_sub(beaten.alike) as usize);
                saw("names taken", usize::from(beaten.is_name_taken));
                saw("overtaken", beaten.pools.iter().filter(|said| said.is_overtaken).count());
            }
            ScriptReply::Version(_) | ScriptReply::Overrides(_) => {}
        }
    }
}

fn fingerprint(terms: u8) -> NumbersFingerprint {
    let rate = CellRate::new(u64::from(terms) + 1, 1).unwrap();
    NumbersFingerprint::of(&CellQuota { version: 0, rate, burst: 1 })
}

fn cell_name(kind: char, key: u8) -> String {
    format!("tg:{{t{:02x}}}:{kind}:{}", bucket().number(), hex(&key_of(key)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(value: &Value) -> String {
    String::from_utf8(value.clone().bytes()).unwrap()
}

const FOR_EVER: &[u8] = b"99999999999";
