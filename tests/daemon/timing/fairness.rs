//! Fairness between two real users on real sockets, one of which floods. The other is compared with the
//! same client of a second, idle daemon, so that the load of the machine slows down both.

use crate::prelude::*;

/// Connects as another user, greets on each connection if there is a greeting, and writes blocks of requests whenever there
/// is room. Prints a line once replies come, and the bytes of replies when its input ends.
const FLOOD: &str = r#"
import select, socket, sys
path, count, greeting, request = sys.argv[1], int(sys.argv[2]), *map(bytes.fromhex, sys.argv[3:])
block, lines, poll = request * max(1, 65536 // len(request)), {}, select.epoll()
for _ in range(count):
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    if greeting:
        line.sendall(greeting)
        assert line.recv(4096)[4:6].hex() == '9400'
    line.setblocking(False)
    lines[line.fileno()] = [line, 0]
    poll.register(line, select.EPOLLIN | select.EPOLLOUT)
poll.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)
received, floods, ended = 0, False, False
while not ended:
    for number, events in poll.poll():
        if number == sys.stdin.fileno():
            ended = True
            continue
        line = lines[number]
        try:
            if events & select.EPOLLIN:
                received += len(line[0].recv(1 << 20))
            line[1] = (line[1] + line[0].send(memoryview(block)[line[1]:])) % len(block)
        except BlockingIOError:
            pass
    if not floods and received > 2500:
        floods = True
        print('floods', flush=True)
print(received, flush=True)
"#;

/// The user of floods.
const OTHER: u32 = 65_534;

/// A process that floods.
pub(crate) struct Flood(Script);

impl Flood {
    pub(crate) fn start(daemon: &Daemon, connections: usize, frame: &[u8]) -> Flood {
        Flood::over(&daemon.socket(), connections, &[0, 0, 0, 4, 0x93, 0, 1, 1], frame)
    }

    fn over(socket: &Path, connections: usize, greeting: &[u8], request: &[u8]) -> Flood {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let arguments = [connections.to_string(), hex(greeting), hex(request)];
        let mut flood = Script::start(Some(OTHER), FLOOD, socket, &arguments);
        assert_eq!(flood.line(), "floods\n");
        Flood(flood)
    }

    /// Ends the flood; returns the bytes of its replies.
    pub(crate) fn end(mut self) -> u64 {
        self.0.end_input();
        self.0.line().trim().parse().unwrap()
    }
}

fn open_to_all(threads: u32) -> Daemon {
    Plan::new().threads(threads).open_to_all().start()
}

pub(crate) fn hit_of(bytes: usize) -> Vec<u8> {
    let empty = frame(&json!([3, 7, "api", []]));
    if bytes <= empty.len() {
        return empty;
    }
    let keys = (bytes / 1_000).max(1);
    let value = (bytes - empty.len()) / keys;
    let value = "x".repeat(value.saturating_sub(8).min(1_020));
    let pairs: Vec<_> = (0..keys.min(16)).flat_map(|key| [format!("k{key}"), value.clone()]).collect();
    frame(&json!([3, 7, "api", [pairs]]))
}

/// Median nanoseconds of round trips to both, in turn. Higher quantiles measure a machine of two processors
/// with three busy processes; `make bench` has the 99th percentile.
pub(super) fn round_trips(wires: [&mut Wire; 2]) -> [u64; 2] {
    medians(wires, |wire| {
        wire.ask(&hit(1, "quiet"));
    })
}

/// Median nanoseconds of `ask` on both, in turn.
fn medians<C>(mut clients: [&mut C; 2], ask: impl Fn(&mut C)) -> [u64; 2] {
    let mut nanos = [Vec::new(), Vec::new()];
    let begin = read_boot_nanos();
    while nanos[0].len() < 150 && (nanos[0].len() < 30 || read_boot_nanos() - begin < 3_000_000_000) {
        for (client, nanos) in clients.iter_mut().zip(&mut nanos) {
            let begin = read_boot_nanos();
            ask(client);
            nanos.push(read_boot_nanos() - begin);
        }
    }
    nanos.map(|mut nanos| {
        nanos.sort_unstable();
        nanos[nanos.len() / 2]
    })
}

