//! A daemon for one test, with its socket, settings, rules and log in a temporary directory.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tidegate::clock::read_boot_nanos;

use super::wire::{PATIENCE, Wire, hello_of};

/// One limit of five requests per user, which refill too slowly to matter.
pub(crate) const RULES: &str = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 5, help: https://example.com/limits}
";

/// The settings of a daemon to start.
pub(crate) struct Plan {
    pub(crate) directory: TempDir,
    /// Lines of the settings file besides `rules`.
    pub(crate) settings: String,
    /// A script to run instead of the binary; `"$@"` is the daemon with its arguments.
    pub(crate) shell: Option<String>,
    pub(crate) arguments: Vec<String>,
}

impl Plan {
    /// With [`RULES`] and one decision thread, shared by all connections.
    pub(crate) fn new() -> Plan {
        let directory = tempfile::Builder::new().prefix("tidegate-").tempdir().unwrap();
        fs::create_dir(directory.path().join("rules")).unwrap();
        let plan = Plan { directory, settings: String::new(), shell: None, arguments: Vec::new() };
        plan.threads(1).rules("api.yaml", RULES)
    }

    pub(crate) fn rules(self, name: &str, text: &str) -> Plan {
        fs::write(self.path("rules").join(name), text).unwrap();
        self
    }

    pub(crate) fn settings(mut self, lines: &str) -> Plan {
        self.settings = lines.into();
        self
    }

    /// With this number of decision threads.
    pub(crate) fn threads(mut self, count: u32) -> Plan {
        self.arguments = vec!["--threads".into(), count.to_string()];
        self
    }

    /// Every user may connect.
    pub(crate) fn open_to_all(mut self) -> Plan {
        self.settings += "\nsocket: {mode: \"0666\"}";
        fs::set_permissions(self.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    /// With a state directory.
    pub(crate) fn with_state(self) -> Plan {
        fs::create_dir(self.path("state")).unwrap();
        self.settings("state: state")
    }

    /// With a snapshot at each of these intervals.
    pub(crate) fn writes_state_every(mut self, millis: u32) -> Plan {
        self.arguments.extend(["--write-state-every".into(), millis.to_string()]);
        self
    }

    pub(crate) fn shell(mut self, script: impl Into<String>) -> Plan {
        self.shell = Some(script.into());
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("t.sock")
    }

    /// The command, with its log in a file of this name.
    pub(crate) fn command(&self, log: &str) -> Command {
        fs::write(self.path("tidegate.yaml"), format!("rules: rules\n{}\n", self.settings)).unwrap();
        let mut command = match &self.shell {
            None => Command::new(BINARY),
            Some(script) => {
                let mut command = Command::new("sh");
                command.args(["-c", &**script, "sh", BINARY]);
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

    /// Starts a daemon that must fail; returns its exit code and log.
    pub(crate) fn refused(&self) -> (Option<i32>, String) {
        let code = Process::start(&mut self.command("refused")).exit_code();
        (code, fs::read_to_string(self.path("refused")).unwrap())
    }

    pub(crate) fn start(self) -> Daemon {
        self.start_when(" serving ")
    }

    /// Starts a daemon and waits for this text in its log.
    pub(crate) fn start_when(self, serving: &str) -> Daemon {
        let command = self.command("log");
        self.start_by(command, serving)
    }

    /// Starts a daemon by its command, and waits for this text in its log.
    pub(crate) fn start_by(self, mut command: Command, serving: &str) -> Daemon {
        let mut daemon = Daemon { process: Process::start(&mut command), plan: self };
        eventually("the daemon serves", || {
            if let Some(status) = daemon.process.has_ended() {
                panic!("it ended with {status}: {}", daemon.log());
            }
            daemon.log().contains(serving).then_some(())
        });
        daemon
    }
}

pub(crate) fn daemon() -> Daemon {
    Plan::new().start()
}

/// A daemon, killed when dropped.
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

    /// A connection after HELLO.
    pub(crate) fn greeted(&self) -> Wire {
        Wire::greeted(&self.socket())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.plan.path("log")).unwrap()
    }

    /// Waits for a line of the log with all these words.
    pub(crate) fn await_log(&self, words: &[&str]) -> String {
        eventually(&format!("a line of the log with {words:?}"), || {
            let log = self.log();
            // The last line may be incomplete.
            let mut lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            lines.find(|line| words.iter().all(|word| line.contains(word))).map(str::to_owned)
        })
    }

    /// The port of a listener that is logged with these words.
    pub(crate) fn port_of(&self, words: &str) -> u16 {
        let line = self.await_log(&[words, " address=127.0.0.1:"]);
        let (_, port) = line.split_once(" address=127.0.0.1:").unwrap();
        port.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// A command of this daemon's operators or clients, such as `switch per-user disabled`.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        command(&self.socket(), arguments)
    }

    /// Runs a command; returns its exit code, standard output and standard error.
    pub(crate) fn outcome(&self, arguments: &str) -> (Option<i32>, String, String) {
        outcome_of(&self.command(arguments).output().unwrap())
    }

    /// Runs a command that must succeed; returns its standard output.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &str) -> String {
        let (code, out, err) = self.outcome(arguments);
        assert_eq!(code, Some(0), "{arguments}: {out}{err}\n{}", self.log());
        out
    }

    /// Runs a command that must succeed, and returns its JSON.
    #[track_caller]
    pub(crate) fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.run(&format!("{arguments} --format json"))).unwrap()
    }

