//! One user floods, another sends single requests: its latency, and the gaps of watchdog messages.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tidegate::clock::read_boot_nanos;

use crate::load::{Connection, now_and_then};
use crate::report::{Bound, Row};
use crate::servers::Daemon;
use crate::workload;

pub(crate) fn run(binary: &Path, directory: &Path, repetitions: usize, nanos: u64) -> io::Result<Vec<Row>> {
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::other("only root can be two users"));
    }
    let place = directory.join("fairness");
    fs::create_dir(&place)?;
    for open in [directory, &place] {
        fs::set_permissions(open, Permissions::from_mode(0o755))?;
    }
    let daemon = Daemon::prepare_with(binary, &place, "socket: {mode: \"0666\"}\n")?;
    let mut rows = Vec::new();
    let mut gaps = Vec::new();
    for connections in [1, 16, 200, 1_000] {
        for frame_bytes in [20, 110, 1_024, 16_384] {
            eprintln!("fairness: {connections} connections, frames of {frame_bytes} bytes");
            let (mut flooded, mut calm) = (Vec::new(), Vec::new());
            for _ in 0..repetitions {
                let heartbeat = Heartbeat::listen(&place.join("notify.sock"))?;
                let server = daemon.start_watched(heartbeat.path(), WATCHDOG_MICROS)?;
                let mut connection = server.connect(1)?;
                calm.push(p99_millis(&mut connection, nanos / 4)?);
                let flood = Flood::start(server.socket(), connections, frame_bytes)?;
                flooded.push(p99_millis(&mut connection, nanos / 2)?);
                drop(flood);
                drop(server);
                gaps.push(heartbeat.longest_gap_seconds());
            }
            let figure = format!(
                "p99 of one hit while another user floods, {connections} connections, frames of {frame_bytes} bytes"
            );
            rows.push(Row::alone(&figure, "ms", &flooded).must(Bound::AtMost(5.0)));
            rows.push(Row::alone("the same before the flood", "ms", &calm));
        }
    }
    let longest = gaps.into_iter().fold(0.0, f64::max);
    let figure = "longest gap between two heartbeats during all floods";
    rows.push(Row::alone(figure, "s", &[longest]).must(Bound::AtMost(1.0)));
    Ok(rows)
}

fn p99_millis(connection: &mut Connection, nanos: u64) -> io::Result<f64> {
    let (times, _) = now_and_then(connection, INTERVAL_NANOS, nanos, || Ok(0))?;
    Ok(times.value_at_quantile(0.99) as f64 / 1e6)
}

/// A service manager's socket that measures the gaps between watchdog messages.
struct Heartbeat {
    path: std::path::PathBuf,
    end: Sender<()>,
    longest: JoinHandle<u64>,
}

impl Heartbeat {
    fn listen(path: &Path) -> io::Result<Heartbeat> {
        // Remove the socket of the previous repetition.
        let _ = fs::remove_file(path);
        let socket = UnixDatagram::bind(path)?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let (end, ended) = channel();
        let longest = thread::spawn(move || longest_gap(&socket, &ended));
        Ok(Heartbeat { path: path.to_owned(), end, longest })
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn longest_gap_seconds(self) -> f64 {
        let _ = self.end.send(());
        self.longest.join().map_or(f64::INFINITY, |nanos| nanos as f64 / 1e9)
    }
}

fn longest_gap(socket: &UnixDatagram, ended: &Receiver<()>) -> u64 {
    let (mut last, mut longest, mut word) = (None, 0, [0; 4_096]);
    while ended.try_recv().is_err() {
        let Ok(bytes) = socket.recv(&mut word) else { continue };
        if word[..bytes].windows(10).any(|part| part == b"WATCHDOG=1") {
            let now = read_boot_nanos();
            longest = longest.max(last.map_or(0, |last| now - last));
            last = Some(now);
        }
    }
    longest
}

/// A process of another user that floods. Killed when dropped.
struct Flood(Child);

impl Flood {
    fn start(socket: &Path, connections: usize, frame_bytes: usize) -> io::Result<Flood> {
        // This path lets another user run a program in a directory that only root may read.
        let mut command = Command::new("/proc/self/exe");
        command.arg("flood").arg(socket).args([connections.to_string(), frame_bytes.to_string()]);
        command.uid(NOBODY).gid(NOBODY).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut flood = Flood(command.spawn()?);
        let mut ready = [0];
        flood.0.stdout.take().map_or(Ok(()), |mut out| out.read_exact(&mut ready))?;
        Ok(flood)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes blocks of frames on each connection whenever there is room, until killed.
pub(crate) fn flood(socket: &Path, connections: usize, frame_bytes: usize) -> io::Result<()> {
    let frame = hit_of(frame_bytes);
    let block = frame.repeat((65_536 / frame.len()).max(1));
    let mut lines = Vec::new();
    for _ in 0..connections {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(&workload::hello())?;
        stream.read_exact(&mut [0; 8])?;
        stream.set_nonblocking(true)?;
        lines.push((stream, 0));
    }
    io::stdout().write_all(b".")?;
    io::stdout().flush()?;
    let mut replies = vec![0; 1 << 20];
    loop {
        let mut worked = false;
        for (stream, written) in &mut lines {
            while let Ok(1..) = stream.read(&mut replies) {
                worked = true;
            }
            match stream.write(&block[*written..]) {
                Ok(count) => {
                    *written = (*written + count) % block.len();
                    worked = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if !worked {
            let ready = |line: &'_ (UnixStream, usize)| line.0.as_fd().try_clone_to_owned();
            let owned = lines.iter().take(16).map(ready).collect::<io::Result<Vec<_>>>()?;
            let mut fds: Vec<_> =
                owned.iter().map(|fd| PollFd::new(fd, PollFlags::IN | PollFlags::OUT)).collect();
            poll(&mut fds, None)?;
        }
    }
}

/// A HIT of about `frame_bytes` bytes.
fn hit_of(frame_bytes: usize) -> Vec<u8> {
    let text = |text: &str| {
        let length = u16::try_from(text.len()).unwrap_or_default().to_be_bytes();
        [&[0xda][..], &length, text.as_bytes()].concat()
    };
    let mut payload = [&[0x94, 3, 7][..], &text(workload::DOMAIN)].concat();
    // Values have at most 1 024 bytes.
    let pairs = (frame_bytes / 1_030 + 1).min(16);
    let value = "x".repeat((frame_bytes.saturating_sub(20) / pairs).saturating_sub(9).min(1_024));
    if frame_bytes < 40 {
        payload.push(0x90);
    } else {
        payload.extend([0x91, 0xdc, 0, u8::try_from(2 * pairs).unwrap_or(30)]);
        for pair in 0..pairs {
            payload.extend(text(&format!("k{pair}")));
            payload.extend(text(&value));
        }
    }
    [&u32::try_from(payload.len()).unwrap_or_default().to_be_bytes()[..], &payload].concat()
}

/// The uid of `nobody`.
const NOBODY: u32 = 65_534;

/// 1 ms: the other user sends 1 000 requests per second.
const INTERVAL_NANOS: u32 = 1_000_000;

/// The daemon then sends five watchdog messages per second.
const WATCHDOG_MICROS: u64 = 400_000;
