//! Decisions: codes, the status of each descriptor, headers.

use super::client::{Ask, Descriptor, Grpc, Override, PATH, Told, ask, descriptor};
use super::with_envoy;
use crate::prelude::*;

const OK: i32 = 1;
const OVER: i32 = 2;
const YEAR: i32 = 6;

/// The code, limit, unit and remaining of a status.
type Expected = (i32, Option<(u32, i32, &'static str)>, u32);

const NO_LIMIT: Expected = (OK, None, 0);

fn free(code: i32, remaining: u32) -> Expected {
    (code, Some((3, YEAR, "plan_free")), remaining)
}

fn user(code: i32, remaining: u32) -> Expected {
    // Two in two hours: no unit of the service.
    (code, Some((2, 0, "per-user")), remaining)
}

fn tokens(code: i32, remaining: u32) -> Expected {
    (code, Some((10, YEAR, "tokens")), remaining)
}

#[track_caller]
fn check(told: &Told, overall: i32, statuses: &[Expected], about: &dyn std::fmt::Debug) {
    let seen = told.statuses.iter().map(|status| {
        let limit = status.limit.as_ref().map(|limit| (limit.requests_per_unit, limit.unit, &*limit.name));
        (status.code, limit, status.remaining)
    });
    assert_eq!((told.overall_code, &*seen.collect::<Vec<_>>()), (overall, statuses), "{about:?}");
    for status in &told.statuses {
        let reset =
            status.reset.as_ref().map(|reset| (reset.nanos, (0..=31_536_000).contains(&reset.seconds)));
        assert_eq!(reset, status.limit.as_ref().map(|_| (0, true)), "{about:?}");
    }
}

#[test]
fn answers_each_descriptor_by_its_limit() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let shared = |code, remaining| (code, Some((4, YEAR, "file_a*")), remaining);
    let path = (OK, Some((1, 4, "tenant.path")), 0);
    let table: &[(&[&str], u32, i32, &[Expected])] = &[
        // Several nodes, one without a limit; 0 is 1.
        (&["plan=free", "plan=paid"], 0, OK, &[free(OK, 2), NO_LIMIT]),
        // The second node refuses, and the first counts all the same.
        (&["plan=free", "closed=x"], 1, OVER, &[free(OK, 1), (OVER, Some((0, 2, "closed")), 0)]),
        // Two do not fit, and count.
        (&["plan=free"], 2, OVER, &[free(OVER, 0)]),
        (&["plan=free", "staff=s1"], 1, OK, &[NO_LIMIT, NO_LIMIT]),
        (&["tokens=t1", "tokens=t2"], 4, OK, &[tokens(OK, 6), tokens(OK, 6)]),
        (&["beta=b1"], 1, OK, &[(OK, Some((1, 7, "beta")), 0)]),
        (&["beta=b1"], 1, OK, &[(OK, Some((1, 7, "beta")), 0)]),
        // Exact depth.
        (&["tenant=t", "tenant=t path=/a"], 1, OK, &[NO_LIMIT, path]),
        // Equal ones, and those of one shared limit, count together.
        (&["tokens=t3", "tokens=t3"], 2, OK, &[tokens(OK, 6), tokens(OK, 6)]),
        (&["file=a1", "plan=x", "file=a2"], 1, OK, &[shared(OK, 2), NO_LIMIT, shared(OK, 2)]),
        // A rule sees the attributes of all descriptors; it stands where no node does.
        (&["user=u1", "tokens=t4"], 1, OK, &[user(OK, 1), tokens(OK, 9)]),
        (&["user=u1"], 1, OK, &[user(OK, 0)]),
        // A rule that refuses charges nothing, and nodes count.
        (&["tokens=t4", "user=u1"], 1, OVER, &[tokens(OK, 8), user(OVER, 0)]),
        (&["card=c1"], 1, OK, &[NO_LIMIT]),
        (&["card=c1"], 1, OVER, &[(OVER, None, 0)]),
        (&["agent=bot", "tokens=t5"], 1, OVER, &[(OVER, None, 0), (OVER, None, 0)]),
        (&["tokens=t5"], 1, OK, &[tokens(OK, 9)]),
    ];
    for (descriptors, hits_addend, overall, statuses) in table {
        let asked = Ask { hits_addend: *hits_addend, ..ask("shop", descriptors) };
        check(&envoy.ask(&asked), *overall, statuses, descriptors);
    }
    let many: Vec<String> = (0..32).map(|number| format!("tokens=m{number}")).collect();
    let told = envoy.ask(&ask("shop", &many.iter().map(String::as_str).collect::<Vec<_>>()));
    check(&told, OK, &[tokens(OK, 9); 32], &"32 descriptors");
    let unknown = envoy.ask(&ask("nowhere", &["user=u1"]));
    check(&unknown, OK, &[NO_LIMIT], &"a domain without rules");
    assert_eq!(metric(&daemon, "tidegate_unmatched_total{reason=\"domain\"}"), Some(1.0));
    let refused = table.iter().filter(|(_, _, overall, _)| *overall == OVER).count();
    let refusals = metric(&daemon, "tidegate_envoy_answers_total{answer=\"refused\"}");
    assert_eq!(refusals, Some(refused as f64));
}

/// An entry whose key no rule can name matches nothing: no node of its descriptor, and no rule by it.
#[test]
fn judges_beside_keys_that_are_no_names() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let long = "k".repeat(65);
    for (number, key) in [":path", "a/b", "", &long, "\u{7f}"].into_iter().enumerate() {
        let odd = format!("{key}=x");
        let both = format!("{odd} plan=free");
        let own = format!("{odd} user=u{number}");
        let asked = ask("shop", &[&*odd, &*both, &*own]);
        check(&envoy.ask(&asked), OK, &[user(OK, 1); 3], &key);
        check(&envoy.ask(&asked), OK, &[user(OK, 0); 3], &key);
        check(&envoy.ask(&asked), OVER, &[user(OVER, 0); 3], &key);
    }
    check(&envoy.ask(&ask("shop", &["plan=free"])), OK, &[free(OK, 2)], &"no node counted");
}

