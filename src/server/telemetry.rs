//! Counters of the server: connections, error replies, decisions that clients made without the daemon. Reads are not
//! consistent with each other and block no writer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use arrayvec::ArrayVec;
use parking_lot::Mutex;
use strum::{VariantArray, VariantNames};
use tracing::warn;

use super::connections::ConnectionRefusal;
use crate::protocol::{Code, MissReason, MissedCounts};

/// Counts since the start, and the number of open connections.
#[derive(Debug, Default)]
pub struct ServerCounters {
    pub connections: AtomicU64,
    /// Idle surplus connections that were closed to admit others.
    pub connections_reclaimed: AtomicU64,
    /// How often the wall clock was set back.
    pub clock_steps_back: AtomicU64,
    /// By limit; a drain is none.
    refused: [AtomicU64; 2],
    errors: [AtomicU64; Code::VARIANTS.len()],
    missed: [[AtomicU64; MissReason::ALL.len()]; ClientKind::VARIANTS.len()],
    not_pending: [AtomicU64; NotPending::VARIANTS.len()],
    /// The first users of each domain of the rules.
    users: Mutex<BTreeMap<Box<str>, ArrayVec<u32, USERS_MAX>>>,
    turned_away: Mutex<BTreeSet<(Box<str>, u32)>>,
    unknown_domains: Mutex<BTreeSet<Box<str>>>,
    unmatched: Mutex<BTreeMap<Box<str>, Box<str>>>,
}

/// Why a request was decided without waiting for its remote check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub(super) enum NotPending {
    /// Its connection has the most pending requests.
    Connection,
    /// The account of its user is full.
    User,
    /// The queue of remote checks is full.
    Calls,
}

/// The client library, if known. Unknown names are not stored, as they are arbitrary text.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub(super) enum ClientKind {
    #[default]
    Other,
    Cli,
    Python,
    Ruby,
    Go,
    Node,
    Java,
    Php,
    Rust,
}

impl ClientKind {
    /// Parses the client of HELLO, such as `python/0.1.0`.
    pub(super) fn parse(client: Option<&str>) -> ClientKind {
        let name = client.and_then(|client| client.split('/').next()).unwrap_or_default();
        name.parse().unwrap_or_default()
    }
}

