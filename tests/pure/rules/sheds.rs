//! `shed`: what entries mean, and what changes say.

use std::time::Duration;

use tidegate::rules::shed::{
    BrakeRule, CallerGrouping, FleetReserve, Listen, QueueAge, Shed, ShedPart, SignalSource, Workers,
};
use tidegate::rules::{Difference, Mode, read_text};

use super::problems::warnings;
use super::quotas::quota;

const PRIORITIES: &str = "[critical, post, get, test]";

#[track_caller]
fn shed_of(priorities: &str, fields: &str) -> Shed {
    let text = format!("domain: api\npriorities: {priorities}\nshed:\n- {{pool: web, {fields}}}\n");
    warnings("rules.yaml", &text, &[]).domains[0].sheds()[0].clone()
}

#[track_caller]
fn shed(fields: &str) -> Shed {
    shed_of(PRIORITIES, fields)
}

#[test]
fn what_is_not_written_is_off_and_parts_have_defaults() {
    let alone = shed("queue_age: {}");
    assert_eq!((&*alone.pool, alone.slots, &alone.callers), ("web", None, &CallerGrouping::default()));
    assert_eq!(alone.parts().collect::<Vec<_>>(), [(ShedPart::QueueAge, Mode::Enforce)]);
    assert_eq!(alone.queue_age, Some(QueueAge::default()));
    let all = shed("workers: {}, brake: {}, fleet: {reserve: 20%}, queue_age: {}");
    assert_eq!(all.workers, Some(Workers::default()));
    assert_eq!(all.brake, Some(BrakeRule { mode: Mode::Enforce, bands: vec![700, 800, 900] }));
    assert_eq!(all.fleet, Some(FleetReserve { mode: Mode::Enforce, reserve: 200, reserved_for: 0 }));
    assert_eq!(all.parts().map(|(part, _)| part).collect::<Vec<_>>(), ShedPart::ALL);
    assert_eq!(all.rule_name(ShedPart::Workers), "web/workers");
}

#[test]
fn everything_that_can_be_written_is_read() {
    let all = shed(
        "slots: 32, callers: {by: [account, ip], rotate: 1h}, queue_age: {others: 1s, critical: 5s, mode: shadow}, \
         workers: {good: 60%, bad: 75.5%, after: 10s, full: 60s, leak: 2/900, shed_critical: true, mode: disabled}, \
         brake: {bands: [0%, 50%, 100%], mode: shadow}, fleet: {reserve: 12.5%, for: post, mode: shadow}",
    );
    let seconds = Duration::from_secs;
    assert_eq!(all.slots, Some(32));
    assert_eq!(
        all.callers,
        CallerGrouping { by: vec!["account".into(), "ip".into()], rotate: seconds(3_600) }
    );
    assert_eq!(
        all.queue_age,
        Some(QueueAge { mode: Mode::Shadow, others: seconds(1), critical: seconds(5) })
    );
    let workers = Workers {
        mode: Mode::Disabled,
        good: 600,
        bad: 755,
        after: seconds(10),
        full: seconds(60),
        leak: (2, 900),
        shed_critical: true,
        stripe_exact: false,
    };
    assert_eq!(all.workers, Some(workers));
    assert_eq!(all.brake, Some(BrakeRule { mode: Mode::Shadow, bands: vec![0, 500, 1_000] }));
    assert_eq!(all.fleet, Some(FleetReserve { mode: Mode::Shadow, reserve: 125, reserved_for: 1 }));
    for (leak, meant) in
        [("leak: 0", (0, 1)), ("leak: 0/7", (0, 1)), ("leak: 1/1", (1, 1)), ("stripe_exact: true", (0, 1))]
    {
        assert_eq!(shed(&format!("workers: {{{leak}}}")).workers.unwrap().leak, meant, "{leak}");
    }
}

#[test]
fn bands_rise_evenly_with_importance() {
    for (priorities, bands) in [
        ("[a, b]", &[700][..]),
        ("[a, b, c]", &[700, 900]),
        ("[a, b, c, d]", &[700, 800, 900]),
        ("[a, b, c, d, e]", &[700, 766, 833, 900]),
    ] {
        assert_eq!(shed_of(priorities, "brake: {}").brake.unwrap().bands, bands, "{priorities}");
    }
    let many: Vec<_> = (0..64).map(|number| format!("p{number}")).collect();
    let bands = shed_of(&format!("[{}]", many.join(", ")), "brake: {}").brake.unwrap().bands;
    assert!(bands.is_sorted() && bands.len() == 63 && (bands[0], bands[62]) == (700, 900), "{bands:?}");
}

