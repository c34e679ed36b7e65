//! The admin socket at its path: open to nobody but the user who runs the daemon. It decides nothing of what is asked
//! there.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use crate::admin::Door;
use crate::server::Listener;

/// Where operators ask.
#[derive(Debug)]
pub(super) struct AdminDoor {
    path: PathBuf,
    /// Keeps the path ours.
    listener: Option<Listener>,
}

impl AdminDoor {
    pub(super) fn new(path: PathBuf) -> AdminDoor {
        AdminDoor { path, listener: None }
    }
}

impl Door for AdminDoor {
    fn open(&mut self) -> Result<UnixListener, String> {
        let listener = Listener::bind(&self.path, MODE, None)
            .map_err(|error| format!("{error}; `admin.socket` of the settings may say another place"))?;
        let socket = listener.socket().map_err(|error| error.to_string())?;
        self.listener = Some(listener);
        Ok(socket)
    }
}

/// Rules are switched off here.
const MODE: u32 = 0o600;
