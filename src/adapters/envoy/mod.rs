//! Envoy's rate limit service over gRPC.

mod judge;
mod messages;
pub(super) mod own_limits;
mod reflection;
mod statuses;

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code as GrpcCode, Status};
use tonic_prost::ProstCodec;
use tracing::debug;

use super::handler::{AdapterPeer, BODY_PATIENCE};
use super::link::SharedLink;
use super::listen::{AdapterPermit, CONNECTION_MAX, LAST_ANSWER_MAX, RequestBytes};
use super::{AdapterState, AnswerKind};
use crate::server::QueueMembership;
use messages::{
    DESCRIPTORS_MAX, ENTRIES_MAX, HealthCheckRequest, HealthCheckResponse, OVER_LIMIT, RateLimitRequest,
    RateLimitResponse, is_small,
};
use reflection::Reflection;

/// Serves one connection to its end: its streams at once.
pub(super) async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    socket: S,
    state: Arc<AdapterState>,
    peer: AdapterPeer,
    permit: AdapterPermit,
    stop: CancellationToken,
) {
    let member = state.fair_queue.join(peer.user);
    let (link, was_asked) = (SharedLink::default(), AtomicBool::new(false));
    let handler = Arc::new(EnvoyHandler { state, peer, permit, member, link, was_asked });
    let service = service_fn(|request| {
        let handler = Arc::clone(&handler);
        // Boxed, so that a stream whose answer is not read keeps no more than the answer.
        async move { Ok::<_, Infallible>(Box::pin(handler.answer(request)).await) }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(ENDED_STREAMS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(WINDOW_BYTES as usize)
        .keep_alive_interval(PING_PERIOD)
        .keep_alive_timeout(PING_PERIOD)
        .serve_connection(TokioIo::new(socket), service);
    let mut served = pin!(served);
    let silent = async {
        tokio::time::sleep(FIRST_REQUEST_MAX).await;
        if handler.was_asked.load(Ordering::Relaxed) {
            // Envoy then opens another connection, and loses no request.
            tokio::time::sleep(CONNECTION_MAX).await;
        }
    };
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = async { tokio::select! { () = silent => {} () = stop.cancelled() => {} } } => {
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(LAST_ANSWER_MAX, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection of Envoy failed");
    }
}

/// Of one connection; Envoy opens another for more. Requests take a millisecond, and each stream some kilobytes.
const STREAMS_MAX: u32 = 32;

/// Envoy ends streams whose time is over, and opens others: as many between two looks of a late thread as a socket holds. Beyond
/// it the connection ends, with its other streams.
const ENDED_STREAMS_MAX: usize = 256;

/// Most requests are below a kilobyte; of one connection, as many bytes wait in all.
const WINDOW_BYTES: u32 = 64 * 1_024;

/// A peer that does not answer is closed after two.
const PING_PERIOD: Duration = Duration::from_secs(10);

/// Envoy connects when it has a request.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct EnvoyHandler {
    state: Arc<AdapterState>,
    peer: AdapterPeer,
    permit: AdapterPermit,
    /// Streams are tasks of their own.
    member: QueueMembership,
    link: SharedLink,
    was_asked: AtomicBool,
}

type GrpcReply = Response<tonic::body::Body>;

struct ShouldRateLimit<'h>(&'h EnvoyHandler);

struct GrpcHealth;

impl EnvoyHandler {
    async fn answer(&self, request: Request<Incoming>) -> GrpcReply {
        self.was_asked.store(true, Ordering::Relaxed);
        let is_check = request.uri().path() == LIMIT_PATH;
        self.route(request).await.unwrap_or_else(|status| {
            self.state.counters.count(AnswerKind::Rejected);
            if is_check {
                self.state.report_unjudged(status.message());
            }
            status.into_http()
        })
    }

    async fn route(&self, mut request: Request<Incoming>) -> Result<GrpcReply, Status> {
        let mut held = self.permit.hold();
        if !held.add(STREAM_BYTES) {
            return Err(Status::resource_exhausted("there are too many streams"));
        }
        let content_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        if !content_type.is_some_and(|of| of.starts_with(b"application/grpc")) {
            return Err(Status::invalid_argument("only gRPC is served here"));
        }
        let uri = request.uri().clone();
        let path = uri.path();
        // Kubernetes probes send no token; the answer says no more than that the port is open.
        if path != HEALTH_PATH && !self.peer.may_ask(bearer(request.headers())) {
            let message = "over TCP a request needs the token of `token_file` in `authorization: Bearer`";
            return Err(Status::unauthenticated(message));
        }
        // The others would be kept until the message is there.
        if let Some(encoding) = std::mem::take(request.headers_mut()).remove(ENCODING_HEADER) {
            request.headers_mut().insert(ENCODING_HEADER, encoding);
        }
        match path {
            LIMIT_PATH => self.should_rate_limit(request, held).await,
            HEALTH_PATH => {
                let (head, body) = request.into_parts();
                let body = read(body, HEALTH_BYTES_MAX, |bytes| held.add(bytes)).await?;
                let request = Request::from_parts(head, Full::new(body));
                Ok(Grpc::new(ProstCodec::default()).unary(GrpcHealth, request).await)
            }
            path if reflection::PATHS.contains(&path) => {
                let busy = || Status::resource_exhausted("there are too many streams of reflection");
                let reflection = Reflection::enter().ok_or_else(busy)?;
                let grpc = Grpc::new(ProstCodec::default());
                let mut grpc = grpc.max_decoding_message_size(reflection::REQUEST_BYTES_MAX);
                Ok(grpc.streaming(reflection, request).await)
            }
            _ => Err(Status::unimplemented(format!("no such method; help: {LIMIT_PATH}, {HEALTH_PATH}"))),
        }
    }

    async fn should_rate_limit(
        &self,
        request: Request<Incoming>,
        mut held: RequestBytes<'_>,
    ) -> Result<GrpcReply, Status> {
        let (head, body) = request.into_parts();
        let body = read(body, MESSAGE_BYTES_MAX, |bytes| held.add(bytes)).await?;
        self.member.admit().await;
        let message = body.get(GRPC_HEADER_BYTES..).unwrap_or_default();
        if !is_small(message).map_err(|error| Status::invalid_argument(error.to_string()))? {
            let message = format!(
                "a request has at most {DESCRIPTORS_MAX} descriptors, of at most {ENTRIES_MAX} entries in all"
            );
            return Err(Status::invalid_argument(message));
        }
        let request = Request::from_parts(head, Full::new(body));
        let mut grpc = Grpc::new(ProstCodec::default()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Ok(grpc.unary(ShouldRateLimit(self), request).await)
    }

    async fn judge(&self, request: RateLimitRequest) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let counters = &self.state.counters;
        let judged = self.decide(&request).await;
        counters.count(match &judged {
            Ok(response) if response.overall_code == OVER_LIMIT => AnswerKind::Refused,
            Ok(_) => AnswerKind::Allowed,
            Err(status) if status.code() == GrpcCode::Unavailable => AnswerKind::Degraded,
            Err(status) => {
                self.state.report_unjudged(status.message());
                AnswerKind::Rejected
            }
        });
        judged.map(tonic::Response::new)
    }
}

impl<'h> UnaryService<RateLimitRequest> for ShouldRateLimit<'h> {
    type Response = RateLimitResponse;
    type Future =
        Pin<Box<dyn Future<Output = Result<tonic::Response<RateLimitResponse>, Status>> + Send + 'h>>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        Box::pin(self.0.judge(request.into_inner()))
    }
}

impl UnaryService<HealthCheckRequest> for GrpcHealth {
    type Response = HealthCheckResponse;
    type Future = std::future::Ready<Result<tonic::Response<HealthCheckResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<HealthCheckRequest>) -> Self::Future {
        let is_known = [&b""[..], SERVICE.as_bytes()].contains(&&*request.get_ref().service);
        let serving = HealthCheckResponse { status: HEALTH_SERVING };
        let answer = is_known.then(|| tonic::Response::new(serving));
        std::future::ready(answer.ok_or_else(|| Status::not_found("no such service")))
    }
}

