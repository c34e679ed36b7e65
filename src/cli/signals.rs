//! Signals that a command catches, so that they do not end the process.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Debug)]
pub(super) struct CaughtSignals(Vec<(i32, Signal)>);

impl CaughtSignals {
    /// Begins to catch the signals of these numbers, in a runtime. Fails if a handler cannot be installed.
    pub(super) fn new(numbers: &[i32]) -> io::Result<CaughtSignals> {
        let caught = numbers.iter().map(|number| Ok((*number, signal(SignalKind::from_raw(*number))?)));
        caught.collect::<io::Result<_>>().map(CaughtSignals)
    }

    /// Waits for the next signal and returns its number. Cancellation loses nothing.
    pub(super) async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            let mut caught = self.0.iter_mut();
            let came =
                caught.find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
