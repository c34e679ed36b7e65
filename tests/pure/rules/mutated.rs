//! Good files with a slip in them: never a panic, and every error says where.

use std::path::Path;

use tidegate::daemon::settings::{Environment, Settings};
use tidegate::rules::source::Source;
use tidegate::rules::{Problem, read_text};

/// A generator that always says the same, so that a failure can be found again by its seed.
struct Dice(u64);

impl Dice {
    /// A number below `sides`. SplitMix64.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % sides as u64).unwrap()
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.roll(from.len())]
    }
}

const RULES: &[&str] = &[
    "domain: api\ndefaults: {scope: host}\nlimits:\n  - name: per-user\n    key: [user]\n    rate: 100/s\n    burst: 500\n    help: https://example.com/limits\n  - name: charges\n    match: {method: POST, path: \"/v1/charges*\"}\n    key: [card]\n    algorithm: token_bucket\n    rate: 20/h\n  - name: per-address\n    key: [ip]\n    rate: 600/min\n    mode: shadow\n    advertise: true\n",
    "{\"domain\": \"web\", \"limits\": [{\"name\": \"a\", \"match\": {\"m\": [\"x\", 429, true]}, \"key\": [], \"rate\": \"5/15min\", \"burst\": 7}]}\n",
    "# comment\ndomain: api   # another\nlimits:\n- &first\n  name: a\n  match: &m {path: ['/a/*', '\\*', \"é\\t\"]}\n  key: [u, v]\n  rate: 1/s\n- {<<: *first, name: b, rate: 2/s, burst: 1}\n- name: c\n  match: *m\n  key: []\n  rate: 1/month\n  help: |-\n    one line\n",
    "domain: api\ndescriptors:\n- key: message_type\n  value: marketing\n  rate_limit: {unit: day, requests_per_unit: 5, name: all}\n  descriptors:\n  - key: to_number\n    shadow_mode: true\n    rate_limit:\n      unit: MINUTE\n      requests_per_unit: 0\n      replaces:\n      - name: all\n- key: path\n  value: /a/*\n  share_threshold: true\n  metadata: {a: [1, {b: c}]}\n  quota_mode: true\n- {key: path, rate_limit: {unlimited: true}}\n",
    "domain: quotas\nlimits:\n- name: daily\n  key: [org]\n  algorithm: fixed_window\n  rate: 10000/day\n  timezone: Europe/Berlin\n  warn_at: 80%\n  over: {soft: 10%, for: 60s}\n  refused: counted\n  show_keys: [org]\n  overrides:\n  - {match: {plan: [gold, \"p*\"]}, rate: 20000/day}\n  - match: {plan: internal}\n    rate: unlimited\n  candidate:\n    algorithm: sliding_window\n    rate: 500/h\n    buckets: 30\n- name: paced\n  key: [host]\n  algorithm: leaky_bucket\n  rate: 5/s\n  queue: 20\n  block: 15min\n- {name: tokens, key: [org], unit: tokens, rate: 100000/min, max_debt: 1000, over: {elastic: 100%}, burst: 7}\n- {name: log, key: [u], algorithm: sliding_log, rate: 5/15min, refund_on: ok, candidate: {align: first, algorithm: fixed_window}}\n",
    "domain: api\npriorities: [critical, post, get]\nprioritize:\n  - {match: {path: ['/a', '/b*']}, priority: critical}\n  - {match: {method: {not: [GET, HEAD]}}, priority: post}\n  - {priority: get}\nexempt: [{name: probes, match: {path: /healthz, ip: {cidr: [10.0.0.0/8, '2001:db8::/32']}}}]\ndeny:\n  - name: bots\n    match: {agent: {glob: ['*bot*', '*crawl*'], ignore_case: true}, user: {present: false}}\n    help: https://example.com/bots\nlimits:\n  - name: a\n    match: {ip: [{not: {cidr: 192.0.2.0/24}}, {present: false}]}\n    key: [{attribute: account, lowercase: true}, {attribute: ip2, ipv6_prefix: 64}]\n    rate: 1/s\n",
    "domain: api\npriorities: [critical, post, get, test]\nconcurrency:\n- name: exports\n  match: {job: export}\n  key: [org]\n  max: 2\n  expires: 2h\n  overrides:\n  - {match: {plan: gold}, max: 5}\n  - {match: {plan: house}, max: unlimited}\n  candidate: {max: 1}\n  warn_at: 50%\nshed:\n- pool: web\n  slots: 32\n  callers: {by: [user, ip], rotate: 10min}\n  queue_age: {others: 500ms, critical: 2500ms}\n  workers: {good: 70%, bad: 80%, after: 28s, full: 120s, leak: 1/1800, shed_critical: false, stripe_exact: false}\n  brake:\n    bands: [70%, 80%, 90%]\n    mode: shadow\n  fleet: {reserve: 20%, for: critical}\n  signals:\n    accept_queue: {listen: \":8000\", use: false, map: [[0, 0%], [32, 100%]]}\n    cpu_pressure: {use: true}\n    loop_lag: {map: [[0%, 0%], [12.5%, 100%]]}\n- {pool: jobs, queue_age: {}}\n",
];