#[test]
fn signals_have_sources_and_maps() {
    let signals = shed(
        "workers: {}, signals: {accept_queue: {listen: ':8000'}, cpu_pressure: {use: true}, memory_pressure: {}, io_pressure: {}, \
         cpu_quota: {}, cpu: {}, lag: {map: [[0%, 0%], [12.5%, 80%], [100%, 80%]]}}",
    )
    .signals;
    let named = |name: &str| signals.iter().find(|signal| *signal.name == *name).unwrap();
    let sources = ["cpu_pressure", "memory_pressure", "io_pressure", "cpu_quota", "cpu", "lag"]
        .map(|name| named(name).source.clone());
    assert_eq!(
        sources,
        [
            SignalSource::CpuPressure,
            SignalSource::MemoryPressure,
            SignalSource::IoPressure,
            SignalSource::CpuQuota,
            SignalSource::Cpu,
            SignalSource::Pushed
        ]
    );
    assert_eq!(signals.iter().filter(|signal| signal.counts).count(), 1);
    assert_eq!(named("accept_queue").map, [(0, 0), (32, 1_000)]);
    assert_eq!(named("memory_pressure").map, [(0, 0), (20, 700), (50, 800), (200, 1_000)]);
    assert_eq!(named("lag").map, [(0, 0), (125, 800), (1_000, 800)]);
    for signal in &signals {
        assert!(
            signal.map.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1),
            "{signal:?}"
        );
    }
    for (listen, meant) in [
        ("8000", Listen::Port(8_000)),
        ("':8000'", Listen::Port(8_000)),
        ("':65535'", Listen::Port(65_535)),
        ("/run/app.sock", Listen::Path("/run/app.sock".into())),
    ] {
        let read = shed(&format!("signals: {{accept_queue: {{listen: {listen}}}}}"));
        assert_eq!(read.signals[0].source, SignalSource::AcceptQueue(meant), "{listen}");
    }
}

#[test]
fn priorities_may_stand_in_another_file() {
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
    // They may stand in a file that cannot be read: of what may be there nothing is said.
    write("b.yaml", "domain: api\npriorities: [high, low\n");
    let loaded = tidegate::rules::read(directory.path());
    let [unreadable] = loaded.problems.as_slice() else { panic!("{:#?}", loaded.problems) };
    assert!(unreadable.position.file.ends_with("b.yaml"), "{unreadable}");
    write("b.yaml", "domain: api\npriorities: [high, low, lowest]\n");
    // Wrong in one file, and told of the other as well.
    write("c.yaml", "domain: api\nlimits: [x]\n");
    write("a.yaml", "domain: api\nshed: [{pool: web, fleet: {reserve: 20%, for: lo}}]\n");
    let loaded = tidegate::rules::read(directory.path());
    let told: Vec<_> = loaded.problems.iter().map(|problem| &*problem.message).collect();
    assert_eq!(told, ["unknown priority `lo` in `for`", "a rule is a mapping, not a text"]);
}

#[test]
fn changes_are_told_with_both_values() {
    let lines = |before: &str, after: &str| {
        let [before, after] = [before, after].map(|sheds| {
            let loaded =
                read_text("t.yaml", &format!("domain: api\npriorities: {PRIORITIES}\nshed: [{sheds}]\n"));
            assert!(!loaded.has_errors(), "{:#?}", loaded.problems);
            loaded.domains
        });
        Difference::between(&before, &after).lines().collect::<Vec<_>>()
    };
    let web = |fields: &str| format!("{{pool: web, {fields}}}");
    let check = |before: &str, after: &str, line: &str| {
        assert_eq!(lines(&web(before), &web(after)), [format!("api: the pool web: {line}")]);
    };
    let same = "workers: {}, brake: {}";
    assert_eq!(
        lines(&web(same), &web("brake: {bands: [70%, 80%, 90%]}, workers: {good: 70%}")),
        Vec::<String>::new()
    );
    check("queue_age: {}", "queue_age: {}, slots: 9", "slots none → 9");
    check(
        "queue_age: {}",
        "queue_age: {}, callers: {rotate: 5min}",
        "callers {by: [user, ip], rotate: 10m} → {by: [user, ip], rotate: 5m}",
    );
    check(
        "queue_age: {}",
        "queue_age: {mode: shadow}",
        "queue_age {others: 500ms, critical: 2s 500ms, mode: enforce} → {others: 500ms, critical: 2s 500ms, mode: shadow}",
    );
    let workers = "good: 70%, bad: 80%, after: 28s, full: 2m, leak: ";
    check(
        "workers: {}",
        "workers: {stripe_exact: true, shed_critical: true}",
        &format!(
            "workers {{{workers}1/1800, mode: enforce}} → {{{workers}0, shed_critical: true, stripe_exact: true, mode: enforce}}"
        ),
    );
    check(
        "brake: {}",
        "brake: {bands: [0%, 5%, 5%]}",
        "brake {bands: [70%, 80%, 90%], mode: enforce} → {bands: [0%, 5%, 5%], mode: enforce}",
    );
    check(
        "fleet: {reserve: 20%}",
        "fleet: {reserve: 20%, for: get}",
        "fleet {reserve: 20%, for: critical, mode: enforce} → {reserve: 20%, for: get, mode: enforce}",
    );
    check(
        "queue_age: {}",
        "queue_age: {}, signals: {accept_queue: {listen: /a}, cpu: {use: true, map: [[0%, 0%], [9%, 10%]]}}",
        "signals none → {accept_queue: {listen: /a, use: false, map: [[0, 0%], [32, 100%]]}, cpu: {use: true, map: [[0%, 0%], [9%, 10%]]}}",
    );
    assert_eq!(lines(&web("slots: 5, queue_age: {}"), ""), ["api: the pool web: removed"]);
    assert_eq!(
        lines("", &web("queue_age: {}")),
        [
            "api: the pool web: added: callers {by: [user, ip], rotate: 10m}, queue_age {others: 500ms, critical: 2s 500ms, mode: enforce}"
        ]
    );
}

#[test]
fn the_four_limiters_are_those_that_were_published() {
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