#[test]
fn charges_each_descriptor_by_its_own_addend() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let with = |pairs: &str, addend| {
        let mut descriptor = descriptor(pairs);
        descriptor.hits_addend = addend;
        descriptor
    };
    // Addends, the overall code, statuses.
    type Case<'t> = (&'t [Option<u64>], i32, &'t [Expected]);
    let table: &[Case<'_>] = &[
        (&[Some(0)], OK, &[tokens(OK, 10)]),
        (&[Some(7), None], OK, &[tokens(OK, 3), tokens(OK, 9)]),
        (&[Some(0), Some(9)], OK, &[tokens(OK, 3), tokens(OK, 0)]),
        (&[Some(0), Some(0)], OVER, &[tokens(OK, 3), tokens(OVER, 0)]),
        (&[Some(8), Some(0)], OVER, &[tokens(OVER, 0), tokens(OVER, 0)]),
        (&[None], OVER, &[tokens(OVER, 0)]),
        (&[Some(u64::MAX)], OVER, &[tokens(OVER, 0)]),
    ];
    for (addends, overall, statuses) in table {
        let descriptors =
            addends.iter().enumerate().map(|(index, addend)| with(&format!("tokens=t{index}"), *addend));
        let asked = Ask { descriptors: descriptors.collect(), ..ask("shop", &[]) };
        check(&envoy.ask(&asked), *overall, statuses, addends);
    }
    // Of equal descriptors each asks for one more.
    let last = || vec![with("tokens=l", Some(0)), with("tokens=l", Some(0))];
    let nine = Ask { hits_addend: 9, ..ask("shop", &["tokens=l"]) };
    check(&envoy.ask(&nine), OK, &[tokens(OK, 1)], &"one is left");
    let two = Ask { descriptors: last(), ..ask("shop", &[]) };
    check(&envoy.ask(&two), OK, &[tokens(OK, 1); 2], &"one is left");
    // Hits to take back are not, and are counted.
    let mut negative = with("tokens=n", Some(5));
    negative.is_negative_hits = true;
    let asked = Ask { descriptors: vec![negative], ..ask("shop", &[]) };
    check(&envoy.ask(&asked), OK, &[tokens(OK, 10)], &"ignored field");
    assert_eq!(metric(&daemon, "tidegate_envoy_fields_ignored_total"), Some(1.0));
}

