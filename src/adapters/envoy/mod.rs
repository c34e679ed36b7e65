//! Envoy's rate limit service over gRPC.

mod handler;
mod judge;
mod link;
mod messages;
pub(super) mod own_limits;
mod reflection;
mod statuses;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::AdapterState;
use super::handler::AdapterPeer;
use super::listen::{AdapterPermit, CONNECTION_MAX, LAST_ANSWER_MAX};
use handler::EnvoyHandler;

/// Serves one connection to its end: its streams at once.
pub(super) async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    socket: S,
    state: Arc<AdapterState>,
    peer: AdapterPeer,
    permit: AdapterPermit,
    stop: CancellationToken,
) {
    let handler = Arc::new(EnvoyHandler::new(state, peer, permit));
    let service = service_fn(|request| {
        let handler = Arc::clone(&handler);
        // Boxed, so that a stream whose answer is not read keeps no more than the answer.
        async move { Ok::<_, Infallible>(Box::pin(handler.answer(request)).await) }
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(WINDOW_BYTES as usize)
        .keep_alive_interval(PING_PERIOD)
        .keep_alive_timeout(PING_PERIOD)
        .serve_connection(TokioIo::new(socket), service);
    let mut served = pin!(served);
    let silent = async {
        tokio::time::sleep(FIRST_REQUEST_MAX).await;
        if handler.was_asked() {
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

/// Most requests are below a kilobyte; of one connection, as many bytes wait in all.
const WINDOW_BYTES: u32 = 64 * 1_024;

/// A peer that does not answer is closed after two.
const PING_PERIOD: Duration = Duration::from_secs(10);

/// Envoy connects when it has a request.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(10);
