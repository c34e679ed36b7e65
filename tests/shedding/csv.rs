//! Writes runs second by second as tables for the figures of the documentation.

use std::fs::File;
use std::io::BufWriter;

use crate::judge::directory;
use crate::plan::{EVENT, Plan};
use crate::plant;
use crate::real::{Parts, Real, Setting};

#[test]
#[ignore = "it leaves tables for the pictures of docs/"]
fn writes_csv_by_second() {
    let load = |load| vec![(EVENT, 0.55), (EVENT + 300, load), (EVENT + 610, 0.55)];
    let step = |event| Plan { load: load(event), ..Plan::level(0.55, 0) };
    let critical = Plan { mix: [0.90, 0.05, 0.04, 0.01], ..step(1.5) };
    let hundred = Plan { workers: 100, ..step(1.5) };
    let runs = [
        ("step_nothing", step(1.5), Parts::None),
        ("step_workers", step(1.5), Parts::Workers),
        ("step_all", step(1.5), Parts::All),
        ("triple_workers", step(3.0), Parts::Workers),
        ("triple_brake", step(3.0), Parts::WorkersBrake),
        ("critical_workers", critical.clone(), Parts::Workers),
        ("critical_age", critical, Parts::WorkersAge),
        ("reserve_nothing", hundred.clone(), Parts::None),
        ("reserve", hundred, Parts::Reserve),
    ];
    for (name, plan, parts) in runs {
        let setting = Setting { slots: plan.workers, parts, leaks: true, quota: false };
        let run = plant::run(&plan, &mut Real::new(&setting), 1);
        let file = File::create(directory().join(format!("{name}.csv"))).unwrap();
        run.write_csv(&mut BufWriter::new(file)).unwrap();
    }
}
