//! The signals of the daemon.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::flag;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::watch::ReloadSignal;
use crate::admin::{AdminState, log_status};

/// TERM and INT drain; a second one exits at once from the signal handler, without waiting for any thread,
/// even one that writes the tables. HUP reloads the rules.
///
/// # Errors
/// A signal cannot be watched.
pub(super) fn watch(shutdown: &CancellationToken, rules: ReloadSignal) -> io::Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hang_up = signal(SignalKind::hangup())?;
    let is_draining = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // The order matters: at the first signal the exit handler runs before the flag is set.
        flag::register_conditional_shutdown(signal, EXIT_UNDRAINED, Arc::clone(&is_draining))?;
        flag::register(signal, Arc::clone(&is_draining))?;
    }
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => {
                    rules.ask();
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
pub(super) fn tell_status(state: AdminState) -> io::Result<()> {
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
