//! `tidegate check`: what it prints and how it ends.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tidegate::cli::OutputFormat;
use tidegate::cli::check::{Args, Color, run};

fn check(path: &Path, format: OutputFormat) -> (String, bool) {
    check_with(Args { path: Some(path.to_owned()), format, ..Args::default() })
}

fn check_with(args: Args) -> (String, bool) {
    let args = Args { color: Color::Never, ..args };
    let path = args.path.clone().unwrap();
    let mut out = Vec::new();
    let code = run(&args, &mut out).unwrap();
    // Only printing it tells one code from another.
    let fine = format!("{code:?}") == format!("{:?}", std::process::ExitCode::SUCCESS);
    let text = String::from_utf8(out).unwrap();
    (text.replace(&*path.parent().unwrap().to_string_lossy(), "."), fine)
}

fn file(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    (directory, path)
}

const GOOD: &str = "domain: api\nlimits:\n- {name: per-user, key: [user], rate: 100/s, burst: 500}\n\
                    - {name: all, key: [], rate: 3/s, mode: shadow}\n\
                    - {name: login, key: [ip, account], rate: 5/15min, mode: disabled}\n\
                    - {name: odd, key: [ip], rate: 1009/s}\n";

#[test]
fn a_good_file_says_what_each_rule_admits() {
    let (_directory, path) = file("rules.yaml", GOOD);
    let (text, fine) = check(&path, OutputFormat::Text);
    assert!(fine, "warnings are no failure");
    let expected = "\
warning: the rate 1009/s is not exact: it is kept slow by one part in 264462809
 --> ./rules.yaml:6:10
  |
6 | - {name: odd, key: [ip], rate: 1009/s}
  |          ^^^
  |
  = help: exact are numbers up to 128 and those that divide the period evenly

api/per-user (./rules.yaml:3:10): token_bucket 100/s, burst 500, for each user
  bound     at most 500 + 100 × seconds in any span, exact in ticks of 1 ns; on N hosts N times that
  memory    29 to 58 bytes a key: 64 MiB hold at least 1 084 733 keys
api/all (shadow: refuses nothing) (./rules.yaml:4:10): token_bucket 3/s, burst 3, for all together
  bound     at most 3 + 3 × seconds in any span, exact in ticks of 1/3 ns; on N hosts N times that
  memory    one key, at most 58 bytes
api/login (disabled: not judged) (./rules.yaml:5:10): token_bucket 5/15min, burst 5, for each ip and account
  bound     at most 5 + 5 × (time ÷ 15min) in any span, exact in ticks of 1 ns; on N hosts N times that
  memory    29 to 58 bytes a key: 64 MiB hold at least 1 084 733 keys
api/odd (./rules.yaml:6:10): token_bucket 1009/s, burst 1009, for each ip
  bound     at most 1009 + 1009 × seconds in any span, kept slow by one part in 264462809; on N hosts N times that
  memory    29 to 58 bytes a key: 64 MiB hold at least 1 084 733 keys

./rules.yaml: 1 domain, 4 rules; 0 errors, 1 warning
";
    assert_eq!(text, expected);
}

#[test]
fn a_bad_file_shows_every_error_with_its_line() {
    let (_directory, path) = file(
        "rules.yaml",
        "domain: api\nlimits:\n  - name: per-user\n    key: [user]\n    rate: 100/sec\n    brust: 500\n  - {name: per-user, key: [], rate: 1/s}\n",
    );
    let (text, fine) = check(&path, OutputFormat::Text);
    assert!(!fine);
    let expected = "\
error: unknown unit `sec` in the rate `100/sec`
 --> ./rules.yaml:5:11
  |
5 |     rate: 100/sec
  |           ^^^^^^^
  |
  = help: write 100/s

error: unknown field `brust` in a rule
 --> ./rules.yaml:6:5
  |
6 |     brust: 500
  |     ^^^^^
  |
  = help: did you mean `burst`?

error: a second rule named `per-user` in the domain `api`
 --> ./rules.yaml:7:12
  |
7 |   - {name: per-user, key: [], rate: 1/s}
  |            ^^^^^^^^
  |
  = help: give it another name; the first is at ./rules.yaml:3:11

domain api: left out for its errors; the daemon starts without limits for it
./rules.yaml: 0 domains, 0 rules; 3 errors, 0 warnings
";
    assert_eq!(text, expected);
}

