//! Conversations with the real server: no panic, at most one reply per frame, and no lease left.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tempfile::TempDir;
use tidegate::clock::{Clock, read_boot_nanos};
use tidegate::engine::{ConnectionParams, Engine, PoolView};
use tidegate::protocol::{
    Code, FRAME_BYTES_MAX, FrameSplit, ReplyScratch, WireReply, decode_reply, split_frame,
};
use tidegate::rules::read_text;
use tidegate::server::{
    self, ConnectionLimits, DomainAccess, Listener, PoolAccess, ServerOptions, ThreadHealth,
};
use tokio_util::sync::CancellationToken;

use super::rules::new_engine;

/// A rule of every kind.
const RULES: &str = "\
domain: api
priorities: [critical, post, other]
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: bot}, help: https://example.com/bots}]
limits:
- {name: per-user, key: [user], rate: 1/h, burst: 5, help: https://example.com/limits, refund_on: ok, warn_at: 80%}
- {name: window, key: [user], algorithm: fixed_window, rate: 9/day, mode: shadow}
- {name: log, key: [ip], algorithm: sliding_log, rate: 3/h, over: {soft: 50%}}
- {name: paced, key: [host], algorithm: leaky_bucket, rate: 5/s, queue: 20}
- {name: tokens, key: [org], unit: tokens, rate: 1000/min, max_debt: 100}
- {name: elastic, key: [org], rate: 5/min, over: {elastic: 100%}}
concurrency:
- {name: exports, key: [user], max: 3, expires: 2h}
shed:
- {pool: web, slots: 4, queue_age: {others: 500ms, critical: 2500ms}, workers: {after: 1s, full: 30s}}
";

/// Separates frames, as no MessagePack value begins with it.
const SEPARATOR: u8 = 0xc1;
/// Begins a piece that is sent without a length.
const RAW: u8 = 0xd4;
/// Pieces per input: their replies fit into a socket buffer, so writing before reading never blocks.
const PIECES_MAX: usize = 48;
/// Longer than a busy machine takes to answer.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    static DAEMON: Daemon = Daemon::start();
}

/// Sends the bytes as frame payloads, split at separators.
pub fn check(bytes: &[u8]) {
    // Debug builds panic and stall at requests with these names.
    if !bytes.windows(6).any(|window| window == b"debug-") {
        DAEMON.with(|daemon| daemon.converse(bytes));
    }
}

/// A server in this process. Stopped at the end of its thread.
struct Daemon {
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    socket: PathBuf,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    _directory: TempDir,
}

impl Daemon {
    fn start() -> Daemon {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("t.sock");
        let (engine, clock) = (new_engine(), Arc::new(Clock::start()));
        let loaded = read_text("rules.yaml", RULES);
        assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
        drop(engine.install_rules(loaded.domains));
        let options = ServerOptions {
            threads: 1,
            connections: ConnectionLimits { max: 64, per_user: 64 },
            access: DomainAccess::default(),
            pools: PoolAccess::new([]),
            telemetry: Arc::default(),
            request_short_slices: false,
            thread_health: Arc::new(ThreadHealth::new(1)),
            remote_checker: None,
            recorder: Arc::default(),
        };
        let listener = Listener::bind(&socket, 0o600, None).unwrap();
        let stop = CancellationToken::new();
        let (to_engine, to_clock, to_stop) = (Arc::clone(&engine), Arc::clone(&clock), stop.clone());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = server::start(&to_engine, &to_clock, options).unwrap();
                server.run(listener, to_stop).await.unwrap();
            });
        });
        Daemon { engine, clock, socket, stop, thread: Some(thread), _directory: directory }
    }

    fn converse(&self, bytes: &[u8]) {
        let (stream, frames) = stream_of(bytes);
        let mut socket = UnixStream::connect(&self.socket).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        let sent = socket.write_all(&stream);
        let closed = |kind| matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        assert!(sent.as_ref().err().is_none_or(|error| closed(error.kind())), "{sent:?}");
        // The server may have closed it already.
        let _ = socket.shutdown(Shutdown::Write);
        let mut replies = Vec::new();
        match socket.read_to_end(&mut replies) {
            Ok(_) => {}
            // Closing a socket with unread bytes resets the connection.
            Err(error) => assert!(closed(error.kind()), "the connection does not end: {error}"),
        }
        drop(socket);
        check_replies(&replies, frames);
        self.end_sessions();
    }

    /// Closes named sessions as the exit of their process does, and asserts that no lease is left.
    fn end_sessions(&self) {
        let begin = read_boot_nanos();
        loop {
            for open in self.engine.open_sessions() {
                let opening = ConnectionParams {
                    name: Some(open.name),
                    user: open.user,
                    pool: &open.pool,
                    slots: open.slots,
                    connection: 0,
                    pid: None,
                };
                if let Ok(session) = self.engine.open_session(&opening, self.clock.now()) {
                    self.engine.end_session(&session, self.clock.now());
                    self.engine.close_connection(&session, self.clock.now());
                }
            }
            let (leases, in_progress) = (self.engine.leases(), self.engine.in_progress());
            let pools = self.engine.pools(self.clock.now());
            let is_idle = |pool: &PoolView| (pool.busy, pool.critical, pool.noncritical) == (0, 0, 0);
            if (leases.live, in_progress) == (0, 0) && pools.iter().all(is_idle) {
                return;
            }
            let waited = Duration::from_nanos(read_boot_nanos() - begin);
            assert!(waited < PATIENCE, "leases are left behind: {leases:?} {in_progress} {pools:?}");
            thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.cancel();
        self.thread.take().map(JoinHandle::join);
    }
}

/// The bytes of a conversation, and an upper bound of its frames.
fn stream_of(bytes: &[u8]) -> (Vec<u8>, usize) {
    let (mut stream, mut frames) = (Vec::new(), 0);
    for piece in bytes.split(|byte| *byte == SEPARATOR).take(PIECES_MAX) {
        let piece = &piece[..piece.len().min(FRAME_BYTES_MAX)];
        if let Some((&RAW, raw)) = piece.split_first() {
            let raw = &raw[..raw.len().min(256)];
            stream.extend_from_slice(raw);
            frames += raw.len();
        } else {
            stream.extend(u32::try_from(piece.len()).unwrap().to_be_bytes());
            stream.extend_from_slice(piece);
            frames += 1;
        }
    }
    (stream, frames)
}

/// Asserts that the bytes are replies, at most one per frame and one at the end, no internal errors.
fn check_replies(mut bytes: &[u8], frames: usize) {
    let mut count = 0;
    while !bytes.is_empty() {
        let FrameSplit::Frame { payload, consumed } = split_frame(bytes) else {
            panic!("part of a reply: {bytes:02x?}")
        };
        let mut scratch = ReplyScratch::default();
        match decode_reply(payload, &mut scratch) {
            Ok(WireReply::Error { code: Code::Internal, message, .. }) => {
                panic!("the server panicked: {message}")
            }
            Ok(_) => count += 1,
            Err(fault) => panic!("a malformed reply: {fault}: {payload:02x?}"),
        }
        bytes = &bytes[consumed..];
    }
    assert!(count <= frames + 1, "{count} replies to {frames} frames");
}
