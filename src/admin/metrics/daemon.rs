//! The daemon itself: its memory, its connections, its rules.

use std::fmt;
use std::time::Duration;

use super::{Scrape, Sheet};
use crate::admin::ProcessRecord;
use crate::admin::status::unix_seconds;
use crate::clock::read_cpu_nanos;
use crate::engine::{SwitchOrigin, SwitchView, Target};
use crate::rules::Mode;

pub(super) fn write(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let (engine, began) = (&scrape.admin.engine, scrape.admin.clock.started_at());
    sheet.gauge(
        "keys",
        "Keys whose state differs from a fresh one, or did when it was last looked at",
        &(engine.keys() as u64),
    )?;
    let help = "Keys dropped for lack of memory while they still mattered";
    sheet.counter("key_evictions", help, &scrape.totals.evictions)?;
    sheet.gauge("memory_bytes", "Bytes that the tables have allocated", &(engine.memory_bytes() as u64))?;
    sheet.gauge(
        "memory_max_bytes",
        "Bytes that the tables may allocate (memory.max)",
        &(engine.memory_bytes_max() as u64),
    )?;
    held(scrape, sheet)?;
    let help = "CPU time that all threads of the daemon have used";
    sheet.counter("cpu_seconds", help, &Duration::from_nanos(read_cpu_nanos()).as_secs_f64())?;
    let process = scrape.admin.control.process();
    let help = "Memory of the whole daemon that is resident; 0: it cannot be read";
    sheet.gauge("resident_bytes", help, &process.resident_bytes)?;
    connections(scrape, sheet)?;
    state(scrape, sheet)?;
    threads(&process, sheet)?;
    rules(scrape, sheet)?;
    recording(scrape, sheet)?;
    sheet.infos("build", "The version that runs", [[("version", env!("CARGO_PKG_VERSION"))]])?;
    let started = unix_seconds(began.at, began);
    sheet.gauge("start_time_seconds", "When the daemon started, in Unix time", &started)?;
    switches(scrape, sheet)
}

fn held(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let held = scrape.admin.engine.held_bytes();
    let help =
        "Bytes held for callers beside the tables, by estimate: for all users, and for the largest user";
    let of = [([("users", "all")], held.total), ([("users", "largest")], held.largest_user)];
    sheet.gauges("held_bytes", help, of)?;
    let help = "How often a user, or all together, held too much for something more, by what gave way";
    sheet.counters_by("held_refused", help, "what", held.refused)
}

fn connections(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let server = &scrape.admin.server;
    sheet.gauge("connections", "Connections on the applications' socket", &server.connections())?;
    let help =
        "Connections that were not let in, by the bound that was reached: connections.max or .per_user";
    sheet.counters_by("connections_refused", help, "reason", server.refused_connections())?;
    let help = "Idle connections of sessions with many that were ended so that another could be let in";
    sheet.counter("connections_reclaimed", help, &server.connections_reclaimed())?;
    let help = "Frames that were answered by an ERROR, by its code: their senders go on without limits";
    sheet.counters_by("frames_bad", help, "code", server.errors())?;
    let missed = server.missed_decisions();
    let missed = missed.map(|(client, reason, count)| ([("client", client), ("reason", reason)], count));
    let help = "Decisions that clients made without the daemon, as they report once they reach it again";
    sheet.counters("missed", help, missed)?;
    let help =
        "Requests that were judged without waiting for the call that their rules ask for, by what was full";
    sheet.counters_by("waits_declined", help, "reason", server.not_pending())?;
    let help = "How often the wall clock was set back, by a tenth of a second or more";
    sheet.counter("clock_steps_back", help, &server.clock_steps_back())
}

fn state(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let stats = scrape.admin.snapshots.read();
    sheet.counter(
        "state_writes",
        "How often the tables were written to the state directory",
        &stats.writes,
    )?;
    let help = "How often they could not be written: the log says why";
    sheet.counter("state_write_failures", help, &stats.failures)?;
    let help = "When they were last written, in Unix time; 0: never";
    sheet.gauge("state_last_write_timestamp_seconds", help, &stats.last_write)?;
    sheet.gauge("state_bytes", "How large they were then", &stats.bytes)?;
    let help = "Files of the state directory that were of no use at the start: what they kept is lost";
    sheet.counters("state_bad", help, stats.bad.iter().map(|(file, count)| ([("file", &**file)], *count)))
}