#[test]
fn json_says_the_same_to_programs() {
    let (_directory, path) = file("rules.yaml", GOOD);
    let (text, fine) = check(&path, OutputFormat::Json);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(fine);
    assert_eq!((&json["errors"], &json["warnings"]), (&0.into(), &1.into()));
    let problem = &json["problems"][0];
    assert_eq!(
        (&problem["severity"], &problem["line"], &problem["column"]),
        (&"warning".into(), &6.into(), &10.into())
    );
    let rule = &json["domains"][0]["rules"][1];
    assert_eq!((&rule["name"], &rule["rate"], &rule["burst"]), (&"all".into(), &"3/s".into(), &3.into()));
    assert_eq!((&rule["exact"], &rule["ticks_per_nanosecond"]), (&true.into(), &3.into()));
    assert_eq!(rule["bound"], "at most 3 + 3 × seconds in any span");

    let (_directory, path) = file("rules.yaml", "domain: api\nlimits:\n- {name: a, rate: 1/s}\n");
    let (text, fine) = check(&path, OutputFormat::Json);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(!fine);
    assert_eq!((&json["errors"], &json["failed"][0]), (&1.into(), &"api".into()));
    assert_eq!(json["problems"][0]["line_text"], "- {name: a, rate: 1/s}");
}

