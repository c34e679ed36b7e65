//! A kernel that fails or delays a daemon's calls, by strace where tracing is permitted.

use super::trouble::may;
use crate::prelude::*;
use rustix::process::{Pid, Signal, kill_process};

/// A fault in calls that concern one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault<'a> {
    /// In the state directory; empty: the directory itself.
    pub(crate) file: &'a str,
    /// Names of calls in strace's syntax.
    pub(crate) calls: &'a str,
    /// In strace's syntax: `error=EIO:when=2+`, `delay_enter=10s:when=2`. Counted for each thread.
    pub(crate) what: &'a str,
}

/// Whether tracing is permitted here; else prints that the test is skipped.
pub(crate) fn may_trace() -> bool {
    may("strace", &["-f", "-qq", "--seccomp-bpf", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO"])
}

impl Plan {
    /// Runs with a fault. The process is the daemon itself, and its other calls are not traced.
    pub(crate) fn with(self, fault: Fault<'_>) -> Plan {
        let Fault { file, calls, what } = fault;
        // To strace, a trailing slash makes another path.
        let path = self.path("state").join(file).display().to_string();
        let path = path.trim_end_matches('/');
        self.traced(&format!("-P {path}"), "fsync,write,/^open,/^unlink,/^rename", &format!("{calls}:{what}"))
    }

    /// Runs under strace with this injection, counted for each thread; the trace is in the file `trace`.
    pub(crate) fn traced(self, filter: &str, calls: &str, inject: &str) -> Plan {
        let script = format!(
            "exec strace -D -f -qq -e signal=none -o {} --seccomp-bpf {filter} -e 'trace={calls}' -e 'inject={inject}' \"$@\"",
            self.path("trace").display()
        );
        self.shell(script)
    }

    pub(crate) fn without_fault(mut self) -> Plan {
        self.shell = None;
        self
    }
}

/// The strace process.
pub(crate) struct Tracer(Pid);

impl Tracer {
    /// Ends the fault.
    pub(crate) fn end(self) {
        kill_process(self.0, Signal::KILL).unwrap();
    }
}

impl Daemon {
    fn status(&self, field: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        status.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned()
    }

    /// The tracer of this daemon.
    pub(crate) fn tracer(&self) -> Tracer {
        Tracer(Pid::from_raw(self.status("TracerPid:").parse().unwrap()).expect("it is traced"))
    }

    /// Whether the daemon exited, except for threads blocked in the kernel.
    pub(crate) fn is_over(&self) -> bool {
        self.status("State:").starts_with('Z')
    }
}

/// Names of the traced calls in order; a failed one ends with `!`.
pub(crate) fn calls(trace: &Path) -> Vec<String> {
    let trace = fs::read_to_string(trace).unwrap();
    let name = |line: &str| -> Option<String> {
        // `PID call(…) = …`; unfinished and resumed lines have another form.
        let (name, rest) = line.split_once(' ')?.1.trim_start().split_once('(')?;
        let result = rest.rsplit_once(" = ")?.1;
        Some(if result.starts_with('-') { format!("{name}!") } else { name.to_owned() })
    };
    trace.lines().filter_map(name).collect()
}
