//! The page of a replay: its numbers are those of the summary, and it shows contents of a trace as text.

use super::support::{Files, RULES, hit, output_text};
use crate::problems::has;

/// The page of a replay, and its standard error.
fn report(files: &Files, arguments: &[&str]) -> (String, String) {
    let output = files.replay(&[arguments, &["--report", "out.html"]].concat());
    let page = std::fs::read_to_string(files.path("out.html")).unwrap_or_default();
    (page.replace('\u{202f}', " "), output_text(&output))
}

fn between<'t>(text: &'t str, from: &str, to: &str) -> Vec<&'t str> {
    text.split(from).skip(1).map(|rest| rest.split(to).next().unwrap()).collect()
}

/// The cells of a rule in the summary: passed, refused, would refuse.
fn row(summary: &str, rule: &str) -> Vec<String> {
    let line = summary.lines().find(|line| line.starts_with(&format!("{rule} "))).unwrap();
    let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    cells.skip(1).map(str::to_owned).collect()
}

#[test]
fn steps_of_each_rule_sum_to_summary() {
    let rules = RULES.replace("burst: 3", "burst: 3, warn_at: 50%");
    let mut trace = String::new();
    for second in 0..2_000 {
        let user = second % 7 % 3;
        let line = format!(
            r#"{{"t": {}.{}, "domain": "api", "descriptors": [["user", "u{user}", "ip", "192.0.2.{}"]]}}"#,
            second / 8,
            second % 8,
            second % 5
        );
        trace += &(line + "\n");
    }
    let files = Files::new(&[("api.yaml", &rules), ("trace.jsonl", &trace)]);
    let (page, summary) = report(&files, &["trace.jsonl", "--rules", "api.yaml"]);
    let found = between(&page, "What the rule did over time: ", "; at most");
    assert_eq!(found.len(), 2);
    for (found, rule) in found.iter().zip(["api/per-user", "api/per-address"]) {
        let row = row(&summary, rule);
        let expected = format!("{} passed, {} refused, {} would refuse", row[0], row[1], row[2]);
        assert_eq!(**found, expected, "{summary}");
        let number = |cell: &String| cell.replace(' ', "").parse::<u64>().unwrap();
        assert_eq!(row[..3].iter().map(number).sum::<u64>(), 2_000, "near ones are not lost: {row:?}");
        assert!(number(&row[1]) + number(&row[2]) > 0, "{row:?}");
    }
    let decisions = between(&page, "Decisions over time: ", ";");
    let first = summary.lines().next().unwrap();
    for number in
        decisions[0].split(", ").take(2).map(|part| part.rsplit_once(' ').unwrap().0.trim_end_matches(" or"))
    {
        let digits = number.split(|c: char| c.is_alphabetic()).next().unwrap().trim();
        assert!(first.contains(&format!(" {digits} ")), "{digits}: {first}");
    }
}

#[test]
fn report_shows_known_spread_and_limit() {
    // The first of a hundred callers sends one request in its minute, the last a hundred; then each sends
    // one.
    let rules = "domain: api\nlimits: [{name: per-user, key: [user], rate: 10/min}]\n";
    let busy = (1..=100).flat_map(|user| (0..user).map(move |_| hit("60", &format!("u{user}"))));
    let again = (1..=100).map(|user| hit("130", &format!("u{user}")));
    let trace: String = busy.chain(again).collect();
    let files = Files::new(&[("api.yaml", rules), ("trace.jsonl", &trace)]);
    let (page, _) = report(&files, &["trace.jsonl", "--rules", "api.yaml"]);
    has(&page, &["90 of 100 callers asked for more than 10 in one 1m", ">limit 10</text>"]);
    let numbers = |name: &str| -> Vec<String> {
        let row = between(&page, &format!("<th scope=\"row\">{name}</th>"), "</tr>")[0];
        between(row, "<td class=\"number\">", "</td>").into_iter().map(str::to_owned).collect()
    };
    assert_eq!(numbers("a caller’s busiest 1m"), ["50", "90", "99", "100", "100"]);
    // Half of the windows have one request of a caller.
    assert_eq!(numbers("any 1m of a caller"), ["1", "80", "98", "100", "100"]);
    let most = between(&page, "<table class=\"most\">", "</table>")[0];
    assert!(most.contains("20 of 90") && most.contains("user=u100") && !most.contains("user=u80<"), "{most}");
    assert!(most.contains("user=u100</bdi></th><td class=\"number\">90</td>"), "{most}");
    assert!(most.find("u100").unwrap() < most.find("u99").unwrap());
}

