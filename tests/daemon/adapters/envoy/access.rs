//! Users, tokens, domains, and the health service.

use super::client::{Grpc, PATH, Reply, ask, framed};
use super::{RULES, with_envoy};
use crate::adapters::patient;
use crate::prelude::*;
use prost::Message;

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
        let asked = Reflect { list_services: Some(String::new()), ..Reflect::default() };
        assert_eq!(envoy.call(path, &[], &asked).status, UNAUTHENTICATED);
        assert_eq!(envoy.call(path, &[("authorization", &right)], &asked).status, 0);
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

/// A request of reflection, or an answer to it as bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct Reflect {
    #[prost(string, optional, tag = "3")]
    file_by_filename: Option<String>,
    #[prost(string, optional, tag = "4")]
    file_containing_symbol: Option<String>,
    #[prost(string, optional, tag = "6")]
    all_extension_numbers_of_type: Option<String>,
    #[prost(string, optional, tag = "7")]
    list_services: Option<String>,
}

/// Each answer has the field of its request: a list, a file, or an error. Real clients: tests/migrate.
#[test]
fn describes_its_services() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let rls = "envoy/service/ratelimit/v3/rls.proto";
    let symbol = |name: &str| Reflect { file_containing_symbol: Some(name.into()), ..Reflect::default() };
    let file = |name: &str| Reflect { file_by_filename: Some(name.into()), ..Reflect::default() };
    let table = [
        (
            Reflect { list_services: Some("*".into()), ..Reflect::default() },
            "envoy.service.ratelimit.v3.RateLimitService",
        ),
        (Reflect { list_services: Some(String::new()), ..Reflect::default() }, "grpc.health.v1.Health"),
        (symbol("envoy.service.ratelimit.v3.RateLimitService"), rls),
        (symbol("envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit"), rls),
        (symbol("envoy.type.v3.RateLimitUnit"), "envoy/type/v3/ratelimit_unit.proto"),
        (symbol("grpc.health.v1.Health.Check"), "grpc/health/v1/health.proto"),
        (file("google/protobuf/any.proto"), "google.protobuf"),
        (symbol("envoy.service.ratelimit.v3.RateLimitServic"), "no such file"),
        (symbol("envoy.service.ratelimit.v3"), "no such file"),
        (symbol(""), "no such file"),
        (file("/etc/passwd"), "no such file"),
        (Reflect::default(), "no such file"),
        (Reflect { all_extension_numbers_of_type: Some(rls.into()), ..Reflect::default() }, "no such file"),
    ];
    for path in REFLECTION {
        for (asked, part) in &table {
            let reply = envoy.call(path, &[], asked);
            assert_eq!(reply.status, 0, "{asked:?}");
            assert!(String::from_utf8_lossy(&reply.body).contains(part), "{asked:?}: {reply:?}");
        }
        // One stream, two requests: the answers have the bytes of both.
        let [(list, _), _, (by_symbol, _), ..] = &table;
        let both = [framed(&list.encode_to_vec()), framed(&by_symbol.encode_to_vec())].concat();
        let reply = envoy.call_raw(path, &[], both).unwrap();
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(
            reply.status == 0 && text.contains("grpc.health.v1.Health") && text.contains(rls),
            "{reply:?}"
        );
        assert_eq!(envoy.call(path, &[], &symbol(&"x".repeat(1_100))).status, OUT_OF_RANGE, "{path}");
        assert_eq!(envoy.call_raw(path, &[], framed(&[0xff; 40])).unwrap().status, INTERNAL);
    }
}
