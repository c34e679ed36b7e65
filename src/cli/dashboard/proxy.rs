//! Serves the pages of the admin socket to browsers of this host, below a path that begins with the token.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use maud::{DOCTYPE, html};
use tokio::net::{TcpListener, TcpStream};

use crate::admin::{HttpConnection, HttpConnections, SAFETY, head_patience, page_paths};
use crate::cli::admin_client::{AdminClient, AdminFailure};

type ProxyAnswer = Response<Full<Bytes>>;

#[derive(Debug)]
pub(super) struct Proxy {
    client: AdminClient,
    token: String,
    /// Accepted `Host` values: another name that resolves here is DNS rebinding.
    hosts: Vec<String>,
}

impl Proxy {
    pub(super) fn new(client: AdminClient, token: String, port: u16) -> Arc<Proxy> {
        let with_port = NAMES.map(|name| format!("{name}:{port}"));
        // Browsers omit the default port.
        let alone = NAMES.iter().filter(|_| port == HTTP_PORT).map(|name| (*name).to_owned());
        Arc::new(Proxy { client, token, hosts: with_port.into_iter().chain(alone).collect() })
    }

    pub(super) async fn serve(self: &Arc<Proxy>, listener: &TcpListener) {
        let accept = async || listener.accept().await.map(|(socket, _)| Some(socket));
        let serve = |socket, connection| Arc::clone(self).serve_one(socket, connection);
        // A connection that the browser closed early is no failure.
        HttpConnections::serve_each(accept, serve, drop).await;
    }

    async fn serve_one(self: Arc<Proxy>, socket: TcpStream, connection: HttpConnection) {
        let peer = socket.peer_addr().ok().map(|peer| peer.ip());
        let service = service_fn(async |request| {
            connection.note_request();
            Ok::<_, Infallible>(self.answer(&request).await)
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_patience(peer))
            .max_buf_size(HEAD_BYTES_MAX)
            .keep_alive(false)
            .serve_connection(TokioIo::new(socket), service);
        tokio::select! {
            biased;
            _ = tokio::time::timeout(PATIENCE, served) => {}
            () = connection.dropped() => {}
        }
    }

    async fn answer(&self, request: &Request<Incoming>) -> ProxyAnswer {
        if !self.is_asked_by_name(request) {
            return plain(
                StatusCode::FORBIDDEN,
                "this address is for this host alone: open the one that was printed",
            );
        }
        let Some(path) = self.path_behind_token(request.uri().path()) else {
            return plain(
                StatusCode::NOT_FOUND,
                "there is nothing here: open the whole address that was printed",
            );
        };
        if request.method() != Method::GET {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "here one can only look: GET");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return answer;
        }
        let Some(page) = page_paths().find(|page| *page == path) else {
            return plain(StatusCode::NOT_FOUND, "there is no such page");
        };
        let client = self.client.clone();
        match tokio::task::spawn_blocking(move || client.get(page)).await {
            Ok(Ok(answered)) => {
                let status = StatusCode::from_u16(answered.status).unwrap_or(StatusCode::BAD_GATEWAY);
                let mut answer = Response::new(Full::new(answered.body.into()));
                *answer.status_mut() = status;
                for name in PASSED_ON {
                    let value = answered.headers.iter().find(|(known, _)| *known == name.as_str());
                    if let Some(value) = value.and_then(|(_, value)| HeaderValue::from_str(value).ok()) {
                        answer.headers_mut().insert(name, value);
                    }
                }
                safe(answer)
            }
            Ok(Err(failure)) => no_answer(&failure),
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "it failed"),
        }
    }

    fn is_asked_by_name(&self, request: &Request<Incoming>) -> bool {
        let is_ours = |name: &str| self.hosts.iter().any(|host| host.eq_ignore_ascii_case(name));
        let mut said = request.headers().get_all(HOST).iter();
        let (Some(host), None) = (said.next(), said.next()) else { return false };
        let authority = request.uri().authority();
        host.to_str().is_ok_and(is_ours) && authority.is_none_or(|authority| is_ours(authority.as_str()))
    }

    /// Strips the token: `/TOKEN/status` is `/status`. Compares the token in constant time.
    fn path_behind_token<'p>(&self, path: &'p str) -> Option<&'p str> {
        let rest = path.strip_prefix('/')?;
        let (said, page) = rest.split_at_checked(self.token.len())?;
        let differing =
            said.bytes().zip(self.token.bytes()).fold(0, |bits, (one, other)| bits | (one ^ other));
        (differing == 0 && page.starts_with('/')).then_some(page)
    }
}

/// Returns an error page that reloads itself. A page that is already open shows its reason.
fn no_answer(failure: &AdminFailure) -> ProxyAnswer {
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
                p id="why" { (failure) "." }
                p { "This page tries again every 5 s." }
            }
        }
    };
    let mut answer = plain(StatusCode::BAD_GATEWAY, page.into_string());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    answer
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> ProxyAnswer {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    safe(answer)
}

/// Sets headers against caching, scripts and framing.
fn safe(mut answer: ProxyAnswer) -> ProxyAnswer {
    let headers = answer.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for (name, value) in SAFETY {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(NOTHING));
    answer
}

const PASSED_ON: [HeaderName; 2] = [CONTENT_TYPE, CONTENT_SECURITY_POLICY];

const NOTHING: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

const HTTP_PORT: u16 = 80;

/// Request headers of browsers take some kilobytes.
const HEAD_BYTES_MAX: usize = 16 * 1_024;

/// Longer than the timeout of the admin client.
const PATIENCE: Duration = Duration::from_secs(15);
