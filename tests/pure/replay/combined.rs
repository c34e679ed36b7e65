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
