//! `tidegate why`, and all else that tells an application or an operator that a request is not limited.

use crate::prelude::*;

const RULES: &str = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 5/min, burst: 3}
  - {name: posts, match: {method: POST}, key: [user], rate: 2/min}
  - {name: trial, key: [plan], rate: 1/h, mode: shadow}
  - {name: steps, match: {step: one}, key: [user], rate: 1/h, block: 1h}
deny:
  - {name: bad, match: {ip: 10.1.2.3}, help: go away}
";

fn started() -> Daemon {
    Plan::new().rules("api.yaml", RULES).start()
}

fn why(daemon: &Daemon, request: &str) -> Value {
    daemon.json(&format!("why {request}"))
}

#[test]
fn why_shows_the_decision_and_charges_nothing() {
    let daemon = started();
    let mut wire = daemon.greeted();
    for id in 0..4 {
        wire.ask(&hit(id, "u1"));
    }
    for _ in 0..3 {
        let other = why(&daemon, "api user=u2 plan=free");
        assert_eq!((&other["verdict"], &other["checks"][0]["remaining"]), (&json!("allow"), &json!(3)));
        assert_eq!(other["checks"][1]["mode"], "shadow");
    }
    let refused = why(&daemon, "api user=u1");
    assert_eq!((&refused["verdict"], &refused["rule"]), (&json!("limit"), &json!("per-user")));
    let check = &refused["checks"][0];
    assert_eq!(json!([check["refuses"], check["remaining"], check["refused"]]), json!([true, 0, 1]));
    assert!((1..=12_000_000).contains(&refused["retry_us"].as_u64().unwrap()), "{refused}");
    assert!(check["at"].as_str().unwrap().ends_with("api.yaml:3"), "{check}");
    // The digest that it shows is found again, and is that of `status`.
    let digest = check["digest"].as_str().unwrap();
    let found = why(&daemon, &format!("api --digest {digest}"));
    let known = &found["checks"][0];
    assert_eq!((&found["verdict"], &known["rule"]), (&Value::Null, &json!("per-user")));
    assert_eq!(json!([known["refuses"], known["remaining"], known["limit"]]), json!([true, 0, 3]));
    assert!((1..=12_000_000).contains(&known["retry_us"].as_u64().unwrap()), "{found}");
    // Also without its domain, and by the digits that tables show.
    for digits in [32, 16, 8] {
        let found = why(&daemon, &format!("--digest {}", &digest[..digits]));
        let seen = json!([found["domain"], found["checks"][0]["digest"]]);
        assert_eq!(seen, json!(["api", digest]), "{digits}");
    }
    let unknown = daemon.fail("why --digest 00000000000000000000000000000000", 1);
    has(&unknown, &["no rule has a key of this digest"]);
    let status = daemon.json("status");
    assert_eq!(status["callers"]["refused"][0]["digest"], digest);
    let out = daemon.run("why api user=u1");
    has(&out, &["verdict  limit, by per-user", "0 of 3 left", "5/min, burst 3"]);
    has(&out, &["lately at least 1 refused", digest]);
    let denied = why(&daemon, "api ip=10.1.2.3");
    assert_eq!(json!([denied["verdict"], denied["rule"], denied["help"]]), json!(["deny", "bad", "go away"]));
}

#[test]
fn refusals_have_the_digest_of_why_unless_the_rule_is_hidden() {
    let hidden = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1/h, advertise: false}\n";
    for (rules, is_shown) in [(RULES, true), (hidden, false)] {
        let daemon = Plan::new().rules("api.yaml", rules).start();
        let mut wire = daemon.greeted();
        let replies: Vec<Value> = (0..4).map(|id| wire.ask(&hit(id, "u1"))).collect();
        assert_eq!(replies[0][12]["digest"], Value::Null, "an allowed request has none");
        let check = why(&daemon, "api user=u1")["checks"][0].take();
        let expected = if is_shown { &check["digest"] } else { &Value::Null };
        assert_eq!((&replies[3][2], &replies[3][12]["digest"]), (&json!(1), expected), "{rules}");
        let refusals = replies.iter().filter(|reply| reply[2] == 1).count();
        assert_eq!(check["refused"], refusals, "the list of callers has the same digest: {rules}");
    }
}