#[test]
fn a_settings_file_brings_its_rules_with_it() {
    let (directory, path) = file(
        "tidegate.yaml",
        "rules: rules\nredis: {url: \"redis://10.0.0.1\", fleet_secret_files: [key]}\n",
    );
    fs::write(directory.path().join("key"), [7; 32]).unwrap();
    fs::set_permissions(directory.path().join("key"), Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(directory.path().join("rules")).unwrap();
    fs::write(directory.path().join("rules/api.yaml"), GOOD).unwrap();
    let (text, fine) = check(&path, OutputFormat::Text);
    assert!(fine);
    assert!(text.contains("redis://10.0.0.1:6379 is plain text beyond this host"), "{text}");
    assert!(text.ends_with("./tidegate.yaml, ./rules: 1 domain, 4 rules; 0 errors, 2 warnings\n"), "{text}");

    let (_directory, path) = file("tidegate.yaml", "threads: none\n");
    let (text, fine) = check(&path, OutputFormat::Text);
    assert!(!fine && text.contains("tidegate.yaml:1:10"), "{text}");
}

#[test]
fn a_path_that_is_not_there_is_an_error() {
    let (directory, _) = file("unused", "");
    let (text, fine) = check(&directory.path().join("rules"), OutputFormat::Text);
    assert!(!fine && text.contains("cannot read the rules: No such file"), "{text}");
}

const EVERYTHING: &str = "\
domain: api
priorities: [high, low]
prioritize: [{match: {plan: gold}, priority: high}]
exempt: [{name: probes, match: {path: /healthz}}]
deny: [{name: bots, match: {agent: \"*bot*\"}}]
limits:
  - name: per-user
    match: {method: [GET, HEAD]}
    key: [user]
    rate: 100/s
    overrides_file: users.csv
    overrides: [{match: {plan: gold}, rate: 1009/s}, {match: {plan: house}, rate: unlimited}]
    candidate: {rate: 50/s}
  - {name: daily, key: [org], unit: tokens, algorithm: fixed_window, rate: 5/month, timezone: Europe/Berlin, over: {soft: 20%, for: 60s}, max_debt: 7, warn_at: 80%}
  - {name: login, key: [{attribute: ip, ipv6_prefix: 64}], algorithm: sliding_log, rate: 5/15min, block: 15min, refused: counted}
  - {name: paced, key: [host], algorithm: leaky_bucket, rate: 5/s, queue: 20}
  - {name: guess, key: [], algorithm: sliding_window, rate: 20/h, buckets: 1}
descriptors:
  - key: type
    value: news
    descriptors: [{key: to, rate_limit: {unit: day, requests_per_unit: 5}}, {key: off, rate_limit: {unit: day}}]
";

/// The rules above in a directory of their own, and its table.
fn everything() -> (tempfile::TempDir, PathBuf) {
    let (directory, path) = file("rules.yaml", EVERYTHING);
    fs::write(directory.path().join("users.csv"), "user,rate\nann,7/s\n").unwrap();
    (directory, path)
}

#[test]
fn every_kind_of_limit_says_its_bound_and_what_it_takes() {
    let (_directory, path) = everything();
    let hosts = std::num::NonZeroU32::new(5);
    let (text, fine) = check_with(Args { path: Some(path), hosts, ..Args::default() });
    assert!(fine, "{text}");
    let (_, text) = text.split_once("api/probes").unwrap();
    let expected = " (./rules.yaml:4:17): exempt: nothing judges what matches {path: /healthz}
api/bots (./rules.yaml:5:15): deny: refuses what matches {agent: *bot*}
api/per-user (./rules.yaml:7:11): token_bucket 100/s, burst 100, for each user
  match     {method: [GET, HEAD]}
  bound     at most 100 + 100 × seconds in any span, exact in ticks of 1/128 ns; on 5 hosts at most 500 + 500 × seconds in any span
  overrides 1 row of users.csv, BYTES; {plan: gold} token_bucket 1009/s, burst 1009; {plan: house} unlimited; the least exact kept slow by one part in PARTS
  memory    29 to 58 bytes a key: 64 MiB hold at least 1 084 733 keys
api/per-user@candidate (shadow: refuses nothing) (./rules.yaml:13:16): token_bucket 50/s, burst 50, for each user
  match     {method: [GET, HEAD]}
  bound     at most 50 + 50 × seconds in any span, exact in ticks of 1/128 ns; on 5 hosts at most 250 + 250 × seconds in any span
  overrides 1 row of users.csv, BYTES; {plan: gold} token_bucket 1009/s, burst 1009; {plan: house} unlimited; the least exact kept slow by one part in PARTS
  also      advertise: false
  memory    29 to 58 bytes a key: 64 MiB hold at least 1 084 733 keys
api/daily (./rules.yaml:14:12): fixed_window 5/month, for each org
  unit      tokens
  bound     at most 5 in each calendar month (Europe/Berlin), so up to 10 across an edge; on 5 hosts at most 25 in each calendar month (Europe/Berlin), so up to 50 across an edge
  over      soft, for 1m at a stretch, marked: at most 30 in each calendar month (Europe/Berlin), so up to 60 across an edge
  debt      CHARGE may go 7 below zero
  also      warn_at: 80%
  memory    34 to 143 bytes a key: 64 MiB hold at least 439 961 keys
api/login (./rules.yaml:15:12): sliding_log 5/15min, for each ip (IPv6 by /64)
  bound     at most 5 in any 15 minutes, exactly; on 5 hosts at most 25 in any 15 minutes, exactly
  refused   counted: what is refused counts as well
  block     once refused, refused for 15m
  memory    70 to 214 bytes a key: 64 MiB hold at least 293 993 keys
api/paced (./rules.yaml:16:12): leaky_bucket 5/s, queue 20, for each host
  bound     work starts at least 200ms apart, 20 may wait, exact in ticks of 1 ns; on 5 hosts work starts at least 200ms apart on each, so 5 may start at once; 100 may wait
  memory    29 to 58 bytes a key: 64 MiB hold at least 1 084 733 keys
api/guess (./rules.yaml:17:12): sliding_window 20/h, buckets 1, for all together
  bound     an estimate of at most 20 in any hour, off by at most what came in the oldest 1h of it; at worst 40; on 5 hosts an estimate of at most 100 in any hour, off by at most what came in the oldest 1h of it; at worst 200
  memory    one key, at most 94 bytes
api/type_news.to (./rules.yaml:21:25): fixed_window 5/day, for each to
  path      type_news → to
  bound     at most 5 in each day (UTC, from 1970 on), so up to 10 across an edge; on 5 hosts at most 25 in each day (UTC, from 1970 on), so up to 50 across an edge
  refused   counted: what is refused counts as well
  memory    34 to 67 bytes a key: 64 MiB hold at least 939 023 keys
api/type_news.off (./rules.yaml:21:83): fixed_window 0/day, for each off
  path      type_news → off
  bound     nothing passes
  refused   counted: what is refused counts as well
  memory    34 to 67 bytes a key: 64 MiB hold at least 939 023 keys
api: priorities high, low; 1 entry of `prioritize`, and what matches none has low
api: a tree of 3 descriptors, 2 with a limit

./rules.yaml: 1 domain, 8 rules; 0 errors, 3 warnings
";
    // What a library allocates, and by how much a rate is rounded, is for other tests.
    let bytes = regex::Regex::new(r"\d+ bytes;").unwrap().replace_all(text, "BYTES;");
    let parts = regex::Regex::new(r"(least exact kept slow by one part in) \d+")
        .unwrap()
        .replace_all(&bytes, "$1 PARTS");
    assert_eq!(parts, expected);
}

const SHEDS: &str = "\
domain: api
priorities: [critical, post, test]
concurrency:
  - {name: exports, match: {job: export}, key: [org], max: 2, expires: 2h, overrides: [{match: {plan: gold}, max: 5}], candidate: {max: 1}}
  - {name: all, key: [], max: 9}
shed:
  - pool: web
    slots: 32
    queue_age: {}
    workers: {}
    brake: {mode: shadow}
    fleet: {reserve: 20%, for: post}
    signals: {accept_queue: {listen: /run/app}, cpu: {use: true}, lag: {}}
  - {pool: jobs, workers: {shed_critical: true, stripe_exact: true}}
";

#[test]
fn prints_concurrency_rules_and_pools() {
    let (_directory, path) = file("rules.yaml", SHEDS);
    let hosts = std::num::NonZeroU32::new(5);
    let (text, fine) = check_with(Args { path: Some(path), hosts, ..Args::default() });
    assert!(fine, "{text}");
    let expected = "\
api/exports (./rules.yaml:4:12): 2 at once, for each org
  match     {job: export}
  bound     never more than 2 at once; on 5 hosts never more than 10 at once
  expires   a lease that is neither renewed nor released ends after 2h
  overrides {plan: gold} 5 at once
  memory    BYTES a key: 64 MiB hold at least KEYS keys; at most 128 bytes for each piece of work
api/exports@candidate (shadow: refuses nothing) (./rules.yaml:4:131): 1 at once, for each org
  match     {job: export}
  bound     never more than 1 at once; on 5 hosts never more than 5 at once
  expires   a lease that is neither renewed nor released ends after 2h
  overrides {plan: gold} 5 at once
  also      advertise: false
  memory    BYTES a key: 64 MiB hold at least KEYS keys; at most 128 bytes for each piece of work
api/all (./rules.yaml:5:12): 9 at once, for all together
  bound     never more than 9 at once; on 5 hosts never more than 45 at once
  expires   a lease that is neither renewed nor released ends after 1m
  memory    one key, at most BYTES; at most 128 bytes for each piece of work
api/web (./rules.yaml:7:11): sheds the pool, 32 slots unless its processes say how many
  fleet     keeps 20% of the slots for critical and post: test together use at most 80%
  brake     while requests queue up, of the slots at most: test 70%, post 90%; critical all (shadow: refuses nothing)
  workers   sheds above 80% of the slots busy, recovers below 70%, recovers by 1/1800 a second in between; at full load 28s to the first refusal and 2m more to the last: test, post, never critical
  queue_age refuses what has waited more than 500ms; critical more than 2s 500ms
  callers   by user, else ip; who is refused changes over 10m
  signals   accept_queue of /run/app shown only, cpu counts, lag (pushed) shown only
api/jobs (./rules.yaml:14:12): sheds the pool, as many slots as its processes say
  workers   sheds above 80% of the slots busy, recovers below 70%, stays in between; at full load 28s to the first refusal and 2m more to the last: test, post, critical
  callers   by user, else ip; who is refused changes over 10m
api: priorities critical, post, test; 0 entries of `prioritize`, and what matches none has test

./rules.yaml: 1 domain, 3 rules; 0 errors, 0 warnings
";
    // What a table takes is for other tests.
    let text = regex::Regex::new(r"\d+ to \d+ bytes a key").unwrap().replace_all(&text, "BYTES a key");
    let text = regex::Regex::new(r"least [\d ]+ keys").unwrap().replace_all(&text, "least KEYS keys");
    let text =
        regex::Regex::new(r"one key, at most \d+ bytes").unwrap().replace(&text, "one key, at most BYTES");
    assert_eq!(text, expected);
}

#[test]
fn has_concurrency_rules_and_pools_in_json() {
    let (_directory, path) = file("rules.yaml", SHEDS);
    let (text, _) = check(&path, OutputFormat::Json);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let domain = &json["domains"][0];
    let exports = &domain["rules"][0];
    assert_eq!((&exports["algorithm"], &exports["limit"]), (&"concurrency".into(), &2.into()));
    assert_eq!(
        (&exports["expires_us"], &exports["bytes_per_lease"]),
        (&7_200_000_000_u64.into(), &128.into())
    );
    assert_eq!((&exports["bound"], &exports["max_debt"]), (&"never more than 2 at once".into(), &().into()));
    assert_eq!(
        (&domain["rules"][1]["limit"], &exports["overrides"]["listed"][0]["limit"]),
        (&1.into(), &5.into())
    );
    let [web, jobs] = domain["sheds"].as_array().unwrap().as_slice() else { panic!("{text}") };
    assert_eq!((&web["pool"], &web["slots"], &web["line"]), (&"web".into(), &32.into(), &7.into()));
    assert_eq!((&web["fleet"]["rule"], &web["fleet"]["for"]), (&"web/fleet".into(), &"post".into()));
    assert_eq!((&web["brake"]["mode"], &web["brake"]["bands_permille"][1]), (&"shadow".into(), &900.into()));
    assert_eq!(web["workers"]["leak"], serde_json::json!([1, 1_800]));
    assert_eq!(web["queue_age"]["critical_us"], 2_500_000);
    assert_eq!(
        (&web["signals"][0]["listen"], &web["signals"][2]["pushed"]),
        (&"/run/app".into(), &true.into())
    );
    let keys = |of: &serde_json::Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(web), keys(jobs));
    assert!(
        jobs["fleet"].is_null()
            && jobs["brake"].is_null()
            && jobs["queue_age"].is_null()
            && jobs["slots"].is_null()
    );
}

#[test]
fn json_has_every_kind_of_limit_with_the_same_keys() {
    let (_directory, path) = everything();
    let (text, fine) = check(&path, OutputFormat::Json);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(fine, "{text}");
    let domain = &json["domains"][0];
    let rules = domain["rules"].as_array().unwrap();
    let keys = |rule: &serde_json::Value| rule.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert!(rules.iter().all(|rule| keys(rule) == keys(&rules[0])));
    assert_eq!((rules.len(), &domain["descriptors"]), (8, &3.into()));
    let [user, candidate, daily, login, paced, ..] = rules.as_slice() else { panic!("{text}") };
    assert_eq!(user["overrides"]["listed"][0]["match"], "{plan: gold}");
    assert_eq!((&user["overrides"]["rows"], &candidate["burst"]), (&1.into(), &50.into()));
    assert!(user["overrides_slow_by_one_part_in"].as_u64().is_some());
    assert_eq!((&daily["over"]["kind"], &daily["over"]["limit"]), (&"soft".into(), &6.into()));
    assert_eq!((&daily["over"]["for_us"], &daily["unit"]), (&60_000_000.into(), &"tokens".into()));
    assert_eq!((&login["block_us"], &login["refused"]), (&900_000_000.into(), &"counted".into()));
    assert_eq!(login["key_parts"][0]["ipv6_prefix"], 64);
    assert_eq!((&paced["queue"], &paced["burst"]), (&20.into(), &serde_json::Value::Null));
    assert_eq!(rules[6]["path"], serde_json::json!(["type_news", "to"]));
    assert_eq!((&domain["lists"][1]["list"], &domain["lists"][1]["line"]), (&"deny".into(), &5.into()));
    assert_eq!(
        (&domain["prioritize"][0]["priority"], &domain["prioritize"][0]["line"]),
        (&"high".into(), &3.into())
    );
}

#[test]
fn of_many_rules_the_first_are_shown_and_all_on_demand() {
    let rules: String = (0..1_000)
        .map(|n| format!("- {{name: r{n}, match: {{a: \"{n}\"}}, key: [u], rate: 1/s}}\n"))
        .collect();
    let (_directory, path) = file("rules.yaml", &format!("domain: api\nlimits:\n{rules}"));
    let blocks = |text: &str| text.lines().filter(|line| line.starts_with("api/r")).count();
    let (text, _) = check(&path, OutputFormat::Text);
    assert_eq!(blocks(&text), 200);
    assert!(
        text.contains("\n… and 800 more: --all prints them\n") && text.contains("1 domain, 1000 rules"),
        "{text}"
    );
    let (text, _) = check_with(Args { path: Some(path), all: true, ..Args::default() });
    assert!(blocks(&text) == 1_000 && !text.contains("--all"));
}
