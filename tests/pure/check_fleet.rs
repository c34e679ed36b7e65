//! `tidegate check` of rules that a fleet shares: their bounds by the number of hosts, and what is missing for them.

use std::fs;
use std::io::{Read, Write};
use std::num::NonZeroU32;
use std::os::unix::net::UnixListener;
use std::path::Path;

use tidegate::cli::OutputFormat;
use tidegate::cli::check::{Args, Color, run};

const RULES: &str = "\
domain: api
limits:
- {name: tenant, key: [tenant], rate: 1000/s, scope: fleet, max_over: 5%, fleet: {on_miss: admit}}
- {name: exports, key: [org], rate: 10/h, scope: fleet, fleet: {on_redis_down: local}}
- {name: strict, key: [ip], rate: 10/s, scope: fleet, fleet: {on_miss: refuse}}
- {name: daily, key: [plan], algorithm: fixed_window, rate: 10000/day, scope: fleet}
- {name: sliding, key: [card], algorithm: sliding_window, rate: 5000/h, scope: fleet, fleet: {on_miss: refuse}}
- {name: own, key: [user], rate: 5/s}
";

fn check(path: &Path, hosts: u32, format: OutputFormat) -> (String, bool) {
    let args = Args {
        path: Some(path.to_owned()),
        hosts: NonZeroU32::new(hosts),
        format,
        color: Color::Never,
        ..Args::default()
    };
    let mut out = Vec::new();
    let code = run(&args, &mut out).unwrap();
    // Only printing it tells one code from another.
    let fine = format!("{code:?}") == format!("{:?}", std::process::ExitCode::SUCCESS);
    (String::from_utf8(out).unwrap(), fine)
}

