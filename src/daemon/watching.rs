//! Changes of the rules as the kernel reports them: one inotify descriptor for the life of the daemon, read
//! by the thread that reads the rules. Where watching fails, the caller polls the files.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tracing::warn;

use super::watched_paths::DirectoryPaths;
use crate::clock::{Timestamp, read_boot_nanos};
use crate::rules::{Fingerprint, OpenFiles, glance};

#[derive(Debug, Default)]
pub(super) struct DirectoryWatch {
    inotify: Option<OwnedFd>,
    /// The directories by watch descriptor.
    watched: BTreeMap<i32, PathBuf>,
    places: DirectoryPaths,
    /// Whether a watched directory may have been replaced.
    moved: bool,
    /// Rules files that a writer has changed and not closed since, each with the time of the change: half of one may be
    /// valid.
    pub(super) open: BTreeMap<PathBuf, Timestamp>,
    /// Whether some changes are not reported, so that the caller has to poll.
    pub(super) polls: bool,
    /// The fingerprint of the files at the last look.
    seen: Fingerprint,
}

impl DirectoryWatch {
    /// Watches the directories in which changes would show. Drops earlier changes: read the files afterwards.
    pub(super) fn renew(&mut self, path: &Path) {
        let mut failure = None;
        // Watches that failed before are tried again.
        let mut tried = self.inotify.is_some() && !self.polls;
        for _ in 0..RENEWALS_MAX {
            let places = DirectoryPaths::of(path);
            self.read_events();
            let moved = std::mem::take(&mut self.moved);
            // Unchanged since the watches were set: no change was missed.
            if tried && !moved && self.places == places {
                break;
            }
            self.places = places;
            failure = self.watch_places().err();
            tried = true;
        }
        if let Some(error) = failure.filter(|_| !self.polls) {
            let (reason, help) = (std::io::Error::from(error), help(error));
            warn!(%reason, help, "changes of the rules cannot be watched: looking for them every 2 s");
        }
        self.polls = failure.is_some();
        if self.polls {
            self.seen = glance(path);
        }
    }

    fn watch_places(&mut self) -> Result<(), Errno> {
        let inotify = match self.inotify.take() {
            Some(inotify) => inotify,
            None => inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?,
        };
        let inotify = self.inotify.insert(inotify);
        for watch in std::mem::take(&mut self.watched).into_keys() {
            // The kernel has removed the watch of a removed directory.
            let _ = inotify::remove_watch(&*inotify, watch);
        }
        let mut failure = None;
        for (directory, place) in self.places.iter() {
            let events = if place.needed { MOVES.union(WRITES) } else { MOVES };
            match inotify::add_watch(&*inotify, directory, events) {
                Ok(watch) => drop(self.watched.insert(watch, directory.to_owned())),
                Err(error) if place.needed => failure = failure.or(Some(error)),
                Err(_) => {}
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Waits until a watched file changes or `wake` becomes readable, within this time; `None`: forever.
    /// Returns false on timeout.
    pub(super) fn wait(&mut self, wake: &OwnedFd, within: Option<Duration>) -> bool {
        let begin = read_boot_nanos();
        loop {
            let waited = Duration::from_nanos(read_boot_nanos().saturating_sub(begin));
            let left = within.map(|within| within.saturating_sub(waited));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let inotify = self.inotify.as_ref().map_or(wake, |inotify| inotify);
            let mut polled = [wake, inotify].map(|fd| PollFd::new(fd, PollFlags::IN));
            let ready = poll(&mut polled, timeout.as_ref());
            let rung = polled.first().is_some_and(|wake| !wake.revents().is_empty());
            match ready {
                Ok(0) => return false,
                Ok(_) if rung => {
                    // One read resets the counter of all signals.
                    let _ = rustix::io::read(wake.as_fd(), &mut [0_u8; 8]);
                    return true;
                }
                Ok(_) if self.read_events() => return true,
                Ok(_) | Err(Errno::INTR) => {}
                // No memory: counts as a timeout after a pause.
                Err(_) => {
                    std::thread::sleep(left.unwrap_or(PAUSE).min(PAUSE));
                    return false;
                }
            }
        }
    }

    /// Reads the pending events. Returns whether any may change the rules.
    fn read_events(&mut self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut is_change = false;
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return is_change,
                Err(_) => {
                    (self.moved, is_change) = (true, true);
                    return is_change;
                }
            };
            let events = event.events();
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                (self.moved, is_change) = (true, true);
                self.open.clear();
            }
            let Some(directory) = self.watched.get(&event.wd()) else { continue };
            let name = event.file_name().map(|name| Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())));
            let path = name.map_or_else(|| directory.clone(), |name| directory.join(name));
            self.moved |= self.places.is_one(&path) || events.contains(ReadFlags::IGNORED);
            if self.places.concern(&path) {
                // Further writes to an open file change nothing: it is not read before it is closed.
                is_change |= !events.contains(ReadFlags::MODIFY) || !self.open.contains_key(&path);
                if events.contains(ReadFlags::MODIFY) {
                    self.open.entry(path).or_insert_with(|| Timestamp::from_nanos(read_boot_nanos()));
                } else if events.intersects(CLOSES) {
                    self.open.remove(&path);
                }
            }
        }
    }

    /// The rules files that were changed and not closed since.
    pub(super) fn open_files(&self) -> OpenFiles {
        self.open.keys().cloned().collect()
    }

    /// The time until the first open file has been waited for [`OPEN_MAX`].
    pub(super) fn until_overdue(&self, now: Timestamp) -> Option<Duration> {
        let oldest = self.open.values().min()?;
        Some(OPEN_MAX.saturating_sub(now.since(*oldest)))
    }

    /// Counts files that were open for [`OPEN_MAX`] as closed until they are changed again; returns them.
    pub(super) fn take_overdue(&mut self, now: Timestamp) -> Vec<PathBuf> {
        let is_overdue = |since: &Timestamp| now.since(*since) >= OPEN_MAX;
        let overdue =
            self.open.iter().filter(|(_, since)| is_overdue(since)).map(|(file, _)| file.clone()).collect();
        self.open.retain(|_, since| !is_overdue(since));
        overdue
    }

    pub(super) fn sees_a_change(&self, path: &Path) -> bool {
        self.polls && glance(path) != self.seen
    }
}

