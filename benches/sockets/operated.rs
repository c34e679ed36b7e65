//! The daemon in production settings, with snapshots and a scrape every second, beside itself without either;
//! and its latency while it writes a million keys to disk, beside that while it does not.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::machine::Machine;
use crate::measure::{Latency, Streams};
use crate::report::{Bound, Row};
use crate::servers::{Daemon, NEEDS_HOOKS, fill};
use crate::workload::USERS;

pub(crate) fn run(
    machine: &Machine,
    binary: &Path,
    directory: &Path,
    repetitions: usize,
    nanos: u64,
) -> io::Result<Vec<Row>> {
    let places = [directory.join("on"), directory.join("off")];
    places.iter().try_for_each(fs::create_dir)?;
    let [on, off] = &places;
    let kept = format!("state: {}\n", on.join("state").display());
    fs::create_dir(on.join("state"))?;
    let (operated, plain) = (Daemon::prepare_with(binary, on, &kept)?, Daemon::prepare(binary, off)?);
    let (mut with, mut without) = (Streams::default(), Streams::default());
    let (mut writing, mut quiet) = (Latency::default(), Latency::default());
    let writes = operated.takes("--write-state-every", "1")?;
    for repetition in 0..repetitions {
        eprintln!("as it is run: repetition {} of {repetitions}", repetition + 1);
        {
            machine.pin(machine.server_cpu())?;
            let servers = [operated.start(&[])?, plain.start(&[])?];
            servers.iter().try_for_each(|server| fill(server, u64::from(USERS)))?;
            machine.pin(machine.generator_cpu()?)?;
            let _scraped = Scraper::start(on.join("tidegate.admin.sock"));
            let mut turns = [(&servers[0], &mut with), (&servers[1], &mut without)];
            turns.rotate_left(repetition % 2);
            for (server, streams) in turns {
                streams.measure(server, 16, nanos)?;
            }
            machine.unpin()?;
        }
        if !writes {
            continue;
        }
        let mut turns = [(&["--write-state-every", "1"][..], &mut writing), (&[], &mut quiet)];
        turns.rotate_left(repetition % 2);
        for (more, latency) in turns {
            let server = operated.start(more)?;
            fill(&server, u64::from(USERS))?;
            latency.measure(&server, repetition, nanos)?;
        }
    }
    Ok(vec![
        Row::beside(
            "server CPU per decision, 8 × 16 in flight, state kept and scraped every second",
            "µs",
            &with.cpu_us,
            "neither",
            &without.cpu_us,
        )
        .must(Bound::AtMost(1.08)),
        if writes {
            Row::beside(WRITING, "µs", &writing.p99_us, "not written", &quiet.p99_us)
        } else {
            Row::skipped(WRITING, NEEDS_HOOKS)
        }
        .must(Bound::AtMost(2.0)),
    ])
}

const WRITING: &str = "p99 of one hit while a million keys are written again and again";

/// Scrapes the metrics once per second until dropped.
struct Scraper {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Scraper {
    fn start(socket: PathBuf) -> Scraper {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                if let Err(error) = scrape(&socket) {
                    eprintln!("no metrics: {error}");
                }
            }
        });
        Scraper { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.stop = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn scrape(socket: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: tidegate\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    if text.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(io::Error::other("no answer of 200")) }
}
