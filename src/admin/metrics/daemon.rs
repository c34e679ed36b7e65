//! The daemon itself: its memory, its connections, its rules.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{Scrape, Sheet};
use crate::admin::ProcessRecord;
use crate::admin::status::unix_seconds;
use crate::clock::read_cpu_nanos;
use crate::engine::{SwitchOrigin, SwitchView, Target};
use crate::rules::Mode;

pub(super) fn write(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let (engine, began) = (&scrape.admin.engine, scrape.admin.clock.started_at());
    let help = "Keys whose state differed from a fresh one at the last sweep";
    sheet.gauge("keys", help, &(engine.keys() as u64))?;
    let help = "Keys dropped for lack of memory that were not yet fresh: their callers start fresh. Act if it \
                grows: raise `memory.max`";
    sheet.counter("key_evictions", help, &scrape.totals.evictions)?;
    let help = "Bytes that the tables have allocated. Act if near `tidegate_memory_max_bytes`";
    sheet.gauge("memory_bytes", help, &(engine.memory_bytes() as u64))?;
    let help = "Bytes that the tables may allocate (`memory.max`)";
    sheet.gauge("memory_max_bytes", help, &(engine.memory_bytes_max() as u64))?;
    held(scrape, sheet)?;
    let help = "CPU time that all threads of the daemon have used. Act if above some 10 µs per decision";
    sheet.counter("cpu_seconds", help, &Duration::from_nanos(read_cpu_nanos()).as_secs_f64())?;
    let process = scrape.admin.control.process();
    let help = "Resident memory of the daemon; 0: unreadable. Act if near `MemoryMax=` of its unit";
    sheet.gauge("resident_bytes", help, &process.resident_bytes)?;
    connections(scrape, sheet)?;
    http(scrape, sheet)?;
    envoy(scrape, sheet)?;
    state(scrape, sheet)?;
    threads(&process, sheet)?;
    rules(scrape, sheet)?;
    recording(scrape, sheet)?;
    sheet.infos("build", "The running version", [[("version", env!("CARGO_PKG_VERSION"))]])?;
    let started = unix_seconds(began);
    let help = "Start time of the daemon, in Unix time. Act if it changes often";
    sheet.gauge("start_time_seconds", help, &started)?;
    switches(scrape, sheet)
}

fn held(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let held = scrape.admin.engine.held_bytes();
    let help = "Estimated bytes held beside the tables: for all users, and for the largest user; without bodies of HTTP and RESP. Act if largest \
                is near 16 MiB above its connections and leases";
    let of = [([("users", "all")], held.total), ([("users", "largest")], held.largest_user)];
    sheet.gauges("held_bytes", help, of)?;
    let help = "Refusals because a user, or all users together, held too much, by kind: reports; waits: no remote \
                check; buffers: the connection was closed; sessions: answered `busy`; leases: answered `quota`. \
                Act if anything but reports grows: find the user in the log";
    sheet.counters_by("held_refused", help, "what", held.refused)
}

fn connections(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let server = &scrape.admin.server;
    let help = "Connections on the applications' socket. Act if near `connections.max`";
    sheet.gauge("connections", help, &server.connections.load(Relaxed))?;
    let help = "Refused connections, by the limit that was reached: `connections.max` or `.per_user`. Act if it \
                grows: those clients go on without limits";
    sheet.counters_by("connections_refused", help, "reason", server.refused_connections())?;
    let help = "Idle connections of sessions with many, closed to make room for others. Act if it grows all the \
                time: raise `connections`";
    sheet.counter("connections_reclaimed", help, &server.connections_reclaimed.load(Relaxed))?;
    let help = "Frames answered by an ERROR, by its code. Act if it grows: such requests are not judged";
    sheet.counters_by("frames_bad", help, "code", server.errors())?;
    let missed = server.missed_decisions();
    let missed =
        missed.map(|(client, reason, count)| ([("client", client), ("reason", reason.name())], count));
    let help = "Decisions that clients made without the daemon, reported on the next connection; `callback`: functions \
                of the application that raised, whose requests were judged without the attribute. Act if it grows: \
                requests pass unlimited; `callback`: see the application's log";
    sheet.counters("missed", help, missed)?;
    let help = "Requests decided without their remote check, by the full limit: connection: 512 requests or 64 \
                KiB wait; user: half of its maximum; calls: 1 024 checks within 2 ms. Act if it grows: use more \
                connections, or rules that borrow";
    sheet.counters_by("waits_declined", help, "reason", server.not_pending())?;
    let help =
        "Times that the wall clock was set back by 0.1 s or more. Act if it grows: check the time server";
    sheet.counter("clock_steps_back", help, &server.clock_steps_back.load(Relaxed))
}

