//! Suggested limits from a trace: chosen from a known distribution, with the reported number of refusals.

use std::collections::BTreeMap;
use std::process::Output;

use serde_json::Value;

use super::support::{Files, hit, output_text};

fn suggest(files: &Files, arguments: &[&str]) -> Output {
    files.run(&[&["suggest"], arguments].concat())
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", output_text(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// 198 callers send two requests, one 20 and one 90, each at one time, over 597 s.
fn known() -> String {
    let times = |user: u32| match user {
        100 => 20,
        150 => 90,
        _ => 2,
    };
    let of = |user: u32| (0..times(user)).map(move |_| hit(&(user * 3).to_string(), &format!("u{user}")));
    (0..200).flat_map(of).collect()
}

#[test]
fn suggests_expected_limits_for_known_spread() {
    let files = Files::new(&[("trace.jsonl", &known())]);
    // Of 200 callers the 198th sends two. The excess is refused: 20 - 2 and 90 - 2 of 506, in one burst.
    let expected = "\
506 lines over 9m 57s, the domain `api`, counted by `user`
rule               rate  burst  refused  of requests  callers refused  of callers
user-per-s-p99      2/s      2      106      20.95 %                2      1.00 %
user-per-s-max    100/s    100        0          0 %                0         0 %
user-per-min-p99  2/min      2      106      20.95 %                2      1.00 %
user-per-min-max  100/min    100        0          0 %                0         0 %
";
    let found = printed(&suggest(&files, &["trace.jsonl", "--window", "1s", "--window", "1min"]));
    let words = |text: &str| -> Vec<Vec<String>> {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let few = "the trace is 9m 57s long and has few windows of 1m: busy ones may be chance\n";
    assert!(found.contains(few), "{found}");
    assert_eq!(words(&found.replace(few, "")), words(expected), "{found}");
    let json: Value =
        serde_json::from_str(&printed(&suggest(&files, &["trace.jsonl", "--format", "json"]))).unwrap();
    assert_eq!(json["proposals"][0]["rule"], "user-per-s-p99");
    assert_eq!(json["proposals"][0]["refused"], 106);
    assert_eq!(json["proposals"].as_array().unwrap().len(), 2, "nine minutes are not ten");
    let remarks = json["remarks"].to_string();
    assert!(remarks.contains("no limit by windows of 1m") && remarks.contains("of 1h"), "{remarks}");
}

#[test]
fn suggests_strictest_limit_within_refusal_target() {
    let files = Files::new(&[("trace.jsonl", &known())]);
    let of = |share: &str| {
        let found = printed(&suggest(&files, &["trace.jsonl", "--refuse-at-most", share]));
        found.lines().last().unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of("0%")[..4], ["user-per-s-max", "100/s", "100", "0"]);
    assert_eq!(of("20%")[..4], ["user-per-s-p99.5", "20/s", "20", "70"]);
    assert_eq!(of("21%")[..4], ["user-per-s-p99", "2/s", "2", "106"]);
}

/// Users and addresses with random bursts of all sizes, from a seed.
fn drawn(mut seed: u64) -> String {
    let mut below = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    let (mut trace, mut millis) = (String::new(), 0);
    for _ in 0..1_200 {
        millis += below(60) * below(10);
        let user = below(300) * below(300) / 300;
        let (seconds, millis, ip) = (millis / 1_000, millis % 1_000, below(25));
        let cost = if below(9) == 0 { format!(r#", "cost": {}"#, below(6)) } else { String::new() };
        trace += &format!(
            r#"{{"t": {seconds}.{millis:03}, "domain": "api", "descriptors": [["user", "u{user}", "ip", "192.0.2.{ip}"]]{cost}}}"#
        );
        trace.push('\n');
    }
    trace
}

/// The rows of a replay's summary: would refuse, by rule.
fn would_refuse(summary: &str) -> BTreeMap<String, u64> {
    let rows = summary.lines().filter(|line| line.starts_with("api/"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let cell = |place: usize| *cells.get(place).unwrap();
        (cell(0).replace("api/", ""), cell(3).replace(' ', "").parse().unwrap())
    };
    rows.map(row).collect()
}

#[test]
fn predicted_refusals_match_replay_of_written_rules() {
    let fleet_status = "domain: api\nlimits: [{name: standing, key: [ip], rate: 20/min}]\n";
    for (seed, beside) in [(1, false), (2, true)] {
        let files = Files::new(&[("trace.jsonl", &drawn(seed)), ("rules/api.yaml", fleet_status)]);
        let keys = ["--key", "user", "--key", "ip", "--key", "user,ip", "--window", "1s", "--window", "1m"];
        let mut arguments = vec!["trace.jsonl", "--write", "suggested.yaml", "--format", "json"];
        arguments.extend(keys);
        arguments.extend(["--rules", "rules"].iter().filter(|_| beside));
        let found: Value = serde_json::from_str(&printed(&suggest(&files, &arguments))).unwrap();
        let proposals = found["proposals"].as_array().unwrap();
        let output_text: BTreeMap<String, u64> = proposals
            .iter()
            .map(|one| (one["rule"].as_str().unwrap().to_owned(), one["refused"].as_u64().unwrap()))
            .collect();
        assert!(
            output_text.values().any(|refused| *refused > 0) && output_text.len() >= 8,
            "{output_text:?}"
        );
        for one in proposals.iter().filter(|one| one["enough_for"] == "max" && !beside) {
            assert_eq!(one["refused"], 0, "whoever asks most is not refused either: {one}");
        }

        let checked = files.run(&["check", "suggested.yaml"]);
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
        let rules = if beside { "rules" } else { "suggested.yaml" };
        std::fs::copy(files.path("suggested.yaml"), files.path("rules/suggested.yaml")).unwrap();
        let replayed = files.replay(&["trace.jsonl", "--rules", rules]);
        assert!(replayed.status.success());
        let summary = super::support::output_text(&replayed);
        let mut found = would_refuse(&summary);
        found.remove("standing");
        assert_eq!(found, output_text, "seed {seed}");
        let limited = summary.lines().next().unwrap().contains(", 0 limited");
        assert_eq!(limited, !beside, "in shadow no request is refused: {summary}");
    }
}

#[test]
fn quotes_unusual_names_and_costs_in_rules() {
    let name = r#"a\"b] #<é>"#;
    let domain = r#"d\"e #"#;
    let line = |t: u32, user: u32, cost: u64| {
        format!(
            r#"{{"t": {t}, "domain": "{domain}", "descriptors": [["{name}", "u{user}"]], "cost": {cost}}}"#
        ) + "\n"
    };
    let trace: String = (0..400).map(|t| line(t, t % 200, if t == 7 { 4_294_967_295 } else { 1 })).collect();
    let files = Files::new(&[("trace.jsonl", &trace)]);
    let found = printed(&suggest(&files, &["trace.jsonl", "--write", "suggested.yaml"]));
    assert!(found.contains("left out, for no rule can say it"), "{found}");
    assert!(files.run(&["check", "suggested.yaml"]).status.success());
    let text = std::fs::read_to_string(files.path("suggested.yaml")).unwrap();
    assert!(text.contains("mode: shadow") && text.contains(r#"key: ["a\"b] #<é>"]"#), "{text}");
}
