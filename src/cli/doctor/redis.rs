//! Checks the shared Redis: connection, user, eviction policy; and the fleet secret.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::admin_client::AdminClient;
use super::Finding;
use super::files::of_problem;
use super::reach::{self, User};
use crate::admin::{FleetPage, FleetSummary, RedisNodeStatus};
use crate::clock::unix_nanos;
use crate::daemon::redis_settings::RedisSettings;
use crate::daemon::redis_settings::fleet_secret;
use crate::daemon::settings::{Settings, is_hidden};
use crate::fleet::link::{FailureClass, LinkError, NodeState, NodeStatus, RedisLink, Url};
use crate::fleet::rights::Rights;
use crate::terms::counted;

/// Runs all checks; none if the settings have no Redis.
pub(super) fn all(settings: &Settings, of_daemon: Option<&User>) -> Vec<Finding> {
    let Some(redis) = &settings.redis else { return Vec::new() };
    let by_daemon = |what, file: &Path| of_daemon.and_then(|user| reach::file(what, file, user));
    let secret = |file: &PathBuf| by_daemon(SECRET, file).unwrap_or_else(|| secret(file));
    let mut findings: Vec<Finding> = redis.fleet_secret_file.iter().map(secret).collect();
    findings.extend(redis.link.password_file.as_deref().and_then(|file| by_daemon(WHAT, file)));
    let looked = match look(redis) {
        Ok(looked) => looked,
        Err(message) => {
            findings.push(Finding::unseen(WHAT, message, "correct `redis` of the settings: tidegate check"));
            return findings;
        }
    };
    let now_us = i128::from(unix_nanos()) / 1_000;
    let fleet = AdminClient::of_settings(settings).get_json::<FleetPage>("/fleet").ok();
    let host_count = fleet.as_ref().map(|fleet| fleet.summary.counted);
    findings.extend(fleet.as_ref().and_then(|fleet| other_secrets(&fleet.summary)));
    findings.extend(fleet.iter().flat_map(|fleet| &fleet.nodes).filter_map(refusing));
    for (url, looked) in looked {
        match looked {
            Ok(rights) => {
                findings.extend([may(&url, &rights, redis), policy(&url, &rights)]);
                findings.extend(rights.now_us.map(|theirs| clock(&url, i128::from(theirs) - now_us)));
                findings.extend(rights.hosts.map(|with_heartbeat| hosts(with_heartbeat, host_count)));
            }
            Err(error) => findings.push(unreached(&url, &error, redis)),
        }
    }
    findings
}

fn secret(file: &Path) -> Finding {
    if let Some(hidden) = hidden(SECRET, file) {
        return hidden;
    }
    let well = || Finding::well(SECRET, format!("{} can be read, and by no other user", file.display()));
    fleet_secret(file).1.map_or_else(well, |problem| of_problem(SECRET, &problem))
}

fn hidden(what: &'static str, file: &Path) -> Option<Finding> {
    let message = format!("{} may not be read by this user", file.display());
    is_hidden(file).then(|| Finding::unseen(what, message, "run this as root or as the daemon's user"))
}

type ServerChecks = Vec<(Url, Result<Rights, LinkError>)>;

/// Connects like the daemon and queries each server.
fn look(redis: &RedisSettings) -> Result<ServerChecks, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let link = RedisLink::start(redis.link.clone(), vec![Rights::script()]);
        let mut changes = link.changes();
        let settled = async {
            // The seeds of a cluster need not be its servers.
            let is_mapped = || link.has_map() && link.nodes().iter().all(|node| node.state == NodeState::Up);
            while link.nodes().iter().any(|node| node.state == NodeState::Starting)
                || redis.link.cluster && !is_mapped()
            {
                if changes.changed().await.is_err() {
                    break;
                }
            }
        };
        // By then each server is up or down; one that hangs is reported as such.
        let _ = tokio::time::timeout(PATIENCE, settled).await;
        let mut looked = Vec::new();
        for NodeStatus { id, url, state, .. } in link.nodes() {
            let result = match state {
                NodeState::Down(error) | NodeState::Refusing(error) => Err(error),
                NodeState::Up | NodeState::Starting => Rights::ask(&link, id).await,
            };
            looked.push((url, result));
        }
        Ok(looked)
    })
}

/// Reports a server that refuses commands of the daemon, although it accepts connections.
fn refusing(node: &RedisNodeStatus) -> Option<Finding> {
    let help = match &*node.state {
        "full" => "raise maxmemory: redis-cli CONFIG SET maxmemory 1gb, and CONFIG REWRITE",
        "refuses" => "look at Redis' own log",
        _ => return None,
    };
    let why = node.why.as_deref().unwrap_or_default();
    Some(Finding::wrong(WHAT, format!("{} refuses commands of the daemon: {why}", node.url), help))
}

fn unreached(url: &Url, error: &LinkError, redis: &RedisSettings) -> Finding {
    if let Some(hidden) = redis.link.password_file.as_deref().and_then(|file| hidden(WHAT, file)) {
        return hidden;
    }
    let help = match error.class {
        FailureClass::Down if error.is_unknown_name() => {
            "correct the name, or let the unit reach the resolver: add its address to IPAddressAllow= of the unit".to_owned()
        }
        FailureClass::Down | FailureClass::Timeout => {
            "start it, or correct `redis.url`: until then each host has its part of every fleet limit, by the hosts it last knew"
                .to_owned()
        }
        FailureClass::Auth => match &redis.link.password_file {
            Some(file) => format!("correct {} or `redis.user`: it is read anew for each connection", file.display()),
            None => "name a `redis.password_file`".to_owned(),
        },
        FailureClass::NoPerm => format!("give the user the rights of {ACL}"),
        FailureClass::Tls => "correct the certificate, or `redis.ca_file`".to_owned(),
        FailureClass::ReadOnly | FailureClass::MasterDown => NAME_PRIMARY.to_owned(),
        FailureClass::Loading => "wait: it reads its data".to_owned(),
        _ => "look at Redis' own log".to_owned(),
    };
    Finding::wrong(WHAT, format!("{url}: {error}"), help)
}

