//! A real Redis with the scripts, and the same rules in Rust: each call goes to both, and everything must be alike.

use std::collections::{BTreeMap, HashMap, HashSet};

use tidegate::fleet::beat::{Heartbeat, PoolReport};
use tidegate::fleet::call::{KeyPayment, Nonce, ScriptCommand, SequencePosition, SyncBatch};
use tidegate::fleet::cell::{CellQuota, CellRate, CellReport, GENERATION_US, TOKEN};
use tidegate::fleet::look::{Peek, Reset};
use tidegate::fleet::places::PermitCommand;
use tidegate::fleet::reply::{CommandReply, ReplyKind, ScriptReply};
use tidegate::fleet::scripts;
use tidegate::fleet::secrets::SecretDigest;
use tidegate::fleet::version::{NumbersFingerprint, VersionCall};
use tidegate::fleet::window::WindowStatus;

use super::calls::{Act, Number, Step, after, bucket, dated, host_of, key_of, payment_of};
use super::redis::{Redis, Value, evalsha};
use super::store::Store;

pub(crate) struct Twins {
    redis: Redis,
    shas: HashMap<&'static str, Vec<u8>>,
    store: Store,
    now: u64,
    lanes: HashMap<(u8, u8), Lane>,
    reports: HashMap<(u8, [u8; 16]), CellReport>,
    places: HashMap<(u8, [u8; 16]), CellReport>,
    known: Option<Nonce>,
    /// How often each thing came to pass that a test like this is for.
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

/// What a host remembers of a lane.
#[derive(Clone, Debug, Default)]
struct Lane {
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
            "stale",
            "unknown",
            "granted",
            "lost",
            "paid",
            "refused",
            "never",
            "hosts",
            "expired",
            "places",
            "windows granted",
            "windows lost",
            "windows spent out",
            "other windows",
            "windows paid",
            "windows refused",
            "places lost",
            "peeked",
            "reset",
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
            lanes: HashMap::new(),
            reports: HashMap::new(),
            places: HashMap::new(),
            known: None,
            seen: seen.into_iter().map(|what| (what, 0)).collect(),
        }
    }

    pub(crate) fn forget_all(&mut self) {
        self.redis.command(&[b"FLUSHALL"]);
        self.store.flush();
        self.now = 1_700_000_000_000_000;
        self.lanes.clear();
        self.reports.clear();
        self.places.clear();
        self.known = None;
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each kind of step")]
    pub(crate) fn step(&mut self, step: &Step) -> Result<(), String> {
        self.now = after(self.now, &step.time);
        self.redis.set_clock(self.now);
        self.expire();
        match &step.act {
            Act::Sync { host, lane, number, asks } => {
                let place = self.place(*host, *lane, *number);
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
                let call = ScriptCommand::Sync(SyncBatch { place, asks: asks.collect() });
                self.call_in_lane(*host, *lane, *number, call)
            }
            Act::Exact { host, number, costs } => {
                let place = self.place(*host, EXACT_LANE, *number);
                let mut keys = HashSet::new();
                let costs = costs.iter().filter(|cost| keys.insert(cost.key)).map(|cost| {
                    let window = cost.window.map(|window| dated(window, self.now));
                    KeyPayment { window, ..*cost }
                });
                let costs: Vec<_> = costs.collect();
                self.call_in_lane(*host, EXACT_LANE, *number, payment_of(place, &costs))
            }
            Act::Places { host, number, asks } => {
                let place = self.place(*host, PLACES_LANE, *number);
                let mut keys = HashSet::new();
                let asks = asks.iter().filter(|(ask, _)| keys.insert(ask.key));
                let asks = asks.map(|&(mut ask, honest)| {
                    if honest {
                        ask.last = self.places.get(&(*host, ask.key)).copied();
                    } else if let Some(last) = &mut ask.last {
                        last.generation = (self.now / GENERATION_US).saturating_sub(last.generation);
                    }
                    ask
                });
                let call = ScriptCommand::Places(PermitCommand { place, asks: asks.collect() });
                self.call_in_lane(*host, PLACES_LANE, *number, call)
            }
            Act::Peek { windows } => {
                let keys = (0..4).map(key_of).collect();
                self.call(&ScriptCommand::Peek(Peek { bucket: bucket(), keys, windows: *windows })).map(drop)
            }
            Act::Reset { key, window } => {
                let call = Reset { bucket: bucket(), key: key_of(*key), window: *window };
                self.call(&ScriptCommand::Reset(call)).map(drop)
            }
            Act::Beat { host, number, pools, secret } => self.beat(*host, *number, pools, *secret),
            Act::Version { rule, terms, before } => {
                let before = before.map(|(terms, known)| (fingerprint(terms), known));
                let call = VersionCall { rule: [*rule; 16], terms: fingerprint(*terms), before };
                self.call(&ScriptCommand::Version(call)).map(drop)
            }
            Act::Evict { key } => {
                self.delete(&cell_name('q', *key));
                self.delete(&cell_name('c', *key));
                self.delete(&cell_name('w', *key));
                self.store.evict(bucket().number(), key_of(*key));
                Ok(())
            }
            Act::Garbage { key, bytes } => {
                // What is no cell is as good as none. 84 bytes that begin with zeros are none either: no rate is zero.
                let bytes: Vec<u8> = [0; 16].iter().chain(bytes.iter().skip(16)).copied().collect();
                for kind in ['q', 'c', 'w'] {
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

    fn place(&self, host: u8, lane: u8, number: Number) -> SequencePosition {
        let of_lane = self.lanes.get(&(host, lane)).cloned().unwrap_or(Lane { epoch: 5, ..Lane::default() });
        let (epoch, seq) = match number {
            Number::Next | Number::Again | Number::Stranger => (of_lane.epoch, of_lane.seq + 1),
            Number::Before if of_lane.seq > 1 => (of_lane.epoch, of_lane.seq - 1),
            Number::Gap => (of_lane.epoch, of_lane.seq + 2),
            Number::NewEpoch => (of_lane.epoch + 1, 1),
            // Older than any that was used: no host says two things under one number.
            Number::OldEpoch | Number::Before => (1, of_lane.seq + 1),
        };
        let offer = [u8::try_from(self.now % 251).unwrap() + 1; 16];
        let known = if matches!(number, Number::Stranger) { Some([255; 16]) } else { self.known };
        SequencePosition { bucket: bucket(), host: host_of(host), lane, epoch, seq, offer, known }
    }

    fn beat(
        &mut self,
        host: u8,
        number: Number,
        pools: &[super::calls::PoolStep],
        secret: u8,
    ) -> Result<(), String> {
        let SequencePosition { epoch, seq, .. } = self.place(host, BEATS, number);
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
        let before = self.lanes.get(&(host, BEATS)).and_then(|lane| lane.sent.clone());
        let again = before.filter(|_| matches!(number, Number::Again));
        let is_later = again.is_none() && !matches!(number, Number::Before | Number::OldEpoch);
        let beat = again.unwrap_or(beat);
        if is_later {
            self.lanes.insert((host, BEATS), Lane { epoch, seq, sent: Some(beat.clone()) });
        }
        self.call(&beat).map(drop)
    }

    fn call_in_lane(
        &mut self,
        host: u8,
        lane: u8,
        number: Number,
        call: ScriptCommand,
    ) -> Result<(), String> {
        let before = self.lanes.get(&(host, lane)).and_then(|lane| lane.sent.clone());
        let call = match (number, before) {
            (Number::Again, Some(before)) => before,
            _ => call,
        };
        let reply = self.call(&call)?;
        let place = match &call {
            ScriptCommand::Sync(batch) => batch.place,
            ScriptCommand::Exact(payment) => payment.place,
            ScriptCommand::Places(places) => places.place,
            other => panic!("{other:?} has no lane"),
        };
        if let (
            ScriptReply::Places(CommandReply { kind: ReplyKind::Done(said), .. }),
            ScriptCommand::Places(places),
        ) = (&reply, &call)
        {
            for (ask, said) in places.asks.iter().zip(said) {
                let hold = u64::from(ask.hold + said.grant) * TOKEN;
                let report = CellReport { hold, demand: ask.demand, generation: said.generation };
                self.places.insert((host, ask.key), report);
            }
        }
        if let ScriptReply::Sync(CommandReply { kind: ReplyKind::Done(said), .. }) = &reply
            && let ScriptCommand::Sync(batch) = &call
        {
            for (ask, said) in batch.asks.iter().zip(said) {
                let hold = ask.hold.saturating_add(said.grant);
                self.reports.insert(
                    (host, ask.key),
                    CellReport { hold, demand: ask.demand, generation: said.generation },
                );
            }
        }
        let (done, unknown) = match &reply {
            ScriptReply::Sync(CommandReply { kind, nonce, .. }) => {
                self.known = Some(*nonce);
                (matches!(kind, ReplyKind::Done(_)), matches!(kind, ReplyKind::Unknown))
            }
            ScriptReply::Exact(CommandReply { kind, nonce, .. }) => {
                self.known = Some(*nonce);
                (matches!(kind, ReplyKind::Done(_)), matches!(kind, ReplyKind::Unknown))
            }
            ScriptReply::Places(CommandReply { kind, nonce, .. }) => {
                self.known = Some(*nonce);
                (matches!(kind, ReplyKind::Done(_)), matches!(kind, ReplyKind::Unknown))
            }
            _ => (false, false),
        };
        if done {
            let lane_now = Lane { epoch: place.epoch, seq: place.seq, sent: Some(call.clone()) };
            self.lanes.insert((host, lane), lane_now);
        } else if unknown {
            self.lanes.insert((host, lane), Lane { epoch: place.epoch + 1, seq: 0, sent: None });
            self.reports.retain(|(of_host, _), _| *of_host != host);
            self.places.retain(|(of_host, _), _| *of_host != host);
        }
        Ok(())
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
            .chain([vec![b"ZRANGE".as_slice(), b"tg:{tm}:ranks", b"0", b"-1"]])
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
        let (scores, ranks) = (rest.next().unwrap().list(), rest.next().unwrap().list());
        let scores = scores.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]).parse().unwrap()));
        let scores: BTreeMap<String, u64> = scores.collect();
        let ranks: Vec<String> = ranks.iter().map(text).collect();
        let hosts = self.store.hosts();
        if scores != hosts || !ranks.iter().eq(hosts.keys()) {
            return Err(format!("{scores:?}, {ranks:?} in Redis and {hosts:?} in Rust"));
        }
        self.compare_pools()?;
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

    fn compare_pools(&mut self) -> Result<(), String> {
        for (name, (expected, until_ms)) in self.store.pools() {
            let name = name.as_bytes();
            let fields = self.redis.command(&[b"HGETALL", name]).list();
            let fields = fields.chunks(2).map(|pair| (text(&pair[0]), pair[1].clone().bytes()));
            let fields: BTreeMap<String, Vec<u8>> = fields.collect();
            if fields != expected {
                return Err(format!("{name:?} is {fields:?} in Redis and {expected:?} in Rust"));
            }
            let ttl = self.redis.command(&[b"PTTL", name]).integer();
            self.redis.command(&[b"PEXPIRE", name, FOR_EVER]);
            let kept = until_ms.saturating_sub(self.now / 1_000).cast_signed();
            if !(ttl > 90_000_000_000 || ttl <= kept && ttl > kept - 5_000) {
                return Err(format!("{name:?} is kept for {ttl} ms in Redis and {kept} in Rust"));
            }
        }
        Ok(())
    }

    /// Time is ours and not that of Redis, so what has run out is taken away by hand.
    fn expire(&mut self) {
        let names = |store: &Store| {
            let mut names: HashSet<String> = store.strings().into_keys().collect();
            names.extend(store.pools().into_keys());
            names.extend(store.hosts().keys().take(1).map(|_| "tg:{tm}:hosts".into()));
            names.extend(store.hosts().keys().take(1).map(|_| "tg:{tm}:ranks".into()));
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
            ScriptReply::Sync(CommandReply { kind: ReplyKind::Done(said), .. }) => {
                saw("done", 1);
                saw("granted", said.iter().filter(|said| said.grant > 0).count());
                saw("lost", said.iter().filter(|said| said.lost).count());
                let windows = || said.iter().filter_map(|said| Some((said, said.window?)));
                saw("windows granted", windows().filter(|(said, _)| said.grant > 0).count());
                saw("windows lost", windows().filter(|(said, _)| said.lost).count());
                let that = |stands| windows().filter(|(_, window)| window.stands == stands).count();
                saw("windows spent out", that(WindowStatus::SpentOut));
                saw("other windows", that(WindowStatus::OtherWindow));
            }
            ScriptReply::Exact(CommandReply { kind: ReplyKind::Done(paid), .. }) => {
                use tidegate::fleet::reply::CostCover;
                let all = paid.iter().all(|paid| paid.wait == CostCover::No);
                saw(if all { "paid" } else { "refused" }, 1);
                let windows = paid.iter().filter(|paid| paid.window.is_some()).count();
                saw(if all { "windows paid" } else { "windows refused" }, windows);
                saw("never", paid.iter().filter(|paid| paid.wait == CostCover::Never).count());
            }
            ScriptReply::Sync(CommandReply { kind: ReplyKind::Stale, .. })
            | ScriptReply::Exact(CommandReply { kind: ReplyKind::Stale, .. }) => {
                saw("stale", 1);
            }
            ScriptReply::Places(CommandReply { kind: ReplyKind::Done(said), .. }) => {
                saw("places", said.iter().filter(|said| said.grant > 0).count());
                saw("places lost", said.iter().filter(|said| said.lost).count());
            }
            ScriptReply::Peek(peeked) => saw("peeked", peeked.cells.iter().flatten().count()),
            ScriptReply::Reset(found) => saw("reset", usize::from(*found)),
            ScriptReply::Places(_) => {}
            ScriptReply::Sync(_) | ScriptReply::Exact(_) => saw("unknown", 1),
            ScriptReply::Beat(beaten) => {
                saw("hosts", beaten.hosts.saturating_sub(1) as usize);
                saw("pools of several", beaten.pools.iter().filter(|said| said.hosts > 1).count());
                saw("may lack", beaten.pools.iter().filter(|said| said.may_lack).count());
                // A host that changed its secret before the clock stepped back may be left in the set of its former secret alone.
                saw("other secrets", beaten.hosts.saturating_sub(beaten.alike) as usize);
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

const EXACT_LANE: u8 = 8;
const PLACES_LANE: u8 = 9;
/// No lane, but numbered like one.
const BEATS: u8 = 10;
const FOR_EVER: &[u8] = b"99999999999";
