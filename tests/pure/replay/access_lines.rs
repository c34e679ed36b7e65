//! Access lines as Apache and nginx write them, and as scanners leave them. `diagnostics/access_lines.txt`
//! has lines that are no request, `fuzz` lines of any bytes.

use serde_json::{Value, json};

use super::support::{Files, decisions_of};

const TIME: &str = "[10/Oct/2000:13:55:36 -0700]";

/// The decisions of lines; each has an entry of `deny` for these conditions.
fn denied(lines: &[String], conditions: &[Value]) -> Vec<Value> {
    let entries = conditions.iter().enumerate().map(|(place, conditions)| {
        let entry = json!({"name": format!("line-{place}"), "match": conditions});
        format!("- {entry}\n")
    });
    let rules = format!("domain: api\ndeny:\n{}", entries.collect::<String>());
    let files = Files::new(&[("api.yaml", &rules), ("access.log", &(lines.join("\n") + "\n"))]);
    decisions_of(&files.replay(&["access.log", "--rules", "api.yaml", "--decisions", "-"]))
}

/// An attribute, a line with this status, and the value.
type Row<'t> = (&'t str, &'t dyn Fn(usize) -> String, Option<&'t str>);

/// Checks one attribute of each line; `None`: it has none. The status, which differs, tells the lines apart.
#[track_caller]
fn check(table: &[Row<'_>]) {
    let status = |place: usize| 100 + place;
    let lines: Vec<String> =
        table.iter().enumerate().map(|(place, (_, line, _))| line(status(place))).collect();
    let conditions = table.iter().enumerate().map(|(place, (name, _, expected))| {
        let value = expected.map_or(json!({"present": false}), |text| text.replace('*', "\\*").into());
        json!({"status": status(place).to_string(), *name: value})
    });
    let decisions = denied(&lines, &conditions.collect::<Vec<_>>());
    assert_eq!(decisions.len(), table.len());
    for (place, decision) in decisions.iter().enumerate() {
        assert_eq!(decision["rule"], format!("line-{place}"), "{}", lines[place]);
    }
}

#[test]
fn combined_line_has_six_attributes() {
    let line = format!(
        r#"127.0.0.1 - frank {TIME} "GET /apache_pb.gif?x=1 HTTP/1.0" 200 2326 "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)""#
    );
    let bare = format!(r#"::1 - - {TIME} "GET / HTTP/1.1" 200 - "-" "-""#);
    let decisions = denied(
        &[line, bare],
        &[
            json!({
                "ip": "127.0.0.1", "method": "GET", "path": "/apache_pb.gif", "status": "200", "user": "frank",
                "user_agent": "Mozilla/4.08 [en] (Win98; I ;Nav)",
            }),
            json!({
                "ip": "::1", "method": "GET", "path": "/", "status": "200", "user": {"present": false},
                "user_agent": {"present": false},
            }),
        ],
    );
    let found: Vec<_> = decisions.iter().map(|decision| (&decision["rule"], &decision["t"])).collect();
    assert_eq!(found, [(&json!("line-0"), &json!(971_211_336)), (&json!("line-1"), &json!(971_211_336))]);
}

#[test]
fn parses_fields_as_servers_write_them() {
    let line = |user: &'static str, request: &'static str, agent: &'static str| {
        move |status| format!(r#"2001:db8::7 - {user} {TIME} "{request}" {status} 0 "-" "{agent}""#)
    };
    let get = "GET / HTTP/1.1";
    check(&[
        ("user", &line("John Doe", get, "-"), Some("John Doe")),
        ("user", &line("a[b] [c", get, "-"), Some("a[b] [c")),
        ("user", &line("\"\"", get, "-"), None),
        ("user", &line("-", get, "-"), None),
        ("user", &line("\\xc3\\xb6", get, "-"), Some("ö")),
        ("ip", &line("-", get, "-"), Some("2001:db8::7")),
        ("user_agent", &line("-", get, r#"a \"b\" \x22c\x22 \\d\te"#), Some("a \"b\" \"c\" \\d\te")),
        ("user_agent", &line("-", get, r"\xe2\x82\xac \xff \q \x4"), Some("€ \u{fffd} \\q \\x4")),
        ("user_agent", &line("-", get, r"ends in \\"), Some("ends in \\")),
        ("path", &line("-", "GET /a b HTTP/1.1", "-"), Some("/a b")),
        ("path", &line("-", r#"GET /\x22a HTTP/2.0"#, "-"), Some("/\"a")),
        ("path", &line("-", "CONNECT example.com:443 HTTP/1.1", "-"), Some("/example.com:443")),
        ("method", &line("-", "VERSION-CONTROL / HTTP/1.1", "-"), Some("VERSION-CONTROL")),
        // The common format, and the combined format with additional fields.
        ("ip", &|status| format!(r#"192.0.2.1 - - {TIME} "{get}" {status} 17"#), Some("192.0.2.1")),
        ("user_agent", &|status| line("-", get, "x")(status) + " 0.003 \"203.0.113.9\"\r", Some("x")),
    ]);
}

#[test]
fn requires_time_zone() {
    // In order of time, as a late line is decided at the time of the line before.
    let table = [
        ("01/Jan/1970:00:00:00 +0000", Some(0)),
        ("01/Jan/1970:00:00:00 +0100", None),
        ("10/Oct/2000:13:55:36 -0700", Some(971_211_336)),
        ("10/Oct/2000:20:55:36 +0000", Some(971_211_336)),
        ("11/Oct/2000:02:25:36 +0530", Some(971_211_336)),
        ("10/oct/2000:13:55:36 -0700", Some(971_211_336)),
        ("10/Oct/2000:24:55:36 -0700", None),
        ("10/Oct/2000:13:55:36 x0700", None),
        ("1x/Oct/2000:13:55:36 -0700", None),
        ("10/Oct/2000:13:55:36  0700", None),
        ("31/Dec/2016:23:59:60 +0000", Some(1_483_228_799)),
        ("29/Feb/2023:00:00:00 +0000", None),
        ("29/Feb/2024:00:00:00 +0000", Some(1_709_164_800)),
    ];
    let line = |time: &str| format!(r#"192.0.2.1 - - [{time}] "GET / HTTP/1.1" 200 0 "-" "-""#);
    let decisions = denied(&table.map(|(time, _)| line(time)), &[json!({"ip": "192.0.2.1"})]);
    for (number, (time, expected)) in (1..).zip(table) {
        let decision = decisions.iter().find(|decision| decision["id"] == number);
        assert_eq!(decision.map(|decision| decision["t"].as_u64().unwrap()), expected, "{time}");
    }
}

#[test]
fn normalizes_paths_as_middlewares_do() {
    let table = [
        ("/", "/"),
        ("*", "/*"),
        ("/v1/charges", "/v1/charges"),
        ("/v1/charges?limit=3&x=/../y", "/v1/charges"),
        ("/a#b", "/a"),
        ("/v1//charges///x", "/v1/charges/x"),
        ("/v1/./a/../charges", "/v1/charges"),
        ("/../../etc/passwd", "/etc/passwd"),
        ("/a/..", "/"),
        ("/a/b/..", "/a/"),
        ("/a/.", "/a/"),
        ("/a/", "/a/"),
        ("//", "/"),
        ("/a/.hidden", "/a/.hidden"),
        ("/a/...", "/a/..."),
        ("/login%20now", "/login now"),
        ("/%2e%2E/v1%2Fcharges", "/v1/charges"),
        // Decoded once only.
        ("/%252e", "/%2e"),
        ("/100%", "/100%"),
        ("/%zz%4", "/%zz%4"),
        ("/%3Fa", "/?a"),
        ("http://example.com/v1?x", "/v1"),
        ("https://example.com", "/"),
        ("/redirect/http://example.com/x", "/redirect/http:/example.com/x"),
        ("example.com:443", "/example.com:443"),
        ("/gr%C3%B6%C3%9Fe", "/größe"),
        ("/%ff", "/\u{fffd}"),
    ];
    let lines = table.map(|(target, _)| {
        move |status| format!(r#"192.0.2.1 - - {TIME} "GET {target} HTTP/1.1" {status} 0 "-" "-""#)
    });
    let rows = table.iter().zip(&lines);
    let rows: Vec<Row<'_>> = rows.map(|((_, path), line)| ("path", line as _, Some(*path))).collect();
    check(&rows);
}
