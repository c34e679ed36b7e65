//! A `tower` layer for services of HTTP requests: axum, tonic, hyper.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Check, Client, Decision, Outcome};

/// Limits requests: refused ones get 429, 503 or 403 with `Retry-After` and a body of RFC 9457.
///
/// The lease of a request ends when its response is made, not with its body; its outcome is by the status.
pub struct LimitLayer<B> {
    client: Client,
    check: Arc<CheckOf<B>>,
}

/// The service of [`LimitLayer`].
pub struct LimitService<S, B> {
    inner: S,
    client: Client,
    check: Arc<CheckOf<B>>,
}

/// Makes the check of a request; `None`: it is exempt.
type CheckOf<B> = dyn Fn(&Client, &Request<B>) -> Option<Check> + Send + Sync;

impl<B> LimitLayer<B> {
    /// Makes a layer. `check` makes the check of each request, such as `client.acquire("api", [("user", user)])`; `None`: the
    /// request is not limited.
    pub fn new(
        client: &Client,
        check: impl Fn(&Client, &Request<B>) -> Option<Check> + Send + Sync + 'static,
    ) -> LimitLayer<B> {
        LimitLayer { client: client.clone(), check: Arc::new(check) }
    }
}

impl<S, B> Layer<S> for LimitLayer<B> {
    type Service = LimitService<S, B>;

    fn layer(&self, inner: S) -> LimitService<S, B> {
        LimitService { inner, client: self.client.clone(), check: Arc::clone(&self.check) }
    }
}

impl<S, B, R> Service<Request<B>> for LimitService<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: From<String>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The ready service is used, and its clone remains for the next request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let check = (self.check)(&self.client, &request);
        Box::pin(async move {
            let Some(check) = check else { return inner.call(request).await };
            let decision = check.await;
            if !decision.is_allowed() {
                return Ok(refusal(&decision));
            }
            if !decision.wait().is_zero() {
                tokio::time::sleep(decision.wait()).await;
            }
            let mut response = inner.call(request).await;
            if let Ok(response) = &mut response
                && !response.status().is_redirection()
            {
                insert(response, &decision);
            }
            let is_well = response.as_ref().is_ok_and(|response| response.status().as_u16() < 400);
            decision.release(if is_well { Outcome::Ok } else { Outcome::Error });
            response
        })
    }
}

fn refusal<R: From<String>>(decision: &Decision) -> Response<R> {
    let mut response = Response::new(R::from(decision.problem()));
    *response.status_mut() = StatusCode::from_u16(decision.status()).unwrap_or(StatusCode::FORBIDDEN);
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    insert(&mut response, decision);
    response
}

/// Inserts the headers of the limit; the name of a rule may hold characters that no header has.
fn insert<R>(response: &mut Response<R>, decision: &Decision) {
    for (name, value) in decision.headers() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
}

impl<B> Clone for LimitLayer<B> {
    fn clone(&self) -> LimitLayer<B> {
        LimitLayer { client: self.client.clone(), check: Arc::clone(&self.check) }
    }
}

impl<S: Clone, B> Clone for LimitService<S, B> {
    fn clone(&self) -> LimitService<S, B> {
        LimitService {
            inner: self.inner.clone(),
            client: self.client.clone(),
            check: Arc::clone(&self.check),
        }
    }
}

impl<B> fmt::Debug for LimitLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer").field("client", &self.client).finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, B> fmt::Debug for LimitService<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
