//! Changes of the rules: one inotify descriptor for the life of the daemon, read by the thread that reads the rules, and a look at
//! the files each time that it wakes. The look finds the changes that the kernel does not report: of links on the path, of network
//! file systems, and all of them where watching fails.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tracing::warn;

use crate::clock::{Timestamp, read_boot_nanos};
use crate::rules::{Fingerprint, OpenFiles, glance};

#[derive(Debug, Default)]
pub(super) struct DirectoryWatch {
    inotify: Option<OwnedFd>,
    /// The directory of the rules and the targets of links in it, without links, by watch descriptor.
    watched: BTreeMap<i32, PathBuf>,
    /// Rules files that a writer has changed and not closed since, each with the time of the change: half of one may be
    /// valid.
    pub(super) open: BTreeMap<PathBuf, Timestamp>,
    is_failure_logged: bool,
    /// The fingerprint of the files at the last renewal.
    seen: Fingerprint,
}

impl DirectoryWatch {
    /// Watches the files as they are now. Drops earlier changes: read the files afterwards.
    pub(super) fn renew(&mut self, path: &Path) {
        let failure = self.watch(path).err();
        if let Some(error) = failure.filter(|_| !self.is_failure_logged) {
            let (reason, help) = (std::io::Error::from(error), help(error));
            warn!(%reason, help, "changes of the rules cannot be watched: looking for them every 2 s");
        }
        self.is_failure_logged = failure.is_some();
        self.read_events();
        self.seen = glance(path);
    }

    fn watch(&mut self, path: &Path) -> Result<(), Errno> {
        let inotify = match self.inotify.take() {
            Some(inotify) => inotify,
            None => inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?,
        };
        let inotify = self.inotify.insert(inotify);
        let before = std::mem::take(&mut self.watched);
        let mut failure = None;
        for path in paths_to_watch(path) {
            // The same descriptor as before, unless another file has the path.
            match inotify::add_watch(&*inotify, &path, EVENTS) {
                Ok(watch) => drop(self.watched.insert(watch, path)),
                Err(Errno::NOENT) => {}
                Err(error) => failure = Some(error),
            }
        }
        for watch in before.into_keys().filter(|watch| !self.watched.contains_key(watch)) {
            // The kernel has removed the watch of a removed file.
            let _ = inotify::remove_watch(&*inotify, watch);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Waits until the rules may have changed or `wake` becomes readable, within this time at most. Returns whether either is so.
    pub(super) fn wait(&mut self, path: &Path, wake: &OwnedFd, within: Duration) -> bool {
        let timeout = Timespec::try_from(within).ok();
        let inotify = self.inotify.as_ref().unwrap_or(wake);
        let mut polled = [wake, inotify].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // No memory.
            Err(_) => std::thread::sleep(within),
        }
        if polled.first().is_some_and(|wake| !wake.revents().is_empty()) {
            // One read resets the counter of all signals.
            let _ = rustix::io::read(wake.as_fd(), &mut [0_u8; 8]);
            return true;
        }
        self.read_events() || glance(path) != self.seen
    }

    /// Reads the pending events. Returns whether files may be read that were open.
    fn read_events(&mut self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let mut buffer = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut is_closed = false;
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => return is_closed,
            };
            let events = event.events();
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.open.clear();
                is_closed = true;
            }
            let Some(watched) = self.watched.get(&event.wd()) else { continue };
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            // Editors write hidden files, which are no rules.
            if name.is_some_and(|name| name.as_bytes().starts_with(b".")) {
                continue;
            }
            let path = name.map_or_else(|| watched.clone(), |name| watched.join(name));
            if events.contains(ReadFlags::MODIFY) {
                self.open.entry(path).or_insert_with(|| Timestamp::from_nanos(read_boot_nanos()));
            } else if events.intersects(CLOSES) {
                is_closed |= self.open.remove(&path).is_some();
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
}

/// Returns the directory of the rules, and the files to which links in it lead, all without links.
fn paths_to_watch(path: &Path) -> Vec<PathBuf> {
    let Ok(target) = path.canonicalize() else { return Vec::new() };
    let directory = if target.is_dir() { target } else { target.parent().unwrap_or(&target).to_owned() };
    let entries = directory.read_dir().into_iter().flatten().flatten().take(ENTRIES_MAX);
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let linked = links.filter_map(|link| link.path().canonicalize().ok()).filter(|file| file.is_file());
    let mut paths: Vec<PathBuf> = linked.collect();
    paths.push(directory);
    paths
}

fn help(error: Errno) -> &'static str {
    match error {
        Errno::NOSPC => "raise fs.inotify.max_user_watches",
        Errno::MFILE => "raise fs.inotify.max_user_instances, or LimitNOFILE",
        Errno::ACCESS | Errno::PERM => "let the daemon's user read the directory and its parent",
        _ => "SIGHUP has them read at once",
    }
}

