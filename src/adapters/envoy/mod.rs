//! Envoy's rate limit service over gRPC.

mod handler;
mod judge;
mod link;
mod messages;
mod statuses;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::listen::{self, Adapter, AdapterSocket, Place};
use super::peer::Peer;
use super::{AdapterState, AdapterThread, LAST_ANSWER_MAX};
use handler::EnvoyHandler;

/// The state that all connections share.
#[derive(Debug)]
struct EnvoyState(AdapterState);

impl AdapterThread {
    /// Returns the thread of Envoy's rate limit service, and its work until `stop`.
    pub fn envoy(
        base: AdapterState,
        stop: CancellationToken,
    ) -> (AdapterThread, impl FnMut() + Send + 'static) {
        let state = Arc::new(EnvoyState(base));
        AdapterThread::start(stop, move |stop| {
            let state = Arc::clone(&state);
            async move { listen::serve(&state, &stop).await }
        })
    }
}

impl Adapter for EnvoyState {
    const NAME: &str = "Envoy's rate limit service";
    const KEY: &str = "envoy";
    // Each has one connection to a decision thread; HTTP takes half, and some remain for the socket.
    const PART: u32 = 4;
    const PART_OF_USER: u32 = 4;

    fn base(&self) -> &AdapterState {
        &self.0
    }

    /// Serves one connection to its end: its streams at once.
    async fn serve(
        self: Arc<Self>,
        socket: impl AdapterSocket,
        peer: Peer,
        place: Place,
        stop: CancellationToken,
    ) {
        let handler = Arc::new(EnvoyHandler::new(self, peer, place));
        let service = service_fn(|request| {
            let handler = Arc::clone(&handler);
            async move { Ok::<_, Infallible>(handler.answer(request).await) }
        });
        let served = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(4 * WINDOW_BYTES)
            .max_send_buf_size(WINDOW_BYTES as usize)
            .keep_alive_interval(PING_PERIOD)
            .keep_alive_timeout(PING_PERIOD)
            .serve_connection(TokioIo::new(socket), service);
        let mut served = pin!(served);
        let silent = async {
            tokio::time::sleep(FIRST_REQUEST_MAX).await;
            if handler.was_asked() {
                // The peer answers pings.
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
}

/// Of one connection; Envoy opens another for more.
const STREAMS_MAX: u32 = 128;

/// Most requests are below a kilobyte.
const WINDOW_BYTES: u32 = 64 * 1_024;

/// A peer that does not answer is closed after two.
const PING_PERIOD: Duration = Duration::from_secs(10);

/// Envoy connects when it has a request.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(10);

/// A client that does not read keeps its place no longer. Envoy opens another connection without losing a request.
const CONNECTION_MAX: Duration = Duration::from_secs(600);
