//! The work of the thread that takes readings. Nothing waits for it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::{Readings, Sensors};
use crate::clock::Clock;

/// Takes readings until it is dropped.
#[derive(Debug)]
pub struct Sampler {
    /// Dropped first: the thread ends when nobody holds it.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// A sampler, and the work of its thread, which ends soon after the sampler is dropped: a reading may take as long as
    /// the kernel likes.
    pub fn new(readings: Arc<dyn Readings>, clock: Arc<Clock>) -> (Sampler, impl FnMut() + Send + 'static) {
        let (stop, stopped) = sync_channel(0);
        (Sampler { stop: Some(stop), thread: None }, move || run(&*readings, &clock, &stopped))
    }

    /// The same on a thread that the drop of the sampler waits for.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(readings: Arc<dyn Readings>, clock: Arc<Clock>) -> io::Result<Sampler> {
        let (mut sampler, work) = Sampler::new(readings, clock);
        sampler.thread = Some(std::thread::Builder::new().name("readings".into()).spawn(work)?);
        Ok(sampler)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop = None;
        // A panic there has been told already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(readings: &dyn Readings, clock: &Clock, stopped: &Receiver<()>) {
    let mut sensors = Sensors::new(Path::new("/"));
    loop {
        sensors.sample(readings, clock.now());
        if stopped.recv_timeout(sensors.pause()) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