const SETTINGS: &str = "mode: shadow\nsocket: {path: /run/tidegate/tidegate.sock, mode: \"0660\", group: tidegate}\nrules: /etc/tidegate/rules\nstate: /var/lib/tidegate\nmemory: {max: 64MiB}\nthreads: 4\nmetrics: {listen: \"127.0.0.1:9631\"}\nredis: {url: \"redis://127.0.0.1:6379\", fleet_secret_files: [/etc/tidegate/fleet-secret]}\ndomains: {api: {uids: [1], scope: host}}\npools: {web: {uids: [], slots_max: 256}}\nconnections: {max: 4096, per_user: 1024}\nlog: {format: text, level: info}\n";

const TOKENS: &[&str] = &[
    "",
    "-",
    "- ",
    ":",
    ": ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "#",
    "&a",
    "*a",
    "*",
    "!",
    "!!int ",
    "|",
    ">",
    "\"",
    "'",
    "\\",
    "\t",
    "\n",
    "\r",
    "\0",
    "\u{feff}",
    "é",
    "%",
    "@",
    "`",
    "---",
    "...",
    "~",
    "null",
    "true",
    "0",
    "-1",
    "1e9",
    ".nan",
    "<<: ",
    "? ",
    "99999999999999999999",
    "name",
    "match",
    "key",
    "rate",
    "burst",
    "overrides",
    "descriptors",
    "value",
    "candidate",
    "algorithm",
    "fixed_window",
    "leaky_bucket",
    "unlimited",
    "10%",
    "soft",
    "month",
    "not",
    "cidr",
    "present",
    "priority",
    "max",
    "shed",
    "workers",
    "bands",
    "listen",
    "500ms",
    "/",
    "/s",
    "1/s",
    "  ",
];

/// One slip: a line or a token deleted, doubled, moved or changed.
fn mutate(text: &str, dice: &mut Dice) -> String {
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let at = dice.roll(lines.len());
    match dice.roll(7) {
        0 => drop(lines.remove(at)),
        1 => lines.insert(at, lines[at].clone()),
        2 => lines.swap(at, dice.roll(text.lines().count())),
        3 => lines[at].insert_str(0, dice.pick(&[" ", "  ", "\t", "- ", "# "])),
        _ => {
            let places: Vec<usize> = lines[at].char_indices().map(|(byte, _)| byte).collect();
            let from = places[dice.roll(places.len())];
            let to = places.iter().copied().find(|to| *to >= from + dice.roll(6)).unwrap_or(lines[at].len());
            let token = dice.pick(TOKENS);
            lines[at].replace_range(from..to.max(from), token);
        }
    }
    lines.concat()
}

