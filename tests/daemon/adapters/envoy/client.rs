//! A client of gRPC, and the messages of rls.proto as Envoy declares them.

use crate::prelude::*;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;

pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone, PartialEq, Message)]
pub(super) struct Ask {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    pub(super) hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    pub(super) limit: Option<Override>,
    #[prost(message, optional, tag = "3")]
    pub(super) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(super) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Override {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(super) unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Told {
    #[prost(int32, tag = "1")]
    pub(super) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(super) statuses: Vec<Status>,
    #[prost(message, repeated, tag = "3")]
    pub(super) headers: Vec<Header>,
    #[prost(string, tag = "5")]
    pub(super) raw_body: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) limit: Option<Limit>,
    #[prost(uint32, tag = "3")]
    pub(super) remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(super) reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Limit {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    pub(super) unit: i32,
    #[prost(string, tag = "3")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Duration {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// A descriptor of `key=value` pairs.
pub(super) fn descriptor(pairs: &str) -> Descriptor {
    let entries = pairs.split_whitespace().map(|pair| {
        let (key, value) = pair.split_once('=').unwrap();
        Entry { key: key.into(), value: value.into() }
    });
    Descriptor { entries: entries.collect(), ..Descriptor::default() }
}

pub(super) fn ask(domain: &str, descriptors: &[&str]) -> Ask {
    let descriptors = descriptors.iter().map(|pairs| descriptor(pairs)).collect();
    Ask { domain: domain.into(), descriptors, hits_addend: 0 }
}

impl Told {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.key == name).map(|header| &*header.value)
    }
}

/// One connection.
pub(super) struct Grpc {
    runtime: Runtime,
    send: SendRequest<Bytes>,
}

/// The answer to a call: the status of gRPC, its message, and the message of the answer.
#[derive(Debug, PartialEq)]
pub(super) struct Reply {
    pub(super) status: i32,
    pub(super) message: String,
    pub(super) body: Vec<u8>,
}

impl Grpc {
    pub(super) fn connect(daemon: &Daemon) -> Grpc {
        Grpc::over(async { UnixStream::connect(daemon.plan.path("envoy.sock")).await.unwrap() })
    }

    pub(super) fn tcp(port: u16) -> Grpc {
        Grpc::over(async { TcpStream::connect(("127.0.0.1", port)).await.unwrap() })
    }

    fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: impl Future<Output = S>) -> Grpc {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let send = runtime.block_on(async {
            let (send, connection) = h2::client::handshake(stream.await).await.unwrap();
            tokio::spawn(connection);
            send
        });
        Grpc { runtime, send }
    }

    /// Calls with the bytes of a body.
    pub(super) fn call_raw(
        &mut self,
        path: &str,
        metadata: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Reply, h2::Error> {
        let send = self.send.clone();
        let call = one(send, path, metadata, body);
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, call).await.expect("an answer") })
    }

    pub(super) fn call<A: Message>(&mut self, path: &str, metadata: &[(&str, &str)], message: &A) -> Reply {
        self.call_raw(path, metadata, framed(&message.encode_to_vec())).unwrap()
    }

    /// Asks for a decision.
    pub(super) fn ask(&mut self, ask: &Ask) -> Told {
        told(&self.call(PATH, &[], ask))
    }

    /// Opens streams, and sends no message.
    pub(super) fn open_streams(&mut self, count: usize) -> Vec<(ResponseFuture, SendStream<Bytes>)> {
        self.runtime.block_on(async {
            let mut streams = Vec::new();
            for _ in 0..count {
                let request = Request::post(format!("http://tidegate{PATH}"));
                let request = request.header("content-type", "application/grpc").body(()).unwrap();
                let send = self.send.clone().ready().await.unwrap();
                streams.push({ send }.send_request(request, false).unwrap());
            }
            // Until the connection has sent them.
            tokio::task::yield_now().await;
            streams
        })
    }

    /// The statuses of streams that end without a message.
    pub(super) fn statuses(&mut self, streams: Vec<(ResponseFuture, SendStream<Bytes>)>) -> Vec<i32> {
        self.runtime.block_on(async {
            let mut statuses = Vec::new();
            for (answer, _kept) in streams {
                let answer = tokio::time::timeout(PATIENCE, answer).await.expect("an answer").unwrap();
                statuses.push(answer.headers()["grpc-status"].to_str().unwrap().parse().unwrap());
            }
            statuses
        })
    }

    /// Asks on as many streams at once.
    pub(super) fn ask_at_once(&mut self, asks: &[Ask]) -> Vec<Told> {
        let send = &self.send;
        self.runtime.block_on(async {
            let calls = asks.iter().map(|ask| {
                let body = framed(&ask.encode_to_vec());
                tokio::spawn(one(send.clone(), PATH, &[], body))
            });
            let calls: Vec<_> = calls.collect();
            let mut answers = Vec::new();
            for call in calls {
                answers.push(told(&call.await.unwrap().unwrap()));
            }
            answers
        })
    }
}

fn one(
    send: SendRequest<Bytes>,
    path: &str,
    metadata: &[(&str, &str)],
    body: Vec<u8>,
) -> impl Future<Output = Result<Reply, h2::Error>> + Send + 'static {
    let request = Request::post(format!("http://tidegate{path}")).header("te", "trailers");
    let request = match metadata.iter().any(|(name, _)| *name == "content-type") {
        true => request,
        false => request.header("content-type", "application/grpc"),
    };
    let request = metadata.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.body(()).unwrap();
    async move {
        let (answer, mut stream) = send.ready().await?.send_request(request, false)?;
        stream.send_data(body.into(), true)?;
        let (head, mut answered) = answer.await?.into_parts();
        assert_eq!(head.status, 200, "every answer of gRPC: {head:?}");
        let mut bytes = Vec::new();
        while let Some(data) = answered.data().await {
            let data = data?;
            bytes.extend_from_slice(&data);
            answered.flow_control().release_capacity(data.len())?;
        }
        let trailers = answered.trailers().await?;
        let text = |name: &str| {
            let of = |headers: &HeaderMap| Some(headers.get(name)?.to_str().unwrap().to_owned());
            trailers.as_ref().and_then(of).or_else(|| of(&head.headers)).unwrap_or_default()
        };
        let body = bytes.get(5..).unwrap_or_default().to_vec();
        Ok(Reply { status: text("grpc-status").parse().unwrap(), message: text("grpc-message"), body })
    }
}

fn told(reply: &Reply) -> Told {
    assert_eq!(reply.status, 0, "{reply:?}");
    Told::decode(&*reply.body).unwrap()
}

/// A message with its flag and length.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(message);
    bytes
}
