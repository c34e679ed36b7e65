//! Tests each row of the table with the engine.

use crate::cases;
use crate::judge::row;

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
