//! Twenty hosts and one limit, as long and as hard as the design asks for: minutes, so only in the nightly run.

use std::thread::sleep;
use std::time::Duration;

use super::hosts::{Caller, hosts, most_at_once, passed, passed_between, rules};
use super::redis_server::Redis;

const HOSTS: usize = 20;
const RATE: f64 = 1_000.0;
const BURST: u32 = 1_000;

/// What is asked of a host: so many at once, every so often; about a thousand a second.
const AT_ONCE: u64 = 8;
const PAUSE: Duration = Duration::from_micros(7_500);

/// Answers are stamped when they are heard, at twenty hosts on one machine: a tenth of a second.
const STAMPS: f64 = RATE / 10.0;

/// Requests for so long, of all hosts or of one after the other; the most at once, what was used of what might have passed, and
/// how many were asked a second.
fn run(fleet: &str, turns: &[(u64, &[usize])]) -> Option<(f64, f64, f64)> {
    let redis = Redis::start(&[]);
    let hosts = hosts(HOSTS, &redis.url(), &rules("1000/s", BURST, fleet));
    let mut asked = Vec::new();
    for (seconds, busy) in turns {
        // As many callers as hosts, whoever they go to.
        let sockets = busy.iter().cycle().take(HOSTS).map(|host| hosts[*host].socket());
        let callers: Vec<_> = sockets.map(|socket| Caller::start(socket, "u1", AT_ONCE, PAUSE)).collect();
        sleep(Duration::from_secs(*seconds));
        asked.extend(callers.into_iter().map(Caller::stop));
    }
    let at = passed(&asked);
    let all = || asked.iter().flatten().map(|asked| asked.at);
    let (first, last) = (all().min()?, all().max()?);
    let lasted = (last - first) as f64 / 1e9;
    let (most, might) = (most_at_once(&at, RATE), f64::from(BURST) + lasted * RATE);
    let used = passed_between(&at, first, last + 1) as f64 / might;
    let offered = asked.iter().map(Vec::len).sum::<usize>() as f64 / lasted;
    eprintln!(
        "{fleet}: {offered:.0} a second asked for {lasted:.0} s, {} passed, {:.2} % used, {most:.0} at once",
        at.len(),
        used * 100.0
    );
    Some((most, used, offered))
}

#[test]
#[ignore = "a minute of twenty daemons: in the nightly run"]
fn twenty_hosts_use_whole_limit_within_bound() {
    let all: Vec<usize> = (0..HOSTS).collect();
    for (fleet, extra) in [("on_miss: refuse", 0.0), ("on_miss: admit", 0.1)] {
        let Some((most, used, offered)) = run(fleet, &[(60, &all)]) else { return };
        assert!(offered >= 10.0 * RATE, "{offered}");
        assert!(most <= f64::from(BURST) * (1.0 + extra) + STAMPS, "{most}");
        assert!((0.98..=1.01).contains(&used), "{used}");
    }
}

#[test]
#[ignore = "a minute of twenty daemons: in the nightly run"]
fn moving_hot_host_gets_the_whole_limit() {
    let turns: Vec<(u64, &[usize])> =
        [[3_usize], [11], [0], [19], [7], [14]].iter().map(|host| (5, host.as_slice())).collect();
    let Some((most, used, _)) = run("on_miss: admit", &turns) else { return };
    assert!(most <= f64::from(BURST) * 1.1 + STAMPS, "{most}");
    assert!(used >= 0.95, "{used}");
}
