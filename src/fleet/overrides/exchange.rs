//! Reads, changes and restores the fleet overrides in Redis. No I/O: commands come out, replies go in.

use super::{OverridesCommand, OverridesDocument, OverridesKey, OverridesReply};
use crate::clock::{Now, Timestamp};
use crate::engine::{FleetChange, FleetOverrides};
use crate::fleet::command::Host;
use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// An operator's change and the channel for its outcome.
pub(in crate::fleet) type OverrideChange = (FleetChange, SyncSender<Result<bool, String>>);

/// The view for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverridesView {
    /// The version of the document in force; 0 without one.
    pub version: u64,
    /// Ignored values and entries, by reason.
    pub rejected: [(&'static str, u64); 4],
    /// Whether Redis recently had a value that no host of this fleet wrote.
    pub is_forged: bool,
}

#[derive(Debug)]
pub(in crate::fleet) struct Exchange {
    host: Host,
    seal: OverridesKey,
    known: Option<OverridesDocument>,
    /// The [`Now::utc_offset_nanos`] by which the expiry times of `known` were last converted.
    utc: i64,
    changes: VecDeque<PendingChange>,
    /// The command in flight, its send time and the document it writes.
    sent: Option<(OverridesCommand, Timestamp, Option<PendingWrite>)>,
    /// A change was written; its operator gets the answer once it is in force on this host.
    is_done: bool,
    asked: Option<Timestamp>,
    /// The stamp of the value in Redis; `None` before the first reply.
    seen: Option<String>,
    is_foreign: bool,
    restored: Option<Timestamp>,
    forged: u64,
    stale: u64,
    unreadable: u64,
    unknown: u64,
    alarmed: Option<Timestamp>,
    warned: Option<Timestamp>,
}

#[derive(Debug)]
struct PendingChange {
    change: FleetChange,
    answer: SyncSender<Result<bool, String>>,
    since: Timestamp,
    /// A reply with the value in Redis has come since.
    has_looked: bool,
}

#[derive(Debug)]
struct PendingWrite {
    document: OverridesDocument,
    is_change: bool,
}

impl Default for OverridesView {
    /// Lists every reason from the start.
    fn default() -> OverridesView {
        OverridesView { version: 0, rejected: rejected([0; 4]), is_forged: false }
    }
}

fn rejected([forged, stale, unreadable, unknown]: [u64; 4]) -> [(&'static str, u64); 4] {
    [("forged", forged), ("stale", stale), ("unreadable", unreadable), ("unknown", unknown)]
}

impl Exchange {
    /// `known` is the stored document of the previous process, if any.
    pub(in crate::fleet) fn new(
        host: Host,
        seal: OverridesKey,
        known: &FleetOverrides,
        now: Now,
    ) -> Exchange {
        let known = OverridesDocument::open(&known.document, &seal);
        Exchange {
            host,
            seal,
            known,
            utc: now.utc_offset_nanos,
            changes: VecDeque::new(),
            sent: None,
            is_done: false,
            asked: None,
            seen: None,
            is_foreign: false,
            restored: None,
            forged: 0,
            stale: 0,
            unreadable: 0,
            unknown: 0,
            alarmed: None,
            warned: None,
        }
    }

    pub(in crate::fleet) fn change(&mut self, (change, answer): OverrideChange, now: Timestamp) {
        self.changes.push_back(PendingChange { change, answer, since: now, has_looked: false });
    }

    pub(in crate::fleet) fn renamed(&mut self, host: Host) {
        self.host = host;
    }

    pub(in crate::fleet) fn view(&self, now: Timestamp) -> OverridesView {
        OverridesView {
            version: self.known.as_ref().map_or(0, OverridesDocument::version),
            rejected: rejected([self.forged, self.stale, self.unreadable, self.unknown]),
            is_forged: self.alarmed.is_some_and(|alarmed| now.since(alarmed) < ALARM_LASTS),
        }
    }

    /// Whether to log a warning about a forged value: at most once a minute.
    pub(in crate::fleet) fn warns(&mut self, now: Timestamp) -> bool {
        let is_new = self.alarmed.is_some_and(|alarmed| self.warned.is_none_or(|warned| alarmed > warned));
        let warns = is_new && self.warned.is_none_or(|warned| now.since(warned) >= WARN_EVERY);
        if warns {
            self.warned = Some(now);
        }
        warns
    }

    /// The overrides with expiry times recomputed after the wall clock was set: the times are Unix time.
    pub(in crate::fleet) fn after_step(&mut self, now: Now) -> Option<FleetOverrides> {
        if now.utc_offset_nanos.abs_diff(self.utc) < STEP_MIN_NANOS {
            return None;
        }
        self.utc = now.utc_offset_nanos;
        self.known.as_ref().map(|known| known.overrides(now))
    }

    /// The command due now, if any. `with_others`: other commands go to the same server now, so that this one may
    /// go early.
    pub(in crate::fleet) fn due(&mut self, with_others: bool, now: Now) -> Option<OverridesCommand> {
        self.give_up_late_changes(now.at);
        if self.sent.as_ref().is_some_and(|(_, since, _)| now.at.since(*since) < SILENT_MAX) {
            return None;
        }
        let every = if with_others { EVERY / 2 } else { EVERY };
        let is_due = self.asked.is_none_or(|asked| now.at.since(asked) >= every);
        let put = self.changed(now).or_else(|| self.restored(now.at));
        if put.is_none() && !is_due && self.changes.is_empty() {
            return None;
        }
        let seen = self.seen.clone().unwrap_or_else(|| NOT_SEEN.to_owned());
        let command = OverridesCommand { seen, put: put.as_ref().map(|put| put.document.bytes().to_vec()) };
        self.sent = Some((command.clone(), now.at, put));
        self.asked = Some(now.at);
        Some(command)
    }

    /// The document with the first queued change applied.
    fn changed(&mut self, now: Now) -> Option<PendingWrite> {
        while let Some(waiting) = self.changes.front().filter(|waiting| waiting.has_looked) {
            if self.is_foreign && self.known.is_none() {
                self.answer(Err(FOREIGN.to_owned()));
                continue;
            }
            match OverridesDocument::after(self.known.as_ref(), &waiting.change, &self.host, &self.seal, now)
            {
                Ok(Some(document)) => return Some(PendingWrite { document, is_change: true }),
                Ok(None) => self.answer(Ok(false)),
                Err(too_long) => self.answer(Err(too_long.to_string())),
            }
        }
        None
    }

    /// The newest known document, if Redis has lost it or has another.
    fn restored(&mut self, now: Timestamp) -> Option<PendingWrite> {
        let (known, seen) = (self.known.as_ref()?, self.seen.as_ref()?);
        let is_there = *seen == stamp(known.bytes());
        let is_early = self.restored.is_some_and(|restored| now.since(restored) < RESTORE_EVERY);
        if is_there || is_early {
            return None;
        }
        self.restored = Some(now);
        Some(PendingWrite { document: known.clone(), is_change: false })
    }

    /// Handles a reply. Returns the overrides in force if they changed.
    pub(in crate::fleet) fn answered(
        &mut self,
        command: &OverridesCommand,
        said: OverridesReply,
        now: Now,
    ) -> Option<FleetOverrides> {
        let (.., put) = self.sent.take_if(|(sent, ..)| sent == command)?;
        self.changes.iter_mut().for_each(|waiting| waiting.has_looked = true);
        let document = match (said, put) {
            (OverridesReply::Same, _) | (OverridesReply::Written, None) => return None,
            (OverridesReply::Written, Some(put)) => {
                self.is_done |= put.is_change;
                self.see(stamp(put.document.bytes()), false, now.at);
                put.document
            }
            (OverridesReply::Unreadable, _) => {
                self.unreadable += 1;
                self.see(UNREADABLE.to_owned(), true, now.at);
                return None;
            }
            (OverridesReply::Changed(value), _) => {
                let document = OverridesDocument::open(&value, &self.seal);
                let is_foreign = document.is_none() && !value.is_empty();
                self.forged += u64::from(is_foreign);
                self.see(if value.is_empty() { String::new() } else { stamp(&value) }, is_foreign, now.at);
                document?
            }
        };
        let known = self.known.as_ref();
        self.stale += u64::from(known.is_some_and(|known| document.version < known.version));
        if known.is_some_and(|known| document.rank() <= known.rank()) {
            return None;
        }
        self.unknown += document.unknown;
        self.utc = now.utc_offset_nanos;
        let overrides = document.overrides(now);
        self.known = Some(document);
        Some(overrides)
    }

    fn see(&mut self, stamp: String, is_foreign: bool, now: Timestamp) {
        self.seen = Some(stamp);
        self.is_foreign = is_foreign;
        if is_foreign {
            self.alarmed = Some(now);
        }
    }

    /// Answers the operator once the written change is in force on this host.
    pub(in crate::fleet) fn confirm(&mut self) {
        if std::mem::take(&mut self.is_done) {
            self.answer(Ok(true));
        }
    }

    /// Handles a command without a reply. Its change may have been written nevertheless.
    pub(in crate::fleet) fn failed(&mut self, command: &OverridesCommand) {
        let sent = self.sent.take_if(|(sent, ..)| sent == command);
        if sent.is_some_and(|(.., put)| put.is_some_and(|put| put.is_change)) {
            self.answer(Err(NOT_SURE.to_owned()));
        }
    }

    fn give_up_late_changes(&mut self, now: Timestamp) {
        while self.changes.front().is_some_and(|waiting| now.since(waiting.since) > PATIENCE) {
            let sent = self.sent.take_if(|(.., put)| put.as_ref().is_some_and(|put| put.is_change));
            self.answer(Err(if sent.is_some() { NOT_SURE } else { NOT_SAID }.to_owned()));
        }
    }

    fn answer(&mut self, answer: Result<bool, String>) {
        if let Some(waiting) = self.changes.pop_front() {
            // The operator may have disconnected.
            let _ = waiting.answer.try_send(answer);
        }
    }
}

/// The stamp of a value, as the script computes it (SHA-1, hex).
fn stamp(value: &[u8]) -> String {
    sha1_smol::Sha1::from(value).digest().to_string()
}

const EVERY: Duration = Duration::from_secs(1);
/// A command without a reply is sent again after this time; it is idempotent.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// A change not written within this time fails.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// Bounds the commands caused by a writer that keeps overwriting the document.
const RESTORE_EVERY: Duration = Duration::from_secs(2);
const ALARM_LASTS: Duration = Duration::from_secs(600);
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Smaller differences are the wall clock's own drift.
const STEP_MIN_NANOS: u64 = 1_000_000_000;
/// The stamp sent before the first reply.
const NOT_SEEN: &str = "?";
const UNREADABLE: &str = "-";

const NOT_SAID: &str = "Redis does not answer: the other hosts have not changed. help: run `tidegate doctor`; without `--fleet` the \
                        change holds on this host alone";
const NOT_SURE: &str = "Redis did not answer in time: the other hosts may have changed or not. help: `tidegate switch` shows it \
                        within seconds once Redis answers; repeating the command does no harm";
const FOREIGN: &str = "the fleet overrides in Redis are not authenticated by the fleet secret of this host. help: give this host the secret \
                       of the others, and each fleet a Redis of its own; if the value is no fleet's, delete the key tg:{tm}:overrides";
