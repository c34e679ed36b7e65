//! The sampling thread. No other thread waits for it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::{SignalSensors, SignalSink};
use crate::clock::Clock;

/// Samples signals until it is dropped.
#[derive(Debug)]
pub struct SignalSampler {
    /// Dropped first: the thread exits once this is dropped.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SignalSampler {
    /// Makes a sampler and the work of its thread. The work ends after the sampler is dropped and the sample in progress,
    /// whose duration is up to the kernel, is complete.
    pub fn new(
        readings: Arc<dyn SignalSink>,
        clock: Arc<Clock>,
    ) -> (SignalSampler, impl FnMut() + Send + 'static) {
        let (stop, stopped) = sync_channel(0);
        (SignalSampler { stop: Some(stop), thread: None }, move || run(&*readings, &clock, &stopped))
    }

    /// Starts a sampler on a thread of its own, which is joined when the sampler drops.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(readings: Arc<dyn SignalSink>, clock: Arc<Clock>) -> io::Result<SignalSampler> {
        let (mut sampler, work) = SignalSampler::new(readings, clock);
        sampler.thread = Some(std::thread::Builder::new().name("readings".into()).spawn(work)?);
        Ok(sampler)
    }
}

impl Drop for SignalSampler {
    fn drop(&mut self) {
        self.stop = None;
        // A panic of the thread has been logged already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(readings: &dyn SignalSink, clock: &Clock, stopped: &Receiver<()>) {
    let mut sensors = SignalSensors::new(Path::new("/"));
    loop {
        sensors.sample(readings, clock.now());
        if stopped.recv_timeout(sensors.next_pause()) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
