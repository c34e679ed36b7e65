//! The time from the start to the first answer.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use tidegate::clock::read_boot_nanos;

use crate::dialect::{Dialect, Frames, frame};
use crate::process::Process;
use crate::report::{Bound, Row};
use crate::servers::Daemon;
use crate::workload::{Users, hello};

pub(crate) fn run(daemon: &Daemon, repetitions: usize) -> io::Result<Vec<Row>> {
    eprintln!("start to first answer");
    let starts = repetitions.max(STARTS_MIN);
    let millis: Vec<f64> = (0..starts).map(|_| start(daemon)).collect::<io::Result<_>>()?;
    Ok(vec![Row::alone("start to first answer", "ms", &millis).must(Bound::AtMost(10.0))])
}

/// Milliseconds from the spawn until HELLO and a `hit` are answered.
fn start(daemon: &Daemon) -> io::Result<f64> {
    let mut frames = Frames::to_daemon(Users::uniform(1));
    let mut requests = hello();
    frames.request(&mut requests);
    let (mut command, socket) = daemon.command("start.sock");

    let spawned = read_boot_nanos();
    let _process = Process::start_directly(&mut command)?;
    let mut stream = loop {
        if let Ok(stream) = UnixStream::connect(&socket) {
            break stream;
        }
        if read_boot_nanos() - spawned > START_NANOS_MAX {
            return Err(io::Error::other("the daemon does not start"));
        }
        sleep(LOOK_AGAIN);
    };
    stream.write_all(&requests)?;
    let mut input = Vec::new();
    let mut buffer = [0; 4096];
    let welcome = loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Err(io::Error::other("the daemon closed the connection"));
        }
        input.extend_from_slice(&buffer[..read]);
        let Some(welcome) = frame(&input) else { continue };
        if frames.reply(&input[welcome.len()..])?.is_some() {
            break read_boot_nanos();
        }
    };
    Ok((welcome - spawned) as f64 / 1e6)
}

const STARTS_MIN: usize = 20;

/// Such a sleep takes about twice as long; 0.1 ms is the precision of the figure.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

const START_NANOS_MAX: u64 = 10_000_000_000;
