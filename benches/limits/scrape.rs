//! The cost of a scrape over the admin socket: 64 rules with shadow rules, a pool, four decision threads.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tidegate::admin::{
    AdminSocket, AdminState, DaemonControl, Listeners, ProcessRecord, ReloadResult, RulesRecord,
};
use tidegate::clock::Clock;

use crate::contestant::Limits;
use crate::report::{Bound, Row};
use crate::stopwatch::{millis, process_cpu_nanos};

pub(crate) fn run(directory: &Path, reps: usize) -> io::Result<Vec<Row>> {
    let limits = Limits::new(&rules(), 64 << 20);
    let _deciders: Vec<_> = (0..THREADS).map(|_| limits.engine.decider()).collect();
    let path = directory.join("admin.sock");
    let desk = AdminState {
        engine: Arc::clone(&limits.engine),
        clock: Arc::new(Clock::start()),
        socket: Arc::default(),
        server: Arc::default(),
        snapshots: Arc::default(),
        fleet: None,
        fleet_failure: None,
        metrics_failure: Arc::default(),
        control: Arc::new(Nothing),
        ledger: Arc::default(),
        history: Arc::default(),
        recorder: Arc::default(),
        adapters: Default::default(),
    };
    let admin = AdminSocket::first(path.clone()).map_err(io::Error::other)?;
    let (tell_opened, opened) = sync_channel(1);
    let listeners = Listeners { admin, metrics: None };
    std::thread::spawn(tidegate::admin::work(desk, listeners, tell_opened, Default::default()));
    let _ = opened.recv_timeout(Duration::from_secs(5));
    let bytes = scrape(&path)?;
    let (mut took, mut percent) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        let cpu = process_cpu_nanos();
        for _ in 0..SCRAPES {
            let (millis, scraped) = millis(|| scrape(&path));
            scraped?;
            took.push(millis);
        }
        // Client and server of one scrape; at one per second, that is a share of a core.
        percent.push((process_cpu_nanos() - cpu) as f64 / f64::from(SCRAPES) / 1e9 * 100.0);
    }
    let kib = bytes as f64 / 1_024.0;
    Ok(vec![
        Row::alone("a scrape, 64 rules", "ms", &took).must(Bound::AtMost(5.0)),
        Row::alone("CPU of a scrape each second", "% of a core", &percent).must(Bound::AtMost(0.5)),
        Row::alone("size of a scrape, 64 rules", "KiB", &[kib]).must(Bound::AtMost(256.0)),
    ])
}

fn scrape(path: &Path) -> io::Result<usize> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if !answer.starts_with(b"HTTP/1.1 200") || !answer.ends_with(b"# EOF\n") {
        return Err(io::Error::other("no scrape came back"));
    }
    Ok(answer.len())
}

fn rules() -> String {
    let mut rules = "domain: api\npriorities: [critical, post, get, test]\nlimits:\n".to_owned();
    for number in 0..64 {
        let _ =
            writeln!(rules, "- {{name: rule-{number}, key: [user], rate: 9/s, candidate: {{rate: 5/s}}}}");
    }
    rules + "shed:\n- {pool: web, slots: 8, queue_age: {}, workers: {}, brake: {}}\n"
}

/// A daemon with empty records.
struct Nothing;

impl DaemonControl for Nothing {
    fn rules(&self) -> RulesRecord {
        RulesRecord::default()
    }

    fn process(&self) -> ProcessRecord {
        ProcessRecord::default()
    }

    fn reload(&self) -> Result<ReloadResult, String> {
        Ok(ReloadResult::default())
    }

    fn keep(&self) -> Result<(), String> {
        Ok(())
    }

    fn change_fleet_overrides(&self, _: tidegate::engine::FleetChange) -> Result<bool, String> {
        Ok(false)
    }

    fn disable_file(&self) -> Option<String> {
        None
    }

    fn unready(&self) -> Vec<String> {
        Vec::new()
    }
}

const SCRAPES: u32 = 100;

const THREADS: usize = 4;
