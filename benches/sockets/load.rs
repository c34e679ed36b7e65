//! The load generator: one request at a time, many in flight, or one per interval.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, shutdown};
use tidegate::clock::read_boot_nanos;

use crate::dialect::Dialect;
use crate::process::Address;
use crate::workload::Random;

/// An open connection and its requests.
pub(crate) struct Connection {
    /// A socket of either kind, read and written like a file.
    stream: File,
    dialect: Box<dyn Dialect + Send>,
    input: Vec<u8>,
    /// Bytes of `input` that were read but not counted yet.
    filled: usize,
    output: Vec<u8>,
}

impl Connection {
    pub(crate) fn open(address: &Address, dialect: Box<dyn Dialect + Send>) -> io::Result<Connection> {
        let stream = address.connect()?;
        let input = vec![0; INPUT_BYTES];
        let mut connection = Connection { stream, dialect, input, filled: 0, output: Vec::new() };
        if let Some(greeting) = connection.dialect.greeting() {
            connection.stream.write_all(&greeting)?;
            let welcome = loop {
                connection.receive()?;
                if let Some(welcome) = crate::dialect::frame(&connection.input[..connection.filled]) {
                    break welcome.len();
                }
            };
            connection.forget(welcome);
        }
        Ok(connection)
    }

    /// The bytes of one request and its reply.
    pub(crate) fn sample(&mut self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        self.send(1)?;
        loop {
            self.receive()?;
            if let Some(bytes) = self.dialect.reply(&self.input[..self.filled])? {
                let reply = self.input[..bytes].to_vec();
                self.forget(bytes);
                return Ok((self.output.clone(), reply));
            }
        }
    }

    fn round_trip(&mut self) -> io::Result<()> {
        self.send(1)?;
        while self.receive_replies()? == 0 {}
        Ok(())
    }

    /// Writes `requests` requests at once.
    fn send(&mut self, requests: u64) -> io::Result<()> {
        self.output.clear();
        for _ in 0..requests {
            self.dialect.request(&mut self.output);
        }
        self.stream.write_all(&self.output)
    }

    /// Reads once and counts the whole replies.
    fn receive_replies(&mut self) -> io::Result<u64> {
        self.receive()?;
        let (mut replies, mut counted) = (0, 0);
        while let Some(bytes) = self.dialect.reply(&self.input[counted..self.filled])? {
            replies += 1;
            counted += bytes;
        }
        self.forget(counted);
        Ok(replies)
    }

    fn receive(&mut self) -> io::Result<()> {
        match self.stream.read(&mut self.input[self.filled..])? {
            0 => Err(io::Error::other("the server closed the connection")),
            read => {
                self.filled += read;
                Ok(())
            }
        }
    }

    fn forget(&mut self, bytes: usize) {
        self.input.copy_within(bytes..self.filled, 0);
        self.filled -= bytes;
    }
}

/// Sends one request at a time for `nanos`; returns their nanoseconds.
pub(crate) fn one_by_one(connection: &mut Connection, nanos: u64) -> io::Result<Histogram<u64>> {
    let _watch = Watch::over([&connection.stream], nanos)?;
    let mut times = times();
    let end = read_boot_nanos() + nanos;
    loop {
        let sent = read_boot_nanos();
        connection.round_trip()?;
        let received = read_boot_nanos();
        times.saturating_record(received - sent);
        if received >= end {
            return Ok(times);
        }
    }
}

/// Sends one request every `interval_nanos` on average for `nanos`, sleeping in between; returns their
/// nanoseconds, and the increase of `meter` during each.
pub(crate) fn now_and_then(
    connection: &mut Connection,
    interval_nanos: u32,
    nanos: u64,
    meter: impl Fn() -> io::Result<u64>,
) -> io::Result<(Histogram<u64>, Histogram<u64>)> {
    let _watch = Watch::over([&connection.stream], nanos)?;
    let (mut times, mut rises) = (times(), times());
    let start = read_boot_nanos();
    let mut due = start;
    // Random gaps: evenly spaced requests would meet the scheduler's tick at the same phase every time.
    let mut gaps = Random::new(start);
    while due < start + nanos {
        thread::sleep(Duration::from_nanos(due.saturating_sub(read_boot_nanos())));
        let before = meter()?;
        let sent = read_boot_nanos();
        connection.round_trip()?;
        times.saturating_record(read_boot_nanos() - sent);
        rises.saturating_record(meter()? - before);
        due += u64::from(gaps.below(2 * interval_nanos));
    }
    Ok((times, rises))
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Nanos(u64),
    Requests(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) replies: u64,
    pub(crate) nanos: u64,
}

