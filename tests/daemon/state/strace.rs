//! A kernel that fails a daemon's calls, or is slow: `strace` answers in its place, where it may trace.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::daemon::{Daemon, Plan};
use super::trouble::may;

/// What happens to calls that concern one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault<'a> {
    /// In the state directory; empty: the directory itself.
    pub(crate) file: &'a str,
    /// As strace names them.
    pub(crate) calls: &'a str,
    /// As strace says it: `error=EIO:when=2+`, `delay_enter=10s:when=2`. Counted for each thread.
    pub(crate) what: &'a str,
}

/// Whether calls can be tampered with here; else it is said that the test was not run.
pub(crate) fn may_trace() -> bool {
    may("strace", &["-f", "-qq", "--seccomp-bpf", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"])
}

impl Plan {
    /// Run with a fault: the process is the daemon all the same, whose other calls are not stopped at.
    pub(crate) fn with(self, fault: Fault<'_>) -> Plan {
        let Fault { file, calls, what } = fault;
        // A path with a slash at its end is another one to strace.
        let path = self.path("state").join(file).display().to_string();
        let (path, trace) = (path.trim_end_matches('/'), self.path("trace").display().to_string());
        let script = format!(
            "exec strace -D -f -qq -e signal=none -o {trace} --seccomp-bpf -P {path} \
             -e trace=fsync,write,/^open,/^unlink,/^rename -e 'inject={calls}:{what}' \"$@\""
        );
        self.shell(Box::leak(script.into_boxed_str()))
    }

    /// Run without one again.
    pub(crate) fn without_fault(mut self) -> Plan {
        self.shell = None;
        self
    }
}

/// The process that answers in the kernel's place.
pub(crate) struct Tracer(Pid);

impl Tracer {
    /// Ends it: the kernel answers again.
    pub(crate) fn end(self) {
        kill_process(self.0, Signal::KILL).unwrap();
    }
}

impl Daemon {
    fn status(&self, field: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        status.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned()
    }

    /// Who traces this daemon.
    pub(crate) fn tracer(&self) -> Tracer {
        Tracer(Pid::from_raw(self.status("TracerPid:").parse().unwrap()).expect("it is traced"))
    }

    /// Whether it has ended, if for threads that something holds in the kernel.
    pub(crate) fn is_over(&self) -> bool {
        self.status("State:").starts_with('Z')
    }
}

/// The names of the calls that concerned the path so far, in their order; a failed one ends in `!`.
pub(crate) fn calls(trace: &Path) -> Vec<String> {
    let trace = fs::read_to_string(trace).unwrap();
    let name = |line: &str| -> Option<String> {
        // `PID call(…) = …`; a line that is only begun, or goes on with one, has no such form.
        let (name, rest) = line.split_once(' ')?.1.trim_start().split_once('(')?;
        let result = rest.rsplit_once(" = ")?.1;
        Some(if result.starts_with('-') { format!("{name}!") } else { name.to_owned() })
    };
    trace.lines().filter_map(name).collect()
}
