//! `tidegate record`: a complete trace with hashed values, which a replay decides like the daemon.

use super::scrape::scrape;
use crate::prelude::*;
use std::os::unix::fs::PermissionsExt;

/// Limits of every kind that a trace can represent.
const RULES: &str = "\
domain: app
priorities: [critical, get]
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: banned, match: {plan: banned}}]
limits:
  - {name: writes, match: {method: POST, path: '/v1/users/*'}, key: [user], rate: 2/min, burst: 2}
  - {name: per-user, key: [user], rate: 50/s, burst: 4, max_debt: 10}
  - name: nets
    match: {ip: {cidr: 10.0.0.0/8}}
    key: [{attribute: ip, ipv6_prefix: 64}]
    rate: 1/min
    burst: 3
  - {name: tokens, key: [user], unit: tokens, algorithm: fixed_window, rate: 100/h}
concurrency: [{name: at-once, key: [job], max: 2}]
shed: [{pool: web, queue_age: {others: 500ms, critical: 2500ms}}]
";

/// Part of every hashed value.
const CANARY: &str = "canary7f3a";

struct Recording {
    process: Process,
    trace: PathBuf,
}

impl Recording {
    /// Starts a recording into a file and waits for the daemon.
    fn begin(daemon: &Daemon, name: &str, arguments: &str) -> Recording {
        let trace = daemon.plan.path(name);
        let mut command = daemon.command(&format!("record --for 1h {arguments}"));
        command.arg("--out").arg(&trace).stdout(Stdio::null());
        command.stderr(fs::File::create(daemon.plan.path("record.err")).unwrap());
        let process = Process::start(&mut command);
        wait_until("it records", || is_recorded(daemon));
        Recording { process, trace }
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.trace).unwrap();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits for `count` lines of decided requests.
    fn await_judged(&self, count: usize) {
        wait_until("the requests are written", || {
            let judged = self.lines().iter().filter(|line| line.get("verdict").is_some()).count();
            assert!(judged <= count, "{judged} are more than {count}");
            judged == count
        });
    }

    /// Waits until `count` sessions have ended in the trace.
    fn await_ends(&self, count: usize) {
        wait_until("the sessions end", || {
            let ended = self.lines().iter().filter(|line| line["op"] == "bye").count();
            ended == count
        });
    }

    /// Ends the recording with SIGINT.
    fn end(&mut self, daemon: &Daemon) -> String {
        self.process.signal(libc::SIGINT);
        let code = self.process.exit_code();
        let err = fs::read_to_string(daemon.plan.path("record.err")).unwrap();
        assert_eq!(code, Some(0), "{err}");
        wait_until("the daemon notices", || !is_recorded(daemon));
        err
    }
}

fn is_recorded(daemon: &Daemon) -> bool {
    scrape(daemon).series["tidegate_recording"] == 1.0
}

/// The answer to each decided request.
#[derive(Default)]
struct Traffic(Vec<Value>);

impl Traffic {
    fn ask(&mut self, wire: &mut Wire, op: u64, attributes: &Value, rest: &[Value]) -> Value {
        let mut request = vec![json!(op), json!(self.0.len() + 100), json!("app"), json!([attributes])];
        request.extend_from_slice(rest);
        let answer = wire.ask(&Value::Array(request));
        assert_eq!(answer[0], 1, "{answer}");
        self.0.push(answer.clone());
        answer
    }
}

const ACQUIRE: u64 = 1;
const HIT: u64 = 3;
const PEEK: u64 = 4;

fn user(number: usize) -> String {
    format!("{CANARY}-user-{number}")
}

fn session(daemon: &Daemon, number: u8, pool: &str, connection: u64) -> Wire {
    let info = json!({"pool": pool, "slots": 4, "client": CANARY, "connection": connection});
    daemon.session(number, info)
}