/// A limit of its own replaces the node of a descriptor, not the rules.
#[test]
fn limits_a_descriptor_by_its_own_limit() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let with = |pairs: &str, requests_per_unit, unit| {
        let limit = Some(Override { requests_per_unit, unit });
        Descriptor { limit, ..descriptor(pairs) }
    };
    let own = |code, limit, remaining| (code, Some((limit, YEAR, "envoy")), remaining);
    let two = || with("tokens=t1", 2, YEAR);
    let table = [
        (vec![two()], 1, OK, vec![own(OK, 2, 1)]),
        // The node of the same entries counts apart.
        (vec![two(), descriptor("tokens=t1")], 1, OK, vec![own(OK, 2, 0), tokens(OK, 9)]),
        (vec![two(), descriptor("tokens=t1")], 1, OVER, vec![own(OVER, 2, 0), tokens(OK, 8)]),
        // Refused requests count: 3 and 5 of 10.
        (vec![with("tokens=t1", 10, YEAR)], 5, OK, vec![own(OK, 10, 2)]),
        // Equal ones count one after the other.
        (
            vec![with("closed=x", 3, YEAR), with("closed=x", 3, YEAR)],
            2,
            OVER,
            vec![own(OK, 3, 1), own(OVER, 3, 0)],
        ),
        (vec![with("user=u1", 9, YEAR)], 1, OK, vec![own(OK, 9, 8)]),
        (vec![with("user=u1", 9, YEAR)], 1, OK, vec![own(OK, 9, 7)]),
        // The rule refuses the third.
        (vec![with("user=u1", 9, YEAR)], 1, OVER, vec![own(OK, 9, 6)]),
        (vec![with("agent=bot", 9, YEAR)], 1, OVER, vec![own(OK, 9, 8)]),
        (vec![with("tokens=none", 0, YEAR)], 1, OVER, vec![own(OVER, 0, 0)]),
    ];
    for (descriptors, hits_addend, overall, statuses) in table {
        let asked = Ask { domain: "shop".into(), descriptors, hits_addend };
        check(&envoy.ask(&asked), overall, &statuses, &asked);
    }
    let limited = envoy.ask(&Ask { descriptors: vec![two()], ..ask("shop", &[]) });
    assert!(limited.header("ratelimit").unwrap().starts_with("\"envoy\";r=0;"), "{limited:?}");
    assert_eq!(limited.header("tidegate-status"), Some("429"));
    for unit in [0, 8, -1] {
        let asked = Ask { descriptors: vec![with("tokens=t", 1, unit)], ..ask("shop", &[]) };
        assert_eq!(envoy.call(PATH, &[], &asked).status, 3, "{unit}");
    }
    // The limit takes the place of an entry, of the last of sixteen.
    let sixteen = || with("a=1 b=2 c=3 d=4 e=5 f=6 g=7 h=8 i=9 j=10 k=11 l=12 m=13 n=14 o=15 p=16", 1, YEAR);
    for code in [OK, OVER] {
        let asked = Ask { descriptors: vec![sixteen()], ..ask("shop", &[]) };
        check(&envoy.ask(&asked), code, &[own(code, 1, 0)], &asked);
    }
    // Each domain and unit counts apart, and in shadow none refuses.
    let mut code = |domain: &str, unit| {
        let asked = Ask { descriptors: vec![with("tokens=t2", 1, unit)], ..ask(domain, &[]) };
        envoy.ask(&asked).overall_code
    };
    for (domain, unit) in [("shop", YEAR), ("shop", 7), ("api", 7)] {
        assert_eq!([code(domain, unit), code(domain, unit)], [OK, OVER], "{domain} {unit}");
    }
    daemon.run("switch --all shadow");
    wait_until("it only watches", || code("shop", YEAR) == OK);
    assert_eq!(metric(&daemon, "tidegate_envoy_key_evictions_total"), Some(0.0));
}

