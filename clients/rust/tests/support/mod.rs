//! The real daemon, and a scripted one, on a socket in a temporary folder.
#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "helpers of tests fail the test"
)]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_client::{Client, ClientBuilder};
use tokio::time::Instant;

/// For tests that are not about the deadline, on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(30);

/// Waits for a condition.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENT, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The lines that a client has logged.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A client of this socket, and its log.
pub(crate) fn client(path: &Path, build: impl FnOnce(ClientBuilder) -> ClientBuilder) -> (Client, Lines) {
    let lines = Lines::default();
    let logged = lines.clone();
    let logger = move |line: &str| logged.0.lock().unwrap().push(line.to_owned());
    let builder = Client::builder().socket(path).timeout(PATIENT).logger(logger);
    (build(builder).build(), lines)
}

/// The daemon of `TIDEGATE_BIN`.
pub(crate) struct Daemon {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) child: Child,
}

impl Daemon {
    pub(crate) async fn start(rules: &str) -> Daemon {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("rules")).unwrap();
        std::fs::write(folder.path().join("rules/rules.yaml"), rules).unwrap();
        let child = Daemon::spawn(folder.path());
        let daemon = Daemon { folder, child };
        daemon.serves().await;
        daemon
    }

    fn spawn(folder: &Path) -> Child {
        let binary = std::env::var_os("TIDEGATE_BIN").expect("TIDEGATE_BIN names the daemon to test with");
        let mut command = Command::new(binary);
        command.args(["serve", "--socket"]).arg(folder.join("s")).arg("--rules").arg(folder.join("rules"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    async fn serves(&self) {
        let (probe, _) = client(&self.path(), |builder| builder.timeout(Duration::from_secs(1)));
        until("it serves", async || probe.check().await).await;
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops the process, and waits until it has.
    pub(crate) async fn hang(&self) {
        self.signal(rustix::process::Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id());
        until("it hangs", async || std::fs::read_to_string(&stat).unwrap().contains(") T ")).await;
    }

    pub(crate) fn end(&mut self, signal: rustix::process::Signal) {
        self.signal(signal);
        self.child.wait().unwrap();
    }

    pub(crate) async fn restart(&mut self) {
        self.child = Daemon::spawn(self.folder.path());
        self.serves().await;
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon that answers each frame but HELLO and PING by a script: bytes to send, or `None` to hang up.
pub(crate) struct Scripted {
    folder: tempfile::TempDir,
    pub(crate) seen: Arc<Mutex<Vec<Vec<u8>>>>,
    open: Arc<AtomicUsize>,
}

pub(crate) type Script = dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync;

impl Scripted {
    pub(crate) fn start(script: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Scripted {
        let folder = tempfile::tempdir().unwrap();
        let scripted = Scripted { folder, seen: Arc::default(), open: Arc::default() };
        let listener = UnixListener::bind(scripted.path()).unwrap();
        let script: Arc<Script> = Arc::new(script);
        let (seen, open) = (Arc::clone(&scripted.seen), Arc::clone(&scripted.open));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (script, seen, open) = (Arc::clone(&script), Arc::clone(&seen), Arc::clone(&open));
                open.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    Scripted::serve(stream.unwrap(), &*script, &seen);
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        scripted
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// The open connections.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// The payloads of this op that came.
    pub(crate) fn of(&self, op: u8) -> Vec<Vec<u8>> {
        self.seen.lock().unwrap().iter().filter(|payload| payload[1] == op).cloned().collect()
    }

    fn serve(mut stream: UnixStream, script: &Script, seen: &Mutex<Vec<Vec<u8>>>) {
        let mut head = [0; 4];
        while stream.read_exact(&mut head).is_ok() {
            let mut payload = vec![0; u32::from_be_bytes(head) as usize];
            if stream.read_exact(&mut payload).is_err() {
                return;
            }
            seen.lock().unwrap().push(payload.clone());
            let reply = match payload[1] {
                0 => Some(frame(&[&[0x94, 0, 0, 1], WELCOME_INFO].concat())),
                8 => Some(frame(&[0x93, 2, payload[2], 0xc3])),
                _ => script(&payload),
            };
            match reply {
                Some(bytes) if stream.write_all(&bytes).is_ok() => {}
                _ => return,
            }
        }
    }
}

const WELCOME_INFO: &[u8] = &[0x81, 0xa6, b's', b'e', b'r', b'v', b'e', b'r', 0xa1, b't'];

/// A frame with this payload.
pub(crate) fn frame(payload: &[u8]) -> Vec<u8> {
    [&u32::try_from(payload.len()).unwrap().to_be_bytes(), payload].concat()
}

/// ALLOW for a request with a small id, and a lease if it is not 0.
pub(crate) fn allow(payload: &[u8], lease: u8) -> Vec<u8> {
    let lease = if lease == 0 { 0xc0 } else { lease };
    frame(&[0x9a, 1, payload[2], 0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0, lease])
}
