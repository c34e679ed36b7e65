//! `tidegate dashboard`: serves the daemon's page to a browser, only for a user that may open its admin socket.
//! It changes nothing.

mod proxy;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::admin_client::{AdminArgs, AdminClient, AdminFailure};
use crate::daemon::log;
use proxy::Proxy;

/// Shows the daemon's page in a browser: serves it on this host alone, at an address that nobody can guess
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The port on 127.0.0.1; 0: one that is free
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Prints the address and serves until ^C. Whoever knows the address may look as long as it runs, and can change nothing:
it is GET only, and the verbs are not served. It is another one each time.

For a host that you reach by ssh, give a port, forward it in another terminal, and open what was printed.

Examples:
  tidegate dashboard
  ssh -t host sudo tidegate dashboard --port 9632
  ssh -N -L 9632:127.0.0.1:9632 host

Exit codes: 0 after ^C; 1 the daemon does not answer or the port is taken, with what to do; 2 wrong usage.";

/// Runs the command.
///
/// # Errors
/// The address cannot be written.
pub fn run(args: &Args, out: &mut dyn Write) -> io::Result<ExitCode> {
    match serve(args, out) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(DashboardError::Write(error)) => Err(error),
        Err(other) => {
            log::plainly(&format!("tidegate: {other}"));
            Ok(ExitCode::FAILURE)
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum DashboardError {
    #[error("{0}")]
    NoAnswer(#[from] AdminFailure),
    #[error("127.0.0.1:{port}: {source}: free the port, or choose another by --port")]
    Port { port: u16, source: io::Error },
    #[error("cannot serve: {0}")]
    Serve(io::Error),
    #[error("{0}")]
    Write(io::Error),
}

fn serve(args: &Args, out: &mut dyn Write) -> Result<(), DashboardError> {
    let client = args.admin.client();
    // Reports missing access here rather than in the browser.
    look(&client)?;
    let token = token().map_err(DashboardError::Serve)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime =
        runtime.enable_all().max_blocking_threads(LOOKS_AT_ONCE).build().map_err(DashboardError::Serve)?;
    let served = runtime.block_on(async {
        let failed = |source| DashboardError::Port { port: args.port, source };
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, args.port))).await;
        let listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(DashboardError::Serve)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(DashboardError::Serve)?;
        writeln!(out, "http://{address}/{token}/")
            .and_then(|()| out.flush())
            .map_err(DashboardError::Write)?;
        log::plainly("Whoever knows this address may look. ^C ends it.");
        let proxy = Proxy::new(client, token, address.port());
        tokio::select! {
            () = proxy.serve(&listener) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    });
    // Do not wait for requests in progress.
    runtime.shutdown_background();
    served
}

fn look(client: &AdminClient) -> Result<(), AdminFailure> {
    client.get("/healthz").map(|_| ())
}

/// Returns a random token of 128 bits.
fn token() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += getrandom(rest, GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Concurrent requests: a page, and a link followed from it.
const LOOKS_AT_ONCE: usize = 4;