#[test]
fn sends_headers_and_a_body_for_the_caller() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let allowed = envoy.ask(&ask("shop", &["user=u1"]));
    assert_eq!(allowed.header("ratelimit"), Some("\"per-user\";r=1;t=3600"));
    assert_eq!(allowed.header("ratelimit-policy"), Some("\"per-user\";q=2;w=7200"));
    let names =
        |told: &Told| told.headers.iter().map(|header| header.key.clone()).collect::<Vec<_>>().join(" ");
    assert_eq!((&*names(&allowed), &*allowed.raw_body), ("ratelimit ratelimit-policy", ""));
    envoy.ask(&ask("shop", &["user=u1"]));
    let limited = envoy.ask(&ask("shop", &["user=u1"]));
    let mut sent: Vec<&str> = limited.headers.iter().map(|header| &*header.key).collect();
    sent.sort_unstable();
    assert_eq!(sent, ["content-type", "ratelimit", "ratelimit-policy", "retry-after", "tidegate-status"]);
    let [retry, status] = ["retry-after", "tidegate-status"].map(|name| limited.header(name));
    assert_eq!((retry, status), (Some("3600"), Some("429")));
    let body: Value = serde_json::from_str(&limited.raw_body).unwrap();
    assert_eq!((&body["status"], &body["violated-policies"][0]), (&429.into(), &"per-user".into()));
    let denied = envoy.ask(&ask("shop", &["agent=bot"]));
    assert_eq!((denied.overall_code, denied.header("tidegate-status")), (OVER, Some("403")));
    // Of several groups, the refusal with the longest wait is reported.
    let mut descriptors = vec![descriptor("user=u1"), descriptor("tokens=t")];
    descriptors[1].hits_addend = Some(11);
    let told = envoy.ask(&Ask { descriptors, ..ask("shop", &[]) });
    assert_eq!(told.overall_code, OVER);
    assert!(told.header("ratelimit").unwrap().starts_with("\"tokens\";r=0;"), "{told:?}");
}

/// No value of a caller makes a request pass: neither its bytes nor its length.
#[test]
fn limits_values_of_any_bytes_and_length() {
    let daemon = with_envoy();
    let mut envoy = Grpc::connect(&daemon);
    let values = [
        b"\xff\xfe\0\r\n\x01 \xc3".to_vec(),
        "ä".repeat(30_000).into_bytes(),
        vec![b'x'; 60_000],
        vec![0; 1_025],
    ];
    for value in values {
        for (remaining, code) in [(1, OK), (0, OK), (0, OVER)] {
            let mut asked = ask("shop", &["plan=p user=u"]);
            asked.descriptors[0].entries[1].value.clone_from(&value);
            check(&envoy.ask(&asked), code, &[user(code, remaining)], &value.len());
        }
    }
    // More entries than a request of the protocol has: the first of them count.
    let deep = format!("user=of-deep {}", "a=b ".repeat(40));
    let codes = [0; 3].map(|_| envoy.ask(&ask("shop", &[&*deep])).overall_code);
    assert_eq!(codes, [OK, OK, OVER]);
    daemon.await_log(&["WARN", "is judged by the first", "entries=41"]);
    // Eight descriptors of sixteen long values.
    let long = |number: usize| {
        let pairs: Vec<String> = (0..16).map(|key| format!("k{key}={number}{}", "v".repeat(3_900))).collect();
        descriptor(&pairs.join(" "))
    };
    let mut descriptors: Vec<_> = (0..7).map(long).collect();
    descriptors.push(descriptor("user=of-many"));
    let asked = Ask { descriptors, ..ask("shop", &[]) };
    let codes = [0; 3].map(|_| envoy.ask(&asked).overall_code);
    assert_eq!(codes, [OK, OK, OVER]);
}
