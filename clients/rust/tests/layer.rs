//! The layer around a service, before a real daemon.

mod support;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use support::{Daemon, client, until};
use tidegate_client::LimitLayer;
use tower_layer::Layer;
use tower_service::Service;

const RULES: &str = "
domain: api
limits: [{name: per-user, key: [user], rate: 1/h, burst: 2}]
concurrency: [{name: one, match: {job: export}, key: [], max: 1, expires: 1h}]
";

/// Answers the status of the header `x-status`.
#[derive(Clone)]
struct App;

impl Service<Request<()>> for App {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<String>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let status = request.headers().get("x-status").and_then(|status| status.to_str().ok());
        let mut response = Response::new("done".to_owned());
        *response.status_mut() = status.and_then(|status| status.parse().ok()).unwrap_or_default();
        Box::pin(async { Ok(response) })
    }
}

#[tokio::test]
async fn limits_requests_and_ends_their_leases() {
    let daemon = Daemon::start(RULES).await;
    let (client, _) = client(&daemon.path(), |builder| builder);
    let layer = LimitLayer::new(&client, |client, request: &Request<()>| {
        let header =
            |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        if request.uri().path() == "/healthz" {
            return None;
        }
        Some(client.acquire("api", [("user", header("x-user")), ("job", header("x-job"))]))
    });
    let mut service = layer.layer(App);
    let mut ask = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        service.call(request.body(()).unwrap()).await.unwrap()
    };
    for remaining in ["1", "0"] {
        let response = ask("/", &[("x-user", "u1")]).await;
        assert_eq!((response.status().as_u16(), response.body().as_str()), (200, "done"));
        assert_eq!(response.headers()["x-ratelimit-remaining"], remaining);
        assert!(response.headers().get("retry-after").is_none());
    }
    let refused = ask("/", &[("x-user", "u1")]).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert!(refused.headers().contains_key("retry-after"));
    let body: serde_json::Value = serde_json::from_str(refused.body()).unwrap();
    assert_eq!((body["status"].as_u64(), body["domain"].as_str()), (Some(429), Some("api")));
    assert_eq!(ask("/healthz", &[("x-user", "u1")]).await.status(), 200, "exempt");
    let redirect = ask("/", &[("x-user", "u2"), ("x-status", "302")]).await;
    assert_eq!((redirect.status().as_u16(), redirect.headers().len()), (302, 0));
    // One at a time: the lease ends with each response.
    for status in ["200", "500", "404"] {
        let response = ask("/", &[("x-job", "export"), ("x-status", status)]).await;
        assert_eq!(response.status().as_str(), status);
        until("the permit is free", async || {
            client.peek("api", [("job", "export")]).await.remaining == Some(1)
        })
        .await;
    }
}
