//! A daemon of the tests' own: its socket, settings, rules and log in a directory that goes when it ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use tempfile::TempDir;
use tidegate::clock::boot_nanos;

use super::wire::{PATIENCE, Wire};

/// Rules with one limit: five requests of each user, practically for good.
pub(crate) const RULES: &str = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 5, help: https://example.com/limits}
";

/// What a daemon is started with.
pub(crate) struct Plan {
    pub(crate) directory: TempDir,
    /// Lines of the settings file, beside `rules`.
    pub(crate) settings: String,
    /// Run instead of the binary itself; `"$@"` is the daemon with its arguments.
    pub(crate) shell: Option<&'static str>,
    pub(crate) arguments: Vec<String>,
}

impl Plan {
    /// One decision thread, so that all connections meet; the rules above.
    pub(crate) fn new() -> Plan {
        let directory = tempfile::Builder::new().prefix("tidegate-").tempdir().unwrap();
        fs::create_dir(directory.path().join("rules")).unwrap();
        let arguments = vec!["--threads".into(), "1".into()];
        let plan = Plan { directory, settings: String::new(), shell: None, arguments };
        plan.rules("api.yaml", RULES)
    }

    /// Writes a file of rules.
    pub(crate) fn rules(self, name: &str, text: &str) -> Plan {
        fs::write(self.path("rules").join(name), text).unwrap();
        self
    }

    pub(crate) fn settings(mut self, lines: &str) -> Plan {
        self.settings = lines.into();
        self
    }

    pub(crate) fn shell(mut self, script: &'static str) -> Plan {
        self.shell = Some(script);
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("t.sock")
    }

    /// The command, its log going to a file of this name.
    pub(crate) fn command(&self, log: &str) -> Command {
        fs::write(self.path("tidegate.yaml"), format!("rules: rules\n{}\n", self.settings)).unwrap();
        let mut command = match self.shell {
            None => Command::new(BINARY),
            Some(script) => {
                let mut command = Command::new("sh");
                command.args(["-c", script, "sh", BINARY]);
                command
            }
        };
        command.arg("serve").arg("--config").arg(self.path("tidegate.yaml"));
        command.arg("--socket").arg(self.socket()).args(&self.arguments);
        command.env_remove("TIDEGATE_SOCKET").env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(self.path(log)).unwrap());
        command
    }

    /// Starts it and waits until it serves.
    pub(crate) fn start(self) -> Daemon {
        self.start_when(" serving ")
    }

    /// Starts it and waits for this word of the log.
    pub(crate) fn start_when(self, serving: &str) -> Daemon {
        let process = Process::start(&mut self.command("log"));
        let mut daemon = Daemon { process, plan: self };
        eventually("the daemon serves", || {
            if let Some(status) = daemon.process.has_ended() {
                panic!("it ended with {status}: {}", daemon.log());
            }
            daemon.log().contains(serving).then_some(())
        });
        daemon
    }
}

/// A daemon that serves, with the defaults of [`Plan`].
pub(crate) fn daemon() -> Daemon {
    Plan::new().start()
}

/// A daemon. Ends with the test.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) plan: Plan,
}

impl Daemon {
    pub(crate) fn socket(&self) -> PathBuf {
        self.plan.socket()
    }

    pub(crate) fn connect(&self) -> Wire {
        Wire::connect(&self.socket())
    }

    /// A connection on which HELLO was said.
    pub(crate) fn greeted(&self) -> Wire {
        Wire::greeted(&self.socket())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.plan.path("log")).unwrap()
    }

    /// Waits for a line of the log that has all these words.
    pub(crate) fn await_log(&self, words: &[&str]) -> String {
        eventually(&format!("a line of the log with {words:?}"), || {
            let log = self.log();
            // What is read may end within a line that is being written.
            let mut lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            lines.find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        })
    }
}

/// A process. Killed by its number when dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Process {
        Process(command.spawn().unwrap())
    }

    /// One whose standard output is read.
    pub(crate) fn piped(command: &mut Command) -> (Process, ChildStdout) {
        let mut child = command.spawn().unwrap();
        let out = child.stdout.take().unwrap();
        (Process(child), out)
    }

    pub(crate) fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Waits for its end and says its exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        eventually("the process ends", || self.has_ended()).code()
    }

    /// Its number.
    #[allow(dead_code, reason = "not every test asks for it")]
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// A line of a file of its /proc directory.
    fn proc(&self, file: &str) -> String {
        fs::read_to_string(Path::new("/proc").join(self.0.id().to_string()).join(file)).unwrap()
    }

    /// Resident memory, pages of the binary aside: they come as its rarer parts are run. Zero under the address sanitizer, whose
    /// own memory is most of it.
    pub(crate) fn resident_kib(&self) -> u64 {
        if std::env::var_os("ASAN_OPTIONS").is_some() {
            return 0;
        }
        let rollup = self.proc("smaps_rollup");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Processor time used so far, in hundredths of a second.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// How many of its descriptors are of this kind: `socket`, `pidfd`.
    pub(crate) fn descriptors_of(&self, kind: &str) -> usize {
        let descriptors = fs::read_dir(Path::new("/proc").join(self.0.id().to_string()).join("fd")).unwrap();
        // One may be gone by the time it is looked at.
        let links = descriptors.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().contains(kind)).count()
    }

    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(Path::new("/proc").join(self.0.id().to_string()).join("fd")).unwrap().count()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Asks again and again until there is an answer, for longer than it takes on a busy machine.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = boot_nanos();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        let waited = Duration::from_nanos(boot_nanos() - begin);
        assert!(waited < PATIENCE, "not within {PATIENCE:?}: {what}");
        sleep(Duration::from_millis(3));
    }
}

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
