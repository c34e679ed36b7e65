//! Routes an HTTP request to its page or verb and checks that the client may use it.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, StatusCode};
use tokio::sync::{Semaphore, oneshot};

use super::AdminState;
use super::answer::{self, HttpAnswer};
use super::control::ServedSocket;
use super::pages::{ROUTES, RouteAction, Verb};
use super::verbs;
use crate::engine::SwitchOrigin;

/// The client of a connection, by the rights it has.
#[derive(Clone, Copy, Debug)]
pub(super) enum HttpClient {
    /// An operator, over the admin socket, by the uid that the kernel reports: may use every path.
    Operator(SwitchOrigin),
    /// A client of the metrics port: may use the paths that show no callers and change nothing.
    Anybody,
}

/// Answers one request.
pub(super) async fn answer(
    admin: &Arc<AdminState>,
    asker: HttpClient,
    request: Request<Incoming>,
) -> HttpAnswer {
    let path = request.uri().path();
    if matches!(asker, HttpClient::Operator(_))
        && let Some(socket) = misdirected(admin, &request)
    {
        return answer::misdirected(&socket.path);
    }
    let action = ROUTES.iter().find(|route| route.path == path).map(|route| route.action);
    match (asker, action) {
        (_, Some(RouteAction::Public(page))) | (HttpClient::Operator(_), Some(RouteAction::Page(page))) => {
            match *request.method() {
                Method::GET | Method::HEAD => page(admin),
                _ => answer::wrong_method("GET"),
            }
        }
        (HttpClient::Operator(by), Some(RouteAction::Verb(verb))) => match *request.method() {
            Method::POST => carry_out(Arc::clone(admin), by, verb, request).await,
            _ => answer::wrong_method("POST"),
        },
        (HttpClient::Operator(_), None) => {
            answer::error(StatusCode::NOT_FOUND, "there is no such path: GET / says which there are")
        }
        (HttpClient::Anybody, _) => {
            let message = "here are /metrics, /healthz and /readyz: the rest is on the admin socket";
            answer::error(StatusCode::NOT_FOUND, message)
        }
    }
}

/// The socket of this daemon, where the command means the daemon of another one.
fn misdirected<'d>(admin: &'d AdminState, request: &Request<Incoming>) -> Option<&'d ServedSocket> {
    let meant = request.headers().get(ServedSocket::HEADER)?;
    let served = admin.socket.identity.map(ServedSocket::token);
    served.is_none_or(|served| meant.as_bytes() != served.as_bytes()).then_some(&admin.socket)
}

async fn carry_out(
    admin: Arc<AdminState>,
    by: SwitchOrigin,
    verb: Verb,
    request: Request<Incoming>,
) -> HttpAnswer {
    let body = match read(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    match on_a_thread(move || verb(&admin, by, &verbs::object(&body)?)).await {
        Ok(Ok(done)) => done,
        Ok(Err(refusal)) => answer::error(refusal.status, refusal.message),
        Err(answer) => answer,
    }
}

/// Runs blocking work on its own thread. The runtime's blocking pool panics if it cannot spawn a thread.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, HttpAnswer> {
    static AT_ONCE: Semaphore = Semaphore::const_new(VERBS_AT_ONCE);
    let failed = |_| answer::error(StatusCode::INTERNAL_SERVER_ERROR, FAILED);
    let permit = AT_ONCE.acquire().await.map_err(|_| failed(()))?;
    let (tell, told) = oneshot::channel();
    let thread = std::thread::Builder::new().name("admin-verb".into()).spawn(move || {
        let _ = tell.send(work());
        drop(permit);
    });
    if let Err(error) = thread {
        let message = format!("no thread can be had for this: {error}; help: raise TasksMax of the unit");
        return Err(answer::error(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    told.await.map_err(|_| failed(()))
}

async fn read(request: Request<Incoming>) -> Result<Bytes, HttpAnswer> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    match tokio::time::timeout(BODY_PATIENCE, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => {
            let is_too_long = error.is::<http_body_util::LengthLimitError>();
            let status = if is_too_long { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
            Err(answer::error(status, format!("the request cannot be read: {error}")))
        }
        Err(_) => Err(answer::error(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time")),
    }
}

/// Verbs block on reading rules and on writing files; operators are few.
const VERBS_AT_ONCE: usize = 4;

const FAILED: &str = "it failed: the log says why";

/// Request bodies are short; the longest part is the attributes of one key.
const BODY_BYTES_MAX: usize = 64 * 1_024;

/// A few words need no longer on a socket of this host.
const BODY_PATIENCE: Duration = Duration::from_secs(5);
