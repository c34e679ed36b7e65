//! Tests each row of the table with the engine, and writes runs second by second for figures of the documentation.

use std::fs::File;
use std::io::BufWriter;

use crate::cases;
use crate::judge::{directory, row};
use crate::plan::{EVENT, Plan};
use crate::plant;
use crate::real::{Real, Setting};

macro_rules! rows {
    ($($row:ident),*) => { $(#[test] fn $row() { row(stringify!($row), &cases::$row()); })* };
}

rows!(
    slow_loop_alone,
    step,
    far_too_much,
    no_overload,
    one_priority,
    retry_storm,
    pulse,
    slow_service,
    mostly_critical,
    stuck,
    pauses,
    quota
);

#[test]
#[ignore = "it asserts nothing: it leaves behind what each part does"]
fn apart() {
    row("apart", &cases::apart());
}

#[test]
#[ignore = "it leaves tables for the pictures of docs/"]
fn writes_csv_by_second() {
    let load = |load| vec![(EVENT, 0.55), (EVENT + 300, load), (EVENT + 610, 0.55)];
    let step = |event| Plan { load: load(event), ..Plan::level(0.55, 0) };
    let critical = Plan { mix: [0.90, 0.05, 0.04, 0.01], ..step(1.5) };
    let hundred = Plan { workers: 100, ..step(1.5) };
    let runs = [
        ("step_nothing", step(1.5), ""),
        ("step_workers", step(1.5), "workers"),
        ("step_all", step(1.5), cases::ALL),
        ("triple_workers", step(3.0), "workers"),
        ("triple_brake", step(3.0), "workers brake"),
        ("critical_workers", critical.clone(), "workers"),
        ("critical_age", critical, "workers queue_age"),
        ("reserve_nothing", hundred.clone(), ""),
        ("reserve", hundred, "reserve"),
    ];
    for (name, plan, parts) in runs {
        let setting = Setting { slots: plan.workers, parts, leaks: true, quota: false };
        let run = plant::run(&plan, &mut Real::new(&setting), 1);
        let file = File::create(directory().join(format!("{name}.csv"))).unwrap();
        run.write_csv(&mut BufWriter::new(file)).unwrap();
    }
}