fn rules(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn each_rule_of_the_fleet_says_its_bound_for_two_hosts_for_now_and_for_twice_that() {
    let (_folder, path) = rules(RULES);
    let (text, fine) = check(&path, 50, OutputFormat::Text);
    assert!(fine, "{text}");
    let bound = "at most 1000 + 1000 × seconds in any span, on all hosts together while Redis answers";
    let more = "50 more at once, and 5% of the rate more from hosts that hardly use the key";
    for line in [
        "  bound     at most 10000 in each day (UTC), so up to 20000 across an edge, on all hosts together while Redis answers",
        "  bound     at most 5000 in any hour, on all hosts together while Redis answers",
        &format!("  bound     {bound}"),
        "  fleet     {mode: borrow, on_miss: admit, on_redis_down: share}, max_over: 5%",
        &format!("  2 hosts   {more}"),
        &format!("  50 hosts  {more}"),
        "  100 hosts no more; a host that holds no token asks Redis",
        "  fleet     {mode: borrow, on_redis_down: local}",
        "  2 hosts   no more; a host that holds no token asks Redis",
        "  50 hosts  no more; a host that holds no token asks Redis",
        "  fleet     {mode: borrow, on_miss: refuse, on_redis_down: share}",
        "  bound     at most 5 + 5 × seconds in any span, exact in ticks of 1 ns; on 50 hosts at most 250 + 250 × seconds \
         in any span",
    ] {
        assert!(text.lines().any(|printed| printed == line), "{line}\nin\n{text}");
    }
    let (text, _) = check(&path, 0, OutputFormat::Text);
    assert!(text.contains("2 hosts") && !text.contains("1 hosts") && !text.contains("4 hosts"), "{text}");
}

#[test]
fn json_says_the_same() {
    let (_folder, path) = rules(RULES);
    let (text, _) = check(&path, 50, OutputFormat::Json);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let [tenant, exports, strict, .., own] = json["domains"][0]["rules"].as_array().unwrap().as_slice()
    else {
        panic!("{text}")
    };
    assert_eq!(
        (&tenant["scope"], &own["scope"], &own["fleet"]),
        (&"fleet".into(), &"host".into(), &().into())
    );
    assert_eq!((&tenant["fleet"]["mode"], &tenant["fleet"]["on_miss"]), (&"borrow".into(), &"admit".into()));
    assert_eq!((&exports["fleet"]["on_miss"], &exports["fleet"]["wait_us"]), (&().into(), &5_000.into()));
    let bounds = |rule: &serde_json::Value| -> Vec<(u64, String, u64, u64)> {
        let number = |of: &serde_json::Value| of.as_u64().unwrap();
        let bounds = rule["fleet"]["bounds"].as_array().unwrap().iter();
        bounds
            .map(|of| {
                let on_miss = of["on_miss"].as_str().unwrap().to_owned();
                (number(&of["hosts"]), on_miss, number(&of["extra"]), number(&of["quiet_permille"]))
            })
            .collect()
    };
    let of = |hosts, on_miss: &str, extra, quiet| (hosts, on_miss.to_owned(), extra, quiet);
    assert_eq!(bounds(tenant), [of(2, "admit", 50, 50), of(50, "admit", 50, 50), of(100, "ask", 0, 0)]);
    assert_eq!(bounds(strict)[1], of(50, "refuse", 0, 0));
    assert_eq!(exports["fleet"]["on_redis_down"], "local");
    assert_eq!(bounds(exports)[1], of(50, "ask", 0, 0));
    assert_eq!(
        (&tenant["fleet"]["max_over_permille"], &exports["fleet"]["max_over_permille"]),
        (&50.into(), &100.into())
    );
    // However many hosts there are.
    assert_eq!(tenant["bound"], tenant["bound_on_hosts"]);
    assert_eq!(own["bound_on_hosts"], "at most 250 + 250 × seconds in any span");
}

#[test]
fn without_redis_or_its_secret_each_host_is_said_to_limit_by_itself() {
    let (folder, _) = rules(RULES);
    let settings = folder.path().join("tidegate.yaml");
    let said = |text: &str| {
        fs::write(&settings, text).unwrap();
        check(&settings, 0, OutputFormat::Text)
    };
    let (text, fine) = said("rules: rules.yaml\n");
    let alone = "`tenant` and 4 more with `scope: fleet`, and no `redis`: each host limits by itself";
    assert!(fine && text.contains(alone) && text.contains("0 errors, 1 warning\n"), "{text}");
    let (text, fine) = said("rules: rules.yaml\nredis: {url: redis://127.0.0.1}\n");
    let without = "`redis` without `fleet_secret_files`: each host limits by itself";
    assert!(fine && text.contains(without) && !text.contains(alone), "{text}");
    let (text, fine) =
        said("rules: rules.yaml\nredis: {url: redis://127.0.0.1, fleet_secret_files: [none]}\n");
    assert!(!fine && text.contains("cannot read the fleet secret") && text.contains("head -c 32"), "{text}");
    // Rules alone may be checked where no settings are.
    let (text, _) = check(&folder.path().join("rules.yaml"), 0, OutputFormat::Text);
    assert!(!text.contains("no `redis`"), "{text}");
    // What the settings say of a domain holds for its rules.
    let (text, _) = said("rules: rules.yaml\ndomains: {api: {scope: fleet}}\n");
    assert!(text.contains("`tenant` and 5 more"), "{text}");
}

#[test]
fn without_a_number_it_reckons_with_the_hosts_that_the_daemon_counts() {
    let (folder, _) = rules(RULES);
    let settings = folder.path().join("tidegate.yaml");
    let text = "rules: rules.yaml\nsocket: {path: t.sock}\nredis: {url: redis://127.0.0.1}\n";
    fs::write(&settings, text).unwrap();
    let (text, _) = check(&settings, 0, OutputFormat::Text);
    assert!(text.contains("  2 hosts ") && !text.contains("  7 hosts "), "no daemon: {text}");
    // As a daemon answers; what it says besides is of no interest here.
    let _served = UnixListener::bind(folder.path().join("t.sock")).unwrap();
    let listener = UnixListener::bind(folder.path().join("t.admin.sock")).unwrap();
    let daemon = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 1_024];
        let length = stream.read(&mut asked).unwrap();
        assert!(asked[..length].starts_with(b"GET /status "));
        let body = r#"{"fleet": {"hosts": 7}}"#;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
    });
    let (text, _) = check(&settings, 0, OutputFormat::Text);
    daemon.join().unwrap();
    for line in ["  2 hosts ", "  7 hosts ", "  14 hosts ", "on 7 hosts at most 35 + 35"] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn a_region_has_its_part_and_what_is_lost_of_it_is_said() {
    let rules = "\
domain: api
limits:
- {name: tenant, key: [tenant], rate: 1000/s, scope: fleet, overrides: [{match: {tenant: t9}, rate: 3000/s}]}
- {name: exports, key: [org], rate: 10/h, burst: 7, scope: fleet}
- {name: tiny, key: [ip], rate: 1/s, scope: fleet}
- {name: own, key: [user], rate: 5/s}
- {name: partners, key: [org], rate: unlimited, scope: fleet, overrides: [{match: {org: o1}, rate: 400/s}]}
concurrency:
- {name: reports, key: [org], max: 12, scope: fleet, overrides: [{match: {org: o9}, max: 40}]}
- {name: renders, key: [org], max: 7, scope: fleet}
- {name: alone, key: [org], max: 1, scope: fleet}
- {name: here, key: [org], max: 8}
";
    let (folder, _) = self::rules(rules);
    let settings = folder.path().join("tidegate.yaml");
    let redis = "redis: {url: redis://127.0.0.1, region_weight: 75%}\n";
    fs::write(&settings, format!("rules: rules.yaml\n{redis}")).unwrap();
    let (text, fine) = check(&settings, 0, OutputFormat::Text);
    assert!(fine, "{text}");
    for line in [
        "  region    75% of 1000/s, burst 1000, which all regions have together",
        "  bound     at most 750 + 750 × seconds in any span, on all hosts together while Redis answers",
        "  2 hosts   no more; a host that holds no token asks Redis",
        "  region    75% of 10/h, burst 7, which all regions have together; of the burst 0.250 of a token is lost",
        "  region    75% of 1/s, burst 1, which all regions have together; less than one token of the burst, and one all the same",
        "  region    75% of 12 at once, which all regions have together",
        "  region    75% of 7 at once, which all regions have together; of `max` 0.250 of a place is lost",
        "  region    75% of 1 at once, which all regions have together; less than one place of `max`, and one all the same",
    ] {
        assert!(text.lines().any(|printed| printed == line), "{line}\nin\n{text}");
    }
    assert!(text.contains("token_bucket 15/2h, burst 5"), "{text}");
    assert!(text.contains("2250/s"), "overrides as well: {text}");
    assert!(text.contains("75% of a burst of 1, as `region_weight` says, is less than one token"), "{text}");
    assert!(text.contains("300/s"), "overrides of a rule that has no rate of its own: {text}");
    assert!(text.contains("75% of a `max` of 1, as `region_weight` says, is less than one place"), "{text}");
    assert_eq!(text.matches("as `region_weight` says").count(), 2, "nothing else is to be told: {text}");
    assert!(
        text.contains("at most 5 + 5 × seconds in any span, exact"),
        "a rule of each host is not touched: {text}"
    );
    let (text, _) = check(&settings, 0, OutputFormat::Json);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let region = &json["domains"][0]["rules"][0]["fleet"]["region"];
    assert_eq!((&region["weight_permille"], &region["burst"]), (&750.into(), &1000.into()), "{text}");
    let rules = json["domains"][0]["rules"].as_array().unwrap();
    let of = |name: &str| rules.iter().find(|rule| rule["name"] == name).unwrap();
    assert_eq!((&of("reports")["fleet"]["region"]["max"], &of("reports")["limit"]), (&12.into(), &9.into()));
    assert_eq!(of("reports")["overrides"]["listed"][0]["limit"], 30, "{text}");
    let limits = ["renders", "alone", "here"].map(|name| of(name)["limit"].as_u64());
    assert_eq!(limits, [Some(5), Some(1), Some(8)], "{text}");
    assert_eq!(of("partners")["overrides"]["listed"][0]["rate"], "300/s", "{text}");
    // Alone it is the whole budget.
    let (text, _) = check(&folder.path().join("rules.yaml"), 0, OutputFormat::Text);
    assert!(!text.contains("region") && text.contains("at most 1000 + 1000 × seconds"), "{text}");
}