/// Requests of all kinds over several connections, one after the other.
fn drive(daemon: &Daemon, recording: &Recording) -> Traffic {
    let mut traffic = Traffic::default();
    let (mut one, mut other) = (session(daemon, 1, "web", 1), session(daemon, 2, "web", 1));
    let mut leaves = session(daemon, 3, "default", 1);
    let job = |name: &str| json!(["job", format!("{CANARY}-{name}")]);
    let left = traffic.ask(&mut leaves, ACQUIRE, &job("left"), &[]);
    assert_eq!(left[2], 0);
    for turn in 0..8 {
        let (one_user, address) = (user(turn % 2), format!("10.1.{}.7", turn % 2));
        let path = format!("/v1/users/{turn}");
        traffic.ask(&mut one, HIT, &json!(["user", one_user, "method", "POST", "path", path]), &[]);
        traffic.ask(&mut other, HIT, &json!(["ip", address, "plan", "banned"]), &[]);
        traffic.ask(&mut other, HIT, &json!(["ip", address]), &[]);
        traffic.ask(&mut one, HIT, &json!(["path", "/healthz", "user", one_user]), &[]);
        traffic.ask(&mut other, PEEK, &json!(["user", one_user]), &[]);
        let cost = json!({"tokens": 30, "requests": 0});
        traffic.ask(&mut one, HIT, &json!(["user", one_user]), &[cost]);
        let waited = [json!(1), json!("critical"), json!({"queued_us": 400_000 + 200_000 * turn})];
        traffic.ask(&mut other, HIT, &json!(["user", user(9)]), &waited);
        let waited = [json!(1), json!("unknown"), json!({"queued_us": 700_000, "max_wait_us": 10})];
        traffic.ask(&mut other, HIT, &json!(["user", user(9)]), &waited);
    }
    one.ask(&json!([5, 1, "app", [["user", user(0)]], 3, {"idem": CANARY}]));
    traffic.ask(&mut one, HIT, &json!(["user", user(0)]), &[]);
    one.ask(&json!([5, 1, "app", [["user", user(0)]], -2, {"idem": "r", "of": CANARY}]));
    traffic.ask(&mut one, HIT, &json!(["user", user(0)]), &[]);
    // Two permits: taken, refused, released, taken again; a retry takes none.
    let idem = [json!(1), Value::Null, json!({"idem": CANARY})];
    let first = traffic.ask(&mut one, ACQUIRE, &job("a"), &idem);
    let again = traffic.ask(&mut one, ACQUIRE, &job("a"), &idem);
    assert_eq!(first[9], again[9], "the same lease");
    traffic.ask(&mut other, ACQUIRE, &job("a"), &[]);
    assert_eq!(traffic.ask(&mut other, ACQUIRE, &job("a"), &[])[2], 1);
    assert_eq!(one.ask(&json!([6, 7, first[9]])), json!([2, 7, true]));
    assert_eq!(one.ask(&json!([2, 7, first[9], 0])), json!([2, 7, true]));
    assert_eq!(traffic.ask(&mut other, ACQUIRE, &job("a"), &[])[2], 0);
    assert_eq!(one.ask(&json!([7, 8, "web", "loop_lag", 300])), json!([2, 8, true]));
    // A report of an abandoned request.
    let mut second = session(daemon, 1, "web", 2);
    let given_up = traffic.ask(&mut second, ACQUIRE, &job("b"), &[]);
    traffic.ask(&mut one, ACQUIRE, &job("b"), &[]);
    let report = [json!(1), Value::Null, json!({"abandoned": [[2, given_up[1]]]})];
    assert_eq!(traffic.ask(&mut one, ACQUIRE, &job("b"), &report)[2], 0, "a place is free again");
    // Closing a connection that is its own session ends its leases.
    let mut alone = daemon.greeted();
    for _ in 0..2 {
        traffic.ask(&mut alone, ACQUIRE, &job("c"), &[]);
    }
    assert_eq!(traffic.ask(&mut one, ACQUIRE, &job("c"), &[])[2], 1);
    drop(alone);
    // Wait for the end in the trace: a request decided at the same moment may precede or follow it.
    recording.await_ends(1);
    assert_eq!(traffic.ask(&mut one, PEEK, &job("c"), &[])[6], 2);
    assert_eq!(traffic.ask(&mut one, ACQUIRE, &job("c"), &[])[2], 0);
    // A named session outlives its connection for a while.
    drop(leaves);
    recording.await_ends(2);
    assert_eq!(traffic.ask(&mut one, PEEK, &job("left"), &[])[6], 2);
    traffic
}

fn replay(daemon: &Daemon, trace: &Path) -> (Option<i32>, String, String) {
    let mut command = daemon.command("replay --decisions - --rules");
    outcome_of(&command.arg(daemon.plan.path("rules")).arg(trace).output().unwrap())
}

