//! Notifications to systemd, from a thread of its own: that the daemon serves, reloads and stops, and that
//! every thread makes progress. No thread waits for it; without a service manager nothing is done.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::{info, warn};

use super::helpers::Helpers;
use crate::clock::{Clock, Timestamp, read_monotonic_micros};
use crate::server::ThreadHealth;

/// The handle of the notification thread; empty without a service manager.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceManager {
    queue: Option<Sender<ManagerMessage>>,
}

#[derive(Debug)]
enum ManagerMessage {
    Notify(String),
    /// Confirms to the receiver that all notifications before it are sent.
    Last(SyncSender<()>),
}

impl ServiceManager {
    /// Whether a service manager expects notifications, or has passed our socket.
    pub(super) fn is_there() -> bool {
        let has = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        has("NOTIFY_SOCKET") || has("LISTEN_FDS")
    }

    /// Adds the notification thread, if there is a service manager.
    pub(super) fn start(pulse: &Arc<ThreadHealth>, clock: &Arc<Clock>, helpers: &Helpers) -> ServiceManager {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return ServiceManager::default();
        }
        let (queue, messages) = channel();
        let half = sd_notify::watchdog_enabled().map(|watchdog| (watchdog / 2).max(RECHECK_MIN));
        let mut thread = ManagerThread {
            watch: half.map(|half| WatchdogWatch {
                half,
                pinged: Timestamp::ORIGIN,
                due: Timestamp::ORIGIN,
                is_late_logged: false,
            }),
            pulse: Arc::clone(pulse),
            clock: Arc::clone(clock),
        };
        // Not joined at exit: a service manager that does not listen must not delay it.
        let without = "the service manager is not notified, and may end this daemon";
        helpers.add("notify", without, move || thread.run(&messages));
        ServiceManager { queue: Some(queue) }
    }

    /// Notifies that the rules are being read again on request. systemd 253 or later matches the notification to its reload
    /// request by the time.
    pub(super) fn reloading(&self) {
        let now = NotifyState::MonotonicUsec(i128::from(read_monotonic_micros()));
        self.notify(&[NotifyState::Reloading, now]);
    }

    pub(super) fn notify(&self, states: &[NotifyState<'_>]) {
        let lines = states.iter().map(ToString::to_string).collect::<Vec<_>>();
        self.send(ManagerMessage::Notify(lines.join("\n")));
    }

    /// Waits up to [`LAST_WORDS_MAX`] until all notifications are sent.
    pub(super) fn finish(&self) {
        let (sent, all_sent) = sync_channel(1);
        self.send(ManagerMessage::Last(sent));
        // Fails at once without a service manager.
        let _ = all_sent.recv_timeout(LAST_WORDS_MAX);
    }

    fn send(&self, message: ManagerMessage) {
        if let Some(queue) = &self.queue {
            // The thread ends only with the process.
            let _ = queue.send(message);
        }
    }
}

struct ManagerThread {
    /// The state of the watchdog; `None`: there is none.
    watch: Option<WatchdogWatch>,
    pulse: Arc<ThreadHealth>,
    clock: Arc<Clock>,
}

/// The last notification of the watchdog, and the next.
struct WatchdogWatch {
    half: Duration,
    pinged: Timestamp,
    due: Timestamp,
    /// Whether a missing notification was logged.
    is_late_logged: bool,
}

impl ManagerThread {
    fn run(&mut self, messages: &Receiver<ManagerMessage>) {
        loop {
            let now = self.clock.now().at;
            let messages = match &self.watch {
                Some(watch) => messages.recv_timeout(watch.due.since(now)),
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match messages {
                Ok(ManagerMessage::Notify(lines)) => send(&NotifyState::Custom(&lines)),
                Ok(ManagerMessage::Last(sent)) => drop(sent.try_send(())),
                Err(RecvTimeoutError::Timeout) => self.ping(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Notifies the watchdog if every thread has beaten since the last notification.
    fn ping(&mut self) {
        let now = self.clock.now().at;
        let Some(watch) = &mut self.watch else { return };
        if self.pulse.all_checked_after(watch.pinged) {
            send(&NotifyState::Watchdog);
            if watch.is_late_logged {
                info!("every thread works again: the watchdog is notified");
            }
            (watch.pinged, watch.due, watch.is_late_logged) = (now, now.after(watch.half), false);
            return;
        }
        watch.due = now.after((watch.half / 8).max(RECHECK_MIN));
        // Threads that have not all begun are not late.
        if !watch.is_late_logged && watch.pinged > Timestamp::ORIGIN {
            watch.is_late_logged = true;
            let since = now.since(watch.pinged);
            let ages = self.pulse.check_ages(now).filter(|(_, age)| age.is_none_or(|age| age >= since));
            let late: Vec<_> = ages.map(|(name, _)| name).collect();
            let threads = late.join(", ");
            warn!(
                threads,
                "these threads do not answer: the watchdog is not notified, and will end this daemon if it lasts"
            );
        }
    }
}

fn send(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        warn!(%error, "the service manager cannot be notified: check NotifyAccess= of the unit");
    }
}

/// Sending takes microseconds, unless the service manager does not listen.
const LAST_WORDS_MAX: Duration = Duration::from_millis(100);

/// The shortest interval between checks of the threads.
const RECHECK_MIN: Duration = Duration::from_millis(10);

/// The target of log lines of this module, and the prefix of those of its submodules.
pub(super) const LOG_TARGET: &str = module_path!();