/// The token of `authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let given = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = given.split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then_some(token)
}

/// Reads a body within its limits.
async fn read(
    mut body: Incoming,
    bytes_max: usize,
    mut has_room: impl FnMut(usize) -> bool,
) -> Result<Bytes, Status> {
    let read = async {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Status::cancelled(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > bytes_max + GRPC_HEADER_BYTES {
                return Err(Status::resource_exhausted(format!("a request has at most {bytes_max} bytes")));
            }
            if !has_room(data.len()) {
                return Err(Status::resource_exhausted("the requests in flight have too many bytes"));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Bytes::from(bytes))
    };
    let late = |_| Status::deadline_exceeded("the request did not arrive in time");
    tokio::time::timeout(BODY_PATIENCE, read).await.map_err(late)?
}

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
const LIMIT_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_PATH: &str = "/grpc.health.v1.Health/Check";

const HEALTH_SERVING: i32 = 1;

const BEARER: &[u8] = b"Bearer ";

const ENCODING_HEADER: &str = "grpc-encoding";

/// The task of a stream, and the state of the connection for it.
const STREAM_BYTES: usize = 8 * 1_024;

/// A flag and the length of the message.
const GRPC_HEADER_BYTES: usize = 5;

/// A caller's longest headers, in as many descriptors as a request has: the length of a header refuses no request.
const MESSAGE_BYTES_MAX: usize = 1_024 * 1_024;

const HEALTH_BYTES_MAX: usize = 1_024;
