//! Log entries about failed samples: once, with help, and again when the error changes.

use super::machine::Machine;
use crate::prelude::*;
use std::fs::File;
use std::sync::Arc;
use tidegate::host::{Listen, SignalSource};

/// A log, read from where the last call ended.
struct Journal(File);

impl Journal {
    /// The lines since the last call.
    fn lines(&mut self) -> Vec<String> {
        let mut text = String::new();
        self.0.read_to_string(&mut text).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

fn listen_to(test: impl FnOnce(&mut Journal)) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut journal = Journal(file.reopen().unwrap());
    let log =
        tracing_subscriber::fmt().with_writer(Arc::new(file.into_file())).with_ansi(false).without_time();
    tracing::subscriber::with_default(log.finish(), || test(&mut journal));
}

#[test]
fn logs_each_cause_and_its_end_once() {
    listen_to(|journal| {
        let mut machine = Machine::new(&[("stall", SignalSource::CpuPressure)], None);
        let samples = |machine: &mut Machine, count| (0..count).for_each(|_| drop(machine.sample()));
        samples(&mut machine, 30);
        let lines = journal.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        for part in ["WARN", "pool=web", "signal=stall", "proc/pressure/cpu", "boot a kernel", "psi=1"] {
            assert!(lines[0].contains(part), "{part}: {lines:?}");
        }
        machine.write("proc/pressure/cpu", "some total=1\n");
        samples(&mut machine, 30);
        let lines = journal.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("pressure is sampled from this file"), "{lines:?}");
        assert!(lines[1].contains("INFO") && lines[1].contains("this signal is sampled again"), "{lines:?}");
        machine.write("proc/pressure/cpu", "some\n");
        samples(&mut machine, 30);
        let lines = journal.lines();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("unexpected content"), "{lines:?}");
    });
}

#[test]
fn throttles_log_of_flapping_signal() {
    listen_to(|journal| {
        let mut machine = Machine::new(&[("stall", SignalSource::CpuPressure)], None);
        for second in 0..100 {
            let text = if second % 4 < 2 { "some\n" } else { "some total=1\n" };
            machine.write("proc/pressure/cpu", text);
            machine.sample();
        }
        let lines = journal.lines();
        assert!((3..=11).contains(&lines.len()), "{lines:?}");
    });
}

#[test]
fn logs_help_for_each_cause() {
    let table = [
        (
            SignalSource::AcceptQueue(Listen::Port(1)),
            "TCP port 1 ",
            "start the application, correct `listen`",
        ),
        (SignalSource::AcceptQueue(Listen::Path("/nowhere".into())), "/nowhere", "start the application"),
        (SignalSource::CpuQuota, "no process", "HELLO"),
        (SignalSource::IoPressure, "proc/pressure/io", "psi=1"),
    ];
    for (source, what, help) in table {
        listen_to(|journal| {
            let mut machine = Machine::new(&[("it", source.clone())], None);
            assert_eq!(machine.sample(), [None], "{source:?}");
            let lines = journal.lines().concat();
            assert!(lines.contains(what) && lines.contains(help), "{source:?}: {lines}");
        });
    }
}
