//! The admin socket, open to the user of the daemon alone.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use crate::admin::ListenerSource;
use crate::server::{BindError, Listener};

#[derive(Debug)]
pub(super) struct AdminSocket {
    path: PathBuf,
    /// The result of binding at the start, until it is opened.
    first: Option<Result<Listener, BindError>>,
    /// Holds the lock of the path.
    listener: Option<Listener>,
}

impl AdminSocket {
    /// Binds the socket. Failures other than a conflict with another process are retried by `open`.
    ///
    /// # Errors
    /// Another process listens there.
    pub(super) fn first(path: PathBuf) -> Result<AdminSocket, BindError> {
        let first = match Listener::bind(&path, MODE, None) {
            Err(taken @ (BindError::Locked { .. } | BindError::InUse { .. })) => return Err(taken),
            first => Some(first),
        };
        Ok(AdminSocket { path, first, listener: None })
    }
}

impl ListenerSource for AdminSocket {
    fn open(&mut self) -> Result<UnixListener, String> {
        // After a panic of the thread, release the path before it is bound again.
        self.listener = None;
        let bound = self.first.take().unwrap_or_else(|| Listener::bind(&self.path, MODE, None));
        let listener = bound
            .map_err(|error| format!("{error}; help: name another path as `admin.socket` in the settings"))?;
        let socket = listener.try_clone_socket().map_err(|error| error.to_string())?;
        self.listener = Some(listener);
        Ok(socket)
    }

    fn close(&mut self) {
        self.listener = None;
    }
}

/// Owner only, as the socket can disable rules.
const MODE: u32 = 0o600;
