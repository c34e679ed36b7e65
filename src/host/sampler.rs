//! The thread that takes readings. Nothing waits for it but its end.

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
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(readings: Arc<dyn Readings>, clock: Arc<Clock>) -> io::Result<Sampler> {
        let (stop, stopped) = sync_channel(0);
        let thread = std::thread::Builder::new().name("readings".into());
        let thread = thread.spawn(move || run(&*readings, &clock, &stopped))?;
        Ok(Sampler { stop: Some(stop), thread: Some(thread) })
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
