//! The table of connections: enforces the limits, and reaches every connection at a drain.
//!
//! At a limit, idle connections of sessions that have many are closed before a new one is refused.

mod surplus;

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ServerState;
use crate::clock::Timestamp;
use crate::engine::Account;

/// Limits on simultaneous connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Of all users: descriptors are finite, and every connection costs a few kilobytes.
    pub max: u32,
    /// Of one user, so that one application does not lock out others.
    pub per_user: u32,
}

#[derive(Debug)]
pub(super) struct ConnectionRegistry {
    limits: ConnectionLimits,
    table: Mutex<ConnectionTable>,
    /// Notified when a connection opens after none was open. For one waiter.
    pub(super) first: Notify,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    entries: HashMap<u64, ConnectionEntry>,
    by_user: HashMap<u32, usize>,
    last_number: u64,
    draining: bool,
    /// The last search for surplus connections that found none: the user, or `None` for all, and the end of the pause
    /// before it is repeated.
    empty_search: Option<(Option<u32>, Timestamp)>,
}

#[derive(Debug)]
struct ConnectionEntry {
    stream: Weak<UnixStream>,
    user: u32,
    /// The number of its session.
    session: Option<u64>,
    activity: Arc<Activity>,
}

/// Why a connection is refused, by the names of limits in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::VariantNames)]
pub(super) enum ConnectionRefusal {
    #[strum(serialize = "max")]
    Full,
    #[strum(serialize = "per_user")]
    FullForUser,
    Draining,
}

impl ConnectionRegistry {
    pub(super) fn new(limits: ConnectionLimits) -> ConnectionRegistry {
        ConnectionRegistry { limits, table: Mutex::default(), first: Notify::new() }
    }

    /// Admits a stream. Its slot is freed when the permit drops.
    pub(super) fn admit(
        shared: &Arc<ServerState>,
        stream: &Arc<UnixStream>,
        user: u32,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        let connections = &shared.connections;
        let mut table = connections.table.lock();
        let mut closed = Vec::new();
        if table.refusal(connections.limits, user).is_some() && !table.draining {
            // For a user at its own limit, only one of its own connections frees a slot.
            let of_user = table.is_full_for(connections.limits, user).then_some(user);
            closed = table.remove_surplus(of_user, shared.clock.now().at);
        }
        let admitted = match table.refusal(connections.limits, user) {
            Some(refusal) => Err(refusal),
            None => Ok(table.add(stream, user)),
        };
        let is_first = admitted.is_ok() && table.entries.len() == 1;
        drop(table);
        if is_first {
            connections.first.notify_one();
        }
        surplus::write_goodbye(&closed);
        shared.options.telemetry.connections_reclaimed.fetch_add(closed.len() as u64, Ordering::Relaxed);
        let (number, activity) = admitted?;
        shared.options.telemetry.connections.fetch_add(1, Ordering::Relaxed);
        let account = shared.engine.account(user);
        account.connect();
        Ok(ConnectionPermit { shared: Arc::clone(shared), number, user, activity, account })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.lock().entries.is_empty()
    }

    pub(super) fn set_session(&self, number: u64, session: u64) {
        if let Some(entry) = self.table.lock().entries.get_mut(&number) {
            entry.session = Some(session);
        }
    }

    /// Refuses new connections and shuts down the reading side of all others: a peer's next write fails at once, while
    /// the bytes it wrote before are still read and answered.
    pub(super) fn drain(&self) {
        let mut table = self.table.lock();
        table.draining = true;
        table.shut_down(|_| true);
    }

    /// Shuts down the reading side of all connections of a session. The bytes that their peers wrote before are
    /// answered.
    pub(super) fn shut_down_session(&self, session: u64) {
        self.table.lock().shut_down(|entry| entry.session == Some(session));
    }

    pub(super) fn is_draining(&self) -> bool {
        self.table.lock().draining
    }
}