/// Events that may change the rules. Opening and reading are not among them, as the daemon does both.
const EVENTS: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE);

/// Events after which a writer of a file changes it no more, or changes another file.
const CLOSES: ReadFlags =
    ReadFlags::CLOSE_WRITE.union(ReadFlags::DELETE).union(ReadFlags::MOVED_FROM).union(ReadFlags::MOVED_TO);

/// The longest wait for a writer to close its file, as a copy over a network may pause.
pub(super) const OPEN_MAX: Duration = Duration::from_secs(10);

/// Some dozens of events; the longest file name fits.
const EVENTS_BYTES: usize = 4_096;

/// The limit of files that are read.
const ENTRIES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::symlink;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::{DirectoryWatch, OPEN_MAX, Timestamp};

    fn wake() -> OwnedFd {
        eventfd(0, EventfdFlags::NONBLOCK).unwrap()
    }

    /// Whether a change is reported. An inotify event is queued when the system call that caused it returns.
    fn reports(watching: &mut DirectoryWatch, path: &Path, wake: &OwnedFd) -> bool {
        watching.wait(path, wake, Duration::ZERO)
    }

    #[test]
    fn reports_each_change_until_it_is_renewed() {
        let ground = tempfile::tempdir().unwrap();
        let path = |name: &str| ground.path().join(name);
        fs::create_dir_all(path("one/linked")).unwrap();
        symlink("one", path("rules")).unwrap();
        let (rules, linked) = (path("rules"), path("one/linked/b.yaml"));
        let (mut watching, wake) = (DirectoryWatch::default(), wake());
        watching.renew(&rules);
        let descriptor = watching.inotify.as_ref().unwrap().as_raw_fd();
        let changes: &[(&str, &dyn Fn(), bool, usize)] = &[
            ("created", &|| fs::write(rules.join("a.yaml"), "a").unwrap(), true, 1),
            ("read", &|| assert!(fs::read(rules.join("a.yaml")).is_ok()), false, 1),
            ("hidden", &|| fs::write(rules.join(".a.yaml.swp"), "b").unwrap(), false, 1),
            ("beside", &|| fs::write(path("c.yaml"), "b").unwrap(), false, 1),
            ("renamed", &|| fs::rename(rules.join("a.yaml"), &linked).unwrap(), true, 1),
            ("linked", &|| symlink("linked/b.yaml", rules.join("b.yaml")).unwrap(), true, 2),
            ("written", &|| fs::write(&linked, "bb").unwrap(), true, 2),
            ("removed", &|| fs::remove_file(&linked).unwrap(), true, 1),
            ("moved", &|| fs::rename(path("one"), path("two")).unwrap(), true, 0),
            ("made", &|| fs::create_dir(path("one")).unwrap(), true, 1),
            ("rung", &|| assert!(rustix::io::write(&wake, &1_u64.to_ne_bytes()).is_ok()), true, 1),
        ];
        for (what, change, is_reported, watches) in changes {
            change();
            assert_eq!(reports(&mut watching, &rules, &wake), *is_reported, "{what}");
            watching.renew(&rules);
            assert!(!reports(&mut watching, &rules, &wake), "{what} is reported once");
            let renewed = (watching.watched.len(), watching.inotify.as_ref().unwrap().as_raw_fd());
            assert_eq!(renewed, (*watches, descriptor), "{what}");
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
        assert!(reports(&mut watching, &rules, &wake));
        let began = *watching.open.get(&file).unwrap();
        fs::write(rules.join("b.yaml"), "b").unwrap();
        assert!(reports(&mut watching, &rules, &wake), "another file");
        assert_eq!(watching.open_files(), [file.clone()].into_iter().collect(), "closed files are left out");
        let almost = Timestamp::from_nanos(began.as_nanos() + 9_999_999_999);
        assert_eq!(watching.until_overdue(almost), Some(Duration::from_nanos(1)));
        assert_eq!(watching.take_overdue(almost), [] as [PathBuf; 0]);
        let overdue = began.after(OPEN_MAX);
        assert_eq!(watching.take_overdue(overdue), std::slice::from_ref(&file));
        assert_eq!((watching.open_files().is_empty(), watching.until_overdue(overdue)), (true, None));
        // The next change opens it again, and closing it is a change, although it changes nothing that a look shows.
        writer.write_all(b"c").unwrap();
        watching.renew(&rules);
        assert!(!watching.open_files().is_empty() && !reports(&mut watching, &rules, &wake));
        drop(writer);
        assert!(reports(&mut watching, &rules, &wake) && watching.open_files().is_empty());
    }
}
