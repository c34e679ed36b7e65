//! A machine of files in a temporary directory, a consumer of its samples, and its time.

use crate::prelude::*;
use std::sync::Mutex;
use tempfile::TempDir;
use tidegate::clock::Now;
use tidegate::host::{HostSignals, SignalSensors, SignalSink, SignalSource};

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
        self.sensors.sample(&self.client, Now::at_nanos(self.seconds * 1_000_000_000));
        self.seconds += 1;
        self.client.observed()
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.seconds += seconds;
    }
}

#[derive(Default)]
pub(crate) struct FakeClient {
    wanted: Mutex<Vec<HostSignals>>,
    observed: Mutex<Vec<(String, Option<u32>)>>,
}

impl FakeClient {
    /// For pool `web`.
    pub(crate) fn new(wanted: &[(&str, SignalSource)], pid: Option<u32>) -> FakeClient {
        let client = FakeClient::default();
        client.want(wanted, pid);
        client
    }

    pub(crate) fn want(&self, wanted: &[(&str, SignalSource)], pid: Option<u32>) {
        let wanted = wanted.iter().map(|(signal, source)| HostSignals {
            pool: "web".into(),
            signal: (*signal).into(),
            source: source.clone(),
            pid,
        });
        *self.wanted.lock().unwrap() = wanted.collect();
    }

    /// Samples since the last call.
    pub(crate) fn observed(&self) -> Vec<Option<u32>> {
        self.observed.lock().unwrap().drain(..).map(|(_, reading)| reading).collect()
    }

    /// Samples since the last call, with the signals' names.
    pub(crate) fn observed_by_name(&self) -> Vec<(String, Option<u32>)> {
        std::mem::take(&mut *self.observed.lock().unwrap())
    }
}

impl SignalSink for FakeClient {
    fn wanted_signals(&self) -> Vec<HostSignals> {
        self.wanted.lock().unwrap().clone()
    }

    fn add_sample(&self, pool: &str, signal: &str, reading: Option<u32>, _: Now) {
        assert_eq!(pool, "web");
        self.observed.lock().unwrap().push((signal.to_owned(), reading));
    }
}
