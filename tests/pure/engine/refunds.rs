//! Refunds under many names and of many units. `scenarios/refunds.txt` has the rest.

use super::scenarios::Stage;

#[test]
fn retry_of_refunded_grant_is_charged() {
    let mut stage = Stage::with("- {name: a, key: [u], rate: 10/h}\n");
    // Some of the names of refunds share a lock with that of the grant.
    for number in 0..64 {
        stage.check("2x hit u=1 cost:6 idem:g", "allow a 4/10");
        stage.check("peek u=1 cost:0", "allow a 4/10");
        stage.check(&format!("charge u=1 amount:-6 idem:r{number} of:g"), "done");
        stage.check("peek u=1 cost:0", "allow a 10/10");
    }
}

#[test]
fn refunds_at_most_sixteen_units() {
    let mut stage = Stage::with("- {name: t, key: [u], unit: u0, rate: 100/h}\n");
    let each =
        |option: &str, units: u32| (0..units).map(|unit| format!(" {option}:u{unit}:1")).collect::<String>();
    stage.check("open 1", "");
    stage.check(&format!("acquire u=1 as:a{}", each("cost", 4_000)), "allow t 99/100");
    let refund = |units: &str| format!("charge u=1 of_lease:a{}", units.replace(":1", ":-1"));
    stage.check(&refund(&each("amount", 4_000)), "nothing");
    stage.check(&refund(" amount:u0:1 amount:u3999:1"), "nothing");
    stage.check(&refund(&each("amount", 16)), "done");
}