impl ServerCounters {
    /// Returns the refused connections, by limit.
    pub fn refused_connections(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = ConnectionRefusal::VARIANTS.iter().copied();
        names.zip(self.refused.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns the frames answered by an ERROR, by code. Frames that requested no reply are included.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = Code::VARIANTS.iter().map(|code| code.name());
        names.zip(self.errors.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns what clients report of decisions without the daemon and of functions that raised, by client library.
    pub fn missed_decisions(&self) -> impl Iterator<Item = (&'static str, MissReason, u64)> {
        ClientKind::VARIANTS.iter().zip(&self.missed).flat_map(|(client, counts)| {
            let each = MissReason::ALL.iter().copied().zip(counts);
            each.map(move |(reason, count)| (client.into(), reason, count.load(Ordering::Relaxed)))
        })
    }

    /// Returns the requests that were decided without waiting for their remote check, by limit.
    pub fn not_pending(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = NotPending::VARIANTS.iter().copied();
        names.zip(self.not_pending.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Returns the domains that several users have used, with the first of these users.
    pub fn shared_domains(&self) -> Vec<(Box<str>, Vec<u32>)> {
        let users = self.users.lock();
        let shared = users.iter().filter(|(_, users)| users.len() > 1);
        shared.map(|(domain, users)| (domain.clone(), users.to_vec())).collect()
    }

    /// Adds a user of a domain. The domain must be one of the rules, of which there are few.
    pub(super) fn add_domain_user(&self, domain: &str, user: u32) {
        let mut known = self.users.lock();
        if let Some(users) = known.get_mut(domain) {
            if !users.contains(&user) {
                // Further users are not stored.
                let _ = users.try_push(user);
            }
        } else if known.len() < DOMAINS_MAX {
            known.insert(domain.into(), ArrayVec::from_iter([user]));
        }
    }

    /// Returns the first closed domains of which requests were refused, each with a user.
    pub fn turned_away(&self) -> Vec<(Box<str>, u32)> {
        self.turned_away.lock().iter().cloned().collect()
    }

    /// Adds a user that was refused in a closed domain. The domain is one of the settings.
    pub(super) fn add_turned_away(&self, domain: &str, user: u32) {
        let mut known = self.turned_away.lock();
        if known.len() < TURNED_AWAY_MAX {
            known.insert((domain.into(), user));
        }
    }

    /// Returns the first domains of requests that did not exist then, in alphabetical order.
    pub fn unknown_domains(&self) -> Vec<Box<str>> {
        self.unknown_domains.lock().iter().cloned().collect()
    }

    /// Adds a domain that does not exist. Returns whether it is new; further ones than the first are not stored.
    pub(super) fn add_unknown_domain(&self, domain: &str) -> bool {
        let mut unknown = self.unknown_domains.lock();
        unknown.len() < UNKNOWN_DOMAINS_MAX && unknown.insert(domain.into())
    }

    /// Returns a description of the first request that no rule of its domain matched.
    pub fn first_unmatched(&self) -> Option<Box<str>> {
        self.unmatched.lock().values().next().cloned()
    }

    /// Adds a request that no rule of its domain matched. Returns its description if it is the first of the domain, which must
    /// be one of the rules.
    pub(super) fn add_unmatched(&self, domain: &str, describe: impl FnOnce() -> String) -> Option<String> {
        let mut unmatched = self.unmatched.lock();
        if unmatched.len() >= DOMAINS_MAX || unmatched.contains_key(domain) {
            return None;
        }
        let description = describe();
        unmatched.insert(domain.into(), description.as_str().into());
        Some(description)
    }

    pub(super) fn count_not_pending(&self, reason: NotPending) {
        self.not_pending.get(reason as usize).into_iter().for_each(|count| add(count, 1));
    }

    pub(super) fn count_refused(&self, refusal: ConnectionRefusal) {
        self.refused.get(refusal as usize).into_iter().for_each(|count| add(count, 1));
    }

    #[cold]
    pub(super) fn count_error(&self, code: Code) {
        let counts = Code::VARIANTS.iter().zip(&self.errors);
        counts.filter(|(known, _)| **known == code).for_each(|(_, count)| add(count, 1));
    }

    pub(super) fn add_missed(&self, client: ClientKind, missed: &MissedCounts) {
        let counts = ClientKind::VARIANTS.iter().zip(&self.missed).find(|(known, _)| **known == client);
        let Some((_, counts)) = counts else { return };
        for (reason, count) in MissReason::ALL.iter().copied().zip(counts) {
            add(count, missed.count(reason).min(REPORTED_MISSES_MAX));
        }
    }
}

/// The sum of what clients report of decisions without the daemon, since the last log line about it.
#[derive(Debug, Default)]
pub(super) struct MissedReports(Mutex<MissedCounts>);

impl MissedReports {
    pub(super) fn add(&self, missed: &MissedCounts) {
        let mut unlogged = self.0.lock();
        *unlogged = unlogged.plus(missed);
    }

    /// Logs the reports since the last line. Returns whether there were any.
    pub(super) fn log(&self) -> bool {
        let missed = std::mem::take(&mut *self.0.lock());
        let [unreachable, timeout, protocol, breaker, callback] = missed.0;
        if missed.iter().any(|(reason, _)| reason.is_without_daemon()) {
            warn!(unreachable, timeout, protocol, breaker, "clients report decisions made without tidegate");
        }
        if callback > 0 {
            warn!(
                callback,
                "functions of an application raised: requests were judged without their attributes; see its log"
            );
        }
        !missed.is_empty()
    }
}

/// Adds to a counter, saturating, as clients may report any number.
fn add(count: &AtomicU64, more: u64) {
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| Some(sum.saturating_add(more)));
}

/// The most that one report adds: no report makes the counter useless.
const REPORTED_MISSES_MAX: u64 = 1 << 32;

/// The name of [`MissReason::Callback`], as metrics and the status name it.
pub const RAISED: &str = "callback";

/// Names are arbitrary text of clients: as many as an operator reads, and lines of the log.
const UNKNOWN_DOMAINS_MAX: usize = 16;

/// As many as a warning names.
const TURNED_AWAY_MAX: usize = 4;

const USERS_MAX: usize = 4;

const DOMAINS_MAX: usize = 256;
