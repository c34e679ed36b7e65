//! `tidegate explain`, the real program: what it prints of a request, and how it ends.

use std::fs;
use std::process::Command;

use serde_json::Value;

const RULES: &str = "\
domain: api
priorities: [critical, get]
prioritize:
  - {match: {method: POST}, priority: critical}
exempt: [{name: probes, match: {path: [/healthz, /readyz]}}]
deny: [{name: bots, match: {agent: {glob: [\"*bot*\"], ignore_case: true}}}]
limits:
  - name: per-user
    key: [{attribute: user, lowercase: true}]
    rate: 100/s
    overrides_file: users.csv
    overrides: [{match: {plan: [gold, silver]}, rate: 200/s}, {match: {plan: house}, rate: unlimited}]
  - {name: writes, match: {method: [POST, PUT], path: \"/v1/*\"}, key: [user], algorithm: fixed_window, rate: 10/min}
  - {name: old, key: [user], rate: 1/s, mode: disabled}
  - {name: tokens, key: [org], unit: tokens, rate: 10/min}
  - {name: by-card, key: [card], rate: 9/s, mode: shadow, candidate: {rate: 5/s}, block: 1min}
descriptors:
  - {key: org, rate_limit: {unit: day, requests_per_unit: 5, name: day}}
  - key: org
    value: big
    rate_limit: {unit: hour, requests_per_unit: 9, replaces: [{name: day}]}
";

/// The command on the rules above: what it prints, what it says on standard error, the exit code.
fn explain(arguments: &[&str]) -> (String, String, i32) {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("api.yaml"), RULES).unwrap();
    fs::write(directory.path().join("users.csv"), "user,rate\nann,7/s\n").unwrap();
    fs::write(directory.path().join("bad.yaml"), "domain: bad\nlimits:\n- {name: a, rate: 1/s}\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("explain")
        .args(arguments)
        .arg("--rules")
        .arg(directory.path())
        .output()
        .unwrap();
    let clean = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap();
        text.replace(&*directory.path().to_string_lossy(), "rules")
    };
    (clean(output.stdout), clean(output.stderr), output.status.code().unwrap())
}

#[test]
fn every_rule_says_whether_it_judges_and_why_not() {
    let arguments = ["api", "user=Zoe", "method=POST", "path=/v2/x", "plan=silver", "card=c1"];
    let (text, said, code) = explain(&arguments);
    let expected = "\
domain    api, from rules
request   user=Zoe method=POST path=/v2/x plan=silver card=c1; cost 1 request
priority  critical: the entry at rules/api.yaml:4:5 matches
exempt    probes (rules/api.yaml:5:17): no, `path` is `/v2/x`, and line 5 asks for {path: [/healthz, /readyz]}
deny      bots (rules/api.yaml:6:15): no, there is no `agent`, for which line 6 asks
counts    per-user (rules/api.yaml:8:11): token_bucket 200/s, burst 200, for each user (in lower case)
          key       user=zoe
          numbers   by override 1 (line 12), it takes {plan: [gold, silver]}
          bound     at most 200 + 200 × seconds in any span
no        writes (rules/api.yaml:13:12): `path` is `/v2/x`, and line 13 asks for {path: /v1/*}
no        old (disabled: not judged) (rules/api.yaml:14:12): its mode is disabled
no        tokens (rules/api.yaml:15:12): there is no `org`, by which it counts
counts    by-card (shadow: refuses nothing) (rules/api.yaml:16:12): token_bucket 9/s, burst 9, for each card
          key       card=c1
          bound     at most 9 + 9 × seconds in any span
          block     once refused, refused for 1m
          shadow    what it would refuse is noted, and the request goes on
counts    by-card@candidate (shadow: refuses nothing) (rules/api.yaml:16:70): token_bucket 5/s, burst 5, for each card
          key       card=c1
          bound     at most 5 + 5 × seconds in any span
          block     once refused, refused for 1m
          shadow    what it would refuse is noted, and the request goes on
in tree   descriptor 1 (user=Zoe method=POST path=/v2/x plan=silver card=c1): no descriptor of this depth limits it
3 of 8 rules judge it
";
    assert_eq!((text.as_str(), code), (expected, 0), "{said}");
}

#[test]
fn what_gives_the_numbers_is_told() {
    let table = [
        (
            &["api", "user=ANN", "plan=gold"][..],
            "token_bucket 7/s, burst 7",
            "by the row of this key in users.csv",
        ),
        (&["api", "user=bob", "plan=house"], "unlimited", "by override 2 (line 12), it takes {plan: house}"),
        (
            &["api", "user=bob"],
            "token_bucket 100/s, burst 100",
            "the rule's own: no override is for this request",
        ),
        (
            &["api", "org=o", "--cost", "tokens=11"],
            "token_bucket 10/min",
            "cost      11 tokens, more than the limit of 10",
        ),
        (
            &["api", "org=o"],
            "no        tokens",
            "it counts tokens, and the cost names none (--cost tokens=N)",
        ),
        (&["api", "user=bob", "--priority", "get"], "priority  get", "the request says so"),
        (&["api", "--priority", "gett"], "priority  get", "`gett` is none of the domain's, and no entry of"),
    ];
    for (arguments, numbers, by) in table {
        let (text, said, code) = explain(arguments);
        assert!(code == 0 && text.contains(numbers) && text.contains(by), "{arguments:?}: {text}{said}");
    }
}

#[test]
fn a_list_that_decides_ends_it() {
    let (text, _, code) = explain(&["api", "path=/readyz", "agent=Bot", "user=ann"]);
    assert_eq!(code, 0);
    assert!(
        text.contains("exempt    probes (rules/api.yaml:5:17): yes, it takes {path: [/healthz, /readyz]}"),
        "{text}"
    );
    assert!(text.ends_with("the request passes by probes, and no rule judges it\n"), "{text}");
    let (text, ..) = explain(&["api", "agent=GPTBot"]);
    assert!(text.ends_with("the request is refused by bots, and no rule judges it\n"), "{text}");
}

#[test]
fn each_descriptor_of_a_tree_is_told() {
    let (text, _, code) =
        explain(&["api", "org=small", "--descriptor", "org=big", "--descriptor", "a=1,b=2"]);
    assert_eq!(code, 0);
    assert!(
        text.contains(
            "in tree   descriptor 1 (org=small): would lead to org, which the limit of another replaces\n"
        ),
        "{text}"
    );
    assert!(text.contains("in tree   descriptor 2 (org=big): leads to org_big\n"), "{text}");
    assert!(
        text.contains("in tree   descriptor 3 (a=1 b=2): no descriptor of this depth limits it\n"),
        "{text}"
    );
    assert!(text.contains("counts    org_big (rules/api.yaml:19:10): fixed_window 9/h"), "{text}");
    let (text, ..) = explain(&["api", "org=o1", "--descriptor", "org=o1", "--cost", "2"]);
    // Two alike hit their node twice.
    assert!(text.contains("key       org=o1\n          cost      4 requests\n"), "{text}");
}

#[test]
fn json_says_the_same_to_programs() {
    let arguments = ["api", "user=ann", "method=PUT", "path=/v1/x", "--format", "json"];
    let (text, _, code) = explain(&arguments);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["domain"], &json["decided_by"]), (0, &"api".into(), &Value::Null));
    assert_eq!(
        json["priority"],
        serde_json::json!({"name": "get", "by": "last", "file": null, "line": null, "column": null})
    );
    let rule = |name: &str| {
        json["rules"].as_array().unwrap().iter().find(|rule| rule["name"] == name).unwrap().clone()
    };
    let user = rule("per-user");
    assert_eq!(
        (&user["matches"], &user["numbers_by"], &user["limit"]),
        (&true.into(), &"row".into(), &7.into())
    );
    assert_eq!(user["counted_by"], serde_json::json!([["user", "ann"]]));
    assert_eq!((&rule("writes")["matches"], &rule("writes")["cost"]), (&true.into(), &1.into()));
    assert_eq!(rule("old")["why_not"]["reason"], "disabled");
    let tokens = &rule("tokens")["why_not"];
    assert_eq!(
        (&tokens["reason"], &tokens["attribute"], &tokens["line"]),
        (&"absent".into(), &"org".into(), &Value::Null)
    );
    assert_eq!(
        (&json["lists"][0]["name"], &json["lists"][0]["why_not"]["line"]),
        (&"probes".into(), &5.into())
    );
    assert_eq!(json["tree"][0], serde_json::json!({"rule": null, "replaced": false}));
}

#[test]
fn what_cannot_be_explained_is_said() {
    let table: [(&[&str], i32, &str); 6] = [
        (&["nope", "user=u1"], 1, "no domain `nope` in rules: there is `api`"),
        (&["bad", "user=u1"], 1, "the rules of the domain `bad` have errors: it has no limits"),
        (&["bad", "user=u1"], 1, "a rule needs `key`"),
        (&["api", "user"], 2, "`user` is not KEY=VALUE"),
        (&["api", "--cost", "tokens=x"], 2, "`x` is not a number"),
        (&["api", "a/b=1"], 2, "name"),
    ];
    for (arguments, expected, message) in table {
        let (_, said, code) = explain(arguments);
        assert!(code == expected && said.contains(message), "{arguments:?}: {code} {said}");
    }
}

#[test]
fn the_page_shows_what_is_printed() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/testing-rules.md")).unwrap();
    let shown = page.split("```console\n").skip(1).map(|block| block.split("```").next().unwrap());
    let mut compared = 0;
    for (command, output) in shown.filter_map(|block| block.split_once('\n')) {
        // What is cut off, or needs rules that are not here, is left to other tests.
        let whole = output.strip_suffix("…\n");
        let Some(arguments) = command.strip_prefix("$ tidegate ").filter(|line| !line.contains("stricter"))
        else {
            continue;
        };
        let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let printed = program.args(arguments.split(' ')).current_dir(root).output().unwrap().stdout;
        let printed = String::from_utf8(printed).unwrap();
        match whole {
            Some(start) => assert!(printed.starts_with(start), "{printed}"),
            None => assert_eq!(printed, output),
        }
        compared += 1;
    }
    assert_eq!(compared, 3);
}

#[test]
fn work_at_once_and_the_pools_of_a_domain_are_explained() {
    let text = "\
domain: api
priorities: [critical, get]
deny: [{name: bots, match: {agent: bot}}]
concurrency:
  - {name: exports, match: {job: export}, key: [org], max: 2, overrides: [{match: {plan: gold}, max: 5}]}
limits: [{name: all, key: [], rate: 9/s}]
shed: [{pool: web, workers: {mode: shadow}, queue_age: {}}]
";
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("rules.yaml"), text).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["explain", "api", "--rules", "rules.yaml"]).args(arguments);
        String::from_utf8(command.current_dir(directory.path()).output().unwrap().stdout).unwrap()
    };
    let expected = "\
domain    api, from rules.yaml
request   job=export org=o1 plan=gold; cost 1 request
priority  get: no entry of `prioritize` matches, so it is the last
deny      bots (rules.yaml:3:15): no, there is no `agent`, for which line 3 asks
counts    exports (rules.yaml:5:12): 5 at once, for each org
          match     {job: export}
          key       org=o1
          numbers   by override 1 (line 5), it takes {plan: gold}
          bound     never more than 5 at once
          expires   a lease that is neither renewed nor released ends after 1m
counts    all (rules.yaml:6:17): token_bucket 9/s, burst 9, for all together
          key       one for all
          bound     at most 9 + 9 × seconds in any span
in pool   web/workers (shadow: refuses nothing) (rules.yaml:7:15): sheds above 80% of the slots busy, recovers below 70%, recovers by 1/1800 a second in between; at full load 28s to the first refusal and 2m more to the last: get, never critical
in pool   web/queue_age (rules.yaml:7:15): refuses what has waited more than 500ms; critical more than 2s 500ms
2 of 2 rules judge it
";
    assert_eq!(run(&["job=export", "org=o1", "plan=gold"]), expected);
    // What is denied comes to no pool.
    assert!(!run(&["agent=bot"]).contains("in pool"));
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&run(&[arguments, &["--format", "json"]].concat())).unwrap()
    };
    assert_eq!(json(&["org=o1"])["sheds"][0]["workers"]["rule"], "web/workers");
    assert_eq!(json(&["agent=bot"])["sheds"], serde_json::json!([]));
}

#[test]
fn a_rule_of_the_fleet_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("api.yaml");
    let text = "domain: api\nlimits: [{name: a, key: [user], rate: 100/s, scope: fleet, max_over: 5%, fleet: {on_miss: admit}}]\n";
    fs::write(&rules, text).unwrap();
    let explain = |format: &str| {
        let command = ["explain", "api", "user=zoe", "--format", format, "--rules"];
        let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = program.args(command).arg(&rules).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let text = explain("text");
    for line in [
        "          bound     at most 100 + 100 × seconds in any span, on all hosts together while Redis answers\n",
        "          scope     fleet\n",
        "          fleet     {mode: borrow, on_miss: admit, on_redis_down: share}\n",
        "          max_over  5%\n",
    ] {
        assert!(text.contains(line), "{line}\nin\n{text}");
    }
    let json: Value = serde_json::from_str(&explain("json")).unwrap();
    let rule = &json["rules"][0];
    assert_eq!(
        (&rule["scope"], &rule["fleet"]["max_over_permille"]),
        (&"fleet".into(), &50.into()),
        "{json:#}"
    );
}
