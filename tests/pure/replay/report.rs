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

/// The page of a trace with an allowed request at each of these times, in seconds.
fn report_of_times(times: impl Iterator<Item = String>) -> String {
    let trace: String = times.map(|time| hit(&time, "u1")).collect();
    let files = Files::new(&[("api.yaml", "domain: api\n"), ("trace.jsonl", &trace)]);
    report(&files, &["trace.jsonl", "--rules", "api.yaml"]).0
}

/// The height of the line of allowed requests in each step, from 98, which is none, to 2, which is the most of any.
fn heights(page: &str) -> Vec<u32> {
    let points = between(page, "class=\"passed line\" d=\"M", "\"")[0].split('L');
    points.step_by(2).map(|point| point.split(' ').nth(1).unwrap().parse().unwrap()).collect()
}

#[test]
fn steps_grow_with_trace_and_sum_to_its_requests() {
    const SECOND: u64 = 1_000_000_000;
    let millis = [0, 1, 100, 1_000, 17_000, 3_600_000, 86_400_000, 40 * 31_536_000_000];
    for span in millis.map(|millis| millis * 1_000_000) {
        let times = (0..=1_000).map(|place| 5 * SECOND + span / 1_000 * place);
        let page = report_of_times(times.map(|nanos| format!("{}.{:09}", nanos / SECOND, nanos % SECOND)));
        let most = between(
            &page,
            "Decisions over time: 1 001 allowed, 0 limited or denied, 0 shed; at most ",
            " in ",
        );
        let (most, steps) = (most[0].replace(' ', "").parse::<u32>().unwrap(), heights(&page).len());
        assert!(steps <= 240, "{span}: {steps}");
        assert!(span < SECOND / 10 || steps >= 240 / 13, "{span}: {steps}");
        assert!(span < SECOND || most < 100, "{span}: spread over its steps: {most}");
    }
}

#[test]
fn places_events_in_the_step_of_their_time() {
    // Two bursts 10 s apart, then a request at the end.
    let times = ["0", "0.001", "0.002", "10", "10.001", "20"].map(str::to_owned);
    let page = report_of_times(times.into_iter());
    has(&page, &["at most 3 in 100ms"]);
    let some: Vec<_> = heights(&page).into_iter().enumerate().filter(|(_, height)| *height < 98).collect();
    assert_eq!(some, [(0, 2), (100, 34), (200, 66)]);
    // Unix time behind the zero of the trace is one gap.
    let times = ["0", "0", "1732186800", "18446744073.709551615"].map(str::to_owned);
    let page = report_of_times(times.into_iter());
    has(&page, &["Decisions over time: 4 allowed", "at most 2 in "]);
    assert_eq!(heights(&page)[0], 2);
}

#[test]
fn formats_times_as_the_trace_has_them() {
    for (time, expected) in [
        ("0", "0s"),
        ("90.5", "1m 30s"),
        ("1732183201", "2024-11-21 10:00:01 UTC"),
        ("18446744073.709551615", "2554-"),
    ] {
        let page = report_of_times(std::iter::once(time.to_owned()));
        let begin = between(&page, "<div class=\"span\" aria-hidden=\"true\"><span>", "</span>")[0];
        assert!(begin.starts_with(expected), "{time}: {begin}");
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
fn shows_most_refused_of_any_number_of_callers() {
    // Every request is refused; three callers send every tenth, among new ones.
    let rules = "domain: api\nlimits: [{name: per-user, key: [user], rate: 1/s, burst: 1}]\n";
    let trace: String = (0..20_000)
        .map(|step| {
            let user = if step % 10 == 0 { step / 10 % 3 } else { 1_000 + step };
            hit("0", &format!("u{user}")).replace('}', ", \"cost\": 2}")
        })
        .collect();
    let files = Files::new(&[("api.yaml", rules), ("trace.jsonl", &trace)]);
    let (page, _) = report(&files, &["trace.jsonl", "--rules", "api.yaml"]);
    let most = between(&page, "<table class=\"most\">", "</table>")[0];
    for (user, exact) in [(0, 667), (1, 667), (2, 666)] {
        let cell = between(most, &format!("user=u{user}</bdi></th><td class=\"number\">"), "</td>")[0];
        let numbers = cell.split(|character: char| !character.is_ascii_digit());
        let numbers: Vec<u32> = numbers.filter_map(|number| number.parse().ok()).collect();
        let (count, error) = (numbers[0], numbers.get(1).copied().unwrap_or(0));
        assert!(count >= exact && count - error <= exact && error < exact / 2, "{user}: {cell}");
    }
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
fn reports_empty_and_interrupted_traces() {
    let files = Files::new(&[("api.yaml", RULES), ("trace.jsonl", "")]);
    let (page, _) = report(&files, &["trace.jsonl", "--rules", "api.yaml"]);
    assert!(page.contains("no request was replayed") && page.contains("0 lines over 0 s"), "{page}");
    assert!(page.ends_with("</html>\n") && !files.path("out.html.new").exists(), "{page}");
    assert!(["NaN", "inf\"", "class=\"of-rule\""].iter().all(|word| !page.contains(word)), "{page}");
    let files = Files::new(&[("api.yaml", RULES), ("trace.jsonl", &(hit("0", "u1") + "<nonsense>\n"))]);
    let (page, output_text) = report(&files, &["trace.jsonl", "--rules", "api.yaml"]);
    has(&page, &["It ended early", "line 2: ", "class=\"of-rule\""]);
    assert!(output_text.contains("line 2: "), "{output_text}");
}
