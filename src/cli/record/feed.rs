//! What the daemon sends while it records: lines of the trace, and between them reports of how it goes.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// What comes.
pub(super) struct Feed {
    stream: UnixStream,
    buffer: Vec<u8>,
}

/// What came.
pub(super) enum Came {
    /// Whole lines of the trace.
    Lines(Vec<u8>),
    /// How it goes.
    Report(Report),
    /// Nothing more comes.
    End,
}

/// How it goes.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Report {
    /// What was dropped, for it came faster than it was written.
    pub(super) dropped: u64,
    /// Requests that are longer than a request may be once they are hashed.
    pub(super) left_out: u64,
    /// It is the last.
    #[serde(default)]
    pub(super) ended: bool,
    /// Whether other rules came into force meanwhile.
    #[serde(default)]
    pub(super) rules_changed: bool,
}

#[derive(Deserialize)]
struct Reported {
    report: Report,
}

impl Feed {
    pub(super) fn new(stream: StdUnixStream, came: Vec<u8>) -> io::Result<Feed> {
        stream.set_nonblocking(true)?;
        Ok(Feed { stream: UnixStream::from_std(stream)?, buffer: came })
    }

    /// What comes next. Cancelled, it has lost nothing.
    pub(super) async fn next(&mut self) -> io::Result<Came> {
        loop {
            if let Some(came) = self.buffered()? {
                return Ok(came);
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(not_understood());
            }
            self.buffer.reserve(READ_BYTES);
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.buffer)).await;
            match read {
                // What has begun of a line is none.
                Ok(Ok(0)) => return Ok(Came::End),
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Came::End),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => return Ok(Came::End),
            }
        }
    }

    /// The lines up to the next report, or the report that is next.
    fn buffered(&mut self) -> io::Result<Option<Came>> {
        let mut end = 0;
        for line in self.buffer.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            if line.starts_with(REPORT) {
                if end > 0 {
                    break;
                }
                let length = line.len();
                let report = serde_json::from_slice::<Reported>(line).map_err(|_| not_understood())?.report;
                self.buffer.drain(..length);
                return Ok(Some(Came::Report(report)));
            }
            end += line.len();
        }
        if end == 0 {
            return Ok(None);
        }
        let rest = self.buffer.split_off(end);
        Ok(Some(Came::Lines(std::mem::replace(&mut self.buffer, rest))))
    }
}

fn not_understood() -> io::Error {
    io::Error::other("what comes is not a recording of this tidegate: is the daemon of another version?")
}

/// No line of a trace begins like this.
const REPORT: &[u8] = br#"{"report""#;

/// A report comes each second: after so long nobody is there.
const PATIENCE: Duration = Duration::from_secs(30);

/// More than the longest request takes as a line.
const LINE_BYTES_MAX: usize = 1 << 20;

const READ_BYTES: usize = 64 * 1_024;
