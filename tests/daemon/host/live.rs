//! This machine: queues of listeners that do not accept, a pool that brakes, a thread that burns CPU time, and
//! the cost of sampling in CPU time, which does not vary with the load of the machine as elapsed time does.

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use rustix::net::sockopt::{set_ipv6_v6only, set_socket_reuseport};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, getsockname, listen,
    socket_with,
};
use rustix::time::{ClockId, clock_gettime};
use tidegate::clock::{Clock, Now};
use tidegate::engine::{ConnectionParams, Engine, EngineOptions, HashKey, Mode, PoolView};
use tidegate::host::{HostSignals, Listen, SignalSampler, SignalSensors, SignalSink, SignalSource};
use tidegate::rules::read_text;

use super::machine::FakeClient;
use crate::prelude::*;

/// Samples one signal of this machine.
struct Reader {
    client: FakeClient,
    sensors: SignalSensors,
    ticks: u64,
}

impl Reader {
    fn new(source: SignalSource) -> Reader {
        let client = FakeClient::new(&[("signal", source)], None);
        Reader { client, sensors: SignalSensors::new(Path::new("/")), ticks: 0 }
    }

    fn read(&mut self) -> Option<u32> {
        self.ticks += 1;
        self.sensors.sample(&self.client, Now::at_nanos(self.ticks * 250_000_000));
        self.client.observed()[0]
    }

    /// Reads until the expected value: a connection may take a moment to be established.
    fn read_until(&mut self, expected: Option<u32>) -> Option<u32> {
        let mut readings = (0..500).map(|_| self.read());
        let last = readings.find(|reading| *reading == expected || pause());
        last.unwrap_or_else(|| self.read())
    }
}

fn pause() -> bool {
    sleep(Duration::from_millis(10));
    false
}

fn tcp(family: AddressFamily) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::STREAM, flags, None).unwrap()
}

fn listening(address: SocketAddr, backlog: i32) -> (OwnedFd, SocketAddr) {
    let socket = tcp(if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 });
    set_socket_reuseport(&socket, true).unwrap();
    if address.is_ipv6() {
        set_ipv6_v6only(&socket, true).unwrap();
    }
    bind(&socket, &address).unwrap();
    listen(&socket, backlog).unwrap();
    let bound = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, bound)
}

/// Connects, or begins to if the queue is full.
fn connected(address: SocketAddr) -> OwnedFd {
    let socket = tcp(if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 });
    let result = connect(&socket, &address);
    assert!(matches!(result, Ok(()) | Err(rustix::io::Errno::INPROGRESS)), "{result:?}");
    socket
}

/// The sum of Recv-Q of a port's listeners from `ss`; `None` without `ss`.
fn as_ss_says(port: u16) -> Option<u32> {
    let output = Command::new("ss").args(["-Hltn", &format!("sport = :{port}")]).output().ok()?;
    let text = String::from_utf8(output.stdout).unwrap();
    let waiting = text.lines().map(|line| line.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap());
    Some(waiting.sum())
}

#[test]
fn reads_accept_queue_of_tcp_port() {
    let backlog = 3;
    let (listener, address) = listening((Ipv4Addr::LOCALHOST, 0).into(), 3);
    let mut reader = Reader::new(SignalSource::AcceptQueue(Listen::Port(address.port())));
    assert_eq!(reader.read(), Some(0));
    let mut connections = Vec::new();
    for connecting in 1..=6 {
        connections.push(connected(address));
        let expected = Some(connecting.min(backlog + 1));
        assert_eq!(reader.read_until(expected), expected, "{connecting} connecting");
        if let Some(waiting) = as_ss_says(address.port()) {
            assert_eq!(expected, Some(waiting), "as ss says");
        }
    }
    drop(accept(&listener).unwrap());
    drop(listener);
    assert_eq!(reader.read_until(None), None, "nobody listens any more: no reading");
}

#[test]
fn sums_accept_queues_of_all_listeners() {
    let (_first, address) = listening((Ipv4Addr::LOCALHOST, 0).into(), 64);
    let (_second, _) = listening(address, 64);
    let by_six = SocketAddr::from((Ipv6Addr::LOCALHOST, address.port()));
    let (_third, _) = listening(by_six, 64);
    let mut reader = Reader::new(SignalSource::AcceptQueue(Listen::Port(address.port())));
    let _connections: Vec<_> = (0..20).map(|_| connected(address)).chain([connected(by_six)]).collect();
    assert_eq!(reader.read_until(Some(21)), Some(21));
}

