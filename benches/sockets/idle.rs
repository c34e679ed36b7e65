//! The daemon without requests: its memory, wake-ups, and the size of its program.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::report::{Bound, Row};
use crate::servers::Daemon;

pub(crate) fn run(daemon: &Daemon, binary: &Path, reps: usize, nanos: u64) -> io::Result<Vec<Row>> {
    let (mut resident, mut wake_ups) = (Vec::new(), Vec::new());
    for _ in 0..reps {
        let server = daemon.start_by_default()?;
        // What happens once at the start is over.
        sleep(SETTLED);
        let time = Duration::from_nanos(nanos.max(NANOS_MIN));
        let before = server.process.sleeps()?;
        sleep(time);
        wake_ups.push((server.process.sleeps()? - before) as f64 / time.as_secs_f64());
        resident.push(server.process.resident_bytes()? as f64 / 1e6);
    }
    let mut rows = vec![
        Row::alone("resident memory of an idle daemon", "MB", &resident).must(Bound::AtMost(6.0)),
        Row::alone("wake-ups of an idle daemon a second", "", &wake_ups).must(Bound::AtMost(8.0)),
    ];
    let figure = "size of the daemon, stripped";
    rows.push(stripped_bytes(binary).map_or_else(
        |error| Row::skipped(figure, &error.to_string()),
        |bytes| Row::alone(figure, "MB", &[bytes as f64 / 1e6]).must(Bound::AtMost(9.0)),
    ));
    Ok(rows)
}

fn stripped_bytes(binary: &Path) -> io::Result<u64> {
    let directory = tempfile::tempdir()?;
    let stripped = directory.path().join("tidegate");
    let done = Command::new("strip").arg("-o").arg(&stripped).arg(binary).status();
    match done.map_err(|error| io::Error::other(format!("strip: {error}")))?.success() {
        true => Ok(fs::metadata(stripped)?.len()),
        false => Err(io::Error::other("strip failed")),
    }
}

const SETTLED: Duration = Duration::from_secs(2);

/// Long enough for every periodic work to come several times.
const NANOS_MIN: u64 = 5_000_000_000;