#[test]
fn text_of_caller_cannot_move_the_cursor() {
    let rules = "domain: api\nlimits:\n  - {name: per-user, key: [user], rate: 1/h, show_keys: [user]}\n";
    let daemon = Plan::new().rules("api.yaml", rules).start();
    let mut wire = daemon.greeted();
    let hostile = "\u{1b}]0;x\u{7}\u{9b}1m\u{202e}red\nverdict";
    let refused = (0..3).map(|id| wire.ask(&hit(id, hostile))).last().unwrap();
    let digest = refused[12]["digest"].as_str().unwrap();
    daemon.run(&format!("block api/per-user --digest {digest} --for 1h"));
    for command in [&format!("why --digest {digest}"), "status"] {
        let out = daemon.run(command);
        let moves =
            |character: char| character != '\n' && (character.is_control() || character == '\u{202e}');
        assert!(!out.contains(moves), "{command}: {out:?}");
        has(&out, &[r"user=\u001b]0;x\u0007\u009b1m\u202ered\u000averdict"]);
    }
    let text = why(&daemon, &format!("--digest {digest}"))["checks"][0]["text"].take();
    assert_eq!(text, format!("user={hostile}"), "JSON has the text itself");
}

#[test]
fn why_names_rules_that_nearly_match() {
    let daemon = started();
    let near = |request: &str, rule: &str| {
        let all = why(&daemon, request);
        let other = all["others"].as_array().unwrap().iter().find(|other| other["rule"] == rule);
        other.unwrap_or_else(|| panic!("{rule}: {all}"))["near"].clone()
    };
    let table = [
        (
            "api user=u1 method=post",
            "posts",
            json!("`method` is `post`, and it asks for `POST`: values are compared by case"),
        ),
        ("api user=u1 method=PSOT", "posts", json!("`method` is `PSOT`, and it asks for `POST`")),
        ("api usr=u1", "per-user", json!("it asks for `user`, and the request has `usr`")),
        ("api method=POST", "posts", json!("only `user` is missing")),
        ("api user=u1 method=GET", "posts", Value::Null),
        ("api plan=free", "posts", Value::Null),
        ("api user=u1", "bad", Value::Null),
    ];
    for (request, rule, expected) in table {
        assert_eq!(near(request, rule), expected, "{request}");
    }
    let unused = why(&daemon, "api usr=u1 colour=red");
    assert_eq!(unused["unused"], json!([{"name": "usr", "near": "user"}, {"name": "colour", "near": null}]));
}

#[test]
fn why_and_status_show_blocks_and_switches() {
    let rules = format!("{RULES}concurrency:\n  - {{name: off, key: [job], max: 1, mode: disabled}}\n");
    let daemon = Plan::new().rules("api.yaml", &rules).start();
    assert!(daemon.run("status").contains("no request has met: api/per-user"));
    daemon.run("block per-user --for 1h user=u1");
    daemon.run("switch posts shadow");
    let blocked = why(&daemon, "api user=u1 method=POST");
    assert_eq!((&blocked["verdict"], &blocked["checks"][0]["blocked"]), (&json!("limit"), &json!(true)));
    assert_eq!(blocked["checks"][1]["mode"], "shadow");
    has(blocked["overrides"][0].as_str().unwrap(), &["api/posts is switched to shadow"]);
    let digest = blocked["checks"][0]["digest"].as_str().unwrap();
    let found = why(&daemon, &format!("api --digest {digest}"));
    has(found["overrides"][0].as_str().unwrap(), &["this key is blocked until"]);
    // A switch decides whether a rule is checked, whatever its file says.
    for (mode, checks) in [("enforce", 1), ("disabled", 0)] {
        daemon.run(&format!("switch api/off {mode}"));
        assert_eq!(why(&daemon, "api job=j")["checks"].as_array().unwrap().len(), checks, "{mode}");
    }
    daemon.run("switch --all disabled");
    has(&daemon.run("why api user=u1"), &["allow: everything is switched off; `tidegate status`"]);
}

