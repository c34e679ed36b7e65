//! JSON over HTTP, and the requests of proxies.

mod bodies;
mod handler;
mod openapi;
mod sessions;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderName;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::listen::{self, Adapter, AdapterSocket, Place};
use super::peer::Peer;
use super::{AdapterState, AdapterThread, LAST_ANSWER_MAX, ListenSettings};
use crate::clock::Clock;
use handler::HttpHandler;
use sessions::HttpSessions;

/// The settings of the HTTP adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpSettings {
    /// Where it listens.
    pub listen: ListenSettings,
    /// The requests of proxies; `None`: none are answered.
    pub auth: Option<HttpAuth>,
}

/// The meaning of a request of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAuth {
    /// The domain.
    pub domain: Box<str>,
    /// The name of each attribute, and the header that has its value.
    pub attributes: Vec<(Box<str>, HeaderName)>,
}

/// The state that all connections share.
#[derive(Debug)]
struct HttpState {
    base: AdapterState,
    auth: Option<HttpAuth>,
    clock: Arc<Clock>,
    sessions: HttpSessions,
}

impl AdapterThread {
    /// Returns the thread of HTTP, and its work until `stop`.
    pub fn http(
        base: AdapterState,
        auth: Option<HttpAuth>,
        clock: Arc<Clock>,
        stop: CancellationToken,
    ) -> (AdapterThread, impl FnMut() + Send + 'static) {
        let state = Arc::new(HttpState { base, auth, clock, sessions: HttpSessions::default() });
        AdapterThread::start(stop, move |stop| {
            let state = Arc::clone(&state);
            async move {
                tokio::select! {
                    () = listen::serve(&state, &stop) => {}
                    () = HttpSessions::expire(&state) => {}
                }
            }
        })
    }
}

impl Adapter for HttpState {
    const NAME: &str = "HTTP";
    const KEY: &str = "http";
    // Each has a connection to a decision thread, and so has each session; some remain for the socket.
    const PART: u32 = 4;
    const PART_OF_USER: u32 = 2;

    fn base(&self) -> &AdapterState {
        &self.base
    }

    /// Serves one connection to its end: one request after the other.
    async fn serve(
        self: Arc<Self>,
        socket: impl AdapterSocket,
        peer: Peer,
        _: Place,
        stop: CancellationToken,
    ) {
        let handler = HttpHandler::new(self, peer);
        let service = service_fn(async |request| Ok::<_, Infallible>(handler.answer(request).await));
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_MAX)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(socket), service);
        let mut served = pin!(served);
        let ended = tokio::select! {
            ended = served.as_mut() => ended,
            // The stop, or the end of the time.
            _ = tokio::time::timeout(CONNECTION_MAX, stop.cancelled()) => {
                served.as_mut().graceful_shutdown();
                tokio::time::timeout(LAST_ANSWER_MAX, served).await.unwrap_or(Ok(()))
            }
        };
        if let Err(error) = ended {
            debug!(%error, "an HTTP connection failed");
        }
    }
}

/// Between two requests, and for the head of one.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The cookies that a proxy passes on are long.
const HEAD_BYTES_MAX: usize = 64 * 1_024;

/// A client that does not read keeps its place no longer.
const CONNECTION_MAX: Duration = Duration::from_secs(600);