    /// Runs a command that must fail with this code; returns its standard error.
    #[track_caller]
    pub(crate) fn fail(&self, arguments: &str, expected: i32) -> String {
        let (code, out, err) = self.outcome(arguments);
        assert_eq!(code, Some(expected), "{arguments}: {out}{err}");
        err
    }

    /// Runs `tidegate doctor` with more arguments; any result is accepted.
    pub(crate) fn doctor(&self, arguments: &[&str]) -> Output {
        let mut command = self.command("doctor --config");
        command.arg(self.plan.path("tidegate.yaml")).arg("--socket").arg(self.socket());
        command.args(arguments).output().unwrap()
    }

    /// A connection of a named session, after a HELLO with more info.
    pub(crate) fn session(&self, session: u8, info: Value) -> Wire {
        let mut wire = self.connect();
        let welcome = wire.ask(&hello_of(session, info));
        assert_eq!(welcome[0], 0, "{welcome}");
        wire
    }

    /// Stops the daemon by SIGTERM; asserts success.
    pub(crate) fn stop(&mut self) {
        self.process.signal(libc::SIGTERM);
        assert_eq!(self.process.exit_code(), Some(0), "{}", self.log());
    }

    /// Stops the daemon. The plan starts the next in its directory.
    pub(crate) fn stopped(mut self) -> Plan {
        self.stop();
        self.plan
    }

    /// Kills the daemon by SIGKILL.
    pub(crate) fn killed(mut self) -> Plan {
        self.process.signal(libc::SIGKILL);
        assert_eq!(self.process.exit_code(), None);
        self.plan
    }
}

/// A command for the daemon at this socket.
pub(crate) fn command(socket: &Path, arguments: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments.split_whitespace()).env("TIDEGATE_SOCKET", socket);
    command.env_remove("TIDEGATE_DISABLE").env_remove("STATE_DIRECTORY").env_remove("XDG_RUNTIME_DIR");
    command.stdin(Stdio::null());
    command
}