#[track_caller]
fn check(seed: u64, text: &str, problems: &[Problem]) {
    for problem in problems {
        let Problem { position, .. } = problem;
        let told = format!("seed {seed}: {problem}\n{text}");
        assert!(position.line >= 1 && position.column >= 1, "{told}");
        assert!(position.line as usize <= text.split('\n').count(), "{told}");
        assert!(!problem.message.is_empty() && problem.mend.is_some(), "{told}");
        assert!(!problem.to_string().contains(['\n', '\t', '\0']), "{told}");
        assert!(!problem.render(false).is_empty() && problem.to_json().is_object(), "{told}");
    }
}

#[test]
fn a_slip_in_a_rules_file_is_never_a_panic_and_always_has_a_place() {
    let (mut bad, mut seeds) = (0, 0);
    for (number, original) in RULES.iter().enumerate() {
        assert!(!read_text("rules.yaml", original).has_errors(), "file {number} is good to begin with");
        for seed in 0..250 {
            let mut dice = Dice(seed * 10 + number as u64);
            let mut text = mutate(original, &mut dice);
            if dice.roll(3) == 0 && !text.is_empty() {
                text = mutate(&text, &mut dice);
            }
            let loaded = read_text("rules.yaml", &text);
            check(seed * 10 + number as u64, &text, &loaded.problems);
            let whole = loaded.domains.len() + loaded.failed.len();
            assert!(loaded.has_errors() || whole == 1, "seed {seed}, file {number}: silent about\n{text}");
            assert!(!loaded.has_errors() || loaded.domains.is_empty(), "half a domain: seed {seed}\n{text}");
            bad += usize::from(loaded.has_errors());
            seeds += 1;
        }
    }
    println!("{bad} of {seeds} slips were errors");
    assert!(bad > seeds / 3, "the slips must be worth the name: {bad} of {seeds}");
}

#[test]
fn a_slip_in_a_table_is_never_a_panic_and_always_has_a_place() {
    const TABLE: &str =
        "user,rate,burst\r\nann,100/s,500\n\"Smith, \"\"J\"\"\",5/15min,\nben,unlimited,\n\ncleo,1/month,7\n";
    let directory = tempfile::tempdir().unwrap();
    let rules = "domain: api\nlimits:\n- {name: a, key: [user], rate: 1/s, overrides_file: t.csv}\n";
    std::fs::write(directory.path().join("rules.yaml"), rules).unwrap();
    let mut bad = 0;
    for seed in 0..400 {
        let mut dice = Dice(seed);
        let mut text = mutate(TABLE, &mut dice);
        if dice.roll(3) == 0 && !text.is_empty() {
            text = mutate(&text, &mut dice);
        }
        std::fs::write(directory.path().join("t.csv"), &text).unwrap();
        let loaded = tidegate::rules::read(directory.path());
        let problems: Vec<_> = loaded.problems.iter().filter(|problem| problem.is_error()).cloned().collect();
        check(seed, &text, &problems);
        assert_eq!(loaded.domains.is_empty(), loaded.has_errors(), "seed {seed}\n{text}");
        bad += usize::from(loaded.has_errors());
    }
    println!("{bad} of 400 slips were errors");
    assert!(bad > 130, "{bad}");
}

#[test]
fn a_slip_in_the_settings_is_never_a_panic_and_always_has_a_place() {
    let environment = Environment { cores: 2, ..Environment::default() };
    for seed in 0..500 {
        let text = mutate(SETTINGS, &mut Dice(seed));
        let source = Source::new("tidegate.yaml", text.clone());
        let problems = match Settings::read(Some(&source), &environment) {
            Ok((settings, problems)) => {
                assert!(settings.rules.starts_with(Path::new("/")) || !settings.rules.as_os_str().is_empty());
                problems
            }
            Err(problems) => {
                assert!(problems.iter().any(Problem::is_error), "seed {seed}\n{text}");
                problems
            }
        };
        check(seed, &text, &problems);
    }
}
