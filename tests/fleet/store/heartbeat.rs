//! Models live hosts and the sums of their pools.

use std::collections::{BTreeMap, HashMap};

use tidegate::engine::PoolLoad;
use tidegate::fleet::heartbeat::{FleetPoolLoad, Heartbeat, HeartbeatReply, PoolReport};
use tidegate::fleet::secrets::SecretDigest;

use super::{Hash, Kept, bytes};

#[derive(Clone, Debug, Default)]
pub(super) struct Heartbeats {
    /// Last heartbeat in milliseconds by identity, in Redis' order: that of its hexadecimal digits.
    hosts: BTreeMap<String, u64>,
    hosts_until_ms: u64,
    /// The latest epoch of each host.
    epochs: BTreeMap<String, u64>,
    pools: HashMap<String, Kept<Pool>>,
    /// Last heartbeats of the hosts with each secret.
    alike: HashMap<SecretDigest, Kept<BTreeMap<String, u64>>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    /// When reports became complete, when they were counted, and their sums then and since.
    pub(super) since: u64,
    pub(super) counted: u64,
    pub(super) sums: (PoolLoad, u64),
    sent: BTreeMap<String, Said>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) epoch: u64,
    pub(super) seq: u64,
    pub(super) at: u64,
    pub(super) load: PoolLoad,
}

impl Heartbeats {
    pub(super) fn heartbeat(&mut self, heartbeat: &Heartbeat, now_us: u64) -> HeartbeatReply {
        let now_ms = now_us / 1000;
        self.expire(now_us);
        let name = bytes::hex(&heartbeat.host);
        self.hosts.insert(name.clone(), now_ms);
        self.hosts.retain(|_, last| last.abs_diff(now_ms) <= 5_000);
        self.epochs.retain(|host, _| self.hosts.contains_key(host));
        self.hosts_until_ms = now_ms + KEPT_MS;
        let epoch = self.epochs.entry(name.clone()).or_insert(heartbeat.epoch);
        let is_name_taken = *epoch > heartbeat.epoch;
        *epoch = heartbeat.epoch.max(*epoch);
        let alike = self.alike.get(&heartbeat.secret).and_then(|kept| kept.at(now_us));
        let mut alike = alike.cloned().unwrap_or_default();
        alike.insert(name, now_ms);
        alike.retain(|_, last| last.abs_diff(now_ms) <= 5_000);
        let hosts_alike = alike.len();
        self.alike.insert(heartbeat.secret, Kept::new(alike, now_us, KEPT_MS));
        let pools = heartbeat.pools.iter().map(|report| self.report(heartbeat, report, now_us)).collect();
        let [hosts, alike] = [self.hosts.len(), hosts_alike].map(|count| u32::try_from(count).unwrap());
        HeartbeatReply { hosts, alike, is_name_taken, pools }
    }

    fn report(&mut self, heartbeat: &Heartbeat, report: &PoolReport, now_us: u64) -> FleetPoolLoad {
        let host = bytes::hex(&heartbeat.host);
        let kept = self.pools.get(&report.pool).and_then(|kept| kept.at(now_us)).cloned();
        let is_new = kept.is_none();
        let mut pool = kept.unwrap_or_default();
        let is_old = is_new || pool.counted > now_us || pool.counted + COUNTED_US <= now_us;
        if is_new || pool.counted + SAID_US < now_us {
            pool.since = now_us;
        }
        pool.since = pool.since.min(now_us);
        let before = pool.sent.get(&host).copied();
        let is_overtaken =
            before.is_some_and(|sent| (sent.epoch, sent.seq) > (heartbeat.epoch, heartbeat.seq));
        if !is_overtaken {
            if let Some(before) = before {
                pool.sums =
                    (changed(pool.sums.0, before.load, u64::wrapping_sub), pool.sums.1.wrapping_sub(1));
            }
            let load = report.load;
            pool.sent.remove(&host);
            if load != PoolLoad::default() {
                pool.sent.insert(host, Said { epoch: heartbeat.epoch, seq: heartbeat.seq, at: now_us, load });
                pool.sums = (changed(pool.sums.0, load, u64::wrapping_add), pool.sums.1.wrapping_add(1));
            }
        }
        if is_old {
            pool.count(now_us);
        }
        let load = pool.sums.0;
        let load = changed(load, load, |count, _| count.min(COUNT_MAX));
        let may_lack = now_us - pool.since < SAID_US;
        self.pools.insert(report.pool.clone(), Kept::new(pool, now_us, KEPT_MS));
        FleetPoolLoad { load, is_overtaken, may_lack }
    }

    pub(super) fn expire(&mut self, now_us: u64) {
        if now_us / 1000 > self.hosts_until_ms {
            self.hosts.clear();
            self.epochs.clear();
        }
        self.pools.retain(|_, kept| kept.at(now_us).is_some());
    }

    pub(super) fn hosts(&self) -> (BTreeMap<Vec<u8>, f64>, u64) {
        let hosts = self.hosts.iter().map(|(host, last)| (host.clone().into_bytes(), *last as f64));
        (hosts.collect(), self.hosts_until_ms)
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = (String, Hash)> {
        self.pools.iter().map(|(name, kept)| {
            let sent = kept.value.sent.iter().map(|(host, sent)| (host.clone(), bytes::of_said(sent)));
            let sums = ("sums".to_owned(), bytes::of_sums(&kept.value));
            (format!("tg:{{tm}}:p:{name}"), (sent.chain([sums]).collect(), kept.until_ms))
        })
    }
}

impl Pool {
    /// Recounts: drops expired reports, and restarts those from a clock since set back.
    fn count(&mut self, now_us: u64) {
        self.sent.retain(|_, sent| sent.at + SAID_US >= now_us);
        self.sent.values_mut().for_each(|sent| sent.at = sent.at.min(now_us));
        let loads = self.sent.values().map(|sent| sent.load);
        self.sums.0 = loads.fold(PoolLoad::default(), |sum, load| changed(sum, load, u64::wrapping_add));
        self.sums.1 = self.sent.len() as u64;
        self.counted = now_us;
    }
}

fn changed(one: PoolLoad, other: PoolLoad, how: impl Fn(u64, u64) -> u64) -> PoolLoad {
    PoolLoad {
        slots: how(one.slots, other.slots),
        critical: how(one.critical, other.critical),
        noncritical: how(one.noncritical, other.noncritical),
    }
}

const KEPT_MS: u64 = 60_000;
const SAID_US: u64 = 2_000_000;
const COUNTED_US: u64 = 500_000;
const COUNT_MAX: u64 = 1_000_000_000_000;
