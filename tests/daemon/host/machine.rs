//! A machine of files in a temporary directory, a consumer of its samples, and its time.

use crate::prelude::*;
use tempfile::TempDir;
use tidegate::clock::Now;
use tidegate::host::{HostSignals, SignalSensors, SignalSource};

/// Files below a directory that stands for `/`.
pub(crate) struct Machine {
    root: TempDir,
    sensors: SignalSensors,
    pub(crate) client: FakeClient,
    seconds: u64,
}

impl Machine {
    pub(crate) fn new(wanted: &[(&str, SignalSource)], pid: Option<u32>) -> Machine {
        let root = tempfile::tempdir().unwrap();
        let sensors = SignalSensors::new(root.path());
        Machine { root, sensors, client: FakeClient::new(wanted, pid), seconds: 100 }
    }

    /// Writes a file in place, visible through open descriptors.
    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.root.path().join(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    /// Takes a sample, 1 s after the previous; empty if none is reported.
    pub(crate) fn sample(&mut self) -> Vec<Option<u32>> {
        let now = Now::at_nanos(self.seconds * 1_000_000_000);
        self.seconds += 1;
        self.client.sample(&mut self.sensors, now)
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.seconds += seconds;
    }
}

/// The signals that pool `web` wants.
#[derive(Default)]
pub(crate) struct FakeClient {
    wanted: Vec<HostSignals>,
}

impl FakeClient {
    pub(crate) fn new(wanted: &[(&str, SignalSource)], pid: Option<u32>) -> FakeClient {
        let mut client = FakeClient::default();
        client.want(wanted, pid);
        client
    }

    pub(crate) fn want(&mut self, wanted: &[(&str, SignalSource)], pid: Option<u32>) {
        let wanted = wanted.iter().map(|(signal, source)| HostSignals {
            pool: "web".into(),
            signal: (*signal).into(),
            source: source.clone(),
            pid,
        });
        self.wanted = wanted.collect();
    }

    /// Takes samples; empty if none is reported.
    pub(crate) fn sample(&self, sensors: &mut SignalSensors, now: Now) -> Vec<Option<u32>> {
        self.sample_by_name(sensors, now).into_iter().map(|(_, sample)| sample).collect()
    }

    /// Takes samples, with the signals' names.
    pub(crate) fn sample_by_name(&self, sensors: &mut SignalSensors, now: Now) -> Vec<(String, Option<u32>)> {
        let mut samples = Vec::new();
        let add = |pool: &str, signal: &str, sample| {
            assert_eq!(pool, "web");
            samples.push((signal.to_owned(), sample));
        };
        sensors.sample(|| self.wanted.clone(), now, add);
        samples
    }
}
