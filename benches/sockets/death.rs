//! Time until the permits of a killed process are free.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tidegate::clock::read_boot_nanos;
use tidegate::protocol::{
    CheckRequest, DecisionReply, DescriptorList, FrameSplit, HelloFrame, Op, ReplyScratch, RequestFrame,
    WireReply, decode_reply, encode_request, split_frame,
};

use crate::process::{Address, Process};
use crate::report::{Bound, Row};
use crate::servers::Daemon;

/// Kills processes that hold leases, one after the other, and polls until all their permits are free.
pub(crate) fn run(daemon: &Daemon, directory: &Path, repetitions: usize) -> io::Result<Vec<Row>> {
    eprintln!("death of a process");
    let rules = directory.join("places.yaml");
    std::fs::write(
        &rules,
        format!("domain: api\nconcurrency:\n- {{name: places, key: [], max: {PLACES}}}\n"),
    )?;
    let (mut command, socket) = daemon.command_with("death.sock", &rules);
    let mut process = Process::start_directly(&mut command)?;
    process.wait_for(&Address::Unix(socket.clone()))?;
    let mut asking = Client::connect(&socket, None)?;
    let kills = repetitions.max(1) * KILLS;
    let mut millis = (0..kills).map(|_| kill_one(&socket, &mut asking)).collect::<io::Result<Vec<f64>>>()?;
    millis.sort_by(f64::total_cmp);
    let at = |share: f64| millis.get(((kills - 1) as f64 * share) as usize).copied().unwrap_or_default();
    let row =
        |figure: &str, millis: f64, most: f64| Row::alone(figure, "ms", &[millis]).must(Bound::AtMost(most));
    Ok(vec![
        row(&format!("places of a killed process are free again, p99 of {kills}"), at(0.99), 5.0),
        row("the slowest of these", at(1.0), 50.0),
    ])
}

/// Milliseconds from the kill until all permits are free.
fn kill_one(socket: &Path, asking: &mut Client) -> io::Result<f64> {
    let mut held = Command::new(std::env::current_exe()?);
    let mut child: Child =
        held.arg("hold-places").arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    let told = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
    BufReader::new(told).read_line(&mut line)?;
    if asking.free()? != 0 {
        return Err(io::Error::other("the process does not hold its places"));
    }
    let killed = read_boot_nanos();
    child.kill()?;
    let millis = loop {
        let free = asking.free()?;
        let passed = read_boot_nanos() - killed;
        if free == PLACES {
            break passed as f64 / 1e6;
        }
        if passed > GIVE_UP_NANOS {
            return Err(io::Error::other(format!("{free} of {PLACES} places are free after ten seconds")));
        }
    };
    child.wait()?;
    Ok(millis)
}

/// In a process of its own: takes every permit, prints a line, and waits to be killed.
pub(crate) fn hold(socket: &Path) -> io::Result<()> {
    let mut client = Client::connect(socket, Some(std::process::id()))?;
    for _ in 0..PLACES {
        client.ask(Op::Acquire)?;
    }
    println!("held");
    io::stdout().flush()?;
    // Standard input ends when the parent ends, which ends this process.
    io::stdin().read_to_end(&mut Vec::new()).map(|_| ())
}

struct Client {
    stream: UnixStream,
    buffer: Vec<u8>,
    id: u64,
}

impl Client {
    fn connect(socket: &Path, pid: Option<u32>) -> io::Result<Client> {
        let mut client = Client { stream: UnixStream::connect(socket)?, buffer: Vec::new(), id: 0 };
        let mut session = [0; 16];
        session[..8].copy_from_slice(&read_boot_nanos().to_le_bytes());
        session[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        let hello = HelloFrame { session: Some(session), pid, ..HelloFrame::new(0) };
        client.send(&RequestFrame::Hello(hello))?;
        client.receive(|_| ())?;
        Ok(client)
    }

    /// The number of free permits.
    fn free(&mut self) -> io::Result<u64> {
        self.ask(Op::Peek)
    }

    fn ask(&mut self, op: Op) -> io::Result<u64> {
        self.id += 1;
        self.send(&RequestFrame::Check(op, CheckRequest::new(self.id, "api")))?;
        self.receive(|reply| match reply {
            WireReply::Decision(DecisionReply { remaining: Some(remaining), .. }) => Ok(*remaining),
            other => Err(io::Error::other(format!("expected a decision, received {other:?}"))),
        })?
    }

    fn send(&mut self, request: &RequestFrame<'_>) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut descriptors = DescriptorList::new();
        assert!(descriptors.push(&[]), "one descriptor fits");
        encode_request(&mut bytes, request, &descriptors)
            .map_err(|error| io::Error::other(error.to_string()))?;
        self.stream.write_all(&bytes)
    }

    fn receive<T>(&mut self, look: impl FnOnce(&WireReply<'_>) -> T) -> io::Result<T> {
        let mut part = [0; 4096];
        loop {
            if let FrameSplit::Frame { payload, consumed } = split_frame(&self.buffer) {
                let mut scratch = ReplyScratch::default();
                let reply = decode_reply(payload, &mut scratch)
                    .map_err(|error| io::Error::other(error.to_string()))?;
                let looked = look(&reply);
                self.buffer.drain(..consumed);
                return Ok(looked);
            }
            match self.stream.read(&mut part)? {
                0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
                count => self.buffer.extend_from_slice(&part[..count]),
            }
        }
    }
}

/// Permits that each process holds.
const PLACES: u64 = 16;

/// Processes killed in one repetition.
const KILLS: usize = 40;

const GIVE_UP_NANOS: u64 = 10_000_000_000;
