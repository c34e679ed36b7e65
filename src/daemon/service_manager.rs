//! What systemd is told, by a thread of its own: that the daemon serves, reloads, ends, and that every thread still does
//! its work. Nothing waits for it, and without a service manager nothing is done.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::{info, warn};

use super::helpers::Helpers;
use crate::clock::{Clock, Timestamp, monotonic_micros};
use crate::server::Pulse;

/// Whoever started the daemon and wants to know how it is; or nobody.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceManager {
    words: Option<Sender<Word>>,
}

/// One thing to say.
#[derive(Debug)]
enum Word {
    Serving,
    /// At this time of the monotonic clock, in microseconds.
    Reloading(u64),
    Reloaded,
    Status(String),
    Stopping,
    /// Whoever waits for it knows that all before it was said.
    Last(SyncSender<()>),
}

impl ServiceManager {
    /// Whether somebody wants to be told, or has passed us our socket.
    pub(super) fn is_there() -> bool {
        let has = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        has("NOTIFY_SOCKET") || has("LISTEN_FDS")
    }

    /// Adds the thread that tells the service manager, where there is one.
    pub(super) fn start(pulse: &Arc<Pulse>, clock: &Arc<Clock>, helpers: &Helpers) -> ServiceManager {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return ServiceManager::default();
        }
        let (words, heard) = channel();
        let half = sd_notify::watchdog_enabled().map(|watchdog| (watchdog / 2).max(RECHECK_MIN));
        let mut thread = Thread {
            watch: half.map(|half| Watch {
                half,
                pinged: Timestamp::ORIGIN,
                due: Timestamp::ORIGIN,
                told: false,
            }),
            pulse: Arc::clone(pulse),
            clock: Arc::clone(clock),
        };
        // Not waited for at the end: a service manager that does not listen must not keep the daemon from ending.
        let without = "the service manager is not notified, and may end this daemon";
        helpers.add("notify", without, move || thread.run(&heard));
        ServiceManager { words: Some(words) }
    }

    /// Every thread serves.
    pub(super) fn serving(&self) {
        self.say(Word::Serving);
    }

    /// The rules are being read again, because somebody asked for it.
    pub(super) fn reloading(&self) {
        self.say(Word::Reloading(monotonic_micros()));
    }

    /// They have been read.
    pub(super) fn reloaded(&self) {
        self.say(Word::Reloaded);
    }

    /// One line for people.
    pub(super) fn status(&self, line: String) {
        self.say(Word::Status(line));
    }

    /// The drain begins.
    pub(super) fn stopping(&self) {
        self.say(Word::Stopping);
    }

    /// The end has come: waits for a moment, so that what was to be said is.
    pub(super) fn finish(&self) {
        let (said, all_said) = sync_channel(1);
        self.say(Word::Last(said));
        // A service manager that does not listen holds nobody up; without one there is nobody to wait for.
        let _ = all_said.recv_timeout(LAST_WORDS_MAX);
    }

    fn say(&self, word: Word) {
        if let Some(words) = &self.words {
            // The thread ends with the process only.
            let _ = words.send(word);
        }
    }
}

struct Thread {
    /// When it wants to be told that all is well; `None`: never.
    watch: Option<Watch>,
    pulse: Arc<Pulse>,
    clock: Arc<Clock>,
}

/// When the watchdog was told, and when it is to be told again.
struct Watch {
    half: Duration,
    pinged: Timestamp,
    due: Timestamp,
    /// Whether it was said that it is not told, and why.
    told: bool,
}

impl Thread {
    fn run(&mut self, heard: &Receiver<Word>) {
        loop {
            let now = self.clock.now().at;
            let heard = match &self.watch {
                Some(watch) => heard.recv_timeout(watch.due.since(now)),
                None => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match heard {
                Ok(word) => tell(&word),
                Err(RecvTimeoutError::Timeout) => self.ping(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Tells the watchdog that all is well, if all is: every thread has judged something since it was last told.
    fn ping(&mut self) {
        let now = self.clock.now().at;
        let Some(watch) = &mut self.watch else { return };
        if self.pulse.all_beat_after(watch.pinged) {
            send(&[NotifyState::Watchdog]);
            if watch.told {
                info!("every thread does its work again: the watchdog is told");
            }
            *watch = Watch { half: watch.half, pinged: now, due: now.after(watch.half), told: false };
            return;
        }
        watch.due = now.after((watch.half / 8).max(RECHECK_MIN));
        // Before all have begun there is nothing to tell of.
        if !watch.told && watch.pinged > Timestamp::ORIGIN {
            watch.told = true;
            let since = now.since(watch.pinged);
            let ages = self.pulse.ages(now).filter(|(_, age)| age.is_none_or(|age| age >= since));
            let late: Vec<_> = ages.map(|(name, _)| name).collect();
            let threads = late.join(", ");
            warn!(
                threads,
                "these do not answer: the watchdog is not told, and will end this daemon if it lasts"
            );
        }
    }
}

fn tell(word: &Word) {
    match word {
        Word::Serving => send(&[NotifyState::Ready]),
        // Since systemd 253 it wants to know when, so that it knows which of its wishes this is about.
        Word::Reloading(at) => send(&[NotifyState::Reloading, NotifyState::MonotonicUsec(i128::from(*at))]),
        Word::Reloaded => send(&[NotifyState::Ready]),
        Word::Status(line) => send(&[NotifyState::Status(line)]),
        Word::Last(said) => drop(said.try_send(())),
        Word::Stopping => send(&[NotifyState::Stopping, NotifyState::Status("draining")]),
    }
}

fn send(words: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(words) {
        warn!(%error, "the service manager cannot be told how this daemon is: look at NotifyAccess= of the unit");
    }
}

/// The thread needs some microseconds, or has somebody who does not listen.
const LAST_WORDS_MAX: Duration = Duration::from_millis(100);

/// No watchdog is asked more often whether all is well.
const RECHECK_MIN: Duration = Duration::from_millis(10);

/// The target of log lines of this module, and the prefix of those of its submodules.
pub(super) const LOG_TARGET: &str = module_path!();
