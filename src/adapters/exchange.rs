//! One connection to a decision thread, as a client has it: one request at a time, and its reply.

use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream as StdStream;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::decision::HttpDecision;
use crate::protocol::{
    Code, DescriptorList, FrameSplit, HelloFrame, MissReason, ReplyScratch, RequestFrame, WireReply,
    decode_reply, encode_request, split_frame,
};
use crate::server::Connector;

/// The name of a session on the wire.
pub(super) type SessionName = [u8; 16];

/// A connection that has sent HELLO.
#[derive(Debug)]
pub(super) struct ProtocolConnection {
    stream: UnixStream,
    pub(super) session: Option<SessionName>,
    received: Vec<u8>,
}

/// The reply to a request.
#[derive(Debug)]
pub(super) enum WireAnswer {
    Decision(Box<HttpDecision>),
    Done(bool),
    Error(Code, String),
}

/// Opens a connection of this user and sends HELLO, under the name of the adapter.
pub(super) fn open(
    connector: &Connector,
    name: &str,
    user: u32,
    session: Option<SessionName>,
) -> io::Result<StdStream> {
    let mut stream = connector.connect(user)?;
    let client = format!("{name}/{}", env!("CARGO_PKG_VERSION"));
    let hello = HelloFrame { client: Some(&client), session, ..HelloFrame::new(HELLO_ID) };
    let mut bytes = Vec::new();
    let too_large = |_| io::Error::from(ErrorKind::InvalidInput);
    encode_request(&mut bytes, &RequestFrame::Hello(hello), &DescriptorList::new()).map_err(too_large)?;
    // A new socket has room for it.
    stream.write_all(&bytes)?;
    Ok(stream)
}

impl ProtocolConnection {
    pub(super) fn open(
        connector: &Connector,
        name: &str,
        user: u32,
        session: Option<SessionName>,
    ) -> Result<ProtocolConnection, MissReason> {
        let stream = open(connector, name, user, session).and_then(UnixStream::from_std);
        let stream = stream.map_err(|_| MissReason::Unreachable)?;
        Ok(ProtocolConnection { stream, session, received: Vec::new() })
    }

    /// Sends a request with the id [`REQUEST_ID`] and returns its reply. After an error, or if the future is dropped, the
    /// connection is closed. `Unreachable`: the request was not read.
    pub(super) async fn exchange(&mut self, frame: &[u8]) -> Result<WireAnswer, MissReason> {
        self.stream.write_all(frame).await.map_err(|_| MissReason::Unreachable)?;
        loop {
            match split_frame(&self.received) {
                FrameSplit::Frame { payload, consumed } => {
                    let read = read_answer(payload)?;
                    self.received.drain(..consumed);
                    match read {
                        None => {}
                        Some((Some(REQUEST_ID), answer) | (None, answer)) => return Ok(answer),
                        Some(_) => return Err(MissReason::Protocol),
                    }
                }
                FrameSplit::More { .. } => match self.stream.read_buf(&mut self.received).await {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => return Err(MissReason::Unreachable),
                },
                FrameSplit::Broken(_) => return Err(MissReason::Protocol),
            }
        }
    }
}

/// Reads the payload of a reply and its id; `None` for WELCOME. An ERROR without an id is about the connection.
pub(super) fn read_answer(payload: &[u8]) -> Result<Option<(Option<u64>, WireAnswer)>, MissReason> {
    let mut scratch = ReplyScratch::default();
    match decode_reply(payload, &mut scratch) {
        Ok(WireReply::Welcome { .. }) => Ok(None),
        Ok(WireReply::Goodbye { .. }) => Err(MissReason::Unreachable),
        Ok(WireReply::Decision(decision)) => {
            let answer = WireAnswer::Decision(Box::new(HttpDecision::from_reply(&decision)));
            Ok(Some((Some(decision.id), answer)))
        }
        Ok(WireReply::Done { id, ok }) => Ok(Some((Some(id), WireAnswer::Done(ok)))),
        Ok(WireReply::Error { id, code, message }) => {
            Ok(Some((id, WireAnswer::Error(code, message.to_owned()))))
        }
        Err(_) => Err(MissReason::Protocol),
    }
}

/// The id of every request: a connection has one in flight.
pub(super) const REQUEST_ID: u64 = 1;

const HELLO_ID: u64 = 0;
