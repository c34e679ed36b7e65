//! Access logs of Apache and nginx, garbage included.

use super::support::{Files, decisions_of, output_text};

const RULES: &str = "\
domain: api
limits:
  - {name: writes, match: {method: POST, path: \"/v1/*\"}, key: [ip], rate: 1/min}
  - {name: bots, match: {user_agent: \"*Bot*\"}, key: [user_agent], rate: 1/min, mode: shadow}
  - {name: failures, match: {status: \"401\"}, key: [user], rate: 1/h}
";

fn line(ip: &str, user: &str, time: &str, request: &str, status: u16, agent: &str) -> String {
    format!(r#"{ip} - {user} [21/Nov/2024:{time}] "{request}" {status} 17 "-" "{agent}""#) + "\n"
}

fn log() -> String {
    [
        line("192.0.2.1", "-", "12:00:00 +0100", "POST /v1/a?x=1 HTTP/1.1", 200, "curl"),
        line("192.0.2.1", "-", "12:00:01 +0100", r"\x16\x03\x01", 400, "-"),
        line("192.0.2.1", "-", "11:00:30 +0000", "POST /v1/../v1//b HTTP/1.1", 200, "curl"),
        "\n".into(),
        line("2001:db8::1", "-", "12:00:10 +0100", "POST /v1/c HTTP/2.0", 200, r#"a \x22Bot\" b"#),
        line(
            "192.0.2.2",
            "ann",
            "12:00:31 +0100",
            "GET /%76%31/ HTTP/1.1",
            401,
            r#"a "Bot" b"#.replace('"', "\\\"").as_str(),
        ),
        line("192.0.2.3", "ann", "12:01:32 +0100", "GET / HTTP/1.1", 401, "curl"),
        "scanner\n".into(),
        line("192.0.2.3", "-", "12:00:01 +0100", "GET / HTTP/1.1", 401, "curl"),
    ]
    .concat()
}

#[test]
fn counts_garbage_and_decides_the_rest_by_time() {
    let files = Files::new(&[("api.yaml", RULES), ("access.log", &log())]);
    let output = files.replay(&["access.log", "--rules", "api.yaml", "--decisions", "-"]);
    let expected = "\
6 lines over 1m 32s: 4 allowed, 2 limited
2 lines passed over that cannot be read, the first is line 2: the request is not METHOD PATH PROTOCOL but `\\u{16}\\u{3}\\u{1}`
1 line too late to be sorted, decided at the time of the line before: are the logs in order?
1 request that no rule matched
rule          passed  refused  would refuse  callers
api/writes         2        1             0        2
api/bots           1        0             1        1
api/failures       1        1             0        1
";
    assert_eq!(output_text(&output), expected);
    let printed = files.replay(&["access.log", "--rules", "api.yaml", "--json"]);
    let summary: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!([&summary["lines"], &summary["decided"]["verdicts"]["limit"]], [6, 2]);
    assert_eq!(summary["decided"]["rules"][0]["rule"], "writes");
    assert!(printed.stderr.is_empty(), "{}", output_text(&printed));
    // The third request arrived thirty seconds after the fifth line; the ninth arrived too late.
    let judged = decisions_of(&output);
    let judged = judged.iter().map(|one| {
        let after_noon = one["t"].as_u64().unwrap() - 1_732_186_800;
        format!("{after_noon} s {} {}", one["id"], one["verdict"].as_str().unwrap())
    });
    let expected =
        ["0 s 1 allow", "10 s 5 allow", "30 s 3 limit", "31 s 6 allow", "31 s 9 allow", "92 s 7 limit"];
    assert_eq!(judged.collect::<Vec<_>>(), expected);
}

#[test]
fn strict_stops_at_first_unreadable_line() {
    let files = Files::new(&[("api.yaml", RULES), ("access.log", &log())]);
    let output = files.replay(&["access.log", "--strict", "--rules", "api.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    let output_text = output_text(&output);
    assert!(output_text.starts_with("1 line over 0 s: 1 allowed, 0 limited\nrule"), "{output_text}");
    let fault = "access.log: line 2: the request is not METHOD PATH PROTOCOL but `\\u{16}\\u{3}\\u{1}`\n";
    assert!(output_text.ends_with(fault), "{output_text}");
}

#[test]
fn requires_domain_unless_only_one() {
    let rules = |domain: &str| format!("domain: {domain}\nlimits:\n  - {{name: all, key: [], rate: 1/s}}\n");
    let files = Files::new(&[
        ("rules/a.yaml", &rules("api")),
        ("rules/b.yaml", &rules("web")),
        ("one.yaml", &rules("api")),
        ("empty.yaml", "domain: api\n"),
    ]);
    let run = |arguments: &[&str]| {
        let arguments = [&["-", "--rules"], arguments].concat();
        let output =
            files.replay_input(&line("::1", "-", "12:00:00 +0000", "GET / HTTP/1.1", 200, "-"), &arguments);
        (output.status.code().unwrap(), output_text(&output))
    };
    let table: &[(&[&str], i32, &str)] = &[
        (&["one.yaml"], 0, "api/all       1"),
        (&["rules", "--domain", "web"], 0, "web/all       1"),
        (&["rules"], 2, "tidegate: several domains in the rules: say which by --domain: `api`, `web`"),
        (&["one.yaml", "--domain", "web"], 2, "tidegate: no domain `web` in the rules: there is `api`"),
        (&["one.yaml", "--compare", "rules"], 2, "say which by --domain: `api`, `web`"),
        (
            &["one.yaml", "--compare", "rules", "--domain", "web"],
            0,
            "; 1 request for a domain without rules\n",
        ),
    ];
    for (arguments, code, expected) in table {
        let (exited, output_text) = run(arguments);
        assert_eq!(exited, *code, "{arguments:?}: {output_text}");
        assert!(output_text.contains(expected), "{arguments:?}: {output_text}");
    }
    for (argument, expected) in
        [("--strict", "--strict is for an access log"), ("--domain=api", "--domain is for an access log")]
    {
        let output = files.replay(&["-", "--rules", "one.yaml", argument]);
        assert_eq!(output.status.code(), Some(2));
        assert!(output_text(&output).contains(expected), "{}", output_text(&output));
    }
}

#[test]
fn long_line_is_garbage_but_long_value_is_cut() {
    let long = line("::1", "-", "12:00:00 +0000", "GET / HTTP/1.1", 200, &"x".repeat(1 << 20));
    let agent =
        line("::1", "-", "12:00:00 +0000", "GET / HTTP/1.1", 200, &format!("Bot{}", "x".repeat(5_000)));
    let files = Files::new(&[("api.yaml", RULES), ("access.log", &[long, agent].concat())]);
    let output = files.replay(&["access.log", "--trace-format", "combined", "--rules", "api.yaml"]);
    let output_text = output_text(&output);
    assert!(output_text.contains("\n1 line passed over that cannot be read, the first is line 1: longer than a line of a log can be\n"), "{output_text}");
    assert!(output_text.contains("\napi/bots           1 "), "{output_text}");
}

#[test]
fn sorts_log_of_any_length() {
    // Every second line is thirty seconds late, as if its request had taken that long.
    let second = |second: u32| format!("12:{:02}:{:02} +0000", second / 60, second % 60);
    let log: String = (30..3_000)
        .map(|n| if n % 2 == 0 { n } else { n - 30 })
        .map(|n| line("192.0.2.1", "-", &second(n), "POST /v1/a HTTP/1.1", 200, "-"))
        .collect();
    let files = Files::new(&[("api.yaml", RULES), ("access.log", &log)]);
    let output = files.replay(&["access.log", "--rules", "api.yaml", "--decisions", "-"]);
    let times: Vec<_> =
        decisions_of(&output).iter().map(|decision| decision["t"].as_u64().unwrap()).collect();
    assert_eq!(times.len(), 2_970);
    assert!(times.is_sorted());
    assert!(!output_text(&output).contains("too late"), "{}", output_text(&output));
}

#[test]
fn bounds_lines_held_for_sorting() {
    let busy = line("192.0.2.1", "-", "12:00:10 +0000", "GET / HTTP/1.1", 200, "-");
    let late = line("192.0.2.1", "-", "12:00:05 +0000", "GET / HTTP/1.1", 200, "-");
    // The first late line comes while all others wait, the second after a thousand of them were judged.
    let log = busy.repeat(65_000) + &late + &busy.repeat(1_000) + &late;
    let files = Files::new(&[("api.yaml", RULES), ("access.log", &log)]);
    let output = files.replay(&["access.log", "--rules", "api.yaml"]);
    assert!(output_text(&output).contains("\n1 line too late to be sorted"), "{}", output_text(&output));
}

#[test]
fn docs_example_prints_documented_output() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/replay.md")).unwrap();
    let blocks: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let [log, rules, tables @ ..] = blocks.as_slice() else { panic!("a log and rules stand first") };
    let rules = rules.strip_prefix("yaml\n").unwrap();
    let files = Files::new(&[
        ("access.log", log.trim_start()),
        ("login.yaml", rules),
        ("stricter.yaml", &rules.replace("3/min", "2/min")),
    ]);
    for block in &tables[..2] {
        let (command, printed) =
            block.strip_prefix("console\n$ tidegate replay ").unwrap().split_once('\n').unwrap();
        let output = files.replay(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(output_text(&output), printed, "{command}");
    }
    let (command, printed) =
        tables[2].strip_prefix("console\n$ tidegate ").unwrap().split_once('\n').unwrap();
    let output = files.run(&command.split(' ').collect::<Vec<_>>());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), printed, "{command}");
}
