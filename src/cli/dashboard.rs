//! `tidegate dashboard`: serves the daemon's page to a browser, only for a user that may open its admin socket.
//! It changes nothing.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use maud::{DOCTYPE, html};
use tokio::net::{TcpListener, TcpStream};

use super::admin_client::{AdminArgs, AdminClient, AdminFailure};
use super::signals::CaughtSignals;
use super::{CliResult, failed};
use crate::admin::answer::{HttpAnswer, of_kind, safe, text};
use crate::admin::{HttpConnection, HttpConnections, head_patience, page_paths};
use crate::daemon::log;
use crate::sys;
use crate::terms::hex;

/// Serves the daemon's page to a browser on this host, at an unguessable address
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

For a host that you reach by ssh, give a port, forward it in another terminal, and open the printed address.

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
    let token = hex(&random);
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

#[derive(Debug)]
struct Proxy {
    client: AdminClient,
    token: String,
    /// Accepted `Host` values: another name that resolves here is DNS rebinding.
    hosts: Vec<String>,
}

impl Proxy {
    fn new(client: AdminClient, token: String, port: u16) -> Arc<Proxy> {
        let with_port = NAMES.map(|name| format!("{name}:{port}"));
        // Browsers omit the default port.
        let alone = NAMES.iter().filter(|_| port == HTTP_PORT).map(|name| (*name).to_owned());
        Arc::new(Proxy { client, token, hosts: with_port.into_iter().chain(alone).collect() })
    }

    async fn serve(self: &Arc<Proxy>, listener: &TcpListener) {
        let accept = async || listener.accept().await.map(|(socket, _)| Some(socket));
        let serve = |socket: TcpStream, connection: HttpConnection| {
            let (proxy, peer) = (Arc::clone(self), socket.peer_addr().ok().map(|peer| peer.ip()));
            connection.serve(socket, head_patience(peer), PATIENCE, move |request| {
                let proxy = Arc::clone(&proxy);
                async move { safe(proxy.answer(&request).await, NOTHING) }
            })
        };
        // A connection that the browser closed early is no failure.
        HttpConnections::serve_each(accept, serve, drop).await;
    }

    async fn answer(&self, request: &Request<Incoming>) -> HttpAnswer {
        if !self.has_own_host(request) {
            return text(
                StatusCode::FORBIDDEN,
                "this address is for this host alone: open the one that was printed",
            );
        }
        let Some(path) = self.path_behind_token(request.uri().path()) else {
            return text(
                StatusCode::NOT_FOUND,
                "there is nothing here: open the whole address that was printed",
            );
        };
        if request.method() != Method::GET {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "here one can only look: GET");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return answer;
        }
        let Some(page) = page_paths().find(|page| *page == path) else {
            return text(StatusCode::NOT_FOUND, "there is no such page");
        };
        let client = self.client.clone();
        match tokio::task::spawn_blocking(move || client.get(page)).await {
            Ok(Ok(answered)) => {
                let status = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::BAD_GATEWAY);
                let mut answer = text(status, answered.body);
                for name in PASSED_ON {
                    let value = answered.headers.iter().find(|(known, _)| *known == name.as_str());
                    if let Some(value) = value.and_then(|(_, value)| HeaderValue::from_str(value).ok()) {
                        answer.headers_mut().insert(name, value);
                    }
                }
                answer
            }
            Ok(Err(failure)) => no_answer(&failure),
            Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "it failed"),
        }
    }

    fn has_own_host(&self, request: &Request<Incoming>) -> bool {
        let is_ours = |name: &str| self.hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
        let mut values = request.headers().get_all(HOST).iter();
        let (Some(host), None) = (values.next(), values.next()) else { return false };
        let authority = request.uri().authority();
        host.to_str().is_ok_and(is_ours) && authority.is_none_or(|authority| is_ours(authority.as_str()))
    }

    /// Strips the token: `/TOKEN/status` is `/status`. Compares the token in constant time.
    fn path_behind_token<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix('/')?;
        let (values, page) = rest.split_at_checked(self.token.len())?;
        let differing =
            values.bytes().zip(self.token.bytes()).fold(0, |bits, (one, other)| bits | (one ^ other));
        (differing == 0 && page.starts_with('/')).then_some(page)
    }
}

/// Returns an error page that reloads itself. A page that is already open shows its reason.
fn no_answer(failure: &AdminFailure) -> HttpAnswer {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "✖ no answer – tidegate" }
                meta name="color-scheme" content="light dark";
                meta http-equiv="refresh" content="5";
            }
            body {
                h1 { "The daemon does not answer" }
                p id="why" {
                    @for (number, line) in failure.to_string().lines().enumerate() {
                        @if number > 0 { br; }
                        (line)
                    }
                }
                p { "This page tries again every 5 s." }
            }
        }
    };
    of_kind(StatusCode::BAD_GATEWAY, "text/html; charset=utf-8", page.into_string())
}

const PASSED_ON: [HeaderName; 2] = [CONTENT_TYPE, CONTENT_SECURITY_POLICY];

const NOTHING: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

const HTTP_PORT: u16 = 80;

/// Longer than the timeout of the admin client.
const PATIENCE: Duration = Duration::from_secs(15);