/// The exit code, standard output and standard error.
pub(crate) fn outcome_of(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Asserts that a text has all these words.
#[track_caller]
pub(crate) fn has(text: &str, words: &[&str]) {
    words.iter().for_each(|words| assert!(text.contains(words), "no `{words}` in {text}"));
}

/// A finding in a report of `tidegate doctor`, with its help.
#[track_caller]
pub(crate) fn finding(report: &Output, what: &str) -> String {
    let (_, out, err) = outcome_of(report);
    let mut lines = out.lines().skip_while(|line| !line.contains(&format!("  {what}: ")));
    let line = lines.next().unwrap_or_else(|| panic!("nothing about `{what}` in\n{out}{err}"));
    format!("{line} {}", lines.next().filter(|line| line.starts_with("       help: ")).unwrap_or_default())
}

/// Asserts that a report has a finding of this severity with all these words.
#[track_caller]
pub(crate) fn finds(report: &Output, severity: &str, what: &str, words: &[&str]) {
    let text = finding(report, what);
    assert!(text.starts_with(severity), "{text}");
    has(&text, words);
}

/// A child process, killed when dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Process {
        Process(command.spawn().unwrap())
    }

    /// Starts a process and returns its standard output.
    pub(crate) fn piped(command: &mut Command) -> (Process, ChildStdout) {
        let mut child = command.spawn().unwrap();
        let out = child.stdout.take().unwrap();
        (Process(child), out)
    }

    pub(crate) fn signal(&self, signal: i32) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        if signal == rustix::process::Signal::STOP {
            // Its threads may run on for a moment.
            eventually("it stops", || self.proc("stat").contains(") T ").then_some(()));
        }
    }

    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Waits for its exit and returns its code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        eventually("the process ends", || self.has_ended()).code()
    }

    #[allow(dead_code, reason = "not every test asks for it")]
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// A file of its /proc directory.
    fn proc(&self, file: &str) -> String {
        fs::read_to_string(Path::new("/proc").join(self.0.id().to_string()).join(file)).unwrap()
    }

    /// Resident memory without pages of the binary, which are loaded as rarer code runs. Zero under the
    /// address sanitizer, whose own memory dominates.
    pub(crate) fn resident_kib(&self) -> u64 {
        if std::env::var_os("ASAN_OPTIONS").is_some() {
            return 0;
        }
        let rollup = self.proc("smaps_rollup");
        let line = rollup.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// CPU time so far in units of 10 ms.
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// How often its threads of this name have waited so far.
    pub(crate) fn waits_of(&self, thread: &str) -> u64 {
        let tasks = fs::read_dir(Path::new("/proc").join(self.0.id().to_string()).join("task")).unwrap();
        let statuses = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap());
        let statuses = statuses.filter(|status| status.lines().next() == Some(&format!("Name:\t{thread}")));
        let waits = |status: String| {
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            line.trim().parse::<u64>().unwrap()
        };
        statuses.map(waits).sum()
    }

    /// The number of its descriptors of this kind, such as `socket` or `pidfd`.
    pub(crate) fn descriptors_of(&self, kind: &str) -> usize {
        let descriptors = fs::read_dir(Path::new("/proc").join(self.0.id().to_string()).join("fd")).unwrap();
        // A descriptor may be closed in between.
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

/// A Python script. Killed when dropped, which also ends its standard input.
pub(crate) struct Script {
    pub(crate) process: Process,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Script {
    /// Starts a script as this user, else as the user of the test.
    pub(crate) fn start(user: Option<u32>, script: &str, socket: &Path, arguments: &[String]) -> Script {
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(socket).args(arguments).current_dir("/");
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Script { process: Process(child), input, output }
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn end_input(&mut self) {
        self.input = None;
    }
}

/// Sets a flag when dropped, so that a thread ends also if the test panics.
pub(crate) struct SetOnDrop<'f>(pub(crate) &'f AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls at growing intervals until there is a result; the timeout suits a busy machine.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = read_boot_nanos();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        let waited = Duration::from_nanos(read_boot_nanos() - begin);
        assert!(waited < PATIENCE, "not within {PATIENCE:?}: {what}");
        sleep((waited / 8).clamp(Duration::from_millis(1), Duration::from_millis(50)));
    }
}

/// Polls like [`eventually`] until it is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
