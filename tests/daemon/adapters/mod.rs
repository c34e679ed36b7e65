//! Other ways to ask than the socket: the real binary, raw HTTP.

use crate::prelude::*;

mod auth;
mod envoy;
mod limits;
mod requests;
mod resp;
mod sessions;

/// A rule of every kind.
const RULES: &str = "\
domain: shop
priorities: [critical, get]
deny: [{name: bots, match: {agent: bot}}]
limits:
  - {name: per-user, key: [user], rate: 1/h, burst: 2, help: https://example.com/limits}
  - {name: mails, key: [mail], rate: 1/h, algorithm: leaky_bucket, queue: 5}
  - {name: tokens, key: [model], rate: 100/h, unit: tokens}
concurrency: [{name: exports, key: [job], max: 1, expires: 1h}]
shed: [{pool: default, queue_age: {others: 500ms, critical: 2500ms}}]
";

/// A plan with these rules, and deadlines longer than a busy machine takes.
fn patient(rules: &str) -> Plan {
    Plan::new().shell("TIDEGATE_DEBUG_PATIENT=1 exec \"$@\"").rules("shop.yaml", rules)
}

/// A patient daemon with the adapter on a socket, and these further settings of it.
fn with_http(settings: &str) -> Daemon {
    start(patient(RULES), settings)
}

fn start(plan: Plan, settings: &str) -> Daemon {
    let settings = format!("adapters: {{http: {{socket: http.sock, {settings}}}}}");
    let daemon = plan.rules("shop.yaml", RULES).settings(&settings).start();
    daemon.await_log(&["HTTP is served", "socket="]);
    daemon
}

fn connect(daemon: &Daemon) -> UnixStream {
    UnixStream::connect(daemon.plan.path("http.sock")).unwrap()
}

/// Sends one request on a connection of its own; `head` has further header lines.
fn send(daemon: &Daemon, request: &str, head: &[&str], body: &str) -> Answer {
    let bytes = request_bytes(request, head, body, "connection: close\r\n");
    let answer = say(connect(daemon), &bytes);
    Answer::read(&answer).unwrap_or_else(|| panic!("{request}: {:?}", String::from_utf8_lossy(&answer)))
}

fn request_bytes(request: &str, head: &[&str], body: &str, more: &str) -> Vec<u8> {
    let head: String = head.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    format!("{request} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{head}{more}\r\n{body}")
        .into_bytes()
}

/// Posts JSON.
fn post(daemon: &Daemon, path: &str, head: &[&str], body: &Value) -> Answer {
    send(daemon, &format!("POST {path}"), head, &body.to_string())
}

/// Sends a request on an open connection and reads its answer.
fn exchange(stream: &mut UnixStream, request: &str, head: &[&str], body: &str) -> Answer {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&request_bytes(request, head, body, "")).unwrap();
    let mut read = Vec::new();
    let mut part = [0; 4_096];
    loop {
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "it closed after {:?}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&part[..count]);
        let Some(answer) = Answer::read(&read) else { continue };
        let length = answer.head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if answer.body.len() == length.map_or(0, |length| length.parse().unwrap()) {
            return answer;
        }
    }
}

/// Stops a daemon while four clients ask it, each until `false`. Each was answered, and the log says so.
fn assert_answers_to_the_end(
    mut daemon: Daemon,
    adapter: &str,
    client: impl Fn(&Daemon) -> Box<dyn FnMut() -> bool + Send>,
) {
    let start = |mut ask: Box<dyn FnMut() -> bool + Send>| {
        thread::spawn(move || std::iter::repeat(()).take_while(|()| ask()).count())
    };
    let threads: Vec<_> = (0..4).map(|_| start(client(&daemon))).collect();
    let allowed = format!("tidegate_{adapter}_answers_total{{answer=\"allowed\"}}");
    wait_until("they ask", || metric(&daemon, &allowed) > Some(200.0));
    daemon.stop();
    let answers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(answers.iter().all(|answers| *answers > 0), "{answers:?}");
    assert!(!daemon.plan.path(&format!("{adapter}.sock")).exists(), "{}", daemon.log());
    assert!(daemon.log().contains("drained: every request received was answered"), "{}", daemon.log());
}
