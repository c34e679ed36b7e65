//! Users, tokens, domains, and the health service.

use super::client::{Grpc, PATH, Reply, ask, framed};
use super::{RULES, with_envoy};
use crate::adapters::patient;
use crate::prelude::*;

const HEALTH: &str = "/grpc.health.v1.Health/Check";
const PERMISSION_DENIED: i32 = 7;
const OUT_OF_RANGE: i32 = 11;
const INTERNAL: i32 = 13;
const UNAUTHENTICATED: i32 = 16;

#[derive(Clone, PartialEq, prost::Message)]
struct Health {
    #[prost(string, tag = "1")]
    service: String,
}

fn health(envoy: &mut Grpc, service: &str) -> Reply {
    envoy.call(HEALTH, &[], &Health { service: service.into() })
}

/// The uid decides, as on the socket: this domain is for another user.
#[test]
fn refuses_users_without_the_domain() {
    let settings = "domains: {shop: {uids: [65534]}}\nadapters: {envoy: {socket: envoy.sock}}";
    let daemon = patient(RULES).settings(settings).start();
    daemon.await_log(&["Envoy's rate limit service is served"]);
    let mut envoy = Grpc::connect(&daemon);
    let denied = envoy.call(PATH, &[], &ask("shop", &["user=u1"]));
    assert_eq!(
        (denied.status, denied.message.contains("not%20open")),
        (PERMISSION_DENIED, true),
        "{denied:?}"
    );
    daemon.await_log(&["a request of Envoy was not judged"]);
    assert_eq!(metric(&daemon, "tidegate_envoy_answers_total{answer=\"rejected\"}"), Some(1.0));
    assert_eq!(envoy.call(PATH, &[], &ask("api", &["user=u1"])).status, 0);
}

#[test]
fn asks_for_the_token_and_a_listed_domain_over_tcp() {
    let token = "0123456789abcdef";
    let tcp = "adapters: {envoy: {listen: \"127.0.0.1:0\", token_file: token, domains: [api]}}";
    let daemon = patient(RULES).settings(tcp).start();
    daemon.await_log(&["Envoy's rate limit service is not served", "help: correct `adapters.envoy`"]);
    fs::write(daemon.plan.path("token"), format!("{token}\n")).unwrap();
    let mut envoy = Grpc::tcp(daemon.port_of("service is served"));
    let right = format!("Bearer {token}");
    let (longer, lower) = (format!("{right}0"), format!("bearer {token}"));
    let table = [
        (Some(&*right), "api", 0),
        (Some(&*lower), "api", 0),
        (Some(&*right), "shop", PERMISSION_DENIED),
        (None, "api", UNAUTHENTICATED),
        (Some(token), "api", UNAUTHENTICATED),
        (Some("Bearer 0123456789abcdeF"), "api", UNAUTHENTICATED),
        (Some(&*longer), "api", UNAUTHENTICATED),
        (Some("Bearer "), "api", UNAUTHENTICATED),
        (Some(""), "api", UNAUTHENTICATED),
    ];
    for (token, domain, status) in table {
        let metadata: Vec<_> = token.iter().map(|token| ("authorization", *token)).collect();
        let reply = envoy.call(PATH, &metadata, &ask(domain, &["user=u1"]));
        assert_eq!(reply.status, status, "{token:?} {domain}: {reply:?}");
    }
    // Probes have no token.
    assert_eq!(health(&mut envoy, "").status, 0);
    for path in REFLECTION {
        let status = |metadata: &[_]| envoy.call_raw(path, metadata, reflect(LIST, "")).unwrap().status;
        assert_eq!([&[][..], &[("authorization", &*right)]].map(status), [UNAUTHENTICATED, 0]);
    }
    assert!(!daemon.log().contains(token), "{}", daemon.log());
}

#[test]
fn answers_health_checks() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        let serving = health(&mut envoy, service);
        assert_eq!((serving.status, &*serving.body), (0, &[8, 1][..]), "{service}");
    }
    assert_eq!(health(&mut envoy, "other").status, 5);
    assert_eq!(metric(&daemon, "tidegate_envoy_answers_total{answer=\"allowed\"}"), Some(0.0));
}

const REFLECTION: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

const LIST: u32 = 7;
const FILE: u32 = 3;
const SYMBOL: u32 = 4;

/// A request of reflection with this field.
fn reflect(field: u32, text: &str) -> Vec<u8> {
    let mut message = Vec::new();
    prost::encoding::string::encode(field, &text.to_owned(), &mut message);
    framed(&message)
}

/// Each answer has the field of its request: a list, a file, or an error. Real clients: tests/migrate.
#[test]
fn describes_its_services() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let rls = "envoy/service/ratelimit/v3/rls.proto";
    let table = [
        (LIST, "*", "envoy.service.ratelimit.v3.RateLimitService"),
        (LIST, "", "grpc.health.v1.Health"),
        (SYMBOL, "envoy.service.ratelimit.v3.RateLimitService", rls),
        (SYMBOL, "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit", rls),
        (SYMBOL, "envoy.type.v3.RateLimitUnit", "envoy/type/v3/ratelimit_unit.proto"),
        (SYMBOL, "grpc.health.v1.Health.Check", "grpc/health/v1/health.proto"),
        (FILE, "google/protobuf/any.proto", "google.protobuf"),
        (SYMBOL, "envoy.service.ratelimit.v3.RateLimitServic", "no such file"),
        (SYMBOL, "envoy.service.ratelimit.v3", "no such file"),
        (SYMBOL, "", "no such file"),
        (FILE, "/etc/passwd", "no such file"),
        // No field at all, as it is unknown; and the numbers of extensions.
        (15, "", "no such file"),
        (6, rls, "no such file"),
    ];
    for path in REFLECTION {
        for (field, text, part) in table {
            let reply = envoy.call_raw(path, &[], reflect(field, text)).unwrap();
            assert_eq!(reply.status, 0, "{field} {text}");
            assert!(String::from_utf8_lossy(&reply.body).contains(part), "{field} {text}: {reply:?}");
        }
        // One stream, two requests: the answers have the bytes of both.
        let both =
            [(table[0].0, table[0].1), (table[2].0, table[2].1)].map(|(field, text)| reflect(field, text));
        let reply = envoy.call_raw(path, &[], both.concat()).unwrap();
        assert_eq!(reply.status, 0, "{reply:?}");
        has(&String::from_utf8_lossy(&reply.body), &["grpc.health.v1.Health", rls]);
        let long = reflect(SYMBOL, &"x".repeat(1_100));
        assert_eq!(envoy.call_raw(path, &[], long).unwrap().status, OUT_OF_RANGE, "{path}");
        assert_eq!(envoy.call_raw(path, &[], framed(&[0xff; 40])).unwrap().status, INTERNAL);
    }
}
