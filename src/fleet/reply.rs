//! Decoding of replies, which are not trusted: lengths must match the command, and numbers are clamped.

use super::cell::{BURST_MAX, CellReply, DEBT_MAX, GENERATION_US};
use super::command::ScriptCommand;
use super::heartbeat::HeartbeatReply;
use super::permits::KeyPermitReply;
use super::window::WindowReply;
use super::wire::{EXACT_MAX, ReplyReader};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptReply {
    Sync(CommandReply<CellReply>),
    Exact(CommandReply<PaymentResult>),
    Permits(CommandReply<KeyPermitReply>),
    Heartbeat(HeartbeatReply),
    Version(u64),
}

/// The reply to a command about the cells of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandReply<T> {
    /// When Redis created the bucket, by its clock, in microseconds: another time means that its cells were lost.
    pub born_us: u64,
    /// When the command ran, by the Redis clock, in microseconds.
    pub now_us: u64,
    /// The results, one for each key.
    pub results: Vec<T>,
}

/// The part of a payment's reply for one cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaymentResult {
    /// The remaining level, µtok.
    pub level: i64,
    /// How long this cost has to wait; a check pays only if none of its costs waits.
    pub wait: CostCover,
    /// The version of the quota in force.
    pub version: u64,
    /// The window's part of the reply; `None` for a bucket.
    pub window: Option<WindowReply>,
}

/// Whether a key covers a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostCover {
    /// It does.
    No,
    /// It will in this number of microseconds, if no other host takes any and hosts keep their window tokens.
    Until(u64),
    /// It cannot: the cost exceeds the burst.
    Never,
}

impl ScriptReply {
    /// Decodes the bytes of a reply to a command. Returns also how many numbers were out of range, and were clamped.
    ///
    /// # Errors
    /// Bytes of the wrong length.
    pub fn decode(command: &ScriptCommand, bytes: &[u8]) -> Result<(ScriptReply, u32), ReplyFault> {
        let mut from = ReplyReader::of(bytes);
        let reply = match command {
            ScriptCommand::Sync(batch) => {
                ScriptReply::Sync(CommandReply::read(&mut from, &batch.asks, |from, ask, now_us| {
                    CellReply::read(from, ask, now_us / GENERATION_US)
                }))
            }
            ScriptCommand::Exact(payment) => {
                ScriptReply::Exact(CommandReply::read(&mut from, payment.costs(), |from, cost, _| {
                    PaymentResult::read(from, cost.window.is_some())
                }))
            }
            ScriptCommand::Permits(command) => {
                ScriptReply::Permits(CommandReply::read(&mut from, &command.requests, |from, request, _| {
                    KeyPermitReply::read(from, request)
                }))
            }
            ScriptCommand::Heartbeat(heartbeat) => ScriptReply::Heartbeat(heartbeat.read(&mut from)),
            ScriptCommand::Version(_) => ScriptReply::Version(from.amount(EXACT_MAX)),
        };
        from.finish(reply)
    }
}

impl<T> CommandReply<T> {
    fn read<'a, 'q, A: 'q>(
        from: &mut ReplyReader<'a>,
        asks: impl IntoIterator<Item = &'q A>,
        read: impl Fn(&mut ReplyReader<'a>, &A, u64) -> T,
    ) -> CommandReply<T> {
        let [born_us, now_us] = [(); 2].map(|()| from.amount(EXACT_MAX));
        let results = asks.into_iter().map(|ask| read(from, ask, now_us)).collect();
        CommandReply { born_us, now_us, results }
    }
}

impl PaymentResult {
    fn read(from: &mut ReplyReader<'_>, is_window: bool) -> PaymentResult {
        let level = from.signed(-DEBT_MAX, BURST_MAX.cast_signed());
        let wait = match from.signed(-1, EXACT_MAX.cast_signed()) {
            0 => CostCover::No,
            us => u64::try_from(us).map_or(CostCover::Never, CostCover::Until),
        };
        let version = from.amount(EXACT_MAX);
        PaymentResult { level, wait, version, window: is_window.then(|| WindowReply::read(from)) }
    }
}

/// The length of a reply differs from the one that its command implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a reply of {found} bytes to a command that brings {expected}")]
#[allow(missing_docs, reason = "the message says it")]
pub struct ReplyFault {
    pub expected: usize,
    pub found: usize,
}
