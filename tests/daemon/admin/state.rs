//! Metrics of the snapshots.

use std::fs;
use std::process::Command;

use tidegate::clock::unix_nanos;

use super::daemon::{BINARY, Daemon, Plan, eventually};
use super::http::get;
use super::scrape::{EVERYTHING, scrape};

fn plan() -> Plan {
    let mut plan = Plan::new().rules("app.yaml", EVERYTHING).settings("state: kept");
    fs::create_dir(plan.path("kept")).unwrap();
    plan.arguments.extend(["--write-state-every".into(), "20".into()]);
    plan
}

fn bad(daemon: &Daemon, file: &str) -> f64 {
    scrape(daemon).of(&format!("tidegate_state_bad_total{{file=\"{file}\"}}"))
}

#[test]
fn counts_state_writes_and_failures() {
    let daemon = plan().start();
    let written =
        |daemon| Some(scrape(daemon).of("tidegate_state_writes_total")).filter(|count| *count >= 2.0);
    eventually("the tables are written", || written(&daemon));
    let metrics = scrape(&daemon);
    assert!(metrics.of("tidegate_state_last_write_timestamp_seconds") > 1e9);
    assert!(metrics.of("tidegate_state_bytes") > 0.0);
    assert_eq!(metrics.of("tidegate_state_write_failures_total"), 0.0);
    for file in ["tables", "switches", "rules"] {
        assert_eq!(bad(&daemon, file), 0.0);
    }
    // Without its directory, a failed write is only reported. Renamed instead of removed: a file written
    // meanwhile would keep it from being empty.
    fs::rename(daemon.plan.path("kept"), daemon.plan.path("away")).unwrap();
    eventually("a failure is counted", || {
        Some(scrape(&daemon).of("tidegate_state_write_failures_total")).filter(|count| *count > 0.0)
    });
    daemon.greeted().assert_served();
}

#[test]
fn sets_unusable_files_aside_and_reports_them() {
    let files = ["tables", "switches", "rules"];
    for file in files {
        let plan = plan();
        fs::write(plan.path(&format!("kept/{file}")), "no such file").unwrap();
        let daemon = plan.start();
        for each in files {
            assert_eq!(bad(&daemon, each), f64::from(u8::from(each == file)), "{each} beside a bad {file}");
        }
        let aside = daemon.plan.path(&format!("kept/{file}.bad"));
        assert_eq!(fs::read_to_string(&aside).unwrap(), "no such file");
        let status = get(&daemon, "/status").json();
        assert_eq!(status["state"]["bad"][file], 1);
        let told = format!("`{file}` of the state directory was of no use at the start");
        assert!(status["warnings"].to_string().contains(&told), "{status:#}");
        // From the daemon's status, and from the files.
        let mut doctor = Command::new(BINARY);
        doctor.arg("doctor").arg("--config").arg(daemon.plan.path("tidegate.yaml"));
        doctor.arg("--socket").arg(daemon.socket()).env_remove("STATE_DIRECTORY");
        let output = String::from_utf8(doctor.output().unwrap().stdout).unwrap();
        assert!(output.contains(&told), "{output}");
        assert!(output.contains(&format!("rm {}", aside.display())), "{output}");
        daemon.greeted().assert_served();
    }
}

#[test]
fn reports_own_start_time_after_restore() {
    let mut plan = plan();
    let mut last = 0.0;
    for _ in 0..2 {
        let before = unix_nanos() as f64 / 1e9;
        let mut daemon = plan.start();
        let started = || scrape(&daemon).of("tidegate_start_time_seconds");
        let first = started();
        // Read at two times, the first of which only approximates the daemon's start.
        assert!(first > before - 0.1 && first > last, "{first} {before} {last}");
        // Long enough that the previous run's uptime would show, and that the wall clock is read again.
        let status = eventually("it is up for two seconds", || {
            Some(get(&daemon, "/status").json()).filter(|status| status["uptime_s"].as_u64() >= Some(2))
        });
        let up = status["uptime_s"].as_f64().unwrap();
        assert!(up <= unix_nanos() as f64 / 1e9 - before, "{up}");
        assert!((status["started"].as_f64().unwrap() - first).abs() < 1e-3);
        // Stable, so that its changes count starts.
        assert_eq!(started(), first);
        last = first;
        daemon.process.signal(libc::SIGTERM);
        assert_eq!(daemon.process.exit_code(), Some(0));
        plan = daemon.plan;
    }
}
