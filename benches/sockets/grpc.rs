//! Unary gRPC requests over HTTP/2, as far as a load generator needs it: one connection, short messages.
//!
//! Its requests are written whole, and its windows are so large that they never fill, so that it costs less
//! than a client library: a figure of a gRPC server measured with it is a lower bound.

use std::io;

use crate::dialect::{Dialect, hex};
use crate::workload::{self, Users};

pub(crate) struct Grpc {
    path: &'static str,
    message: fn(user: &str) -> Vec<u8>,
    allows: fn(reply: &[u8]) -> bool,
    /// The value of `authorization`, if the server needs one.
    authorization: Option<String>,
    users: Users,
    /// The id of the next request.
    stream: u32,
    /// Replies whose trailers have not been read.
    unfinished: u64,
}

/// `ShouldRateLimit` of Envoy's rate limit service.
pub(crate) fn rate_limit_service(users: Users) -> Grpc {
    let message = |user: &str| {
        let entry = [text(1, "user"), text(2, user)].concat();
        [text(1, workload::DOMAIN), field(2, &field(1, &entry))].concat()
    };
    // `overall_code: OK`.
    let allows = |reply: &[u8]| reply.starts_with(&[0x08, 0x01]);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    Grpc { path, message, allows, authorization: None, users, stream: 1, unfinished: 0 }
}

/// The same of the daemon.
pub(crate) fn envoy_adapter(users: Users) -> Grpc {
    Grpc { authorization: Some(format!("Bearer {TOKEN}")), ..rate_limit_service(users) }
}

/// `GetRateLimits` of gubernator, with one token bucket.
pub(crate) fn gubernator(users: Users) -> Grpc {
    let message = |user: &str| {
        let numbers = [(3, 1), (4, workload::BURST), (5, 1_000 * workload::REFILL_SECONDS)];
        let numbers = numbers.map(|(number, value)| [vec![number << 3], varint(value)].concat());
        field(1, &[text(1, "per-user"), text(2, user), numbers.concat()].concat())
    };
    // The first field of a bucket is its limit: without `status: OVER_LIMIT` before it, or an error.
    let allows = |reply: &[u8]| reply.first() == Some(&0x0a) && reply.get(2) == Some(&0x10);
    let path = "/pb.gubernator.V1/GetRateLimits";
    Grpc { path, message, allows, authorization: None, users, stream: 1, unfinished: 0 }
}

impl Grpc {
    /// Names and values of the first request, which the server keeps in its table; their places afterwards.
    fn headers(&self) -> Vec<u8> {
        if self.stream > 1 {
            let newest = if self.authorization.is_some() { 66 } else { 65 };
            return [METHOD_POST, SCHEME_HTTP]
                .into_iter()
                .chain((62..=newest).rev().map(|at| 0x80 | at))
                .collect();
        }
        let mut block = vec![METHOD_POST, SCHEME_HTTP];
        let authorization = self.authorization.as_deref().map(|value| (AUTHORIZATION, value));
        let named = [(PATH, self.path), (AUTHORITY, "tidegate"), (CONTENT_TYPE, "application/grpc")];
        for (name, value) in named.into_iter().chain(authorization) {
            block.push(0x40 | name);
            block.extend(string(value));
        }
        block.push(0x40);
        block.extend([string("te"), string("trailers")].concat());
        block
    }
}

impl Dialect for Grpc {
    fn in_flight_max(&self) -> u64 {
        STREAMS_MAX
    }

    fn request(&mut self, out: &mut Vec<u8>) {
        if self.stream == 1 {
            out.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            frame(out, SETTINGS, 0, 0, &[]);
            frame(out, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        }
        let message = (self.message)(&workload::user(self.users.draw()));
        frame(out, HEADERS, END_HEADERS, self.stream, &self.headers());
        let prefix = [&[0][..], &(message.len() as u32).to_be_bytes()].concat();
        frame(out, DATA, END_STREAM, self.stream, &[prefix, message].concat());
        self.stream += 2;
    }

    /// A reply ends with its trailers. Frames of other kinds, and of replies that end later, count to it.
    fn reply(&mut self, input: &[u8]) -> io::Result<Option<usize>> {
        let (mut read, mut unfinished) = (0, self.unfinished);
        while let Some(header) = input.get(read..read + FRAME_HEADER) {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let Some(payload) = input.get(read + FRAME_HEADER..read + FRAME_HEADER + length) else { break };
            read += FRAME_HEADER + length;
            match header[3] {
                DATA if payload.get(MESSAGE_PREFIX..).is_some_and(|message| (self.allows)(message)) => {
                    unfinished += 1;
                }
                HEADERS if header[4] & END_STREAM == 0 => {}
                HEADERS if unfinished > 0 => {
                    self.unfinished = unfinished - 1;
                    return Ok(Some(read));
                }
                SETTINGS | PING | WINDOW_UPDATE => {}
                kind => return Err(io::Error::other(format!("HTTP/2 frame {kind}: {}", hex(payload)))),
            }
        }
        Ok(None)
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// A short string of HPACK.
fn string(text: &str) -> Vec<u8> {
    [&[text.len() as u8][..], text.as_bytes()].concat()
}

/// A short field of a protobuf message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat()
}

fn text(number: u8, text: &str) -> Vec<u8> {
    field(number, text.as_bytes())
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// The streams that the Envoy adapter takes on one connection; Envoy opens another for more. The same for all servers.
const STREAMS_MAX: u64 = 32;

// Kinds and flags of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const FRAME_HEADER: usize = 9;

// Places in the static table of HPACK.
const METHOD_POST: u8 = 0x80 | 3;
const SCHEME_HTTP: u8 = 0x80 | 6;
const AUTHORITY: u8 = 1;
const PATH: u8 = 4;
const AUTHORIZATION: u8 = 23;
const CONTENT_TYPE: u8 = 31;

/// The text of the daemon's token file.
pub(crate) const TOKEN: &str = "for-a-benchmark-alone";

/// Compression flag and length before a gRPC message.
const MESSAGE_PREFIX: usize = 5;

/// The bytes of replies that the server may send beyond the first 65 535: more than any run.
const WINDOW: u32 = 0x7fff_0000;
