//! Parses the stream of the daemon during a recording: trace lines, and reports between them.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

pub(super) struct Feed {
    stream: UnixStream,
    buffer: Vec<u8>,
}

pub(super) enum FeedItem {
    /// Whole lines.
    Lines(Vec<u8>),
    Report(FeedReport),
    End,
}

/// The daemon's report on the recording.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct FeedReport {
    /// Lines dropped because the recording could not keep up.
    pub(super) dropped: u64,
    /// Requests left out because hashing would make them longer than a request may be.
    pub(super) left_out: u64,
    #[serde(default)]
    pub(super) ended: bool,
    #[serde(default)]
    pub(super) rules_changed: bool,
}

#[derive(Deserialize)]
struct ReportLine {
    report: FeedReport,
}

impl Feed {
    pub(super) fn new(stream: StdUnixStream, came: Vec<u8>) -> io::Result<Feed> {
        stream.set_nonblocking(true)?;
        Ok(Feed { stream: UnixStream::from_std(stream)?, buffer: came })
    }

    /// Returns the next part. Cancellation loses nothing.
    pub(super) async fn next(&mut self) -> io::Result<FeedItem> {
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
                // An incomplete line is dropped.
                Ok(Ok(0)) => return Ok(FeedItem::End),
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(FeedItem::End),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => return Ok(FeedItem::End),
            }
        }
    }

    /// Takes the lines up to the next report from the buffer, or the report if it is next.
    fn buffered(&mut self) -> io::Result<Option<FeedItem>> {
        let mut end = 0;
        for line in self.buffer.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            if line.starts_with(REPORT) {
                if end > 0 {
                    break;
                }
                let length = line.len();
                let report = serde_json::from_slice::<ReportLine>(line).map_err(|_| not_understood())?.report;
                self.buffer.drain(..length);
                return Ok(Some(FeedItem::Report(report)));
            }
            end += line.len();
        }
        if end == 0 {
            return Ok(None);
        }
        let rest = self.buffer.split_off(end);
        Ok(Some(FeedItem::Lines(std::mem::replace(&mut self.buffer, rest))))
    }
}

fn not_understood() -> io::Error {
    io::Error::other("what comes is not a recording of this tidegate: is the daemon of another version?")
}

/// Prefix of a report; no trace line begins with it.
const REPORT: &[u8] = br#"{"report""#;

/// A report comes every second; after this silence the recording ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// More than the longest request takes as a line.
const LINE_BYTES_MAX: usize = 1 << 20;

const READ_BYTES: usize = 64 * 1_024;