fn http(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let [http, resp, _] = &scrape.admin.adapters;
    let help =
        "Connections of the HTTP adapter. Act if near a quarter of `connections.max`, or half of `.per_user`";
    sheet.gauge("http_connections", help, &http.connections.load(Relaxed))?;
    let help = "Connections that the HTTP adapter closed at once, as there were too many. Act if it grows: keep \
                connections open";
    sheet.counter("http_connections_refused", help, &http.connections_refused.load(Relaxed))?;
    let help = "Sessions that clients of the HTTP adapter have named";
    sheet.gauge("http_sessions", help, &http.sessions.load(Relaxed))?;
    let help = "Answers of the HTTP adapter: allowed, refused: decisions; done: release, charge; degraded: no decision \
                within 20 ms; rejected: not passed on. Act if degraded grows: requests pass unlimited";
    sheet.counters_by("http_answers", help, "answer", http.answers())?;
    let help = "Connections of the RESP adapter. Act if near an eighth of `connections.max`, or a quarter of `.per_user`";
    sheet.gauge("resp_connections", help, &resp.connections.load(Relaxed))?;
    let help = "Connections that the RESP adapter closed at once, as there were too many. Act if it grows: use a pool";
    sheet.counter("resp_connections_refused", help, &resp.connections_refused.load(Relaxed))?;
    let help = "Answers of the RESP adapter: allowed, refused: decisions; degraded: no decision within 20 ms; rejected: \
                errors; done: none. Act if degraded grows: requests pass unlimited";
    sheet.counters_by("resp_answers", help, "answer", resp.answers())?;
    let help = "Buckets of CL.THROTTLE that gave way to other keys before they were full. Act if it grows: their callers \
                start fresh; use rules and HIT";
    sheet.counter("resp_key_evictions", help, &resp.evictions.load(Relaxed))
}

fn envoy(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let [_, _, envoy] = &scrape.admin.adapters;
    let help =
        "gRPC connections of Envoy. Act if near an eighth of `connections.max`, or a quarter of `.per_user`";
    sheet.gauge("envoy_connections", help, &envoy.connections.load(Relaxed))?;
    let help = "gRPC connections that were closed at once, as there were too many. Act if it grows: raise \
                `connections`";
    sheet.counter("envoy_connections_refused", help, &envoy.connections_refused.load(Relaxed))?;
    let help = "Answers to Envoy: allowed, refused: decisions; degraded: no decision within 20 ms; rejected: not \
                judged, the log says why. Act if degraded or rejected grows: requests pass, unless \
                `failure_mode_deny` is set";
    let answers = envoy.answers().filter(|(kind, _)| *kind != "done");
    sheet.counters_by("envoy_answers", help, "answer", answers)?;
    let help =
        "Descriptors from Envoy whose `is_negative_hits` had no effect. Act if it grows: correct the route";
    sheet.counter("envoy_fields_ignored", help, &envoy.ignored.load(Relaxed))?;
    let help = "Windows of limits from Envoy that gave way to other keys before they ended. Act if it grows: their \
                callers start fresh; use rules";
    sheet.counter("envoy_key_evictions", help, &envoy.evictions.load(Relaxed))
}

fn state(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let stats = scrape.admin.snapshots.read();
    let help = "Writes of the tables to the state directory. Act if it stands still for minutes";
    sheet.counter("state_writes", help, &stats.writes)?;
    let help = "Failed writes of the tables, of switches and blocks; the log has the cause. Act if it grows: a crash would \
                give bursts again";
    sheet.counter("state_write_failures", help, &stats.failures)?;
    let help = "Time of the last write of the tables, in Unix time; 0: never. Act if older than some minutes";
    sheet.gauge("state_last_write_timestamp_seconds", help, &stats.last_write)?;
    sheet.gauge("state_bytes", "Size of the last written tables", &stats.bytes)?;
    let help = "Unusable files of the state directory at the start; their content is lost. Act if above 0: \
                callers started fresh, or switches are lost";
    sheet.counters("state_bad", help, stats.bad.iter().map(|(file, count)| ([("file", &**file)], *count)))
}