#[test]
fn blocks_and_frees_a_caller_by_the_digest_of_a_refusal() {
    let daemon = started();
    let mut wire = daemon.greeted();
    let refused = (0..4).map(|id| wire.ask(&hit(id, "u1"))).last().unwrap();
    let digest = refused[12]["digest"].as_str().unwrap().to_owned();
    let run = |command: &str| daemon.outcome(&command.replace("DIGEST", &digest));
    assert_eq!(run("reset per-user --digest DIGEST").0, Some(0));
    assert_eq!(wire.ask(&hit(5, "u1"))[2], 0, "it starts fresh");
    assert_eq!(run("block per-user --digest DIGEST --for 1h").0, Some(0));
    assert_eq!(wire.ask(&hit(6, "u1"))[12]["blocked"], true);
    assert_eq!(wire.ask(&hit(7, "u2"))[2], 0, "no other");
    assert_eq!(run("unblock per-user --digest DIGEST").0, Some(0));
    assert_eq!(wire.ask(&hit(8, "u1"))[2], 0);
    for (command, expected, words) in [
        ("block per-user --digest DIGEST --for 1h --fleet", 1, "name its attributes"),
        ("block per-user user=u1 --digest DIGEST --for 1h", 2, "cannot be used with"),
        ("block per-user --digest 0123456789ab --for 1h", 1, "write all 32 digits"),
    ] {
        let (code, _, err) = run(command);
        assert!(code == Some(expected) && err.contains(words), "{command}: {code:?} {err}");
    }
}

#[test]
fn a_digest_names_its_rule_alone() {
    // Rules of one algorithm, also of another domain, could read the state of each other's keys.
    let other =
        "domain: aa\nlimits: [{name: slow, key: [user], rate: 1/h}, {name: big, key: [ip], rate: 9/s}]\n";
    let daemon = Plan::new().rules("api.yaml", RULES).rules("aa.yaml", other).start();
    let mut wire = daemon.greeted();
    let refused = (0..4).map(|id| wire.ask(&hit(id, "u1"))).last().unwrap();
    let digest = refused[12]["digest"].as_str().unwrap().to_owned();
    let found = why(&daemon, &format!("--digest {digest}"));
    let rules: Vec<&Value> = found["checks"].as_array().unwrap().iter().map(|check| &check["rule"]).collect();
    assert_eq!((&found["domain"], rules), (&json!("api"), vec![&json!("per-user")]), "{found}");
    for command in [
        "why aa",
        "reset aa/slow",
        "reset posts",
        "unblock posts",
        "block posts --for 1h",
        "block aa/slow --for 1h",
    ] {
        let (code, out, err) = daemon.outcome(&format!("{command} --digest {digest}"));
        let words = if command == "why aa" { "no rule of aa" } else { "it is of api/per-user" };
        assert!(code == Some(1) && err.contains(words), "{command}: {code:?} {out} {err}");
    }
    assert_eq!(wire.ask(&hit(5, "u1"))[2], 1, "nothing was reset or blocked");
}

#[test]
fn unblock_says_where_the_key_is_still_over_its_limit() {
    let rules =
        "domain: api\nlimits: [{name: tries, key: [user], algorithm: sliding_log, rate: 2/h, block: 1h}]\n";
    let daemon = Plan::new().rules("api.yaml", rules).start();
    let mut wire = daemon.greeted();
    let verdicts: Vec<Value> = (0..3).map(|id| wire.ask(&hit(id, "u1"))[2].take()).collect();
    assert_eq!(verdicts, [0, 0, 1]);
    has(&daemon.run("unblock tries user=u1"), &["still over the limit", "tidegate reset"]);
    assert_eq!(daemon.outcome("block tries user=u2 --for 1h").0, Some(0));
    let (_, out, _) = daemon.outcome("unblock tries user=u2");
    assert!(!out.contains("still"), "{out}");
}

