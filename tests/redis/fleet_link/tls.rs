//! Tests TLS with a real server and test certificates: valid ones, and each kind of invalid one.

use super::certificates::server;
use super::{count, down, echo, options, said_back, until, up};
use crate::prelude::*;
use tidegate::fleet::link::{FailureClass, LinkOptions, RedisLink};

fn link_to(redis: &Redis, host: &str, ca: &str) -> RedisLink {
    let ca_file = Some(redis.directory.path().join(ca));
    let options = LinkOptions { ca_file, ..options(&format!("rediss://{host}:{}", redis.port)) };
    RedisLink::start(options, vec![count(), echo()])
}

async fn fault(link: &RedisLink) -> String {
    let mut error = None;
    // On a busy machine an attempt may time out.
    until("TLS fails", || {
        error = down(link).filter(|error| error.class == FailureClass::Tls);
        error.is_some()
    })
    .await;
    assert_eq!(FailureClass::Tls.name(), "tls");
    error.unwrap().to_string()
}

#[tokio::test]
async fn connects_to_trusted_server_over_tls() {
    let redis = server("127.0.0.1", 2999);
    let link = link_to(&redis, "127.0.0.1", "ours.pem");
    up(&link).await;
    for size in [1, 1_000, 30_000, 300_000] {
        said_back(&link, &"x".repeat(size)).await.unwrap();
    }
    // The certificate is for the address, not for its name.
    has(&fault(&link_to(&redis, "localhost", "ours.pem")).await, &["not for the host that the URL names"]);
}

#[tokio::test]
async fn reports_fault_of_each_bad_certificate() {
    let redis = server("localhost", 2999);
    up(&link_to(&redis, "localhost", "ours.pem")).await;
    let text = fault(&link_to(&redis, "localhost", "theirs.pem")).await;
    has(&text, &["signed by no authority that is trusted here"]);
    let expired = server("localhost", 2020);
    has(&fault(&link_to(&expired, "localhost", "ours.pem")).await, &["has expired"]);
    // The system's authorities did not sign it either.
    let by_system = options(&format!("rediss://localhost:{}", redis.port));
    let text = fault(&RedisLink::start(by_system, Vec::new())).await;
    assert!(
        ["signed by", "this system trusts"].iter().any(|who| text.contains(&format!("{who} no authority")))
    );
}

#[tokio::test]
async fn reports_faults_of_ca_file_and_port() {
    let redis = server("localhost", 2999);
    std::os::unix::fs::symlink("/dev/zero", redis.directory.path().join("endless.pem")).unwrap();
    for (name, text, expected) in [
        ("endless.pem", None, "it is longer than"),
        ("missing.pem", None, "it cannot be read"),
        ("empty.pem", Some(""), "it holds no certificate"),
        ("odd.pem", Some("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"), "it is no PEM file"),
    ] {
        if let Some(text) = text {
            fs::write(redis.directory.path().join(name), text).unwrap();
        }
        has(&fault(&link_to(&redis, "localhost", name)).await, &["the ca_file", expected]);
    }
    // TLS to a plain port, and plain to a TLS port.
    let plain = Redis::start_on_port(&[]);
    let to_plain = LinkOptions {
        ca_file: Some(redis.directory.path().join("ours.pem")),
        ..options(&format!("rediss://localhost:{}", plain.port))
    };
    let text = fault(&RedisLink::start(to_plain, Vec::new())).await;
    assert!(text.ends_with("speak TLS on this port?"), "{text}");
    let without = RedisLink::start(options(&format!("redis://localhost:{}", redis.port)), Vec::new());
    until("it is no Redis' way", || down(&without).is_some()).await;
    let error = down(&without).unwrap();
    assert!(matches!(error.class, FailureClass::Protocol | FailureClass::Down), "{error}");
}