fn threads(process: &ProcessRecord, sheet: &mut Sheet<'_>) -> fmt::Result {
    let help = "Lines of the log that were dropped, because standard error did not take them";
    sheet.counter("log_lines_dropped", help, &process.log_lines_dropped)?;
    let threads = || process.threads.iter().map(|thread| ([("thread", thread.name)], thread));
    let help =
        "Whether a thread runs that decisions do not need: 0 where none can be started, or after a panic";
    let running = threads().map(|(labels, thread)| (labels, u64::from(thread.is_running)));
    sheet.gauges("thread_running", help, running.collect::<Vec<_>>())?;
    let help = "How often such a thread was run again after a panic";
    sheet.counters("thread_restarts", help, threads().map(|(labels, thread)| (labels, thread.restarts)))?;
    let help = "Whether the daemon left a crash loop: without its state, by the last rules that it ran under for a minute";
    sheet.gauge("crash_loop", help, &u64::from(process.is_after_crash_loop))
}

fn recording(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let recorder = &scrape.admin.recorder;
    let help = "Whether somebody records what is judged (tidegate record)";
    sheet.gauge("recording", help, &u64::from(recorder.is_on()))?;
    sheet.counter("recorded_lines", "Lines of traces that were written", &recorder.lines())?;
    let help = "What traces are without, for it came faster than it was written; no decision waited";
    sheet.counter("recorded_dropped", help, &recorder.dropped())
}

fn rules(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let rules = scrape.admin.control.rules();
    let help = "Whether all that was written was put in force when the rules were last read";
    sheet.gauge("rules_reload_success", help, &u64::from(rules.is_good))?;
    let last = rules.last_success.map_or(0.0, |at| unix_seconds(at, scrape.now));
    let help = "When all that was written was last put in force, in Unix time; 0: never";
    sheet.gauge("rules_last_reload_timestamp_seconds", help, &last)?;
    let domains = rules.domains.iter().take(DOMAINS_MAX);
    let domains = domains.map(|domain| [("domain", &*domain.name), ("sha", &*domain.sha)]);
    sheet.infos("rules", "The domains in force, with the fingerprint of their files", domains)?;
    let modes = scrape.in_force.each().take(RULES_MAX).flat_map(|rule| {
        Mode::ALL.map(|mode| {
            let labels = [("domain", rule.domain), ("rule", rule.name), ("mode", mode.name())];
            (labels, u64::from(rule.mode == mode))
        })
    });
    let help = "The mode that a rule really has, whoever said so: 1 for that one, 0 for the others";
    sheet.gauges("mode", help, modes.collect::<Vec<_>>())
}

/// Counts active switches by their origin, also those that wait for a rule that is gone. `GET /switches` lists them.
fn switches(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let engine = &scrape.admin.engine;
    let switches = [engine.switches(), engine.fleet_switches()].concat();
    let count = |by: &str, reach: &str| {
        switches.iter().filter(|view| (said_by(view), reach_of(view)) == (by, reach)).count() as u64
    };
    let of = |by, reach| ([("by", by), ("reach", reach)], count(by, reach));
    let series = [
        of("host", "everything"),
        of("host", "rule"),
        of("fleet", "everything"),
        of("fleet", "rule"),
        of("guard", "rule"),
        ([("by", "file"), ("reach", "everything")], u64::from(engine.is_off())),
    ];
    let help = "What is in another mode than the files say, by who said so: host, fleet: by hand, on this host or to \
                all; guard; file: the file that allows everything";
    sheet.gauges("switches", help, series)
}

fn said_by(view: &SwitchView) -> &'static str {
    match view.switch.by {
        SwitchOrigin::User(_) => "host",
        SwitchOrigin::Guard => "guard",
        SwitchOrigin::Fleet { .. } => "fleet",
    }
}

fn reach_of(view: &SwitchView) -> &'static str {
    match view.switch.target {
        Target::Daemon => "everything",
        Target::Rule(_) => "rule",
    }
}

/// As many as are counted by name.
const RULES_MAX: usize = 512;

/// As many as have counts by name.
const DOMAINS_MAX: usize = 64;