#[test]
fn a_rule_of_the_fleet_is_not_reset_on_one_host() {
    let rules = "domain: api\nlimits: [{name: shared, key: [user], rate: 2/h, scope: fleet}]\n";
    let daemon = Plan::new().rules("api.yaml", rules).start();
    has(&daemon.fail("reset shared user=u1", 1), &["counts on all hosts together"]);
}

#[test]
fn why_shows_the_numbers_of_an_override() {
    let rules = "domain: api\nlimits:\n  - name: per-user\n    key: [user]\n    rate: 5/min\n    overrides: [{match: {user: big}, rate: 50/min}]\n";
    let daemon = Plan::new().rules("api.yaml", rules).start();
    daemon.greeted().ask(&hit(1, "big"));
    let by_request = why(&daemon, "api user=big")["checks"][0].take();
    let by_digest =
        why(&daemon, &format!("--digest {}", by_request["digest"].as_str().unwrap()))["checks"][0].take();
    assert_eq!((&by_request["is_overridden"], &by_request["remaining"]), (&json!(true), &json!(49)));
    assert!(by_request["quota"].as_str().unwrap().contains("50/min"), "{by_request}");
    // Both numbers make states of one kind.
    assert_eq!(by_digest["is_uncertain"], true, "{by_digest}");
}

#[test]
fn commands_for_a_hung_daemon_are_not_carried_out_later() {
    let daemon = started();
    daemon.process.signal(libc::SIGSTOP);
    has(&daemon.fail("block per-user user=u1 --for 1h", 1), &["does not answer in time"]);
    daemon.process.signal(libc::SIGCONT);
    assert_eq!(why(&daemon, "api user=u1")["overrides"], json!([]));
}

#[test]
fn why_refuses_wrong_input_with_help() {
    let daemon = started();
    for (request, code, words) in [
        ("ap user=u1", 1, "no domain `ap`; there is only api"),
        ("api --digest 12", 1, "32 hexadecimal digits"),
        ("api user=u1 --digest 12", 2, "cannot be used with"),
        ("api user", 2, "`user` is not KEY=VALUE"),
        ("api --cost many", 2, "`many` is not a number"),
    ] {
        has(&daemon.fail(&format!("why {request}"), code), &[words]);
    }
}

#[test]
fn log_warnings_and_why_name_a_domain_with_errors() {
    let daemon =
        Plan::new().rules("api.yaml", RULES).rules("web.yaml", "domain: web\nlimits: [{name: a}]\n").start();
    daemon.greeted().ask(&json!([3, 1, "web", [["user", "u1"]]]));
    let message = "the rules of `web` have errors, so that it has NO LIMITS";
    daemon.await_log(&["WARN", "not limited: ", message]);
    assert!(daemon.run("status --format json").contains(message));
    assert!(daemon.fail("why web user=u1", 1).contains(message));
}

