//! An open connection: the pipelining of the `redis` crate over a stream that trusts no length. Replies come back in the
//! order of the commands; a command whose caller stopped waiting keeps its position.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::SetOnce;
use tokio::time::{Sleep, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::failure::{FailureClass, LinkError};

pub(super) trait ServerStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ServerStream for S {}

#[derive(Debug)]
pub(super) struct ServerConnection {
    commands: MultiplexedConnection,
    watch: Arc<StreamWatch>,
    driver: AbortOnDropHandle<()>,
}

#[derive(Debug, Default)]
struct StreamWatch {
    /// Bytes received since a caller last took a reply.
    unread: AtomicUsize,
    /// The first reason for which the connection has ended.
    ended: SetOnce<LinkError>,
}

impl ServerConnection {
    pub(super) async fn new(stream: Box<dyn ServerStream>) -> Result<ServerConnection, LinkError> {
        let watch = Arc::new(StreamWatch::default());
        let stream = BoundedStream { stream, watch: Arc::clone(&watch), pause: None };
        // Sends nothing: the caller authenticates.
        let server =
            RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        // The timeout adapts, and ends the connection.
        let config =
            AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(QUEUED_MAX);
        let (commands, driver) = MultiplexedConnection::new_with_config(&server, stream, config)
            .await
            .map_err(|_| not_of_redis())?;
        let until_end = Arc::clone(&watch);
        let driver = tokio::spawn(async move {
            driver.await;
            // The stream has set any other reason.
            let _ = until_end.ended.set(not_of_redis());
        });
        Ok(ServerConnection { commands, watch, driver: AbortOnDropHandle::new(driver) })
    }

    /// Sends commands in one write and returns their replies; the caller sets the timeout. Ends without a reply once the
    /// connection has ended.
    pub(super) async fn send(&self, commands: &redis::Pipeline) -> Result<Vec<Value>, LinkError> {
        let mut connection = self.commands.clone();
        let replies = connection.send_packed_commands(commands, 0, commands.len()).await;
        self.watch.unread.store(0, Ordering::Relaxed);
        let closed = || LinkError::new(FailureClass::Down, "the connection was closed");
        replies.map_err(|_| self.watch.ended.get().cloned().unwrap_or_else(closed))
    }

    /// Closes the connection and returns why it ended: for this reason, unless it has another one.
    pub(super) fn end(&self, why: LinkError) -> LinkError {
        self.driver.abort();
        let why = LinkError { may_have_run: false, ..why };
        let _ = self.watch.ended.set(why.clone());
        self.watch.ended.get().cloned().unwrap_or(why)
    }

    pub(super) async fn ended(&self) -> LinkError {
        self.watch.ended.wait().await.clone()
    }
}

fn not_of_redis() -> LinkError {
    LinkError::new(FailureClass::Protocol, "the reply is not in the protocol of Redis")
}

/// A stream that ends when more bytes arrive than replies may have, so that a faulty or foreign server costs at most one
/// bounded buffer. The parser of the `redis` crate bounds the nesting and allocates for values that have come, not for
/// lengths that are announced.
struct BoundedStream {
    stream: Box<dyn ServerStream>,
    watch: Arc<StreamWatch>,
    /// The pause at half of the bound, in which callers take the replies that are complete.
    pause: Option<Pin<Box<Sleep>>>,
}

impl BoundedStream {
    /// Keeps the reason of an error.
    fn watched<T>(&self, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled {
            let _ = self.watch.ended.set(LinkError::of_io(error));
        }
        polled
    }

    fn end(&self, class: FailureClass, why: &'static str) -> Poll<io::Result<()>> {
        let _ = self.watch.ended.set(LinkError::new(class, why));
        Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }
}

impl AsyncRead for BoundedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let unread = self.watch.unread.load(Ordering::Relaxed);
        if unread > REPLY_BYTES_MAX {
            return self.end(FailureClass::Protocol, "a reply of more than 512 KiB");
        }
        if unread < REPLY_BYTES_MAX / 2 {
            self.pause = None;
        } else {
            let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(PAUSE)));
            if !pause.is_elapsed() {
                ready!(pause.as_mut().poll(context));
            }
        }
        let before = bytes.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, bytes);
        ready!(self.watched(polled))?;
        let read = bytes.filled().len() - before;
        if read == 0 {
            return self.end(FailureClass::Down, "the server closed the connection");
        }
        self.watch.unread.fetch_add(read, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BoundedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.watched(polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Commands that are sent together, before the first of them is written.
const QUEUED_MAX: usize = 1_024;

/// The callers run before a timer fires.
const PAUSE: Duration = Duration::from_millis(1);

/// The most bytes of replies: 32 cells take less than 4 kB. Values take up to fifty times their bytes of memory.
const REPLY_BYTES_MAX: usize = 512 << 10;