#[test]
fn report_escapes_hostile_trace() {
    let hostile =
        r#"</bdi></script><script>alert(1)</script><img src=x onerror=alert(1)>' onload='\" x=\"&amp;"#;
    let rules = RULES.replace("per-user", "\"<b>per & user\"");
    let trace: String = (0..9).map(|_| hit("0", hostile)).collect();
    let name = "<img src=x>.jsonl";
    let files = Files::new(&[("<u>.yaml", &rules), (name, &trace)]);
    let (page, _) = report(&files, &[name, "--rules", "<u>.yaml", "--compare", "<u>.yaml"]);
    assert!(page.contains("&lt;script&gt;alert(1)"), "it is shown: {page}");
    assert!(page.contains("&lt;img src=x&gt;.jsonl") && page.contains("&lt;b&gt;per &amp; user"), "{page}");
    for harm in
        // Attributes have double quotes.
        ["<script", "<img", "<b>", "<u>", "\" x=", "javascript:", " style=", "http://", "https://"]
    {
        assert!(!page.contains(harm), "{harm}: {page}");
    }
    let policy = between(&page, "Content-Security-Policy\" content=\"", "\"")[0];
    assert!(policy.starts_with("default-src 'none'; style-src 'nonce-"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("script"), "{policy}");
}

#[test]
fn compares_two_rule_sets_on_equal_scales() {
    let stricter = RULES.replace("rate: 2/s, burst: 3", "rate: 1/s, burst: 1");
    let trace: String =
        (0..40).map(|place| hit(&format!("{}", place / 8), &format!("u{}", place % 3))).collect();
    let files = Files::new(&[("api.yaml", RULES), ("other.yaml", &stricter), ("trace.jsonl", &trace)]);
    let (page, summary) = report(&files, &["trace.jsonl", "--rules", "api.yaml", "--compare", "other.yaml"]);
    let rule = between(&page, "class=\"of-rule\"", "</section>")[0];
    let scales = between(rule, "<div class=\"scale\" aria-hidden=\"true\">", "</div>");
    assert!(scales.len() == 2 && scales[0] == scales[1], "{scales:?}");
    let bars = between(rule, "<svg class=\"much\" aria-hidden=\"true\">", "</svg>");
    assert!(bars.len() == 2 && bars[0] == bars[1], "{bars:?}");
    assert!(rule.contains(">limit 3</text>") && rule.contains(">limit 1</text>"), "{rule}");
    for line in summary.lines().filter(|line| line.starts_with("  line ")) {
        assert!(page.contains(&format!("<li>{}</li>", line.trim())), "{line}");
    }
    assert!(page.contains("<code>api.yaml</code>") && page.contains("<code>other.yaml</code>"), "{page}");
}

#[test]
fn never_overwrites_trace_or_file_with_output() {
    let trace = hit("0", "u1");
    let files = Files::new(&[("api.yaml", RULES), ("trace.jsonl", &trace), ("out.html", "old")]);
    for (option, path, code, wrong) in [
        ("--decisions", "./trace.jsonl", 2, "--decisions names the trace itself"),
        ("--report", "./trace.jsonl", 1, "./trace.jsonl: it is there already"),
        ("--report", "out.html", 1, "out.html: it is there already, and is not written over: name another"),
    ] {
        let output = files.replay(&["trace.jsonl", "--rules", "api.yaml", option, path]);
        assert_eq!(output.status.code(), Some(code));
        assert!(output_text(&output).contains(wrong), "{}", output_text(&output));
    }
    assert_eq!(std::fs::read_to_string(files.path("trace.jsonl")).unwrap(), trace);
    assert_eq!(std::fs::read_to_string(files.path("out.html")).unwrap(), "old");
}

#[test]
fn rejects_unwritable_path_before_replay() {
    let files = Files::new(&[("api.yaml", RULES), ("trace.jsonl", &hit("0", "u1")), ("there/file", "")]);
    for (path, wrong) in [
        ("nowhere/out.html", "No such file or directory\n"),
        ("there", "this is no file"),
        ("/dev/null", "this is no file"),
    ] {
        let output = files.replay(&["trace.jsonl", "--rules", "api.yaml", "--report", path]);
        assert_eq!(output.status.code(), Some(1));
        let text = output_text(&output);
        assert!(text.contains(path) && text.contains(wrong) && !text.contains("lines over"), "{text}");
    }
    let output = files.replay(&["trace.jsonl", "--rules", "nowhere.yaml", "--report", "out.html"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!files.path("out.html").exists());
    assert!(files.replay(&["trace.jsonl", "--rules", "api.yaml", "--report", "out.html"]).status.success());
    assert!(std::fs::read_to_string(files.path("out.html")).unwrap().ends_with("</html>\n"));
    assert!(!files.path("out.html.new").exists());
}

#[test]
fn reports_empty_and_interrupted_traces() {
    let files = Files::new(&[("api.yaml", RULES), ("trace.jsonl", "")]);
    let (page, _) = report(&files, &["trace.jsonl", "--rules", "api.yaml"]);
    assert!(page.contains("no request was replayed") && page.contains("0 lines over 0 s"), "{page}");
    assert!(["NaN", "inf\"", "class=\"of-rule\""].iter().all(|word| !page.contains(word)), "{page}");
    let files = Files::new(&[("api.yaml", RULES), ("trace.jsonl", &(hit("0", "u1") + "<nonsense>\n"))]);
    let (page, output_text) = report(&files, &["trace.jsonl", "--rules", "api.yaml"]);
    has(&page, &["It ended early", "line 2: ", "class=\"of-rule\""]);
    assert!(output_text.contains("line 2: "), "{output_text}");
}
