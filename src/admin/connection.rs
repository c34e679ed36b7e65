//! One operator's connection: one request, one answer. It knows how long each may take.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Either;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use super::AdminState;
use super::http_connections::HttpConnection;
use super::router::{self, HttpClient};

/// Serves it to its end. Whatever comes in, nothing but this connection is harmed.
pub(super) async fn serve<S>(
    admin: Arc<AdminState>,
    asker: HttpClient,
    socket: S,
    connection: HttpConnection,
    head_patience: Duration,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let is_endless = AtomicBool::new(false);
    let service = service_fn(async |request| {
        connection.note_request();
        let answer = router::answer(&admin, asker, request).await;
        is_endless.store(matches!(answer.body(), Either::Right(_)), Ordering::Relaxed);
        Ok::<_, Infallible>(answer)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_patience)
        .max_buf_size(HEAD_BYTES_MAX)
        // Free the place of an idle connection for the next one.
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), service);
    let whole = match asker {
        HttpClient::Operator(_) => OPERATOR_PATIENCE,
        HttpClient::Anybody => ANYBODY_PATIENCE,
    };
    let mut served = pin!(served);
    let in_time = tokio::select! {
        biased;
        in_time = tokio::time::timeout(whole, &mut served) => in_time,
        () = connection.dropped() => return,
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

/// Paths are short; headers of scrapers and proxies add a few hundred bytes.
const HEAD_BYTES_MAX: usize = 16 * 1_024;

/// The head, a scrape, and some hundred kilobytes read by the other side.
const ANYBODY_PATIENCE: Duration = Duration::from_secs(10);

/// Longer than any verb waits.
const OPERATOR_PATIENCE: Duration = Duration::from_secs(60);
