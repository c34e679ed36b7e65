//! Listeners for operators: a Unix admin socket, and a TCP port for metrics. A listener that cannot be
//! opened is tried again, and shuts no other.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::AdminState;
use super::http_connections::{HttpConnection, HttpConnections, head_patience};
use super::router::{self, HttpClient};
use crate::engine::SwitchOrigin;
use crate::server::{BindError, Listener, retry_until_open};

/// The admin socket, open to the user of the daemon alone.
#[derive(Debug)]
pub struct AdminSocket {
    path: PathBuf,
    /// Holds the lock of the path.
    listener: Option<Listener>,
}

impl AdminSocket {
    /// Binds the socket. Failures other than a conflict with another process are retried, and logged, by `open`.
    ///
    /// # Errors
    /// Another process listens there.
    pub fn first(path: PathBuf) -> Result<AdminSocket, BindError> {
        match Listener::bind(&path, MODE, None) {
            Err(taken @ (BindError::Locked { .. } | BindError::InUse { .. })) => Err(taken),
            bound => Ok(AdminSocket { path, listener: bound.ok() }),
        }
    }

    /// Returns once the socket file of the open socket is not at its path any more.
    async fn await_removal(&self) {
        match &self.listener {
            Some(listener) => listener.await_removal().await,
            None => std::future::pending().await,
        }
    }

    fn open(&mut self) -> Result<UnixListener, String> {
        // One whose file was removed releases the path before it is bound again.
        let bound = match self.listener.take().filter(Listener::is_at_path) {
            Some(bound) => bound,
            None => Listener::bind(&self.path, MODE, None).map_err(|error| {
                format!("{error}; help: name another path as `admin.socket` in the settings")
            })?,
        };
        self.listener.insert(bound).watch().map_err(|error| error.to_string())
    }

    pub(super) fn close(&mut self) {
        self.listener = None;
    }
}

#[derive(Debug)]
pub struct Listeners {
    pub admin: AdminSocket,
    /// For metrics, if they are to be had over TCP.
    pub metrics: Option<SocketAddr>,
}

/// Serves all listeners until `stop`. Tells `tried` after the first attempt to open each listener.
pub(super) async fn serve(
    admin: Arc<AdminState>,
    listeners: &mut Listeners,
    tried: &SyncSender<()>,
    stop: &CancellationToken,
) {
    let operators = listeners.admin.open();
    let scrapers = match listeners.metrics {
        Some(address) => {
            let opened = open_port(address).await;
            *admin.metrics_failure.lock() = opened.as_ref().err().cloned();
            Some((address, opened))
        }
        None => None,
    };
    let _ = tried.try_send(());
    let served = async {
        tokio::join!(serve_operators(&admin, operators, &mut listeners.admin), async {
            if let Some((address, first)) = scrapers {
                serve_scrapers(&admin, first, address).await;
            }
        });
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = served => {}
    }
}

async fn open_port(address: SocketAddr) -> Result<TcpListener, String> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| format!("{address}: {error}: correct metrics.listen, or free the port"))
}

/// Serves the admin socket, which is made again after its file was removed.
async fn serve_operators(
    admin: &Arc<AdminState>,
    mut first: Result<UnixListener, String>,
    admin_socket: &mut AdminSocket,
) {
    let meanwhile = "no admin socket: status, reload and switches do not reach this daemon: it is tried again every second";
    let own = rustix::process::geteuid().as_raw();
    loop {
        let listener = retry_until_open(first, async || admin_socket.open(), meanwhile).await;
        // The mode of the socket keeps other users out; this guards against a changed mode.
        let accept = async || {
            let (socket, _) = listener.accept().await?;
            let user = rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw();
            if user != 0 && user != own {
                warn!(user, "refused on the admin socket: only root and the daemon's own user may use it");
                return Ok(None);
            }
            Ok(Some((socket, HttpClient::Operator(SwitchOrigin::User(user)), None)))
        };
        tokio::select! {
            () = take_turns(admin, accept) => {}
            () = admin_socket.await_removal() => {}
        }
        let path = admin_socket.path.display();
        warn!(%path, "the admin socket was removed or replaced: it is made again");
        first = admin_socket.open();
    }
}

async fn serve_scrapers(admin: &Arc<AdminState>, first: Result<TcpListener, String>, address: SocketAddr) {
    let meanwhile = "no metrics over TCP; they are on the admin socket, too: it is tried again every second";
    let listener = retry_until_open(first, async || open_port(address).await, meanwhile).await;
    *admin.metrics_failure.lock() = None;
    // Port 0 has become one that was free.
    let address = listener.local_addr().unwrap_or(address);
    info!(%address, "metrics are served");
    let accept = async || {
        let (socket, peer) = listener.accept().await?;
        Ok(Some((socket, HttpClient::Anybody, Some(peer.ip()))))
    };
    take_turns(admin, accept).await;
}

async fn take_turns<S>(
    admin: &Arc<AdminState>,
    accept: impl AsyncFnMut() -> io::Result<Option<(S, HttpClient, Option<IpAddr>)>>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let serve = |(socket, client, peer), connection: HttpConnection| {
        let admin = Arc::clone(admin);
        let patience = match client {
            HttpClient::Operator(_) => OPERATOR_PATIENCE,
            HttpClient::Anybody => ANYBODY_PATIENCE,
        };
        connection.serve(socket, head_patience(peer), patience, move |request| {
            let admin = Arc::clone(&admin);
            async move { router::answer(&admin, client, request).await }
        })
    };
    let failed = |error| debug!(%error, "an operator's connection was not let in");
    HttpConnections::serve_each(accept, serve, failed).await;
}

/// Owner only, as the socket can disable rules.
const MODE: u32 = 0o600;

/// The head, a scrape, and some hundred kilobytes read by the other side.
const ANYBODY_PATIENCE: Duration = Duration::from_secs(10);

/// Longer than any verb waits.
const OPERATOR_PATIENCE: Duration = Duration::from_secs(60);

/// The target of log lines of this module: any user may cause some.
pub const LOG_TARGET: &str = module_path!();
