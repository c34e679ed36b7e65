//! `tidegate dashboard`: serves the daemon's page to a browser, only for a user that may open its admin socket.
//! It changes nothing.

mod proxy;

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use tokio::net::TcpListener;

use super::admin_client::AdminArgs;
use super::signals::CaughtSignals;
use super::{CliResult, failed};
use crate::daemon::log;
use crate::sys;
use proxy::Proxy;

/// Shows the daemon's page in a browser: serves it on this host alone, at an address that cannot be guessed
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// The port on 127.0.0.1; 0: one that is free
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Prints the address and serves until ^C. Anyone with the address may look while it runs, and can change nothing:
it is GET only, and the verbs are not served. It is another one each time.

For a host that you reach by ssh, give a port, forward it in another terminal, and open what was printed.

Examples:
  tidegate dashboard
  ssh -t host sudo tidegate dashboard --port 9632
  ssh -N -L 9632:127.0.0.1:9632 host

Exit codes: 0 after ^C; 1 the daemon does not answer or the port is taken, with what to do; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let client = args.admin.client();
    // Reports missing access here rather than in the browser.
    client.get("/healthz")?;
    let cannot_serve = |error: io::Error| failed(format_args!("cannot serve: {error}"));
    let random = sys::random_bytes::<16>().map_err(cannot_serve)?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(LOOKS_AT_ONCE).build().map_err(cannot_serve)?;
    let served = runtime.block_on(async {
        let port = args.port;
        let taken = |error: io::Error| {
            failed(format_args!("127.0.0.1:{port}: {error}: free the port, or choose another by --port"))
        };
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await;
        let listener = listener.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        let mut signals = CaughtSignals::new(&[libc::SIGTERM, libc::SIGINT]).map_err(cannot_serve)?;
        writeln!(out, "http://{address}/{token}/")?;
        out.flush()?;
        log::plainly("Anyone with this address may look. ^C ends it.");
        let proxy = Proxy::new(client, token, address.port());
        tokio::select! {
            () = proxy.serve(&listener) => {}
            _ = signals.next() => {}
        }
        Ok(ExitCode::SUCCESS)
    });
    // Do not wait for requests in progress.
    runtime.shutdown_background();
    served
}

/// Concurrent requests: a page, and a link followed from it.
const LOOKS_AT_ONCE: usize = 4;
