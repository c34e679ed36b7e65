//! From a request to its answer: which path is whose, and who may ask for what.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::answer::{self, Answer};
use super::verbs::{self, By, Verb};
use super::{Desk, pages};

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    /// Somebody who may run this daemon: everything.
    Operator(By),
    /// Whoever reaches the port of the metrics: the paths that tell nothing of callers and change nothing.
    Anybody,
}

/// Answers one request.
pub(super) async fn answer(desk: &Arc<Desk>, asker: Asker, request: Request<Incoming>) -> Answer {
    let path = request.uri().path();
    let page = pages::find(path).filter(|page| page.is_harmless || matches!(asker, Asker::Operator(_)));
    if let Some(page) = page {
        return match *request.method() {
            Method::GET | Method::HEAD => (page.make)(desk),
            _ => answer::wrong_method("GET"),
        };
    }
    match (asker, verbs::find(path)) {
        (Asker::Operator(by), Some(verb)) if request.method() == Method::POST => {
            carry_out(Arc::clone(desk), by, verb, request).await
        }
        (Asker::Operator(_), Some(_)) => answer::wrong_method("POST"),
        (Asker::Operator(_), None) => {
            answer::error(StatusCode::NOT_FOUND, "there is no such path: GET / says which there are")
        }
        (Asker::Anybody, _) => {
            let message = "here are /metrics, /healthz and /readyz: the rest is on the admin socket";
            answer::error(StatusCode::NOT_FOUND, message)
        }
    }
}

async fn carry_out(desk: Arc<Desk>, by: By, verb: Verb, request: Request<Incoming>) -> Answer {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let body = match tokio::time::timeout(BODY_PATIENCE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => {
            let is_too_long = error.is::<http_body_util::LengthLimitError>();
            let status = if is_too_long { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
            return answer::error(status, format!("the request cannot be read: {error}"));
        }
        Err(_) => return answer::error(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time"),
    };
    let done = tokio::task::spawn_blocking(move || verbs::carry_out(verb, &desk, by, &body));
    match done.await {
        Ok(Ok(done)) => answer::value(StatusCode::OK, &done),
        Ok(Err(refusal)) => answer::error(refusal.status, refusal.message),
        Err(_) => answer::error(StatusCode::INTERNAL_SERVER_ERROR, "it failed: the log says why"),
    }
}

/// What an operator tells is a few words; the longest are the attributes of one key.
const BODY_BYTES_MAX: usize = 64 * 1_024;

/// A few words need no longer on a socket of this host.
const BODY_PATIENCE: Duration = Duration::from_secs(5);
