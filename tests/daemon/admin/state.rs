//! Metrics of the snapshots.

use super::scrape::{EVERYTHING, scrape};
use crate::prelude::*;
use tidegate::clock::unix_nanos;

fn plan() -> Plan {
    Plan::new().rules("app.yaml", EVERYTHING).with_state().writes_state_every(20)
}

fn bad(daemon: &Daemon, file: &str) -> f64 {
    scrape(daemon).of(&format!("tidegate_state_bad_total{{file=\"{file}\"}}"))
}

/// A file of the state directory, its text, and words of the log about it.
const UNUSABLE: [(&str, &str, &[&str]); 4] = [
    ("tables", "no such file", &["ERROR", "cannot be used: it is not a tidegate snapshot"]),
    ("switches", "{\"version\":1", &["WARN", "switches.bad", "cut short or damaged", "set aside"]),
    ("rules", "no such file", &["WARN", "damaged"]),
    ("fleet-overrides", "no document", &["ERROR", "fleet-overrides"]),
];

#[test]
fn sets_unusable_files_aside_and_reports_them() {
    let redis = "redis: {url: \"redis://127.0.0.1:1\", fleet_secret_files: [secret]}";
    for (file, text, words) in UNUSABLE {
        let mut plan = plan();
        plan.settings += &format!("\n{redis}");
        fs::write(plan.path("secret"), "a secret of this test alone, and a long one at that\n").unwrap();
        fs::write(plan.path(&format!("state/{file}")), text).unwrap();
        let daemon = plan.start();
        daemon.await_log(words);
        for (each, ..) in UNUSABLE {
            assert_eq!(bad(&daemon, each), f64::from(u8::from(each == file)), "{each} beside a bad {file}");
        }
        let aside = daemon.plan.path(&format!("state/{file}.bad"));
        assert_eq!(fs::read_to_string(&aside).unwrap(), text);
        let status = get(&daemon, "/status").json();
        assert_eq!(status["state"]["bad"][file], 1);
        let expected = match file {
            "fleet-overrides" => "the fleet overrides kept on this host are damaged".to_owned(),
            _ => format!("`{file}` of the state directory was unusable at the start"),
        };
        assert!(status["warnings"].to_string().contains(&expected), "{status:#}");
        // `doctor` reads the status and the files.
        let (_, output, _) = outcome_of(&daemon.doctor(&[]));
        has(&output, &[&expected, &format!("rm {}", aside.display())]);
        let switched = post(&daemon, "/switch", "{\"rule\": \"api/per-user\", \"mode\": \"shadow\"}");
        assert_eq!((switched.status, &switched.json()["warning"]), (200, &Value::Null), "it is kept");
        let mut wire = daemon.greeted();
        assert!((0..6).all(|id| verdict_of(&wire.ask(&hit(id, "u"))) == 0));
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
        daemon.stop();
        plan = daemon.plan;
    }
}