fn may(url: &Url, rights: &Rights, redis: &RedisSettings) -> Finding {
    let user = redis.link.user.as_deref().unwrap_or("default");
    if rights.is_replica {
        return Finding::wrong(WHAT, format!("{url} is a replica, which takes no writes"), NAME_PRIMARY);
    }
    if rights.refused.is_empty() {
        let message = format!("{url} answers, and `{user}` may call all that the scripts call");
        return Finding::well(WHAT, message);
    }
    let refused = rights.refused.join(", ");
    let message = format!("{url} refuses `{user}` commands of the scripts: {refused}");
    Finding::wrong(WHAT, message, format!("give the user the rights of {ACL}: keys tg:* and these commands"))
}

/// Checks the eviction policy. All cells expire, so policies that evict expiring keys evict cells.
fn policy(url: &Url, rights: &Rights) -> Finding {
    let Some(policy) = rights.policy.as_deref() else {
        let message = format!("{url} does not let this user see its maxmemory-policy");
        let help = "run `redis-cli INFO memory` as another user: it should be noeviction or volatile-ttl; or grant +info";
        return Finding::unseen(POLICY, message, help);
    };
    let bound = match rights.memory_bytes_max {
        Some(0) => ", and no maxmemory: it may use all memory of the machine".to_owned(),
        Some(bytes) => format!(", {} MiB", bytes >> 20),
        None => String::new(),
    };
    let message = format!("{url} has maxmemory-policy {policy}{bound}");
    if KEEPING.contains(&policy) {
        return Finding::well(POLICY, message);
    }
    let message =
        format!("{message}: when it is full it drops budgets that are in use, and those start fresh");
    let help = "redis-cli CONFIG SET maxmemory-policy noeviction (or volatile-ttl), and CONFIG REWRITE";
    Finding::warning(POLICY, message, help)
}

pub fn clock(url: &Url, ahead_us: i128) -> Finding {
    let apart_ms = ahead_us.abs() / 1_000;
    let which = if ahead_us > 0 { "ahead of" } else { "behind" };
    if apart_ms < CLOCKS_APART_MILLIS {
        return Finding::well(CLOCK, format!("{url} and this host are {apart_ms} ms apart"));
    }
    let message = format!("the clock of {url} is {apart_ms} ms {which} that of this host");
    let help = "set both: timedatectl set-ntp true; budgets use the clock of Redis, and a failover to another clock moves them";
    Finding::warning(CLOCK, message, help)
}

/// Compares the number of hosts with a heartbeat in Redis to the daemon's host count.
pub fn hosts(with_heartbeat: u64, host_count: Option<u64>) -> Finding {
    let beating = counted(with_heartbeat, "host");
    let Some(host_count) = host_count else {
        let message = format!("heartbeats there: of {beating}");
        return Finding::unseen(HOSTS, message, "tidegate fleet, as root, says more");
    };
    let (message, help) = match (with_heartbeat, host_count) {
        (0, _) => (
            "no host beats there, not even this one".to_owned(),
            "the daemon says why: tidegate fleet, and the log",
        ),
        (1, 1) => (
            "only this host beats there".to_owned(),
            "where there are others: the same `redis.url` on each; a fleet of one needs no Redis",
        ),
        // The daemon counts the most hosts of the last half minute.
        _ if host_count < with_heartbeat => (
            format!("heartbeats there: of {beating}, and the daemon counts {host_count}"),
            "look again in some seconds; if it stays: tidegate fleet shows whether Redis answers",
        ),
        _ if host_count > 2 * with_heartbeat => (
            format!("heartbeats there: of {beating}, and half a minute ago there were {host_count}"),
            "look at those that went: tidegate status on each",
        ),
        _ => {
            let message = format!("heartbeats there: of {beating}, and the daemon counts as many");
            return Finding::well(HOSTS, message);
        }
    };
    Finding::warning(HOSTS, message, help)
}

fn other_secrets(fleet: &FleetSummary) -> Option<Finding> {
    let hosts = fleet.secret.other_hosts;
    let message = format!("another fleet secret, or an older version, on {}", counted(hosts, "host"));
    let help = "give all hosts the same file in `fleet_secret_files`, then systemctl restart tidegate";
    (hosts > 0).then(|| Finding::wrong(SECRET, message, help))
}

const NAME_PRIMARY: &str = "name the primary in `redis.url`, or wait for the failover";

const WHAT: &str = "redis";
const SECRET: &str = "fleet secret";
const POLICY: &str = "redis memory";
const CLOCK: &str = "redis clock";
const HOSTS: &str = "hosts";

/// The file with the required rights.
const ACL: &str = "config/redis-acl.conf";

/// Policies that evict no cells in use: cells with little time left are idle.
const KEEPING: [&str; 2] = ["noeviction", "volatile-ttl"];

/// Clocks kept by NTP differ by some milliseconds.
const CLOCKS_APART_MILLIS: i128 = 1_000;

/// Slightly longer than the connect timeout.
const PATIENCE: Duration = Duration::from_millis(2_500);