#[test]
fn notes_say_that_a_request_is_not_limited() {
    let daemon = started();
    let mut wire = daemon.greeted();
    let notes = |wire: &mut Wire, op: u64, domain: &str, attribute: &str| {
        wire.ask(&json!([op, 1, domain, [[attribute, "u1"]]]))[10].clone()
    };
    for op in [1, 3, 4] {
        assert_eq!(notes(&mut wire, op, "ap", "user"), json!(["unmatched", "domain"]), "{op}");
        assert_eq!(notes(&mut wire, op, "api", "usr"), json!(["unmatched", "rule"]), "{op}");
        assert_eq!(notes(&mut wire, op, "api", "user"), Value::Null, "{op}");
        // A rule in shadow checks it.
        assert_ne!(notes(&mut wire, op, "api", "plan")[0], "unmatched", "{op}");
    }
    daemon.await_log(&["WARN", "not limited: no domain `ap`; there is only api"]);
    let unmatched =
        "not limited: no rule of `api` matches a request with `usr`, and none uses `usr`; did you mean user?";
    daemon.await_log(&["WARN", unmatched]);
    for once in ["no domain `ap`", unmatched] {
        assert_eq!(daemon.log().matches(once).count(), 1, "once for all requests: {once}");
    }
    let status = daemon.json("status");
    assert_eq!(status["unknown_domains"], json!(["ap"]));
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("not limited: 2 requests; no domain `ap`; there is only api"), "{warnings}");
    for (attributes, cost, words) in [
        (json!([["user", ""]]), json!(1), "without attributes (empty: `user`); `tidegate why"),
        (
            json!([["user", "u"]]),
            json!({"tokens": 1}),
            "with `user` but per-user, which counts `requests`, and the cost has none",
        ),
    ] {
        let daemon = started();
        daemon.greeted().ask(&json!([3, 1, "api", attributes, cost]));
        daemon.await_log(&["not limited: no rule of `api` matches a request ", words]);
    }
    // Nor does a connection hide a domain that loses its rules.
    let rules = RULES.replacen("domain: api", "domain: apx", 1);
    std::fs::write(daemon.plan.path("rules/api.yaml"), rules).unwrap();
    daemon.await_log(&["api: removed with its"]);
    assert_eq!(notes(&mut wire, 3, "api", "user"), json!(["unmatched", "domain"]));
    daemon.await_log(&["WARN", "not limited: no domain `api`", "apx"]);
    // Names of clients fill neither the log nor the memory.
    for id in 0..100 {
        wire.ask(&json!([3, id, format!("d{id}"), [["user", "u1"]]]));
    }
    let status = daemon.json("status");
    assert_eq!(status["unknown_domains"].as_array().unwrap().len(), 16);
    has(&status["warnings"].to_string(), &["requests for several unknown domains; no domain"]);
    assert!(daemon.log().matches("not limited: no domain").count() <= 16);
}

#[test]
fn refusals_carry_the_rate_as_written_and_blocks() {
    let daemon = started();
    let mut wire = daemon.greeted();
    let replies: Vec<Value> = (0..4).map(|id| wire.ask(&hit(id, "u1"))).collect();
    assert_eq!(replies[2][12], Value::Null, "not with a grant");
    assert_eq!((&replies[3][12]["rate"], &replies[3][12]["blocked"]), (&json!("5/min"), &Value::Null));
    let step = json!([3, 1, "api", [["user", "u2", "step", "one"]]]);
    assert_eq!(wire.ask(&step)[2], 0);
    let extra = wire.ask(&step)[12].take();
    assert_eq!((&extra["rate"], &extra["blocked"]), (&json!("1/h"), &json!(true)), "the rule blocks the key");
    daemon.run("block per-user --for 1h user=u3");
    let extra = wire.ask(&hit(1, "u3"))[12].take();
    assert_eq!((&extra["rate"], &extra["blocked"]), (&json!("5/min"), &json!(true)));
    let reply = wire.ask(&hit(2, "u3"));
    assert_eq!(json!([reply[6], reply[7]]), json!([0, reply[8]]), "it waits for the end of the block");
}

#[test]
fn why_names_rules_that_count_other_units() {
    let rules = "domain: api\nlimits:\n  - {name: requests, key: [user], rate: 5/s}\n  - {name: tokens, key: [user], rate: 9/min, unit: tokens}\n";
    let daemon = Plan::new().rules("api.yaml", rules).start();
    let table = [
        ("", "requests", "tokens", Value::Null),
        ("--cost tokens=2", "tokens", "requests", Value::Null),
        (
            "--cost 1 --cost token=2",
            "requests",
            "tokens",
            json!("it counts tokens, and the cost names none (--cost tokens=N); is token meant?"),
        ),
    ];
    for (cost, counts, other, near) in table {
        let found = why(&daemon, &format!("api user=ann {cost}"));
        assert_eq!(found["checks"][0]["rule"], json!(counts), "{cost}: {found}");
        let reason = format!("it counts {other}, and the cost names none (--cost {other}=N)");
        let seen = ["rule", "near", "reason"].map(|field| &found["others"][0][field]);
        assert_eq!(json!(seen), json!([other, near, reason]), "{cost}");
    }
    assert!(daemon.run("why api user=ann").contains("no       tokens ("));
}