/// Keeps `depth` requests in flight on each connection, or as many as its server takes: every reply is followed by one more request.
pub(crate) fn in_flight(connections: &mut [Connection], depth: u64, until: Until) -> io::Result<Flow> {
    let (nanos, mut left) = match until {
        Until::Nanos(nanos) => (nanos, u64::MAX),
        Until::Requests(requests) => (FILL_NANOS_MAX, requests),
    };
    let streams: Vec<File> =
        connections.iter().map(|connection| connection.stream.try_clone()).collect::<io::Result<_>>()?;
    let _watch = Watch::over(&streams, nanos)?;
    let mut fds: Vec<PollFd<'_>> =
        streams.iter().map(|stream| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)).collect();

    let start = read_boot_nanos();
    let mut outstanding = 0;
    for connection in connections.iter_mut() {
        let batch = depth.min(left).min(connection.dialect.in_flight_max());
        connection.send(batch)?;
        outstanding += batch;
        left -= batch;
    }
    let mut total = 0;
    while outstanding > 0 {
        poll(&mut fds, None)?;
        if read_boot_nanos() >= start + nanos {
            left = 0;
        }
        for (fd, connection) in fds.iter().zip(connections.iter_mut()) {
            if fd.revents().is_empty() {
                continue;
            }
            let replies = connection.receive_replies()?;
            let batch = replies.min(left);
            if batch > 0 {
                connection.send(batch)?;
            }
            left -= batch;
            total += replies;
            outstanding = outstanding + batch - replies;
        }
    }
    Ok(Flow { replies: total, nanos: read_boot_nanos() - start })
}

/// One thread for each connection, which sends one request at a time, like blocking workers.
pub(crate) fn by_workers(connections: &mut [Connection], nanos: u64) -> io::Result<Flow> {
    let _watch = Watch::over(connections.iter().map(|connection| &connection.stream), nanos)?;
    let start = read_boot_nanos();
    let replies = thread::scope(|scope| {
        let work = |connection: &mut Connection| -> io::Result<u64> {
            let mut replies = 0;
            while read_boot_nanos() < start + nanos {
                connection.round_trip()?;
                replies += 1;
            }
            Ok(replies)
        };
        let workers: Vec<_> =
            connections.iter_mut().map(|connection| scope.spawn(move || work(connection))).collect();
        let ended = |worker: thread::ScopedJoinHandle<'_, io::Result<u64>>| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")))
        };
        workers.into_iter().map(ended).sum::<io::Result<u64>>()
    })?;
    Ok(Flow { replies, nanos: read_boot_nanos() - start })
}

/// Closes connections that take far too long, so that a server that hangs is an error instead of a hang. A
/// read timeout would set a timer on every measured read.
struct Watch {
    _over: Sender<()>,
}

impl Watch {
    fn over<'s>(streams: impl IntoIterator<Item = &'s File>, nanos: u64) -> io::Result<Watch> {
        let streams: Vec<File> = streams.into_iter().map(File::try_clone).collect::<io::Result<_>>()?;
        let (over, wait) = channel::<()>();
        let patience = Duration::from_nanos(nanos) + PATIENCE;
        thread::spawn(move || {
            if wait.recv_timeout(patience) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                for stream in streams {
                    let _ = shutdown(stream, Shutdown::Both);
                }
            }
        });
        Ok(Watch { _over: over })
    }
}

fn times() -> Histogram<u64> {
    // 1 ns to 10 s at three digits is a fixed, valid choice.
    Histogram::new_with_bounds(1, 10_000_000_000, 3).expect("the bounds are valid")
}

/// Replies to 64 requests in flight fit.
const INPUT_BYTES: usize = 64 * 1024;

const PATIENCE: Duration = Duration::from_secs(10);

/// Filling a table of a million keys is much faster.
const FILL_NANOS_MAX: u64 = 60_000_000_000;