#[test]
fn flood_of_one_user_keeps_latency_of_another() {
    needs!(is_root());
    for (threads, connections, bytes) in
        [(1, 16, 110), (1, 1, 110), (1, 900, 20), (1, 200, 16_384), (2, 200, 110)]
    {
        let (flooded, twin) = (open_to_all(threads), open_to_all(threads));
        // One connection on each decision thread: the flood occupies all of them.
        let mut here: Vec<Wire> = (0..2).map(|_| flooded.greeted()).collect();
        let mut there = twin.greeted();
        let flood = Flood::start(&flooded, connections, &hit_of(bytes));
        for wire in &mut here {
            let [flooded, idle] = round_trips([wire, &mut there]);
            let report = format!(
                "{connections} connections, frames of {bytes} bytes, {threads} threads: \
                 {flooded} ns, beside {idle} ns"
            );
            eprintln!("{report}");
            assert!(flooded < RATIO_MAX * idle, "{report}");
        }
        flood.end();
        // The log has no late heartbeat.
        assert!(!flooded.log().contains("does not answer"), "{}", flooded.log());
    }
}

/// The thread of an adapter is shared by user as a decision thread is.
#[test]
fn flood_of_an_adapter_keeps_latency_of_another_user() {
    needs!(is_root());
    let settings = "adapters: {http: {socket: http.sock}, resp: {socket: resp.sock}}";
    let start = || Plan::new().settings(settings).open_to_all().start();
    let throttle = "CL.THROTTLE k 2 1 60\r\n";
    let document = "GET /v1/openapi.json HTTP/1.1\r\nhost: x\r\n\r\n";
    let body = r#"{"domain": "api", "attributes": {"user": "u1"}}"#;
    let hit = format!("POST /v1/hit HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for (socket, request, flood) in
        [("resp.sock", throttle, throttle), ("http.sock", &*hit, &*hit), ("http.sock", &*hit, document)]
    {
        let (flooded, twin) = (start(), start());
        let [mut here, mut there] = [&flooded, &twin].map(|daemon| {
            daemon.await_log(&["is served", socket]);
            daemon.plan.path(socket)
        });
        let flood = Flood::over(&here, 100, &[], flood.as_bytes());
        // The first connection of a user must not wait behind those of another.
        let [flooded, idle] = medians([&mut here, &mut there], |path| {
            let mut stream = UnixStream::connect(path).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            // An answer is one write.
            assert!(stream.read(&mut [0; 8_192]).unwrap() > 0);
        });
        flood.end();
        let report = format!("{request:?}: {flooded} ns, beside {idle} ns");
        eprintln!("{report}");
        assert!(flooded < RATIO_MAX * idle, "{report}");
    }
}

/// Connects and closes in a loop until its input ends.
const CONNECTIONS: &str = r#"
import select, socket, sys
while not select.select([sys.stdin], [], [], 0)[0]:
    for _ in range(1000):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(sys.argv[1])
    print('floods', flush=True)
"#;

/// The accepting thread assigns connections also while there are always more to accept.
#[test]
fn flood_of_connections_keeps_others_connecting() {
    needs!(is_root());
    let daemon = open_to_all(1);
    let mut floods = [(); 2].map(|()| Script::start(Some(OTHER), CONNECTIONS, &daemon.socket(), &[]));
    for _ in 0..10 {
        floods.iter_mut().for_each(|flood| assert_eq!(flood.line(), "floods\n"));
        daemon.greeted().assert_served();
    }
}

/// Bound on a round trip relative to an idle daemon's. A batch and a round precede the reply, unlike in an
/// idle daemon; a queue of the other user's frames would take about a hundred times as long.
pub(super) const RATIO_MAX: u64 = 40;
