//! Short and full names.

use tidegate::engine::RuleNameError;
use tidegate::rules::read_text;

use super::engines;

const RULES: [&str; 2] = [
    "domain: api
priorities: [critical, get]
deny: [{name: bots, match: {agent: bot}}]
limits: [{name: per-user, key: [user], rate: 1/s}, {name: shared, key: [user], rate: 1/s}]
shed: [{pool: web, slots: 4, workers: {}}]
",
    "domain: mail\nlimits: [{name: shared, key: [user], rate: 1/s}]\n",
];

#[test]
fn rejects_ambiguous_and_unknown_rule_names() {
    let engine = engines::engine(Vec::new());
    let domains = RULES.iter().flat_map(|text| read_text("rules.yaml", text).domains);
    engine.install_rules(domains);
    let table = [
        ("per-user", "api/per-user"),
        ("api/per-user", "api/per-user"),
        ("bots", "api/bots"),
        ("web/workers", "api/web/workers"),
        ("api/web/workers", "api/web/workers"),
        ("mail/shared", "mail/shared"),
        ("shared", "`shared` may be api/shared or mail/shared: write the full name"),
        ("per-usr", "nothing is called `per-usr`: did you mean `api/per-user`?"),
        ("api/per-usr", "nothing is called `api/per-usr`: did you mean `api/per-user`?"),
        // A part that no file names is off, and is not a rule.
        ("web/brake", "nothing is called `web/brake`: `tidegate status` shows the rules in force"),
        ("bat", "nothing is called `bat`: `tidegate status` shows the rules in force"),
        ("", "nothing is called ``: `tidegate status` shows the rules in force"),
        ("/", "nothing is called `/`: `tidegate status` shows the rules in force"),
        ("api/", "nothing is called `api/`: `tidegate status` shows the rules in force"),
    ];
    for (asked, expected) in table {
        let seen =
            engine.find_rule_name(asked).map_or_else(|error| error.to_string(), |name| name.to_string());
        assert_eq!(seen, expected, "{asked}");
    }
    assert!(matches!(engine.find_rule_name("shared"), Err(RuleNameError::Ambiguous { .. })));
}