fn unix() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

fn listening_at(address: &SocketAddrUnix, backlog: i32) -> OwnedFd {
    let socket = unix();
    bind(&socket, address).unwrap();
    listen(&socket, backlog).unwrap();
    socket
}

fn connected_to(address: &SocketAddrUnix) -> OwnedFd {
    let socket = unix();
    // A full queue refuses.
    let _ = connect(&socket, address);
    socket
}

fn reader_of(path: &Path) -> Reader {
    Reader::new(SignalSource::AcceptQueue(Listen::Path(path.to_str().unwrap().into())))
}

#[test]
fn reads_accept_queue_of_unix_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.sock");
    let mut reader = reader_of(&path);
    assert_eq!(reader.read(), None, "there is no socket");
    let address = SocketAddrUnix::new(&path).unwrap();
    let listener = listening_at(&address, 2);
    let connections: Vec<_> = (1..=5)
        .map(|connecting| {
            let connection = connected_to(&address);
            assert_eq!(reader.read(), Some(connecting.min(3)));
            connection
        })
        .collect();
    // Another path to the same socket works too.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path(), &link).unwrap();
    assert_eq!(reader_of(&link.join("app.sock")).read(), Some(3));
    drop(accept(&listener).unwrap());
    assert_eq!(reader.read(), Some(2));

    // A new process takes over the path; the old one still serves its queue.
    fs::remove_file(&path).unwrap();
    assert_eq!(reader.read(), None);
    let next = listening_at(&address, 2);
    assert_eq!(reader.read(), Some(0), "not the queue of who had the path before");
    let _connection = connected_to(&address);
    assert_eq!(reader.read(), Some(1));
    // Two sockets bound to the same path: the file decides.
    let aside = directory.path().join("aside.sock");
    fs::rename(&path, &aside).unwrap();
    let last = listening_at(&address, 2);
    fs::rename(&aside, &path).unwrap();
    assert_eq!(reader_of(&path).read(), Some(1));
    drop((next, last));
    // A restart between two samples; the file may reuse the inode number.
    fs::remove_file(&path).unwrap();
    let again = listening_at(&address, 2);
    assert_eq!(reader.read(), Some(0));
    drop((again, listener, connections));
    // A process forked by another test holds the descriptors until its exec.
    wait_until("the file is left, but no process listens", || reader.read().is_none());
}

/// A machine on which a sample never ends.
struct Stuck {
    begun: Sender<()>,
    never: Mutex<Receiver<()>>,
}

impl SignalSink for Stuck {
    fn wanted_signals(&self) -> Vec<HostSignals> {
        self.begun.send(()).unwrap();
        let _ = self.never.lock().unwrap().recv();
        Vec::new()
    }

    fn add_sample(&self, _: &str, _: &str, _: Option<u32>, _: Now) {}
}

#[test]
fn sampler_drop_does_not_wait_for_sample() {
    let ((begun, begins), (release, never)) = (channel(), channel());
    let stuck = Arc::new(Stuck { begun, never: Mutex::new(never) });
    let (sampler, work) = SignalSampler::new(stuck, Arc::new(Clock::start()));
    let thread = thread::spawn(work);
    begins.recv().unwrap();
    drop(sampler);
    assert!(!thread.is_finished(), "the reading goes on");
    drop(release);
    thread.join().unwrap();
}

#[test]
fn samples_busy_thread_until_dropped() {
    let wanted =
        [("cpu", SignalSource::Cpu), ("quota", SignalSource::CpuQuota), ("pushed", SignalSource::Pushed)];
    let client = Arc::new(FakeClient::new(&wanted, Some(std::process::id())));
    let burning = Arc::new(AtomicBool::new(true));
    let burner = thread::spawn({
        let burning = Arc::clone(&burning);
        move || while black_box(burning.load(Ordering::Relaxed)) {}
    });
    let (sampler, work) = SignalSampler::new(client.clone(), Arc::new(Clock::start()));
    let sampling = thread::spawn(work);
    let mut seen = Vec::new();
    for _ in 0..1_000 {
        seen.extend(client.observed_by_name());
        if seen.iter().filter(|(name, _)| name == "cpu").count() >= 2 {
            break;
        }
        pause();
    }
    burning.store(false, Ordering::Relaxed);
    burner.join().unwrap();
    drop(sampler);
    sampling.join().unwrap();
    assert_eq!(Arc::strong_count(&client), 1, "the thread has ended");
    let of = |name: &str| {
        seen.iter().filter(|(signal, _)| signal == name).filter_map(|(_, reading)| *reading).max()
    };
    let cpus = u32::try_from(thread::available_parallelism().unwrap().get()).unwrap();
    assert!(of("cpu").unwrap() >= 500 / cpus, "{seen:?}");
    // Without visible control groups, no sample is correct.
    assert!(of("quota").is_none_or(|quota| quota >= 500 / cpus), "{seen:?}");
    assert_eq!(of("pushed"), None, "that is the application's to say");
}