fn help(error: Errno) -> &'static str {
    match error {
        Errno::NOSPC => "raise fs.inotify.max_user_watches",
        Errno::MFILE => "raise fs.inotify.max_user_instances, or LimitNOFILE",
        Errno::ACCESS | Errno::PERM => "let the daemon's user read the directory and its parent",
        _ => "SIGHUP has them read at once",
    }
}

/// Events of directories that may change the rules. Opening and reading are not among them, as the daemon does both.
const MOVES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Events of files. From a directory such as `/tmp` on the path of the rules, they would wake the thread for others' files.
const WRITES: WatchFlags = WatchFlags::MODIFY.union(WatchFlags::CLOSE_WRITE);

/// Events after which a writer of a file changes it no more, or changes another file.
const CLOSES: ReadFlags =
    ReadFlags::CLOSE_WRITE.union(ReadFlags::DELETE).union(ReadFlags::MOVED_FROM).union(ReadFlags::MOVED_TO);

/// The first pass sets the watches, the second confirms that nothing moved meanwhile.
const RENEWALS_MAX: usize = 4;

/// The longest wait for a writer to close its file, as a copy over a network may pause.
pub(super) const OPEN_MAX: Duration = Duration::from_secs(10);

/// Some dozens of events; the longest file name fits.
const EVENTS_BYTES: usize = 4_096;

const PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::{DirectoryWatch, OPEN_MAX, Timestamp};

    fn wake() -> OwnedFd {
        eventfd(0, EventfdFlags::NONBLOCK).unwrap()
    }

    /// Whether a change is reported. An inotify event is queued when the system call that caused it returns.
    fn reports(watching: &mut DirectoryWatch, wake: &OwnedFd) -> bool {
        watching.wait(wake, Some(Duration::ZERO))
    }

    #[test]
    fn reports_changes_and_not_reads() {
        let ground = tempfile::tempdir().unwrap();
        let rules = ground.path().canonicalize().unwrap().join("rules");
        fs::create_dir(&rules).unwrap();
        let (mut watching, wake) = (DirectoryWatch::default(), wake());
        watching.renew(&rules);
        assert!(!watching.polls && !reports(&mut watching, &wake));
        let file = rules.join("a.yaml");
        let changes: &[(&str, &dyn Fn(), bool)] = &[
            ("created", &|| fs::write(&file, "a").unwrap(), true),
            ("read", &|| assert!(fs::read(&file).is_ok()), false),
            ("listed", &|| assert!(fs::read_dir(&rules).unwrap().count() > 0), false),
            ("written", &|| fs::write(&file, "b").unwrap(), true),
            ("hidden", &|| fs::write(rules.join(".a.swp"), "b").unwrap(), false),
            ("beside", &|| fs::write(ground.path().join("other"), "b").unwrap(), false),
            ("renamed", &|| fs::rename(&file, rules.join("b.yaml")).unwrap(), true),
            ("removed", &|| fs::remove_file(rules.join("b.yaml")).unwrap(), true),
            ("rung", &|| assert!(rustix::io::write(&wake, &1_u64.to_ne_bytes()).is_ok()), true),
        ];
        for (what, change, is_reported) in changes {
            change();
            assert_eq!(reports(&mut watching, &wake), *is_reported, "{what}");
            assert!(!reports(&mut watching, &wake), "{what} is reported once");
        }
    }

    #[test]
    fn waits_for_each_open_file_until_it_is_overdue() {
        let ground = tempfile::tempdir().unwrap();
        let rules = ground.path().canonicalize().unwrap();
        let file = rules.join("a.yaml");
        let (mut watching, wake) = (DirectoryWatch::default(), wake());
        watching.renew(&rules);
        let mut writer = fs::File::create(&file).unwrap();
        writer.write_all(b"a").unwrap();
        assert!(reports(&mut watching, &wake));
        let began = *watching.open.get(&file).unwrap();
        writer.write_all(b"b").unwrap();
        assert!(!reports(&mut watching, &wake), "it is open already");
        fs::write(rules.join("b.yaml"), "b").unwrap();
        assert!(reports(&mut watching, &wake), "another file");
        assert_eq!(watching.open_files(), [file.clone()].into_iter().collect(), "closed files are left out");
        let almost = Timestamp::from_nanos(began.as_nanos() + 9_999_999_999);
        assert_eq!(watching.until_overdue(almost), Some(Duration::from_nanos(1)));
        assert_eq!(watching.take_overdue(almost), [] as [PathBuf; 0]);
        let overdue = began.after(OPEN_MAX);
        assert_eq!(watching.take_overdue(overdue), std::slice::from_ref(&file));
        assert_eq!((watching.open_files().is_empty(), watching.until_overdue(overdue)), (true, None));
        // The next change opens it again, and closing it is a change.
        writer.write_all(b"c").unwrap();
        assert!(reports(&mut watching, &wake) && !watching.open_files().is_empty());
        drop(writer);
        assert!(reports(&mut watching, &wake) && watching.open_files().is_empty());
    }

    #[test]
    fn keeps_one_descriptor_while_directories_are_swapped() {
        let ground = tempfile::tempdir().unwrap();
        let rules = ground.path().canonicalize().unwrap().join("rules");
        fs::create_dir(&rules).unwrap();
        let (mut watching, wake) = (DirectoryWatch::default(), wake());
        watching.renew(&rules);
        let descriptor =
            |watching: &DirectoryWatch| std::os::fd::AsRawFd::as_raw_fd(watching.inotify.as_ref().unwrap());
        let (first, directories) = (descriptor(&watching), watching.watched.len());
        for _ in 0..3 {
            fs::rename(&rules, ground.path().join("old")).unwrap();
            fs::create_dir(&rules).unwrap();
            assert!(reports(&mut watching, &wake) && watching.moved);
            watching.renew(&rules);
            fs::write(rules.join("a.yaml"), "").unwrap();
            assert!(reports(&mut watching, &wake), "the new one is watched");
            fs::write(ground.path().join("old/a.yaml"), "").unwrap();
            assert!(!reports(&mut watching, &wake), "the old one is not");
            fs::remove_dir_all(ground.path().join("old")).unwrap();
            assert_eq!((descriptor(&watching), watching.watched.len()), (first, directories));
        }
    }
}
