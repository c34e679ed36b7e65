//! Access logs: sorts lines by time within a window, counts and skips malformed lines.
//!
//! Some servers log the time at which a request arrived but write the line when its response ends, so a line
//! may follow later ones by the duration of its response.

use std::collections::BTreeMap;

use arrayvec::ArrayVec;

use super::access_line::{AccessLine, UnreadableLine};
use super::event::{Action, EventConsumer, LeaseOwner, TraceEvent, TraceFailure, TraceLineError, TraceText};
use crate::clock::Timestamp;
use crate::engine::{Descriptors, Op, Request};
use crate::protocol::PAIRS_MAX;
use crate::terms::counted;

/// Lines that wait to be sorted, and counts of lines that were malformed or late.
#[derive(Debug, Default)]
pub(super) struct CombinedLines<'a> {
    domain: &'a str,
    strict: bool,
    quotable: bool,
    /// By time, then line number.
    waiting: BTreeMap<(u64, u64), AccessLine>,
    waiting_bytes: usize,
    newest_seconds: u64,
    played_seconds: u64,
    unreadable: u64,
    first_unreadable: Option<String>,
    late: u64,
}

impl<'a> CombinedLines<'a> {
    /// Plays requests of one domain. `strict`: stop at malformed lines. `quotable`: remarks may quote them.
    pub(super) fn new(domain: &'a str, strict: bool, quotable: bool) -> CombinedLines<'a> {
        CombinedLines { domain, strict, quotable, ..CombinedLines::default() }
    }

    /// Reads a line, then plays all lines that are due.
    pub(super) fn line(
        &mut self,
        text: &[u8],
        number: u64,
        stage: &mut impl EventConsumer,
    ) -> Result<(), TraceFailure> {
        let line = match AccessLine::read(text) {
            Ok(line) => line,
            Err(wrong) => return self.pass_over(number, wrong),
        };
        let seconds = line.unix_seconds;
        self.late += u64::from(seconds < self.played_seconds);
        self.newest_seconds = self.newest_seconds.max(seconds);
        self.waiting_bytes += line.bytes();
        self.waiting.insert((seconds, number), line);
        while self.is_turn_of_first() {
            self.play_first(stage)?;
        }
        Ok(())
    }

    /// Counts a malformed line, or returns the error if `strict`.
    pub(super) fn pass_over(&mut self, number: u64, wrong: UnreadableLine) -> Result<(), TraceFailure> {
        let failure = TraceFailure::Line { number, wrong: TraceLineError::Access(wrong) };
        if self.strict {
            return Err(failure);
        }
        self.unreadable += 1;
        self.first_unreadable
            .get_or_insert_with(|| if self.quotable { failure } else { failure.withheld() }.to_string());
        Ok(())
    }

    pub(super) fn end(&mut self, stage: &mut impl EventConsumer) -> Result<(), TraceFailure> {
        while !self.waiting.is_empty() {
            self.play_first(stage)?;
        }
        Ok(())
    }

    /// Remarks for the summary: malformed and late lines.
    pub(super) fn remarks(&self) -> Vec<String> {
        let unreadable = self.first_unreadable.iter().map(|first| {
            format!(
                "{} passed over that cannot be read, the first is {first}",
                counted(self.unreadable, "line")
            )
        });
        let late = (self.late > 0).then(|| {
            let late = counted(self.late, "line");
            format!(
                "{late} too late to be sorted, decided at the time of the line before: are the logs in order?"
            )
        });
        unreadable.chain(late).collect()
    }

    fn is_turn_of_first(&self) -> bool {
        let Some(((seconds, _), _)) = self.waiting.first_key_value() else { return false };
        seconds + WINDOW_SECONDS < self.newest_seconds
            || self.waiting.len() > WAITING_MAX
            || self.waiting_bytes > WAITING_BYTES_MAX
    }

    fn play_first(&mut self, stage: &mut impl EventConsumer) -> Result<(), TraceFailure> {
        let Some(((seconds, number), line)) = self.waiting.pop_first() else { return Ok(()) };
        self.waiting_bytes = self.waiting_bytes.saturating_sub(line.bytes());
        // Virtual time is monotonic: a late line is played at the time of the line before.
        self.played_seconds = self.played_seconds.max(seconds);
        let attributes: ArrayVec<(&str, &str), PAIRS_MAX> = line.attributes().collect();
        let descriptors = Descriptors::from_attributes(&attributes);
        let request = Request::new(Op::Hit, self.domain, descriptors);
        stage.play(&TraceEvent {
            line: number,
            at: Timestamp::from_nanos(self.played_seconds.saturating_mul(NANOS_PER_SECOND)),
            t: TraceText::Number(self.played_seconds),
            id: Some(TraceText::Number(number)),
            action: Action::Judge(request, LeaseOwner::default()),
        })
    }
}

/// How many seconds a line may be late: longer than most servers let a request take.
const WINDOW_SECONDS: u64 = 60;

/// Bounds on waiting lines and bytes. Above about 1 000 lines per second the window gets shorter.
const WAITING_MAX: usize = 65_536;
const WAITING_BYTES_MAX: usize = 32 << 20;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
