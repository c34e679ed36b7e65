//! The signals of the daemon.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::watch::ReloadSignal;
use crate::admin::{AdminState, log_status};
use crate::sys;

/// TERM and INT drain; a second one exits at once from the signal handler, without waiting for any thread,
/// even one that writes the tables; the same one within a moment counts once. HUP reloads the rules.
///
/// # Errors
/// A signal cannot be watched.
pub(super) fn watch(shutdown: &CancellationToken, rules: ReloadSignal) -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hang_up = signal(SignalKind::hangup())?;
    sys::exit_at_second_signal(&[libc::SIGTERM, libc::SIGINT], EXIT_UNDRAINED)?;
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => {
                    rules.request();
                    continue;
                }
            }
            info!("draining");
            shutdown.cancel();
        }
    });
    Ok(())
}

/// USR1 writes the status to the log.
///
/// # Errors
/// The signal cannot be watched.
pub(super) fn watch_status_requests(state: AdminState) -> io::Result<()> {
    let mut requests = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        while requests.recv().await.is_some() {
            log_status(&state);
        }
    });
    Ok(())
}

/// Exited before all replies were sent.
const EXIT_UNDRAINED: i32 = 1;
