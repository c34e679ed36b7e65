//! The connections of one HTTP listener: one request, one answer. When there are as many as may be, the oldest without a
//! complete request head is dropped for the next: idle connections keep no request outside.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tracing::debug;

#[derive(Clone, Debug, Default)]
pub struct HttpConnections {
    open: Arc<Mutex<Vec<Arc<Connection>>>>,
    closed: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Connection {
    has_request: AtomicBool,
    dropped: Notify,
}

/// One connection. Its place is free once this drops.
#[derive(Debug)]
pub struct HttpConnection {
    connections: HttpConnections,
    connection: Arc<Connection>,
}

impl HttpConnections {
    /// Accepts connections forever and spawns the future that `serve` returns for each. `accept` returns `None` for a
    /// rejected peer.
    pub async fn serve_each<S, F>(
        mut accept: impl AsyncFnMut() -> io::Result<Option<S>>,
        mut serve: impl FnMut(S, HttpConnection) -> F,
        mut failed: impl FnMut(io::Error),
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let connections = HttpConnections::default();
        loop {
            match accept().await {
                Ok(Some(socket)) => {
                    tokio::spawn(serve(socket, connections.enter().await));
                }
                Ok(None) => {}
                Err(error) => {
                    failed(error);
                    // For want of descriptors it would fail again at once.
                    tokio::time::sleep(PAUSE).await;
                }
            }
            // A connection whose request has arrived reads it before another takes its place.
            tokio::task::yield_now().await;
        }
    }

    /// Takes a place for a connection. Waits only while every connection has sent a request and is answered.
    async fn enter(&self) -> HttpConnection {
        loop {
            {
                let mut open = self.open.lock();
                if open.len() >= CONNECTIONS_MAX
                    && let Some(oldest) =
                        open.iter().position(|open| !open.has_request.load(Ordering::Relaxed))
                {
                    open.remove(oldest).dropped.notify_one();
                }
                if open.len() < CONNECTIONS_MAX {
                    let connection = Arc::<Connection>::default();
                    open.push(Arc::clone(&connection));
                    return HttpConnection { connections: self.clone(), connection };
                }
            }
            self.closed.notified().await;
        }
    }
}

impl HttpConnection {
    /// Serves the connection to its end, within these times for the head of the request and for all of it. Whatever comes
    /// in, nothing but this connection is harmed.
    pub async fn serve<S, F, B>(
        self,
        socket: S,
        head_patience: Duration,
        patience: Duration,
        answer: impl Fn(Request<Incoming>) -> F,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = Response<B>>,
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + 'static,
    {
        let is_endless = AtomicBool::new(false);
        let service = service_fn(async |request| {
            // Its head is complete: the connection is not dropped for another any more.
            self.connection.has_request.store(true, Ordering::Relaxed);
            let answer = answer(request).await;
            is_endless.store(answer.body().size_hint().exact().is_none(), Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_patience)
            .max_buf_size(HEAD_BYTES_MAX)
            // Free the place of an idle connection for the next one.
            .keep_alive(false)
            .serve_connection(TokioIo::new(socket), service);
        let mut served = pin!(served);
        let in_time = tokio::select! {
            biased;
            in_time = tokio::time::timeout(patience, &mut served) => in_time,
            () = self.connection.dropped.notified() => return,
        };
        let ended = match in_time {
            // The sender of the lines bounds their duration and drops a stalled reader.
            Err(_) if is_endless.load(Ordering::Relaxed) => Ok(served.await),
            ended => ended,
        };
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "an operator's connection failed"),
            Err(_) => debug!("an operator's connection took too long"),
        }
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        self.connections.open.lock().retain(|open| !Arc::ptr_eq(open, &self.connection));
        self.connections.closed.notify_one();
    }
}

/// How long a peer has for the head of its request, by where it is.
pub fn head_patience(peer: Option<IpAddr>) -> Duration {
    // An address of IPv4 may be written as one of IPv6.
    let is_here = peer.is_some_and(|peer| peer.to_canonical().is_loopback());
    if is_here { LOOPBACK_HEAD_PATIENCE } else { HEAD_PATIENCE }
}

/// At once: a scraper or two, a browser, some commands.
const CONNECTIONS_MAX: usize = 16;

/// Paths are short; headers of browsers, scrapers and proxies take some kilobytes at most.
const HEAD_BYTES_MAX: usize = 16 * 1_024;

/// A network may lose the first packets.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);

/// On the same host a head is there at once, or its sender does not mean it.
const LOOPBACK_HEAD_PATIENCE: Duration = Duration::from_millis(250);

const PAUSE: Duration = Duration::from_millis(100);
