//! Access lines as Apache and nginx write them, and as scanners leave them.

use super::{AccessLine, UnreadableLine, path_of, time};

const TIME: &str = "[10/Oct/2000:13:55:36 -0700]";

fn read(line: &str) -> Result<Vec<(String, String)>, UnreadableLine> {
    let read = AccessLine::read(line.as_bytes())?;
    Ok(read.attributes().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

fn value(line: &str, name: &str) -> Option<String> {
    let attributes = read(line).unwrap_or_else(|wrong| panic!("{line}: {wrong}"));
    attributes.into_iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

#[test]
fn combined_line_has_six_attributes() {
    let line = format!(
        r#"127.0.0.1 - frank {TIME} "GET /apache_pb.gif?x=1 HTTP/1.0" 200 2326 "http://www.example.com/start.html" "Mozilla/4.08 [en] (Win98; I ;Nav)""#
    );
    let expected = [
        ("ip", "127.0.0.1"),
        ("method", "GET"),
        ("path", "/apache_pb.gif"),
        ("status", "200"),
        ("user_agent", "Mozilla/4.08 [en] (Win98; I ;Nav)"),
        ("user", "frank"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(read(&line).unwrap(), expected);
    let bare =
        AccessLine::read(format!(r#"::1 - - {TIME} "GET / HTTP/1.1" 200 - "-" "-""#).as_bytes()).unwrap();
    let attributes: Vec<_> = bare.attributes().collect();
    assert_eq!(attributes, [("ip", "::1"), ("method", "GET"), ("path", "/"), ("status", "200")]);
    assert_eq!(bare.unix_seconds, 971_211_336);
}

#[test]
fn parses_fields_as_servers_write_them() {
    let line = |user: &str, request: &str, agent: &str| {
        format!(r#"2001:db8::7 - {user} {TIME} "{request}" 404 0 "-" "{agent}""#)
    };
    let table = [
        ("user", line("John Doe", "GET / HTTP/1.1", "-"), Some("John Doe")),
        ("user", line("a[b] [c", "GET / HTTP/1.1", "-"), Some("a[b] [c")),
        ("user", line("\"\"", "GET / HTTP/1.1", "-"), None),
        ("user", line("-", "GET / HTTP/1.1", "-"), None),
        ("user", line("\\xc3\\xb6", "GET / HTTP/1.1", "-"), Some("ö")),
        ("ip", line("-", "GET / HTTP/1.1", "-"), Some("2001:db8::7")),
        ("status", line("-", "GET / HTTP/1.1", "-"), Some("404")),
        (
            "user_agent",
            line("-", "GET / HTTP/1.1", r#"a \"b\" \x22c\x22 \\d\te"#),
            Some("a \"b\" \"c\" \\d\te"),
        ),
        ("user_agent", line("-", "GET / HTTP/1.1", r"\xe2\x82\xac \xff \q \x4"), Some("€ \u{fffd} \\q \\x4")),
        ("user_agent", line("-", "GET / HTTP/1.1", r"ends in \\"), Some("ends in \\")),
        ("path", line("-", "GET /a b HTTP/1.1", "-"), Some("/a b")),
        ("path", line("-", r#"GET /\x22a HTTP/2.0"#, "-"), Some("/\"a")),
        ("path", line("-", "CONNECT example.com:443 HTTP/1.1", "-"), Some("/example.com:443")),
        ("method", line("-", "VERSION-CONTROL / HTTP/1.1", "-"), Some("VERSION-CONTROL")),
        // The common format, and the combined format with additional fields.
        ("status", format!(r#"192.0.2.1 - - {TIME} "GET / HTTP/1.1" 301 17"#), Some("301")),
        ("user_agent", line("-", "GET / HTTP/1.1", "x") + " 0.003 \"203.0.113.9\"\r\n", Some("x")),
    ];
    for (name, line, expected) in table {
        assert_eq!(value(&line, name).as_deref(), expected, "{line}");
    }
}

#[test]
fn reports_lines_that_are_no_request() {
    let with = |request: &str| format!(r#"192.0.2.1 - - {TIME} "{request}" 400 0 "-" "-""#);
    let table = [
        (String::new(), "does not begin with an IP address but with ``"),
        ("host.example - - x".into(), "does not begin with an IP address but with `host.example`"),
        ("192.0.2.1 - -".into(), "no time in brackets"),
        ("192.0.2.1 - - [10/Oct/2000:13:55:36]".into(), "no time in brackets"),
        ("192.0.2.1 - - [31/Feb/2000:13:55:36 +0000] \"".into(), "no time in brackets"),
        (format!("192.0.2.1 - - {TIME} GET"), "a quoted text has no end"),
        (format!("192.0.2.1 - - {TIME} \"GET / HTTP/1.1"), "a quoted text has no end"),
        (with("-"), "the request is not METHOD PATH PROTOCOL but `-`"),
        (with(""), "the request is not METHOD PATH PROTOCOL but ``"),
        (with(r"\x16\x03\x01"), "the request is not METHOD PATH PROTOCOL but `\\u{16}\\u{3}\\u{1}`"),
        (with("GET HTTP/1.1"), "the request is not METHOD PATH PROTOCOL but `GET HTTP/1.1`"),
        (with("GET /"), "the request is not METHOD PATH PROTOCOL but `GET /`"),
        (with("G(T / HTTP/1.1"), "the request is not METHOD PATH PROTOCOL"),
        (format!(r#"192.0.2.1 - - {TIME} "GET / HTTP/1.1" - 0"#), "no status of three digits"),
        (format!(r#"192.0.2.1 - - {TIME} "GET / HTTP/1.1" 200 0 "-" "cut"#), "a quoted text has no end"),
    ];
    for (line, expected) in table {
        let wrong = read(&line).expect_err(&line).to_string();
        assert!(wrong.starts_with(expected), "{line}: {wrong}");
    }
}

#[test]
fn requires_time_zone() {
    let table = [
        ("10/Oct/2000:13:55:36 -0700", Some(971_211_336)),
        ("10/Oct/2000:20:55:36 +0000", Some(971_211_336)),
        ("11/Oct/2000:02:25:36 +0530", Some(971_211_336)),
        ("01/Jan/1970:00:00:00 +0000", Some(0)),
        ("01/Jan/1970:00:00:00 +0100", None),
        ("29/Feb/2024:00:00:00 +0000", Some(1_709_164_800)),
        ("29/Feb/2023:00:00:00 +0000", None),
        ("31/Dec/2016:23:59:60 +0000", Some(1_483_228_799)),
        ("10/oct/2000:13:55:36 -0700", Some(971_211_336)),
        ("10/Oct/2000:24:55:36 -0700", None),
        ("10/Oct/2000:13:55:36 x0700", None),
        ("1x/Oct/2000:13:55:36 -0700", None),
        ("10/Oct/2000:13:55:36  0700", None),
    ];
    for (text, expected) in table {
        assert_eq!(time(text.as_bytes()), expected, "{text}");
    }
}

#[test]
fn normalizes_paths_as_middlewares_do() {
    let table = [
        ("/", "/"),
        ("", "/"),
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
    ];
    for (target, expected) in table {
        assert_eq!(String::from_utf8(path_of(target.as_bytes())).unwrap(), expected, "{target}");
    }
    assert_eq!(path_of(b"/%ff"), b"/\xff");
}

proptest::proptest! {
    /// Any line is either read within the bounds of the socket or rejected.
    #[test]
    fn parses_or_skips_any_bytes(
        address in proptest::prop_oneof!["192\\.0\\.2\\.1", "::1", ".{0,5}"],
        time in proptest::prop_oneof!["10/Oct/2000:13:55:36 -0700", "[0-9]{2}/Feb/[0-9]{4}:[0-9]{2}:59:60 [+-][0-9]{4}"],
        request in proptest::prop_oneof!["GET /[a-c/.%2ef]{0,40} HTTP/1.1", ".{0,30}"],
        noise in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..3_000),
    ) {
        let mut line = format!("{address} - - [{time}] \"{request}\" 200 1 \"-\" \"").into_bytes();
        line.extend(&noise);
        line.push(b'"');
        for bytes in [&line, &noise] {
            if let Ok(read) = AccessLine::read(bytes) {
                let values: Vec<_> = read.attributes().map(|(_, value)| value).collect();
                proptest::prop_assert!(values.iter().all(|value| value.len() <= 1_024));
                proptest::prop_assert!(values.len() >= 4 && values[2].starts_with('/') && !values[2].contains("//"));
            }
        }
    }
}
