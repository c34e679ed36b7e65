//! RESP: redis-cli, and raw bytes.

use super::{RULES, patient};
use crate::prelude::*;
use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};

/// A patient daemon with the adapter on a socket, and further settings.
fn with_resp(settings: &str) -> Daemon {
    start(patient(RULES), settings)
}

fn start(plan: Plan, settings: &str) -> Daemon {
    let settings = format!("adapters: {{resp: {{socket: resp.sock}}}}\n{settings}");
    let daemon = plan.rules("shop.yaml", RULES).settings(&settings).start();
    daemon.await_log(&["RESP is served", "socket="]);
    daemon
}

/// Runs redis-cli and returns the lines that it prints.
fn cli(daemon: &Daemon, arguments: &str) -> Vec<String> {
    let mut command = Command::new("redis-cli");
    command.arg("-s").arg(daemon.plan.path("resp.sock")).arg("--no-raw").args(arguments.split(' '));
    let output = command.output().expect("redis-cli: apt install redis-tools");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

fn connect(daemon: &Daemon) -> UnixStream {
    let stream = UnixStream::connect(daemon.plan.path("resp.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends bytes and returns all that is answered until the end.
fn say(daemon: &Daemon, bytes: &[u8]) -> String {
    let mut stream = connect(daemon);
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    read_all(&mut stream)
}

fn read_all(stream: &mut impl Read) -> String {
    let mut answer = Vec::new();
    // Closed with unread bytes, a Unix socket is reset behind the answer.
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{answer:?}");
    }
    String::from_utf8(answer).unwrap()
}

/// A command as an array of bulk strings.
fn array(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn decision(numbers: [i64; 5], rule: &str, verdict: &str) -> String {
    let numbers = numbers.map(|number| format!(":{number}\r\n")).concat();
    format!("*7\r\n{numbers}${}\r\n{rule}\r\n${}\r\n{verdict}\r\n", rule.len(), verdict.len())
}

#[test]
fn answers_redis_cli() {
    let daemon = with_resp("");
    let integers = |numbers: [i64; 5]| {
        let lines = numbers.iter().enumerate();
        lines.map(|(index, number)| format!("{}) (integer) {number}", index + 1)).collect::<Vec<_>>()
    };
    assert_eq!(cli(&daemon, "CL.THROTTLE user123 15 30 60"), integers([0, 16, 15, -1, 2]));
    assert_eq!(cli(&daemon, "cl.throttle user123 0 1 3600 1"), integers([0, 1, 0, -1, 3_600]));
    assert_eq!(cli(&daemon, "CL.THROTTLE user123 0 1 3600 1"), integers([1, 1, 0, 3_600, 3_600]));
    assert_eq!(cli(&daemon, "CL.THROTTLE other 0 1 3600 2"), integers([1, 1, 1, -1, 0]));
    for widest in ["4294967293 1000000 1", "0 1 17280000"] {
        assert_eq!(cli(&daemon, &format!("CL.THROTTLE key {widest}"))[0], "1) (integer) 0");
    }
    let hit = |numbers: [i64; 5], rule: &str, verdict: &str| {
        let texts = [format!("6) \"{rule}\""), format!("7) \"{verdict}\"")];
        Vec::from_iter(integers(numbers).into_iter().chain(texts))
    };
    assert_eq!(cli(&daemon, "PEEK shop user u1"), hit([0, 2, 2, -1, 0], "per-user", "allow"));
    assert_eq!(cli(&daemon, "HIT shop user u1 COST 2"), hit([0, 2, 0, -1, 3_600], "per-user", "allow"));
    assert_eq!(cli(&daemon, "hit shop user u1"), hit([1, 2, 0, 3_600, 3_600], "per-user", "limit"));
    assert_eq!(cli(&daemon, "hit shop cost 2 user u3"), hit([0, 2, 0, -1, 3_600], "per-user", "allow"));
    assert_eq!(cli(&daemon, "HIT shop user u2 COST 3"), hit([1, 2, 2, -1, 0], "per-user", "limit"));
    assert_eq!(cli(&daemon, "HIT shop agent bot"), hit([1, -1, -1, -1, -1], "bots", "deny"));
    assert_eq!(cli(&daemon, "HIT nowhere"), hit([0, -1, -1, -1, -1], "", "allow"));
    for (command, line) in [
        ("PING", "PONG"),
        ("QUIT", "OK"),
        ("SELECT 0", "OK"),
        ("CLIENT SETNAME web", "OK"),
        ("CLIENT SETINFO LIB-NAME x", "OK"),
        ("AUTH any", "OK"),
        ("COMMAND", "(empty array)"),
    ] {
        assert_eq!(cli(&daemon, command), [line], "{command}");
    }
    assert_eq!(cli(&daemon, "-3 PING"), ["PONG"]);
    assert_eq!(cli(&daemon, "HELLO 3")[0], "1# proto => (integer) 3");
    let count =
        |answer: &str| metric(&daemon, &format!("tidegate_resp_answers_total{{answer=\"{answer}\"}}"));
    assert_eq!(["allowed", "refused", "rejected"].map(count), [Some(8.0), Some(5.0), Some(0.0)]);
    assert!(!daemon.log().contains("user123"), "{}", daemon.log());
}

/// The same budget as the socket, in whatever pieces the bytes come.
#[test]
fn shares_budgets_with_the_socket_byte_by_byte() {
    let daemon = with_resp("");
    let mut wire = daemon.greeted();
    assert_eq!(verdict_of(&wire.ask(&hit(1, "u1"))), 0);
    let mut bytes = array(&[b"HIT", b"api", b"user", b"u1"]);
    bytes.extend_from_slice(b"\r\nHIT api user u1 COST 1\nPING\r\n*0\r\n*1\r\n$4\r\nquit\r\nPING\r\n");
    let mut stream = connect(&daemon);
    for byte in &bytes[..bytes.len() - 6] {
        stream.write_all(&[*byte]).unwrap();
    }
    let answer = read_all(&mut stream);
    let limits: Vec<&str> = answer.lines().filter(|line| line.starts_with(':')).collect();
    assert_eq!((limits[2], limits[7]), (":3", ":2"), "{answer}");
    assert!(answer.ends_with("\r\n+PONG\r\n+OK\r\n"), "{answer}");
    // Whole, with bytes behind the last command: the same answers.
    assert!(say(&daemon, &bytes).ends_with("\r\n+PONG\r\n+OK\r\n"));
}

#[test]
fn keeps_binary_values_apart() {
    let daemon = with_resp("");
    let ask = |value: &[u8]| say(&daemon, &array(&[b"HIT", b"shop", b"user", value, b"COST", b"2"]));
    let values: [&[u8]; 7] =
        [b"\xff", b"\xfe", b"a\0b", b"a\r\nb", b"\xff\xff", "ä".as_bytes(), &[b'x'; 3_000]];
    for value in values {
        assert_eq!(ask(value), decision([0, 2, 0, -1, 3_600], "per-user", "allow"), "{value:?}");
        assert!(ask(value).starts_with("*7\r\n:1\r\n"), "{value:?}");
    }
    for key in values {
        let ask = || say(&daemon, &array(&[b"CL.THROTTLE", key, b"0", b"1", b"3600"]));
        assert_eq!(ask(), "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n", "{key:?}");
        assert_eq!(ask(), "*5\r\n:1\r\n:1\r\n:0\r\n:3600\r\n:3600\r\n", "{key:?}");
    }
}

#[test]
fn names_the_fault_of_a_command() {
    let daemon = with_resp("");
    let large = "-ERR max_burst, count or period is negative or too large; help: ";
    let stays: &[(&str, &str)] = &[
        ("GET key", "-ERR this is no command; help: HIT domain key value"),
        ("HIT", "-ERR this is no command; help: HIT domain key value"),
        ("SELECT 1", "-ERR this is no command"),
        ("CLIENT LIST", "-ERR this is no command"),
        ("HIT shop user", "-ERR a value is missing, or the cost is negative; help: HIT "),
        ("HIT shop user u1 COST -1", "-ERR a value is missing, or the cost is negative; help: HIT "),
        ("HIT shop COST 1 user u1 Cost 1", "-ERR there is more than one COST; help: HIT "),
        ("HIT shop user u1 COST many", "-ERR a number is not an integer; help: HIT "),
        ("HIT shop a:b v", "-ERR an attribute key in descriptors must be a name: "),
        ("HIT a/b", "-ERR domain must be a name: "),
        ("CL.THROTTLE key 1 1", "-ERR a number is missing or negative; help: "),
        ("CL.THROTTLE key 1 1 1 -1", "-ERR a number is missing or negative; help: "),
        ("CL.THROTTLE key 1 1 x", "-ERR a number is not an integer; help: "),
        ("CL.THROTTLE key 1 0 60", "-ERR a rate of 0 refuses everything; help: "),
        ("CL.THROTTLE key -1 1 60", large),
        ("CL.THROTTLE key 4294967294 1 1", large),
        ("CL.THROTTLE key 1 4294967296 1", large),
        ("CL.THROTTLE key 1 -1 1", large),
        ("CL.THROTTLE key 1 1 9223372036854775807", large),
        ("CL.THROTTLE key 1 1 0", "-ERR a period is at least"),
        ("CL.THROTTLE key 1 1 31708800", "-ERR a period is at least"),
        ("CL.THROTTLE key 366 1 86400", "-ERR a burst this large"),
        ("CL.THROTTLE key 1 4294967295 1", "-ERR a rate this fast"),
        ("HELLO 4", "-NOPROTO help: HELLO 2, or HELLO 3"),
    ];
    let mut stream = connect(&daemon);
    for (command, fault) in stays {
        let answer = say(&daemon, format!("{command}\r\n").as_bytes());
        assert!(answer.starts_with(fault) && answer.matches('\n').count() == 1, "{command}: {answer}");
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
    }
    stream.write_all(b"QUIT\r\n").unwrap();
    assert_eq!(read_all(&mut stream).lines().count(), stays.len() + 1, "the connection stays");
    let rejected = metric(&daemon, "tidegate_resp_answers_total{answer=\"rejected\"}");
    assert_eq!(rejected, Some((2 * stays.len()) as f64));
    daemon.await_log(&[
        "WARN",
        "by RESP was not judged, and passes unless its application refuses: ERR a value is missing",
    ]);
    has(&daemon.run("status"), &["not judged by RESP: ", " requests; they pass unless their clients refuse"]);
}

#[test]
fn malformed_command_closes_its_connection() {
    let daemon = with_resp("");
    let long = |length: usize| "x".repeat(length);
    let too_long = "*1\r\n$65537\r\n".to_owned();
    let closes = [
        "*x\r\n".to_owned(),
        "*-1\r\n".to_owned(),
        "*37\r\n".to_owned(),
        "*99999999999999999999\r\n".to_owned(),
        "*1\r\n:1\r\n".to_owned(),
        "*1\r\n$-1\r\n".to_owned(),
        too_long.clone(),
        "*1\r\n$4\r\nPINGPONG".to_owned(),
        format!("*2\r\n$40000\r\n{}\r\n$40000\r\n{}", long(40_000), long(30_000)),
        long(4_096),
        format!("*{}", "0".repeat(4_096)),
    ];
    for bytes in &closes {
        let mut stream = connect(&daemon);
        stream.write_all(bytes.as_bytes()).unwrap();
        let answer = read_all(&mut stream);
        assert!(answer.starts_with("-ERR ") && answer.matches('\n').count() == 1, "{bytes:.60}: {answer}");
    }
    assert_eq!(say(&daemon, too_long.as_bytes()), "-ERR Protocol error: a command has at most 64 KiB\r\n");
    // What is half is not answered.
    for half in ["", "PING", "*1\r\n", "*1\r\n$4\r\nPING", "*1\r\n$4\r\nPING\r"] {
        assert_eq!(say(&daemon, half.as_bytes()), "", "{half:?}");
    }
    let rejected = metric(&daemon, "tidegate_resp_answers_total{answer=\"rejected\"}");
    assert_eq!(rejected, Some((closes.len() + 1) as f64));
    daemon.greeted().assert_served();
}

/// Thousands of commands in one write are answered in order; a client that does not read is closed, and no other waits.
#[test]
fn answers_a_pipeline_in_order() {
    let daemon = with_resp("");
    let mut stream = connect(&daemon);
    let mut reader = stream.try_clone().unwrap();
    let writer = thread::spawn(move || {
        let commands: Vec<u8> =
            (0..2_000).flat_map(|_| array(&[b"CL.THROTTLE", b"k", b"3999", b"1", b"3600"])).collect();
        let hits: Vec<u8> = (0..50).flat_map(|_| array(&[b"HIT", b"shop", b"user", b"u1"])).collect();
        stream.write_all(&[commands, hits, b"QUIT\r\n".to_vec()].concat()).unwrap();
    });
    let answer = read_all(&mut reader);
    writer.join().unwrap();
    let lines: Vec<&str> = answer.lines().collect();
    for (number, answer) in lines[..12_000].chunks(6).enumerate() {
        assert_eq!(answer[..4], ["*5", ":0", ":4000", &format!(":{}", 3_999 - number)]);
    }
    let verdicts = |verdict: &str| lines.iter().filter(|line| **line == verdict).count();
    assert_eq!((verdicts("allow"), verdicts("limit"), lines[lines.len() - 1]), (2, 48, "+OK"));
    let mut silent = connect(&daemon);
    silent.set_write_timeout(Some(PATIENCE)).unwrap();
    let pings = b"PING\r\n".repeat(10_000);
    while silent.write_all(&pings).is_ok() {
        assert_eq!(cli(&daemon, "PING"), ["PONG"], "another client is served meanwhile");
    }
    wait_until("its place is free", || metric(&daemon, "tidegate_resp_connections") == Some(0.0));
}

#[test]
fn follows_the_mode_of_the_daemon() {
    let daemon = with_resp("");
    let throttle = || cli(&daemon, "CL.THROTTLE key 0 1 3600")[0].clone();
    let (allowed, limited) = ("1) (integer) 0", "1) (integer) 1");
    assert_eq!([throttle(), throttle()], [allowed, limited]);
    daemon.run("switch --all disabled");
    wait_until("it is off", || throttle() == allowed);
    assert_eq!(cli(&daemon, "CL.THROTTLE key 0 1 3600")[3], "4) (integer) -1");
    daemon.run("switch --all --clear");
    wait_until("it is on", || throttle() == limited);
}

/// The uid decides, as on the socket: these domains are for another user.
#[test]
fn refuses_users_without_the_domain() {
    let daemon = with_resp("domains: {shop: {uids: [65534]}, resp: {uids: [65534]}}");
    let hit = cli(&daemon, "HIT shop user u1");
    assert!(hit[0].starts_with("(error) ERR ") && hit[0].contains("not open"), "{hit:?}");
    let throttle = cli(&daemon, "CL.THROTTLE key 0 1 60");
    assert!(throttle[0].starts_with("(error) ERR `resp` is not open to user "), "{throttle:?}");
    assert_eq!(cli(&daemon, "HIT api user u1")[6], "7) \"allow\"");
    assert!(!daemon.log().contains("no rules belong to the domain `resp`"), "{}", daemon.log());
}

#[test]
fn asks_for_the_token_and_a_listed_domain_over_tcp() {
    let token = "0123456789abcdef";
    let tcp = "adapters: {resp: {listen: \"127.0.0.1:0\", token_file: token, domains: [api]}}";
    let daemon = patient(RULES).settings(tcp).start();
    daemon.await_log(&["RESP is not served", "token: No such file", "correct `adapters.resp`"]);
    fs::write(daemon.plan.path("token"), format!("{token}\n")).unwrap();
    let port = daemon.port_of("RESP is served");
    let ask = |commands: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("{commands}\r\nQUIT\r\n").as_bytes()).unwrap();
        read_all(&mut stream)
    };
    let mut silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    for command in "PING,HIT api user u1,CL.THROTTLE k 1 1 60,SELECT 0,COMMAND,HELLO,HELLO 3".split(',') {
        assert!(ask(command).starts_with("-NOAUTH over TCP a client sends the token; help: "), "{command}");
    }
    for wrong in ["AUTH 0123456789abcdeF", "AUTH user 0123456789abcdef0", "HELLO 3 AUTH default x"] {
        assert!(ask(&format!("{wrong}\r\nPING")).starts_with("-WRONGPASS help: "), "{wrong}");
        has(&ask(&format!("AUTH {token}\r\n{wrong}\r\nPING")), &["\r\n-NOAUTH "]);
    }
    for right in ["AUTH 0123456789abcdef", "auth default 0123456789abcdef"] {
        assert_eq!(ask(&format!("{right}\r\nPING")), "+OK\r\n+PONG\r\n+OK\r\n", "{right}");
    }
    let hello = ask(&format!("HELLO 3 SETNAME web AUTH default {token}\r\nHIT api user u1"));
    assert!(hello.starts_with("%4\r\n+proto\r\n:3\r\n+server\r\n+tidegate\r\n+version\r\n+"), "{hello}");
    assert!(hello.contains("\r\n+role\r\n+master\r\n*7\r\n:0\r\n"), "{hello}");
    for closed in ["HIT shop user u1", "CL.THROTTLE k 1 1 60"] {
        let answer = ask(&format!("AUTH {token}\r\n{closed}"));
        has(&answer, &["\r\n-ERR this domain is not open over TCP; help: add it to `adapters.resp.domains`"]);
    }
    assert_eq!(read_all(&mut silent), "", "it has no token, and gives its place away");
    assert!(!daemon.log().contains(token), "{}", daemon.log());
}

/// Without an answer in time, the request is allowed, and the connection goes on.
#[test]
#[cfg(debug_assertions)]
fn allows_degraded_when_the_decision_is_late() {
    let daemon = start(Plan::new(), "");
    let late = say(&daemon, b"HIT shop user u1 debug-stall 200\r\nPING\r\n");
    assert_eq!(late, format!("{}+PONG\r\n", decision([0, -1, -1, -1, -1], "", "degraded")));
    assert!(metric(&daemon, "tidegate_resp_answers_total{answer=\"degraded\"}") >= Some(1.0));
}

#[test]
fn ends_with_the_daemon() {
    let mut daemon = with_resp("");
    let mut idle = connect(&daemon);
    idle.write_all(b"PING\r\n").unwrap();
    idle.read_exact(&mut [0; 7]).unwrap();
    daemon.stop();
    assert_eq!(read_all(&mut idle), "");
    assert!(!daemon.plan.path("resp.sock").exists(), "{}", daemon.log());
}