fn threads(process: &ProcessRecord, sheet: &mut Sheet<'_>) -> fmt::Result {
    let help = "Log lines dropped because standard error was blocked or failed. Act if it grows: repair the disk \
                or the log reader";
    sheet.counter("log_lines_dropped", help, &process.log_lines_dropped)?;
    let threads = || process.threads.iter().map(|thread| ([("thread", thread.name)], thread));
    let help = "1 while a helper thread runs: notify, rules, admin, state, switches, sync, sampler, log, and http, \
                resp and envoy if they are on; 0: it cannot start, or has panicked. Decisions need none. Act if 0: raise `TasksMax=`";
    let running = threads().map(|(labels, thread)| (labels, u64::from(thread.is_running)));
    sheet.gauges("thread_running", help, running.collect::<Vec<_>>())?;
    let help =
        "Restarts of a helper thread after a panic. Act if above 0: please report it; the log says where";
    sheet.counters("thread_restarts", help, threads().map(|(labels, thread)| (labels, thread.restarts)))?;
    let help = "1 after a crash loop, until the rules are read again: state set aside, the last proven rules in \
                force. Act if 1: repair the rules, run `tidegate reload`, report the evidence";
    sheet.gauge("crash_loop", help, &u64::from(process.is_after_crash_loop))
}

fn recording(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let recorder = &scrape.admin.recorder;
    let help = "1 while `tidegate record` runs. Act if 1 for longer than intended";
    sheet.gauge("recording", help, &u64::from(recorder.is_on()))?;
    sheet.counter("recorded_lines", "Written lines of recordings", &recorder.lines())?;
    let help = "Events that recordings lack because they came faster than they were written. Act if it grows: the \
                trace has gaps";
    sheet.counter("recorded_dropped", help, &recorder.dropped())
}

fn rules(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let rules = scrape.admin.control.rules().in_unix_time(scrape.admin.clock.now());
    let help = "1 if the last reload put all rules into force. Act if 0: `tidegate check` says why";
    sheet.gauge("rules_reload_success", help, &u64::from(rules.good))?;
    let help = "Time of the last reload that put all rules into force, in Unix time; 0: never";
    sheet.gauge("rules_last_reload_timestamp_seconds", help, &rules.last_success.unwrap_or_default())?;
    let domains = rules.domains.iter().take(DOMAINS_MAX);
    let domains = domains.map(|domain| [("domain", &*domain.name), ("sha", &*domain.sha)]);
    let help =
        "The domains in force, with the fingerprint of their files. Act if hosts that should agree differ";
    sheet.infos("rules", help, domains)?;
    let modes = scrape.in_force.each().take(RULES_MAX).flat_map(|rule| {
        Mode::ALL.iter().map(move |mode| {
            let labels = [("domain", rule.domain), ("rule", rule.name), ("mode", mode.name())];
            (labels, u64::from(rule.mode == *mode))
        })
    });
    let help = "1 for the effective mode of a rule, 0 for the others. Act if a rule is off unintentionally";
    sheet.gauges("mode", help, modes.collect::<Vec<_>>())
}

/// Counts active switches by their origin, also those that wait for a removed rule. `GET /switches` lists them.
fn switches(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let engine = &scrape.admin.engine;
    let mut switches = [engine.switches(), engine.fleet_switches()].concat();
    // A later switch back to the mode of the files excludes a host.
    switches.retain(|view| view.is_last && view.configured_mode != Some(view.switch.mode));
    let place = |view: &SwitchView| {
        let by = match view.switch.by {
            SwitchOrigin::User(_) => "host",
            SwitchOrigin::Guard => "guard",
            SwitchOrigin::Fleet { .. } => "fleet",
        };
        (by, if view.switch.target == Target::Daemon { "everything" } else { "rule" })
    };
    let count = |by, reach| switches.iter().filter(|view| place(view) == (by, reach)).count() as u64;
    let of = |by, reach| ([("by", by), ("reach", reach)], count(by, reach));
    let series = [
        of("host", "everything"),
        of("host", "rule"),
        of("fleet", "everything"),
        of("fleet", "rule"),
        of("guard", "rule"),
        ([("by", "file"), ("reach", "everything")], u64::from(engine.is_off())),
    ];
    let help = "Targets in another mode than in the files, by origin: host, fleet: an operator, on this host or for all; \
                guard; file: the file `disable`. Act if above 0 after the incident";
    sheet.gauges("switches", help, series)
}

/// As many as are counted by name.
const RULES_MAX: usize = 512;

/// As many as have counts by name.
const DOMAINS_MAX: usize = 64;