fn engine(port: u16) -> Engine {
    let rules = format!(
        "domain: api\ndefaults: {{scope: host}}\npriorities: [critical, other]\nshed:\n  - pool: web\n    \
         brake: {{bands: [80%]}}\n    signals: {{accept_queue: {{listen: \":{port}\"}}, cpu: {{use: false}}}}\n"
    );
    let loaded = read_text("web.yaml", &rules);
    assert_eq!(loaded.problems, []);
    let hash_key = HashKey::from_bytes([7; 16]);
    let engine = Engine::new(EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 64 << 20 });
    engine.install_rules(loaded.domains);
    engine
}

/// The pool after these ticks of 250 ms.
fn after(engine: &Engine, sensors: &mut SignalSensors, ticks: std::ops::Range<u64>) -> PoolView {
    let mut now = Now::default();
    for tick in ticks {
        now = Now::at_nanos(tick * 250_000_000);
        sensors.sample(engine, now);
        engine.tick(now);
    }
    engine.pools(now).into_iter().find(|pool| &*pool.pool == "web").unwrap()
}

#[test]
fn brakes_pool_until_accept_queue_empties() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let engine = engine(address.port());
    let opening = ConnectionParams {
        name: None,
        user: 0,
        pool: "web",
        slots: 8,
        connection: 1,
        pid: Some(std::process::id()),
    };
    let _session = engine.open_session(&opening, Now::at_nanos(0)).unwrap();
    let mut sensors = SignalSensors::new(Path::new("/"));
    assert!(!after(&engine, &mut sensors, 0..40).braking);
    let connections: Vec<_> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
    let pool = after(&engine, &mut sensors, 40..80);
    assert!(pool.braking, "{pool:?}");
    let of_queue = pool.signals.iter().find(|signal| &*signal.name == "accept_queue").unwrap();
    assert_eq!(of_queue.utilization, Some(0.25), "8 of the 32 that the map calls full: {pool:?}");
    let accepted: Vec<_> = (0..8).map(|_| listener.accept().unwrap()).collect();
    let pool = after(&engine, &mut sensors, 80..120);
    assert!(!pool.braking, "{pool:?}");
    drop((connections, accepted));
}

fn everything(port: u16) -> FakeClient {
    let wanted = [
        ("accept_queue", SignalSource::AcceptQueue(Listen::Port(port))),
        ("cpu_pressure", SignalSource::CpuPressure),
        ("memory_pressure", SignalSource::MemoryPressure),
        ("io_pressure", SignalSource::IoPressure),
        ("cpu_quota", SignalSource::CpuQuota),
        ("cpu", SignalSource::Cpu),
    ];
    FakeClient::new(&wanted, Some(std::process::id()))
}

#[allow(clippy::disallowed_methods, reason = "a measurement, not a decision")]
fn cpu_nanos() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[test]
fn bounds_cpu_time_of_samples() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = everything(listener.local_addr().unwrap().port());
    let mut sensors = SignalSensors::new(Path::new("/"));
    let sample =
        |sensors: &mut SignalSensors, tick: u64| sensors.sample(&client, Now::at_nanos(tick * 250_000_000));
    // The first samples open files and count CPUs.
    (0..8).for_each(|tick| sample(&mut sensors, tick));
    let before = cpu_nanos();
    (8..48).for_each(|tick| sample(&mut sensors, tick));
    let spent = cpu_nanos() - before;
    println!("{} µs of CPU time for 10 s", spent / 1_000);
    assert!(spent <= 20_000_000, "{spent} ns");
}