/// The decisions of a replay under the rules of a daemon.
fn replayed(daemon: &Daemon, trace: &Path) -> Vec<Value> {
    let (code, out, err) = replay(daemon, trace);
    assert_eq!(code, Some(0), "{err}");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn replay_decides_as_the_daemon_when_matched_attributes_are_clear() {
    let daemon = Plan::new().rules("app.yaml", RULES).threads(2).start();
    // A connection from before the recording.
    let mut before = session(&daemon, 7, "web", 1);
    let clear = "--clear ip --clear method --clear path --clear plan";
    let mut recording = Recording::begin(&daemon, "trace.jsonl", clear);
    let mut traffic = drive(&daemon, &recording);
    traffic.ask(&mut before, HIT, &json!(["user", user(7)]), &[]);
    recording.await_judged(traffic.0.len());
    let err = recording.end(&daemon);
    assert!(err.starts_with("recorded ") && !err.contains("warning"), "{err}");

    let names = ["allow", "limit", "shed", "wait", "deny"];
    let decisions = replayed(&daemon, &recording.trace);
    assert_eq!(decisions.len(), traffic.0.len());
    let judged = recording.lines().into_iter().filter(|line| line.get("verdict").is_some());
    for (number, ((answer, decision), line)) in traffic.0.iter().zip(&decisions).zip(judged).enumerate() {
        let verdict = names[usize::try_from(answer[2].as_u64().unwrap()).unwrap()];
        let expected = format!("{number}: {answer} {decision} {line}");
        assert_eq!(json!([decision["verdict"], line["verdict"]]), json!([verdict, verdict]), "{expected}");
        let recorded = ["rule", "limit", "window_us", "remaining", "reset_us"].map(|field| &decision[field]);
        assert_eq!(recorded, [&answer[3], &answer[4], &answer[5], &answer[6], &answer[7]], "{expected}");
    }
    let seen = |verdict: &str| decisions.iter().filter(|decision| decision["verdict"] == verdict).count();
    assert!(["allow", "limit", "shed", "deny"].iter().all(|verdict| seen(verdict) > 1), "{decisions:?}");

    let text = fs::read_to_string(&recording.trace).unwrap();
    assert!(!text.contains(CANARY), "{text}");
    let recorded =
        r#""POST" "/v1/users/7" 10.1.1.7 "banned" "critical" loop_lag "/healthz" "max_wait_us":10"#;
    has(&text, &recorded.split(' ').collect::<Vec<_>>());
    // Equal values have equal hashes, and different values different ones.
    let users = recording.lines().into_iter().map(|line| line["descriptors"][0][1].to_string());
    let users: Vec<String> = users.filter(|user| user != "null").collect();
    assert!(users.iter().collect::<std::collections::HashSet<_>>().len() < users.len());
    has(&daemon.log(), &["began to record", "values hashed"]);
    assert!(!daemon.log().contains(CANARY), "{}", daemon.log());
}

/// A value that JSON writes with escapes.
const ODD: &str = "/ann/\u{0}\n\u{7f}\u{2028}\"\\ü";

#[test]
fn hashes_values_of_attributes_that_are_not_clear() {
    let daemon = Plan::new().rules("app.yaml", RULES).start();
    let traced = |arguments: &str| {
        let mut recording = Recording::begin(&daemon, &arguments.replace(' ', ""), arguments);
        let mut wire = daemon.greeted();
        let ask =
            |domain: &str| json!([3, 1, domain, [["user", "ann", "path", ODD, "empty", "", "name", "ann"]]]);
        wire.ask(&ask("other"));
        wire.ask(&ask("app"));
        recording.await_judged(2 - usize::from(arguments.contains("--domain")));
        recording.end(&daemon);
        let pairs = recording.lines().into_iter().filter(|line| line["domain"] == "app");
        let pairs: Vec<_> = pairs.map(|line| line["descriptors"][0].clone()).collect();
        assert_eq!(pairs.len(), 1);
        pairs[0].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let clear = traced("--clear user --clear path");
    assert_eq!(clear[..6], ["user", "ann", "path", ODD, "empty", ""]);
    assert_eq!(replay(&daemon, &daemon.plan.path("--clearuser--clearpath")).0, Some(0));
    let hashed = traced("--domain app");
    assert!(hashed[1].starts_with("hash:") && hashed[3].starts_with("hash:"), "{hashed:?}");
    assert_ne!(hashed[1], hashed[7], "values of different attributes cannot be compared");
    // A replay names the attributes that its rules match on; a key counts hashes as well as values.
    let (_, _, err) = replay(&daemon, &daemon.plan.path("--domainapp"));
    let warning = "rules look at values of path, which this trace has as hashes: no condition matches them, and \
                   addresses of one prefix count apart\n\
                   help: tidegate record --for 10m --clear path --out FILE\n";
    assert!(err.contains(warning), "{err}");
    // An option of the previous version.
    let kept = traced("--keep path,method");
    assert!(kept[1] != "ann" && kept[3] == ODD, "{kept:?}");
    assert_ne!(kept[1], hashed[1], "each recording has a key of its own");
    daemon.await_log(&["began to record", "the domain app"]);
    daemon.await_log(&["began to record", "but of path, method"]);
}

#[test]
fn allows_one_recording_until_its_client_exits() {
    let daemon = daemon();
    let first = Recording::begin(&daemon, "first.jsonl", "");
    let second = daemon.plan.path("second.jsonl");
    let record = |lasts: &str| daemon.outcome(&format!("record --for {lasts} --out {}", second.display()));
    let (code, _, err) = record("1h");
    assert!(code == Some(1) && err.contains("another recording is running"), "{err}");
    assert!(!second.exists(), "nothing is left behind");
    // A device is there already, and is written to.
    has(&daemon.fail("record --for 1h --out /dev/null", 1), &["another recording is running"]);
    first.process.signal(libc::SIGKILL);
    wait_until("the daemon notices", || !is_recorded(&daemon));
    daemon.await_log(&["recorded 0 lines", "its reader went"]);
    let (code, _, err) = record("1s");
    assert_eq!((code, &*err), (Some(0), &*format!("recorded 0 lines to {}\n", second.display())));
    assert_eq!(fs::metadata(&second).unwrap().permissions().mode() & 0o777, 0o600);
    daemon.await_log(&["its time is over"]);
    let (code, _, err) = record("1s");
    assert!(code == Some(1) && err.contains("it is there already"), "{err}");
    for wrong in ["--for 25h", "--for 0s", "", "--for 1s --clear"] {
        daemon.fail(&format!("record {wrong}"), 2);
    }
    has(&daemon.fail("record --for 1s --domain a/b", 1), &["are names"]);
}

#[test]
fn bounds_trace_at_whole_lines() {
    let daemon = daemon();
    let mut recording = Recording::begin(&daemon, "trace.jsonl", "--max-size 1MiB");
    let mut wire = daemon.greeted();
    let long = "x".repeat(1_000);
    eventually("it is full", || {
        for id in 0..100 {
            wire.ask(&hit(id, &long));
        }
        recording.process.has_ended()
    });
    assert_eq!(recording.process.exit_code(), Some(0));
    has(&fs::read_to_string(daemon.plan.path("record.err")).unwrap(), &["--max-size"]);
    let bytes = fs::metadata(&recording.trace).unwrap().len();
    assert!(bytes <= 1 << 20 && bytes > (1 << 20) - 2_000, "{bytes}");
    assert_eq!(replayed(&daemon, &recording.trace).len(), recording.lines().len() - 1, "all but the hello");
}

#[test]
fn drops_and_counts_unread_records() {
    let daemon = daemon();
    let mut stream = UnixStream::connect(admin_socket(&daemon)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let keys: Vec<String> = (0..15).map(|number| format!("a{number}")).collect();
    let body = json!({"for_s": 3600, "clear": keys}).to_string();
    write!(stream, "POST /record HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    wait_until("it records", || is_recorded(&daemon));
    let mut wire = daemon.greeted();
    let pairs: Vec<String> = keys.into_iter().flat_map(|key| [key, "x".repeat(1_000)]).collect();
    let large = json!([3, 1, "api", [pairs]]);
    // More than the queue of 16 MiB and some hundred KiB in socket buffers.
    for _ in 0..1_400 {
        assert_eq!(wire.ask(&large)[2], 0);
    }
    let metrics = scrape(&daemon);
    let dropped = metrics.series["tidegate_recorded_dropped_total"];
    assert!(dropped > 0.0 && metrics.series["tidegate_recording"] == 1.0, "{dropped}");
    // A late reader gets the number of dropped records.
    let mut text = Vec::new();
    let mut part = vec![0; 1 << 20];
    eventually("it is told", || {
        let count = stream.read(&mut part).unwrap();
        assert!(count > 0, "it goes on");
        text.extend_from_slice(&part[..count]);
        let text = String::from_utf8_lossy(&text);
        let lines_queued = text.matches("a14").count() as f64;
        let report = text.lines().rfind(|line| line.starts_with("{\"report\"") && line.ends_with('}'))?;
        let report: Value = serde_json::from_str(report).unwrap();
        (report["report"]["dropped"].as_f64() == Some(dropped) && lines_queued + dropped == 1_400.0)
            .then_some(())
    });
    // The queue, read, has room again.
    for _ in 0..100 {
        wire.ask(&large);
    }
    assert_eq!(scrape(&daemon).series["tidegate_recorded_dropped_total"], dropped);
}

#[test]
fn leaves_whole_trace_when_daemon_exits() {
    let mut daemon = daemon();
    let mut recording = Recording::begin(&daemon, "trace.jsonl", "");
    let mut wire = daemon.greeted();
    wire.ask(&hit(1, "ann"));
    recording.await_judged(1);
    daemon.process.signal(libc::SIGTERM);
    assert_eq!(daemon.process.exit_code(), Some(0), "it does not wait for whoever records");
    assert_eq!(recording.process.exit_code(), Some(1));
    has(&fs::read_to_string(daemon.plan.path("record.err")).unwrap(), &["ended it early"]);
    assert_eq!(replayed(&daemon, &recording.trace).len(), 1);
}
