//! What the server counts of its own: connections, errors answered, decisions that clients made alone. Whoever looks,
//! looks while it changes; nothing waits for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;

use super::connections::Refusal;
use crate::protocol::{Code, MissReason, Missed};

/// Counts since the start, and how many are connected now.
#[derive(Debug, Default)]
pub struct Telemetry {
    connections: AtomicU64,
    refused: [AtomicU64; REFUSALS.len()],
    reclaimed: AtomicU64,
    errors: [AtomicU64; Code::ALL.len()],
    missed: [[AtomicU64; MissReason::ALL.len()]; Client::ALL.len()],
    not_parked: [AtomicU64; NOT_PARKED.len()],
    clock_steps_back: AtomicU64,
    /// Who has asked about which domain of the rules.
    users: Mutex<BTreeMap<Box<str>, ArrayVec<u32, USERS_MAX>>>,
}

/// Why a request that a call might have helped was judged without waiting for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotParked {
    /// As many of its connection wait as may.
    Connection,
    /// The connections of its user hold too much.
    User,
    /// More calls are asked for at once than are taken.
    Calls,
}

/// What a client is written in, as far as it says what is known: its own text goes nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Client {
    #[default]
    Other,
    Cli,
    Python,
    Ruby,
    Go,
}

impl Client {
    const ALL: [Client; 5] = [Client::Other, Client::Cli, Client::Python, Client::Ruby, Client::Go];

    /// Of what HELLO says: `python/0.1.0`.
    pub(super) fn of(said: Option<&str>) -> Client {
        let name = said.and_then(|said| said.split('/').next()).unwrap_or_default();
        Client::ALL.into_iter().find(|client| client.name() == name).unwrap_or_default()
    }

    fn name(self) -> &'static str {
        match self {
            Client::Other => "other",
            Client::Cli => "cli",
            Client::Python => "python",
            Client::Ruby => "ruby",
            Client::Go => "go",
        }
    }
}

impl Telemetry {
    /// How many are connected.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Connections that were not let in, by what was full.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = REFUSALS.iter().map(|(_, name)| *name);
        names.zip(self.refused.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Idle surplus connections that were ended so that others could be let in.
    #[must_use]
    pub fn connections_reclaimed(&self) -> u64 {
        self.reclaimed.load(Ordering::Relaxed)
    }

    /// Frames that were answered by an ERROR, or would have been had they asked for an answer, by its code.
    pub fn errors(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = Code::ALL.into_iter().map(Code::name);
        names.zip(self.errors.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Decisions that clients made without us, by what the client is written in and by its reason.
    pub fn missed(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        Client::ALL.into_iter().zip(&self.missed).flat_map(|(client, counts)| {
            let each = MissReason::ALL.into_iter().zip(counts);
            each.map(move |(reason, count)| (client.name(), reason.name(), count.load(Ordering::Relaxed)))
        })
    }

    /// Requests that were judged without waiting for the call that their rules ask for, by what was full.
    pub fn not_parked(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = NOT_PARKED.iter().map(|(_, name)| *name);
        names.zip(self.not_parked.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The domains about which several users have asked, with the first of them.
    pub fn shared_domains(&self) -> Vec<(Box<str>, Vec<u32>)> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = users.iter().filter(|(_, users)| users.len() > 1);
        shared.map(|(domain, users)| (domain.clone(), users.to_vec())).collect()
    }

    /// A user has asked about a domain of the rules, of which there are few.
    pub(super) fn asked_about(&self, domain: &str, user: u32) {
        let mut known = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(users) = known.get_mut(domain) {
            if !users.contains(&user) {
                // More than are told need not be known.
                let _ = users.try_push(user);
            }
        } else if known.len() < DOMAINS_MAX {
            known.insert(domain.into(), ArrayVec::from_iter([user]));
        }
    }

    /// How often the wall clock was set back.
    pub fn clock_steps_back(&self) -> u64 {
        self.clock_steps_back.load(Ordering::Relaxed)
    }

    pub(super) fn clock_stepped_back(&self) {
        add(&self.clock_steps_back, 1);
    }

    pub(super) fn was_not_parked(&self, why: NotParked) {
        let places = NOT_PARKED.iter().zip(&self.not_parked);
        places.filter(|((known, _), _)| *known == why).for_each(|(_, count)| add(count, 1));
    }

    pub(super) fn came(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn went(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn reclaimed(&self, connections: u64) {
        self.reclaimed.fetch_add(connections, Ordering::Relaxed);
    }

    pub(super) fn not_let_in(&self, refusal: Refusal) {
        let places = REFUSALS.iter().zip(&self.refused);
        places.filter(|((known, _), _)| *known == refusal).for_each(|(_, count)| add(count, 1));
    }

    #[cold]
    pub(super) fn error(&self, code: Code) {
        let places = Code::ALL.iter().zip(&self.errors);
        places.filter(|(known, _)| **known == code).for_each(|(_, count)| add(count, 1));
    }

    pub(super) fn missed_by(&self, client: Client, missed: &Missed) {
        let counts = Client::ALL.iter().zip(&self.missed).find(|(known, _)| **known == client);
        let Some((_, counts)) = counts else { return };
        for (reason, count) in MissReason::ALL.into_iter().zip(counts) {
            add(count, missed.of(reason));
        }
    }
}

/// What a peer says may be any number: a sum that would run over stays where it is.
fn add(count: &AtomicU64, more: u64) {
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| Some(sum.saturating_add(more)));
}

/// What is full when somebody is not let in.
const REFUSALS: [(Refusal, &str); 2] = [(Refusal::Full, "max"), (Refusal::FullForUser, "per_user")];

/// What is full when a request is not put aside.
const NOT_PARKED: [(NotParked, &str); 3] =
    [(NotParked::Connection, "connection"), (NotParked::User, "user"), (NotParked::Calls, "calls")];

/// Users of a domain that are told apart: more say no more.
const USERS_MAX: usize = 4;

/// As many as rules can have.
const DOMAINS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::{Client, Telemetry};
    use crate::protocol::{MissReason, Missed};

    #[test]
    fn a_client_is_what_it_says_if_that_is_known() {
        let table = [
            (Some("python/0.1.0"), Client::Python),
            (Some("go"), Client::Go),
            (Some("python-evil{x=\"y\"}/1"), Client::Other),
            (Some(""), Client::Other),
            (None, Client::Other),
        ];
        for (said, client) in table {
            assert_eq!(Client::of(said), client, "{said:?}");
        }
    }

    #[test]
    fn what_clients_report_is_added_up_and_never_runs_over() {
        let telemetry = Telemetry::default();
        let mut missed = Missed::default();
        missed.set(MissReason::Timeout, u64::MAX - 1);
        telemetry.missed_by(Client::Ruby, &missed);
        telemetry.missed_by(Client::Ruby, &missed);
        let found: Vec<_> = telemetry.missed().filter(|(.., count)| *count > 0).collect();
        assert_eq!(found, [("ruby", "timeout", u64::MAX)]);
        assert_eq!(telemetry.missed().count(), Client::ALL.len() * MissReason::ALL.len());
    }
}