impl ConnectionTable {
    fn refusal(&self, limits: ConnectionLimits, user: u32) -> Option<ConnectionRefusal> {
        if self.draining {
            Some(ConnectionRefusal::Draining)
        } else if self.entries.len() >= limits.max as usize {
            Some(ConnectionRefusal::Full)
        } else if self.is_full_for(limits, user) {
            Some(ConnectionRefusal::FullForUser)
        } else {
            None
        }
    }

    /// Shuts down the reading side of some connections.
    fn shut_down(&self, is_chosen: impl Fn(&ConnectionEntry) -> bool) {
        for entry in self.entries.values().filter(|entry| is_chosen(entry)) {
            // It fails only if the peer has closed already.
            let _ = entry.stream.upgrade().map(|stream| stream.shutdown(Shutdown::Read));
        }
    }

    fn is_full_for(&self, limits: ConnectionLimits, user: u32) -> bool {
        self.by_user.get(&user).is_some_and(|of_user| *of_user >= limits.per_user as usize)
    }

    fn add(&mut self, stream: &Arc<UnixStream>, user: u32) -> (u64, Arc<Activity>) {
        *self.by_user.entry(user).or_default() += 1;
        self.last_number += 1;
        let activity = Arc::<Activity>::default();
        let entry = ConnectionEntry {
            stream: Arc::downgrade(stream),
            user,
            session: None,
            activity: Arc::clone(&activity),
        };
        self.entries.insert(self.last_number, entry);
        (self.last_number, activity)
    }

    /// Removes a connection; `None` if it was removed before, as surplus.
    fn remove(&mut self, number: u64) -> Option<ConnectionEntry> {
        let entry = self.entries.remove(&number)?;
        if let Some(of_user) = self.by_user.get_mut(&entry.user) {
            *of_user -= 1;
            if *of_user == 0 {
                self.by_user.remove(&entry.user);
            }
        }
        Some(entry)
    }
}

/// The right to a connection. Its drop frees the slot.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    shared: Arc<ServerState>,
    /// The connection's number, unique since the start.
    pub(super) number: u64,
    pub(super) user: u32,
    pub(super) activity: Arc<Activity>,
    account: Arc<Account>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.shared.connections.table.lock().remove(self.number);
        self.account.disconnect();
        self.shared.options.telemetry.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a connection is working, idle or ending: one atomic, so that its task and the accepting thread never both write to
/// its socket. `WORKING`, `ENDING`, or the start of idleness in nanoseconds plus one.
#[derive(Debug, Default)]
pub(super) struct Activity(AtomicU64);

impl Activity {
    /// Marks the connection idle: all requests are answered. Called by its task.
    pub(super) fn set_idle(&self, since: Timestamp) {
        let since = since.as_nanos().saturating_add(1).min(ENDING - 1);
        // No other thread changes the state of a working connection.
        self.0.store(since, Ordering::Release);
    }

    /// Marks the connection working, before it reads. Called by its task. Returns false if the connection must end.
    pub(super) fn set_working(&self) -> bool {
        let now = self.0.load(Ordering::Acquire);
        now == WORKING || (now != ENDING && self.exchange(now, WORKING))
    }

    fn exchange(&self, from: u64, to: u64) -> bool {
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns the start of idleness; `None` while working or ending.
    pub(super) fn idle_since(&self) -> Option<Timestamp> {
        let since = self.0.load(Ordering::Acquire);
        (since != WORKING && since != ENDING).then(|| Timestamp::from_nanos(since - 1))
    }

    /// Marks the connection ending if it has been idle for `least`. Returns whether it was: its task then reads and
    /// writes no more.
    pub(super) fn end_if_idle(&self, least: Duration, now: Timestamp) -> bool {
        let Some(since) = self.idle_since().filter(|since| now.since(*since) >= least) else {
            return false;
        };
        let idle = since.as_nanos() + 1;
        self.exchange(idle, ENDING)
    }
}

const WORKING: u64 = 0;

const ENDING: u64 = u64::MAX;
