//! Messages to a service manager.

use crate::prelude::*;
use std::os::unix::net::UnixDatagram;
use tidegate::clock::read_monotonic_micros;

/// The manager's end of its socket.
struct NotifySocket(UnixDatagram);

impl NotifySocket {
    fn bind(plan: &Plan) -> NotifySocket {
        let notify_socket = UnixDatagram::bind(plan.path("notify")).unwrap();
        notify_socket.set_read_timeout(Some(PATIENCE)).unwrap();
        NotifySocket(notify_socket)
    }

    fn next(&self) -> Vec<String> {
        let mut bytes = [0; 4_096];
        let count = self.0.recv(&mut bytes).expect("a message");
        std::str::from_utf8(&bytes[..count]).unwrap().lines().map(str::to_owned).collect()
    }

    /// The next message with a line that begins with `begin`.
    fn next_with(&self, begin: &str) -> Vec<String> {
        std::iter::repeat_with(|| self.next())
            .find(|lines| lines.iter().any(|line| line.starts_with(begin)))
            .unwrap()
    }

    /// All messages received so far.
    fn rest(&self) -> Vec<String> {
        self.0.set_nonblocking(true).unwrap();
        let mut bytes = [0; 4_096];
        let messages =
            std::iter::from_fn(|| self.0.recv(&mut bytes).ok().map(|count| bytes[..count].to_vec()));
        let messages = messages.map(|message| String::from_utf8(message).unwrap()).collect();
        self.0.set_nonblocking(false).unwrap();
        messages
    }
}

fn notifying_daemon(plan: &Plan, watchdog: Option<Duration>) -> Command {
    let mut command = plan.command("log");
    command.env("NOTIFY_SOCKET", plan.path("notify"));
    if let Some(watchdog) = watchdog {
        command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
    }
    command
}

#[test]
fn notifies_systemd_of_ready_reload_and_stop() {
    let plan = Plan::new();
    let notify_socket = NotifySocket::bind(&plan);
    let command = notifying_daemon(&plan, None);
    let mut daemon = plan.start_by(command, " serving ");
    notify_socket.next_with("READY=1");
    // READY=1 means ready at once.
    daemon.greeted().assert_served();
    // A requested reload. systemd 253 and later identify the request by the time stamp.
    let before = read_monotonic_micros();
    daemon.process.signal(libc::SIGHUP);
    let reloading = notify_socket.next_with("RELOADING=1");
    let stamp = reloading.iter().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")).expect("a stamp");
    let stamp: u64 = stamp.parse().unwrap();
    assert!(before <= stamp && stamp <= read_monotonic_micros(), "{reloading:?}");
    notify_socket.next_with("READY=1");
    assert_eq!(notify_socket.next_with("STATUS="), ["STATUS=serving: 1 rule in 1 domain"]);
    // Rules with errors: it continues and reports them.
    fs::write(daemon.plan.path("rules").join("api.yaml"), "domain: api\nlimits: [").unwrap();
    daemon.process.signal(libc::SIGHUP);
    notify_socket.next_with("RELOADING=1");
    notify_socket.next_with("READY=1");
    let status = notify_socket.next_with("STATUS=");
    assert!(status[0].contains("the files have ERRORS"), "{status:?}");
    daemon.process.signal(libc::SIGTERM);
    notify_socket.next_with("STOPPING=1");
    assert_eq!(daemon.process.exit_code(), Some(0));
    // Without WATCHDOG_USEC there are no watchdog messages.
    assert!(notify_socket.rest().iter().all(|message| !message.contains("WATCHDOG")));
}

#[test]
#[cfg(debug_assertions)]
fn notifies_watchdog_only_while_all_threads_decide() {
    let plan = Plan::new().threads(2);
    let notify_socket = NotifySocket::bind(&plan);
    let command = notifying_daemon(&plan, Some(Duration::from_secs(1)));
    let daemon = plan.start_by(command, " serving ");
    for _ in 0..3 {
        notify_socket.next_with("WATCHDOG=1");
    }
    // One of the two threads hangs within a decision.
    let mut wires = [daemon.greeted(), daemon.greeted()];
    wires[0].send(&json!([3, 2, "api", [["user", "u1", "debug-stall", "5000"]]]));
    let line = daemon.await_log(&["WARN", "these threads do not answer: the watchdog is not notified"]);
    assert!(line.contains("threads=\"decide-0\"") || line.contains("threads=\"decide-1\""), "{line}");
    notify_socket.rest();
    // The daemon is not ready either.
    let thread = line.split('"').nth(1).unwrap();
    let words = format!("the thread `{thread}` does not answer");
    wait_until("it is not ready", || {
        let ready = get(&daemon, "/readyz");
        ready.status == 503 && ready.body.contains(&words)
    });
    // Decisions of the other thread cause no message.
    wires[1].assert_served();
    wires[0].hear().expect("an answer after all");
    let meanwhile = notify_socket.rest();
    let pings = meanwhile.iter().filter(|message| message.contains("WATCHDOG")).count();
    // The thread may just have finished its own probe.
    assert!(pings <= 1, "{meanwhile:?}");
    notify_socket.next_with("WATCHDOG=1");
    daemon.await_log(&["INFO", "every thread works again"]);
    wait_until("it is ready", || get(&daemon, "/readyz").status == 200);
}

#[test]
fn serves_when_service_manager_does_not_listen() {
    // The socket does not exist.
    let plan = Plan::new();
    let mut process = Process::start(&mut notifying_daemon(&plan, Some(Duration::from_millis(200))));
    eventually("it serves", || UnixStream::connect(plan.socket()).ok());
    Wire::greeted(&plan.socket()).assert_served();
    process.signal(libc::SIGTERM);
    assert_eq!(process.exit_code(), Some(0));
    // The receiver never reads: the kernel buffers some messages, then a sender would block.
    let plan = Plan::new();
    let notify_socket = NotifySocket::bind(&plan);
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    while sender.send_to(b"X=1", plan.path("notify")).is_ok() {}
    let command = notifying_daemon(&plan, Some(Duration::from_millis(200)));
    let mut daemon = plan.start_by(command, " serving ");
    daemon.greeted().assert_served();
    daemon.process.signal(libc::SIGHUP);
    daemon.await_log(&["the rules were read again"]);
    daemon.greeted().assert_served();
    daemon.stop();
    drop(notify_socket);
}
