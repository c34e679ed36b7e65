//! Help for fields that are missing, of a wrong shape, or written in another mapping than their own.

/// Returns the help for a field that is missing or of a wrong shape.
pub(super) fn hint(what: &str, field: &str) -> Option<&'static str> {
    exact_hint(what, field).or_else(|| exact_hint("", field))
}

pub(super) fn exact_hint(what: &str, field: &str) -> Option<&'static str> {
    HINTS.iter().find(|(of, name, _)| *of == what && *name == field).map(|(.., help)| *help)
}

/// Returns the place of a field that a mapping does not have.
pub(super) fn home(what: &str, field: &str) -> Option<&'static str> {
    let is_of = |fields: &str| fields.split(' ').any(|name| name == field);
    HOMES.iter().find(|(of, fields, _)| of.contains(&what) && is_of(fields)).map(|(.., home)| *home)
}

/// Mapping (empty for any), field and help.
const HINTS: &[(&str, &str, &str)] = &[
    ("an entry of `exempt`", "mode", "leave it out: exempt requests are never refused"),
    ("an entry of `exempt`", "help", "leave it out: exempt requests are never refused"),
    ("", "over", "write `refuse`, `{soft: 10%, for: 60s}` or `{elastic: 100%}`"),
    ("a rules file", "domain", "write `domain: NAME`, the name the application asks by"),
    ("a rules file", "rules", "did you mean `limits`, or `concurrency` for work in progress?"),
    ("", "limits", "start each rule with a dash: `- name: …`"),
    ("", "concurrency", "start each rule with a dash: `- name: …`"),
    ("", "shed", "start each entry with a dash: `- pool: …`"),
    ("", "exempt", "write a list: `- {name: …, match: {…}}`"),
    ("", "deny", "write a list: `- {name: …, match: {…}}`"),
    ("", "prioritize", "write `prioritize: [{match: {…}, priority: …}, …]`"),
    ("", "priorities", "write `priorities: [MOST IMPORTANT, …, LEAST]`"),
    ("", "descriptors", "start each descriptor with a dash: `- key: …`"),
    ("a test", "name", "describe what it tests"),
    ("", "name", "write `name: …`: it stands in answers, logs and metrics"),
    ("", "key", "write `key: [user]` to count each user apart, `key: []` for one counter"),
    ("an override", "match", "write which requests: `match: {plan: gold}`"),
    ("", "match", "write `match: {attribute: value}`, or leave it out to match all"),
    ("an override", "rate", "write `rate: 1000/s`, or `rate: unlimited`"),
    ("", "rate", "write `rate: 100/s`, or per min, h, day, week, month"),
    ("a concurrency rule", "max", "write `max: 20`, or how much else at once"),
    ("a candidate", "max", "write the numbers to try, such as `{max: 10}`"),
    ("", "max", "write `max: 50`, or `max: unlimited`"),
    ("a concurrency rule", "overrides", "write a list: `- {match: {plan: gold}, max: 50}`"),
    ("", "overrides", "write a list: `- {match: {plan: gold}, rate: 1000/s}`"),
    ("", "show_keys", "write attributes of `key`: `show_keys: [user]`"),
    ("", "attribute", "write `{attribute: NAME, …}`"),
    ("", "priority", "write `priority: NAME`, one of `priorities`"),
    ("", "pool", "write `pool: NAME`, as its processes say it"),
    ("", "by", "write attributes that name a caller: `by: [user, ip]`"),
    ("", "bands", "write a share of the slots for each priority but the first: `bands: [70%, 80%, 90%]`"),
    ("", "reserve", "write `reserve: 20%`"),
    ("", "signals", "write `signals: {NAME: {use: false}}`"),
    ("", "map", "write `[[0%, 0%], [50%, 80%], [90%, 100%]]`, or for `accept_queue` `[[0, 0%], [32, 100%]]`"),
    ("", "replaces", "write `replaces: [{name: NAME}]`"),
    ("", "metadata", "leave it out: it has no effect here"),
    ("", "urls", "write a list: [redis://10.0.0.1, redis://10.0.0.2]"),
    ("", "fleet_secret_files", "write a list of paths: [/etc/tidegate/fleet-secret]"),
    ("", "uids", "write user numbers: [1000, 1001]"),
    ("", "domains", "write names, each with its fields"),
    ("", "pools", "write names, each with its fields"),
    ("", "tests", "write `tests:` and below it a list, each with `name` and `requests`"),
    ("a test", "requests", "write `requests: |` and below it lines such as `0:00 x5  user=u1  allow`"),
];

/// Mappings, fields that they do not have, and the place of these. envoyproxy/ratelimit accepts fields of
/// descriptors anywhere and ignores misplaced ones.
const HOMES: &[(&[&str], &str, &str)] = &[
    (&["a rule"], "max expires", "in a rule of `concurrency`"),
    (&["a rule", "a concurrency rule"], "on_miss on_redis_down wait", "in `fleet`"),
    (&["a concurrency rule", "a candidate"], RATE_FIELDS, "in a rule of `limits`"),
    (&["`fleet`"], "max_over scope", "in the rule, beside `fleet`"),
    (DESCRIPTORS, "domain", "at the start of the file"),
    (DESCRIPTORS, "key value descriptors", "in a descriptor"),
    (DESCRIPTORS, "rate_limit shadow_mode share_threshold", "in a descriptor, beside `key`"),
    (DESCRIPTORS, "quota_mode detailed_metric value_to_metric metadata", "in a descriptor, beside `key`"),
    (DESCRIPTORS, "unit requests_per_unit unlimited replaces name", "in `rate_limit`"),
];

const RATE_FIELDS: &str = "algorithm rate burst queue buckets align timezone unit over refused block max_debt \
                           refund_on max_over";

const DESCRIPTORS: &[&str] = &["a descriptor", "`rate_limit`", "an entry of `replaces`"];
