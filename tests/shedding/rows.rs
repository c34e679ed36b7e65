//! Each row of the table, decided by the engine.

use crate::cases;
use crate::judge::row;
use crate::model::{Flaw, Model};
use crate::shedder::Setting;

fn sound(setting: &Setting) -> Model {
    Model::new(Flaw::Sound, setting)
}

macro_rules! rows {
    ($($row:ident),*) => { $(#[test] fn $row() { row(stringify!($row), &cases::$row(), sound); })* };
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
    apart
);
