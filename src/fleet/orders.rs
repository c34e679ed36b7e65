//! What operators say to all hosts: one list, which is read once a second and changed whole.
//!
//! Whoever changes it says which list it knows. If that is not the one that is there, nothing is changed and the host is told
//! the other; it puts its word to that one. A Redis that has lost the list, or has been taken back to an earlier one, is given
//! it again by the first host that notices.

mod entry;
mod exchange;

pub use entry::{ENTRIES_MAX, LIST_BYTES_MAX, Moment, Read, TooLong, list_of, read};
pub(super) use exchange::{Exchange, Spoken};

use super::call::Encoded;
use super::reply::{Received, Reply, ReplyFault};
use super::scripts;
use super::wire::{EXACT_MAX, Reader};

/// Tells one list from every other: its life (16 bytes of chance), its number in it, and when it was put.
pub type Stamp = [u8; 32];

/// One call about the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrdersCall {
    /// Which one the host knows.
    pub known: Stamp,
    /// What is to stand in its place; at most [`LIST_BYTES_MAX`] long.
    pub put: Option<Vec<u8>>,
}

/// What comes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrdersSaid {
    /// Whether there is anything new.
    pub news: News,
    /// The clock of Redis.
    pub now_us: u64,
    /// Which list holds.
    pub stamp: Stamp,
}

/// How the list that is there stands to the one that the host knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is the same; or there is none, and the host knows none.
    Same,
    /// It is another one: this.
    Changed(Vec<u8>),
    /// It is an earlier one, or gone: the host is to put its own again.
    Behind,
    /// What was to be put was put.
    Written,
    /// It is longer than any that a host puts.
    TooLong,
}

impl OrdersCall {
    pub(super) fn encode(&self) -> Encoded {
        let known = self.known.to_vec();
        let args = std::iter::once(known).chain(self.put.clone()).collect();
        Encoded { script: &scripts::ORDERS, keys: vec![KEY.to_vec()], args }
    }
}

impl OrdersSaid {
    pub(super) fn decode(bytes: &[u8]) -> Result<Received, ReplyFault> {
        let length = |expected| ReplyFault::Length { expected, found: bytes.len() };
        let Some((head, list)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(length(HEADER_BYTES));
        };
        let mut from = Reader::of(head, HEADER_BYTES)?;
        let kind = from.byte();
        let now_us = from.amount(EXACT_MAX);
        let stamp = from.bytes();
        if list.len() > LIST_BYTES_MAX || kind != CHANGED && !list.is_empty() {
            return Err(length(HEADER_BYTES));
        }
        let news = match kind {
            SAME => News::Same,
            CHANGED => News::Changed(list.to_vec()),
            BEHIND => News::Behind,
            WRITTEN => News::Written,
            TOO_LONG => News::TooLong,
            other => return Err(ReplyFault::Kind(other)),
        };
        Ok(Received { reply: Reply::Orders(OrdersSaid { news, now_us, stamp }), clamped: from.clamped })
    }
}

const KEY: &[u8] = b"tg:{tm}:orders";

const HEADER_BYTES: usize = 41;
const SAME: u8 = 0;
const CHANGED: u8 = 1;
const BEHIND: u8 = 2;
const WRITTEN: u8 = 3;
const TOO_LONG: u8 = 4;
