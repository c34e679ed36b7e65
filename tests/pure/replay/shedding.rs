//! A full pool: the shed requests and their times, the order of timed events, and gaps in a trace, which
//! change nothing.

use serde_json::Value;

use super::support::{Files, decisions, decisions_of, output_text, replay};

const WORKERS: &str = "\
domain: api
priorities: [critical, other]
prioritize: [{match: {kind: c}, priority: critical}, {priority: other}]
limits: [{name: per-user, key: [user], rate: 1/min}]
shed: [{pool: web, callers: {by: [user]}, workers: {}}]
";

const RESERVE: &str = "\
domain: api
priorities: [critical, other]
prioritize: [{match: {kind: c}, priority: critical}, {priority: other}]
shed:
  - {pool: web, slots: 100, queue_age: {}, fleet: {reserve: 20%, for: critical}}
";

fn hello(t: &str, session: &str, pool: &str, slots: u32) -> String {
    format!(r#"{{"t": {t}, "op": "hello", "session": "{session}", "pool": "{pool}", "slots": {slots}}}"#)
        + "\n"
}

fn ask(t: &str, op: &str, session: &str, attributes: &str, rest: &str) -> String {
    format!(
        r#"{{"t": {t}, "op": "{op}", "session": "{session}", "domain": "api", "descriptors": [[{attributes}]]{rest}}}"#
    ) + "\n"
}

/// Critical requests that keep slots busy for a minute, named after the session and the time.
fn work(t: &str, session: &str, pieces: u32) -> String {
    let piece = |n| ask(t, "acquire", session, r#""kind", "c""#, &format!(r#", "id": "{session} {t} {n}""#));
    (0..pieces).map(piece).collect()
}

/// A peek of each caller at one time, without a change.
fn peeks(t: &str, session: &str) -> String {
    peeks_of(CALLERS, t, session)
}

fn peeks_of(callers: usize, t: &str, session: &str) -> String {
    (0..callers).map(|n| ask(t, "peek", session, &format!(r#""user", "u{n}""#), "")).collect()
}

/// The number of callers shed at each time, as `T: N`.
fn shed(decisions: &[Value]) -> Vec<String> {
    let peeks: Vec<_> = decisions.iter().filter(|decision| decision["id"].is_null()).collect();
    let of = |moment: &[&Value]| {
        let shed = moment.iter().filter(|decision| decision["rule"] == "web/workers").count();
        let verdicts = moment.iter().filter(|decision| decision["verdict"] == "shed").count();
        assert_eq!(shed, verdicts);
        let t = moment.first().map(|decision| decision["t"].to_string());
        format!("{}: {shed}", t.unwrap_or_default())
    };
    peeks.chunks(CALLERS).map(of).collect()
}

#[test]
fn sheds_step_to_full_load_at_controller_tick() {
    let times = ["28", "28.999999999", "29", "30"];
    let trace = hello("0", "w", "web", 2) + &work("0", "w", 2) + &times.map(|t| peeks(t, "w")).concat();
    let found = decisions(WORKERS, &trace);
    // s is 0 at 28 s, and ticks run before the lines of their time: at 29 s one in 120 is shed, at 30 s one
    // in 60.
    let expected = ["28: 0", "28.999999999: 0", "29: 3", "30: 10"];
    assert_eq!(shed(&found), expected);
    let refused = found.iter().find(|decision| decision["verdict"] == "shed").unwrap();
    assert!(refused["limit"].is_null() && refused["retry_us"].as_u64().unwrap() >= 1_000_000, "{refused}");
    assert_eq!(refused["priority"], "other");
}

#[test]
fn expired_leases_count_as_idle() {
    // No line stands between the end of the leases, at 60 s, and the peeks.
    let trace = |t: &str| hello("0", "w", "web", 2) + &work("0", "w", 2) + &peeks(t, "w");
    let shed_at = |t: &str| shed(&decisions(WORKERS, &trace(t))).concat();
    // s was 32/120 when the leases ended, and returns to 0 well within three minutes.
    assert_eq!(shed_at("240"), "240: 0");
    assert_ne!(shed_at("61"), "61: 0");
}

#[test]
fn gap_changes_no_later_decision() {
    let trace = |filler: bool| {
        let mut trace = hello("0.1", "w", "web", 2) + &work("0.1", "w", 2) + &hello("0.1", "j", "jobs", 3);
        // Shedding of the second pool starts at another time.
        trace += &(r#"{"t": 3.7, "op": "reload", "rules": "both.yaml"}"#.to_owned() + "\n");
        trace += &work("4", "j", 3);
        trace +=
            &(r#"{"t": 9, "op": "signal", "pool": "web", "name": "lag", "permille": 700}"#.to_owned() + "\n");
        let mut at = 10;
        for gap in [17, 3_000] {
            if filler {
                trace += &fill(at, at + gap);
            }
            at += gap;
            let t = format!("{at}.3");
            trace += &(work(&t, "w", 2) + &work(&t, "j", 3));
            // The window of 8 s fills, then the severity rises to zero: a shift by a second shows.
            for quarter in [0, 3, 4, 6] {
                let t = format!("{}.{:02}", at + 37 + quarter / 4, quarter % 4 * 25);
                trace += &(peeks_of(200, &t, "w") + &peeks_of(200, &t, "j"));
            }
            at += 41;
        }
        trace
    };
    let (jumped, walked) = (play_both(&trace(false)), play_both(&trace(true)));
    assert!(jumped.iter().any(|decision| decision["rule"] == "jobs/workers"));
    assert!(jumped.iter().any(|decision| decision["rule"] == "web/workers"));
    let differing = jumped.iter().zip(&walked).filter(|(one, other)| one != other).count();
    assert_eq!((jumped.len(), differing), (walked.len(), 0));
}

#[test]
fn pool_state_predates_its_shedding_rule() {
    let trace = |filler: bool| {
        let mut trace = hello("0.1", "w", "web", 2) + &hello("0.1", "j", "jobs", 3) + &work("0.1", "j", 3);
        if filler {
            trace += &fill(1, 66);
        }
        // The leases ended six seconds ago.
        trace += &(r#"{"t": 66.1, "op": "reload", "rules": "both.yaml"}"#.to_owned() + "\n");
        trace += &work("67", "j", 3);
        trace + &(101..105).map(|t| peeks(&format!("{t}.1"), "j")).collect::<String>()
    };
    let (jumped, walked) = (play_both(&trace(false)), play_both(&trace(true)));
    assert!(jumped.iter().any(|decision| decision["rule"] == "jobs/workers"));
    assert!(jumped == walked);
}

/// Plays a trace that may reload `both.yaml`, which adds a shedder for a second pool.
fn play_both(trace: &str) -> Vec<Value> {
    let both = "shed:\n  - {pool: jobs, callers: {by: [user]}, workers: {}}\n  - ";
    let both = WORKERS.replace("shed: [", both).replace("workers: {}}]", "workers: {}}");
    let files = Files::new(&[("api.yaml", WORKERS), ("both.yaml", &both), ("trace.jsonl", trace)]);
    let output = files.replay(&["trace.jsonl", "--rules", "api.yaml", "--decisions", "-"]);
    assert!(!output_text(&output).contains("error"), "{}", output_text(&output));
    decisions_of(&output)
}

/// Lines every seven seconds without effect.
fn fill(from: u32, to: u32) -> String {
    let line = |t| format!(r#"{{"t": {t}.05, "op": "bye", "session": "nobody"}}"#) + "\n";
    (from..to).step_by(7).map(line).collect()
}

#[test]
fn skips_gap_of_fifty_years() {
    let far = "1732186800.5";
    let trace = hello("0", "w", "web", 2)
        + &work("0", "w", 2)
        + &(r#"{"t": 1, "op": "signal", "session": "w", "pool": "web", "name": "lag", "permille": 1}"#
            .to_owned()
            + "\n")
        + &peeks("31", "w")
        + &peeks(far, "w")
        + &peeks("18446744073.709551615", "w")
        + &peeks("18446744073.709551615", "w");
    let found = shed(&decisions(WORKERS, &trace));
    assert_ne!(found[0], "31: 0");
    assert_eq!(found[1], format!("{far}: 0"));
}

#[test]
fn sheds_aged_requests() {
    let asked = |kind: &str, queued: u64| {
        let rest = format!(r#", "queued_us": {queued}"#);
        ask("1", "hit", "w", &format!(r#""kind", "{kind}""#), &rest)
    };
    let ages = [("o", 500_000), ("o", 500_001), ("c", 2_500_000), ("c", 2_500_001), ("o", 60_000_001)];
    let trace: String = ages.iter().map(|(kind, queued)| asked(kind, *queued)).collect();
    let found = decisions(RESERVE, &(hello("0", "w", "web", 0) + &trace));
    let verdicts: Vec<_> = found.iter().map(|decision| decision["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["allow", "shed", "allow", "shed", "allow"]);
    assert_eq!(found[1]["rule"], "web/queue_age");
    // A pool without a shedder sheds nothing: requests without a pool are in another.
    let elsewhere = trace.replace(r#""session": "w", "#, "");
    assert!(decisions(RESERVE, &elsewhere).iter().all(|decision| decision["verdict"] == "allow"));
}

#[test]
fn counts_shed_and_limited_separately() {
    // Each caller once: within its limit. Then again: over it, which applies although the host is full.
    let hits = |t: &str| peeks(t, "w").replace("peek", "hit");
    let trace = hello("0", "w", "web", 2) + &work("0", "w", 2) + &hits("50") + &hits("50");
    let found = decisions(WORKERS, &trace);
    let count = |verdict: &str| found.iter().filter(|decision| decision["verdict"] == verdict).count();
    let (shed, limited) = (count("shed"), count("limit"));
    // A shed caller was not charged, and is shed again.
    assert!(shed > 100 && limited + shed / 2 == CALLERS, "{shed} {limited}");
    let text = output_text(&replay(WORKERS, &trace, &[]));
    let allowed = CALLERS - shed / 2 + 2;
    assert!(text.contains(&format!("{allowed} allowed, {limited} limited, {shed} shed\n")), "{text}");
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    let [user, workers] = ["api/per-user ", "api/web/workers "].map(row);
    assert_eq!(user.split_whitespace().nth(2), Some(limited.to_string().as_str()), "{text}");
    assert_eq!(workers.split_whitespace().nth(2), Some(shed.to_string().as_str()), "{text}");
    // A missing part of a shedder has no row.
    assert!(!text.contains("web/brake"), "{text}");

    let dark = WORKERS.replace("workers: {}", "workers: {mode: shadow}");
    let files = Files::new(&[("api.yaml", WORKERS), ("dark.yaml", &dark), ("trace.jsonl", &trace)]);
    let text = output_text(&files.replay(&["trace.jsonl", "--rules", "api.yaml", "--compare", "dark.yaml"]));
    assert!(text.contains("refused → allowed (web/workers)\n"), "{text}");
    let row = text.lines().find(|line| line.starts_with("api/web/workers ")).unwrap_or_default();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(cells[4..6], [shed.to_string().as_str(), "0"], "{text}");
    let notes = decisions(&dark, &trace);
    assert!(notes.iter().any(|decision| decision["notes"][1] == "web/workers"));
}

/// Enough that one in 120 is several of them.
const CALLERS: usize = 500;
