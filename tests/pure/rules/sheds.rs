//! `shed` beside priorities of other files, and the published limiters. `diagnostics/changes.txt` has the
//! meaning of entries.

use std::time::Duration;

use tidegate::rules::Mode;
use tidegate::rules::shed::{FleetReserve, Workers};

use super::quotas::quota;

#[test]
fn accepts_priorities_in_another_file() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("a.yaml", "domain: api\nshed: [{pool: web, fleet: {reserve: 20%, for: low}}]\n");
    write("b.yaml", "domain: api\npriorities: [high, low, lowest]\nshed: [{pool: jobs, brake: {}}]\n");
    let loaded = tidegate::rules::read(directory.path());
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let sheds = loaded.domains[0].sheds();
    assert_eq!(sheds.iter().map(|shed| &*shed.pool).collect::<Vec<_>>(), ["web", "jobs"]);
    assert_eq!(sheds[0].fleet.unwrap().reserved_for, 1);
    assert_eq!(sheds[1].brake.as_ref().unwrap().bands, [700, 900]);
    // They may be in an unreadable file: possible entries there are not reported.
    write("b.yaml", "domain: api\npriorities: [high, low\n");
    let loaded = tidegate::rules::read(directory.path());
    let [unreadable] = loaded.problems.as_slice() else { panic!("{:#?}", loaded.problems) };
    assert!(unreadable.position.file.ends_with("b.yaml"), "{unreadable}");
    write("b.yaml", "domain: api\npriorities: [high, low, lowest]\n");
    // Wrong in one file, and reported for the other as well.
    write("c.yaml", "domain: api\nlimits: [x]\n");
    write("a.yaml", "domain: api\nshed: [{pool: web, fleet: {reserve: 20%, for: lo}}]\n");
    let loaded = tidegate::rules::read(directory.path());
    let found: Vec<_> = loaded.problems.iter().map(|problem| &*problem.message).collect();
    assert_eq!(found, ["unknown priority `lo` in `for`", "a rule is a mapping, not a text"]);
}

#[test]
fn example_matches_four_published_limiters() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("config/rules/four-limiters.yaml");
    let loaded = tidegate::rules::read(&path);
    assert!(loaded.problems.is_empty(), "{:#?}", loaded.problems);
    let domain = &loaded.domains[0];
    let numbers: Vec<_> = domain.rules().iter().map(|rule| quota(rule.limit.quota().unwrap())).collect();
    assert_eq!(numbers, ["100/s burst 500", "20 at once"]);
    assert_eq!(domain.rules()[1].expires, Some(Duration::from_secs(60)));
    let [web] = domain.sheds() else { panic!("{:#?}", domain.sheds()) };
    assert_eq!(web.fleet, Some(FleetReserve { mode: Mode::Enforce, reserve: 200, reserved_for: 0 }));
    assert_eq!(web.workers, Some(Workers::default()));
    assert_eq!(domain.priorities().join(" "), "critical post get test");
}
