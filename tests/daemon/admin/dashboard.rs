//! `tidegate dashboard`: its access control, its pages, and its output without data.

use crate::prelude::*;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};

/// A running dashboard and its address.
pub(crate) struct Dashboard {
    process: Process,
    pub(crate) port: u16,
    token: String,
}

impl Dashboard {
    pub(crate) fn start(daemon: &Daemon) -> Dashboard {
        let mut command = Command::new(BINARY);
        command.arg("dashboard").arg("--admin").arg(admin_socket(daemon));
        let (process, out) =
            Process::piped(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).unwrap();
        let rest = line.trim().strip_prefix("http://127.0.0.1:").unwrap_or_else(|| panic!("{line}"));
        let mut parts = rest.split('/');
        let (port, token) = (parts.next().unwrap().parse().unwrap(), parts.next().unwrap().to_owned());
        Dashboard { process, port, token }
    }

    fn say(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        Answer::read(&answer).unwrap_or_else(|| panic!("{request}: {:?}", String::from_utf8_lossy(&answer)))
    }

    fn ask(&self, method: &str, host: &str, path: &str) -> Answer {
        self.say(&format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n\r\n"))
    }

    pub(crate) fn look(&self, path: &str) -> Answer {
        self.ask("GET", &format!("127.0.0.1:{}", self.port), &format!("/{}{path}", self.token))
    }
}

#[test]
fn serves_read_only_pages_to_token_holders() {
    let daemon = daemon();
    let dashboard = Dashboard::start(&daemon);
    assert_eq!(dashboard.token.len(), 32);
    let page = dashboard.look("/");
    assert_eq!(page.status, 200);
    assert!(page.body.contains("<h1>tidegate") && page.body.ends_with("</html>\n"), "{}", page.body);
    has(
        &page.head,
        &["cache-control: no-store", "referrer-policy: no-referrer", "x-content-type-options: nosniff"],
    );
    let nonce = page.head.split("script-src 'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
    has(&page.body, &[&format!("<script nonce=\"{nonce}\">")]);
    assert_eq!(dashboard.look("/rules").json(), get(&daemon, "/rules").json());
    assert!(dashboard.look("/metrics").head.contains("application/openmetrics-text"));
    let host = format!("127.0.0.1:{}", dashboard.port);
    for path in ["/reload", "/switch", "/block"] {
        assert_eq!(dashboard.look(path).status, 404, "{path}");
        let posted = dashboard.ask("POST", &host, &format!("/{}{path}", dashboard.token));
        assert_eq!(posted.status, 405, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"] {
        let refused = dashboard.ask(method, &host, &format!("/{}/", dashboard.token));
        assert_eq!((refused.status, refused.head.contains("allow: get")), (405, true), "{method}");
    }
    assert!(!daemon.log().contains("read again"), "nothing was reloaded");
}

#[test]
fn refuses_wrong_token_or_host() {
    let daemon = daemon();
    let dashboard = Dashboard::start(&daemon);
    let (port, token) = (dashboard.port, &dashboard.token);
    let host = format!("127.0.0.1:{port}");
    let wrong = format!("/{}0/", &token[..31].to_owned());
    let wrong = if wrong == format!("/{token}/") { format!("/{}1/", &token[..31]) } else { wrong };
    for path in [
        "/",
        "/status",
        "//",
        &wrong,
        &format!("/{token}"),
        &format!("/{token}x/"),
        &format!("/{}", &token[1..]),
    ] {
        let refused = dashboard.ask("GET", &host, path);
        assert_eq!(refused.status, 404, "{path}");
        assert!(!refused.body.contains(&**token) && !refused.body.contains("per-user"), "{}", refused.body);
    }
    // Another host name is a DNS rebinding attack, whose page could read the response.
    for other in
        ["evil.example", &format!("evil.example:{port}"), "127.0.0.1", &format!("127.0.0.1:{}", port ^ 1), ""]
    {
        assert_eq!(dashboard.ask("GET", other, &format!("/{token}/")).status, 403, "{other}");
    }
    let named = format!("localhost:{port}");
    assert_eq!(dashboard.ask("GET", &named, &format!("/{token}/")).status, 200);
    for request in [
        format!("GET /{token}/ HTTP/1.1\r\n\r\n"),
        format!("GET /{token}/ HTTP/1.1\r\nhost: {host}\r\nhost: evil.example\r\n\r\n"),
        format!("GET http://evil.example/{token}/ HTTP/1.1\r\nhost: {host}\r\n\r\n"),
    ] {
        let refused = dashboard.say(&request).status;
        assert!([400, 403].contains(&refused), "{request}: {refused}");
    }
    assert_ne!(Dashboard::start(&daemon).token, *token, "another one each time");
}

#[test]
fn shows_bad_gateway_after_daemon_exit() {
    let mut daemon = daemon();
    let mut dashboard = Dashboard::start(&daemon);
    assert_eq!(dashboard.look("/").status, 200);
    daemon.process.signal(9);
    daemon.process.exit_code();
    let gone = dashboard.look("/");
    assert_eq!(gone.status, 502);
    assert!(gone.body.contains("id=\"why\"") && gone.body.contains("start the daemon"), "{}", gone.body);
    assert!(gone.body.contains("http-equiv=\"refresh\""), "it tries again");
    dashboard.process.signal(2);
    assert_eq!(dashboard.process.exit_code(), Some(0), "^C is how it ends");
}

#[test]
fn dashboard_rejects_unusable_arguments() {
    let run = |arguments: &[&str]| {
        let output =
            Command::new(BINARY).arg("dashboard").args(arguments).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), output.stdout.len())
    };
    let (code, why, printed) = run(&["--admin", "/nowhere/admin.sock"]);
    assert!(code == Some(1) && printed == 0 && why.contains("is the daemon running?"), "{why}");
    let daemon = daemon();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let admin = admin_socket(&daemon);
    let (code, why, printed) = run(&["--admin", admin.to_str().unwrap(), "--port", &port]);
    assert!(code == Some(1) && printed == 0 && why.contains("--port") && why.contains(&port), "{why}");
    assert_eq!(run(&["--port", "65536"]).0, Some(2));
}
