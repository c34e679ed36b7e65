//! CPU time of the sampler with every signal and one accept queue.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use tidegate::clock::{Clock, read_boot_nanos};
use tidegate::engine::ConnectionParams;
use tidegate::host::SignalSampler;

use crate::contestant::Limits;
use crate::report::{Bound, Row};
use crate::stopwatch::process_cpu_nanos;

pub(crate) fn run(reps: usize) -> io::Result<Vec<Row>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let rules = RULES.replace("PORT", &listener.local_addr()?.port().to_string());
    let limits = Limits::new(&rules, 64 << 20);
    let clock = Arc::new(Clock::start());
    let opening = ConnectionParams {
        name: None,
        user: 0,
        pool: "web",
        slots: 8,
        connection: 1,
        pid: Some(std::process::id()),
    };
    let session = limits.engine.open_session(&opening, clock.now()).map_err(io::Error::other)?;
    let engine = Arc::clone(&limits.engine);
    let (sampler, work) = SignalSampler::new(engine, Arc::clone(&clock));
    let sampling = std::thread::Builder::new().name("readings".into()).spawn(work)?;
    // It opens files in its first second.
    sleep(Duration::from_secs(2));
    let percent: Vec<f64> = (0..reps.min(REPS_MAX))
        .map(|_| {
            let (start, cpu) = (read_boot_nanos(), process_cpu_nanos());
            sleep(EACH);
            (process_cpu_nanos() - cpu) as f64 / (read_boot_nanos() - start) as f64 * 100.0
        })
        .collect();
    drop(sampler);
    let _ = sampling.join();
    limits.engine.end_session(&session, clock.now());
    Ok(vec![Row::alone("CPU of the sampler, every signal", "% of a core", &percent).must(Bound::AtMost(0.2))])
}

const RULES: &str = "domain: api\npriorities: [critical, other]\nshed:\n- pool: web\n  workers: {}\n  brake: {}\n  \
                     signals: {accept_queue: {listen: ':PORT'}, cpu_pressure: {}, memory_pressure: {}, \
                     io_pressure: {}, cpu_quota: {}, cpu: {}}\n";

const EACH: Duration = Duration::from_secs(5);

/// Each takes 5 s.
const REPS_MAX: usize = 3;
