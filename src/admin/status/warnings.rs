//! Warnings of the status, each with a fix.

use super::StatusMoment;
use crate::admin::Desk;
use crate::admin::switches::everything_everywhere;
use crate::engine::Mode;

pub(super) fn told(desk: &Desk, moment: &StatusMoment) -> Vec<String> {
    let mut warnings = moment.unready.clone();
    warnings.extend(desk.ledger.warnings(moment.now));
    let mut warn = |holds: bool, text: &dyn Fn() -> String| {
        if holds {
            warnings.push(text());
        }
    };
    let StatusMoment { totals, rules, server, .. } = moment;
    warn(!rules.is_good, &|| {
        format!("not all rules that are written are in force: `tidegate check {}` says why", rules.path)
    });
    warn(moment.in_force.rules().domains().is_empty(), &|| {
        format!("no rule is in force, everything is allowed: write rules in {}", rules.path)
    });
    match desk.engine.mode() {
        Mode::Enforce => {}
        _ if desk.engine.is_off() => {
            warn(true, &|| {
                "everything is allowed: a file `disable` is there; `tidegate switch` says which".to_owned()
            });
        }
        mode => warn(true, &|| {
            format!(
                "nothing is refused: everything is in {mode}, by `mode` of the settings or `tidegate switch --all`"
            )
        }),
    }
    warn(totals.unmatched_domain > 0, &|| {
        let count = totals.unmatched_domain;
        format!("{count} requests were for domains without rules: does the application name the right one?")
    });
    for (file, _) in moment.state.bad.iter().filter(|(_, count)| *count > 0) {
        warn(true, &|| {
            format!(
                "`{file}` of the state directory was of no use at the start, so what it kept is lost: the log says why"
            )
        });
    }
    warn(totals.evictions > 0, &|| {
        format!("{} keys were dropped while they mattered: raise memory.max", totals.evictions)
    });
    warn(totals.panics > 0, &|| {
        format!("{} judgements panicked: the log says where; please report it", totals.panics)
    });
    let missed = server.missed_in_all();
    warn(missed > 0, &|| format!("clients made {missed} decisions without the daemon: `missed` says why"));
    let refused: u64 = server.refused.iter().map(|(_, count)| count).sum();
    warn(refused > 0, &|| {
        format!("{refused} connections were not let in: raise connections.max or .per_user")
    });
    warnings.extend(of_fleet(moment));
    warnings.extend(moment.fleet.secret_warning());
    warnings.extend(moment.fleet.overrides.warning());
    warnings.extend(everything_everywhere(desk));
    warnings.extend(of_pools(moment));
    warnings
}

fn of_fleet(moment: &StatusMoment) -> Option<String> {
    let rules = moment.fleet_rules.len();
    let fleet = &moment.fleet;
    match (rules, fleet.is_set, fleet.is_linked) {
        (0, ..) | (_, true, true) => None,
        (_, false, _) => Some(format!(
            "{rules} rules have `scope: fleet`, and this host shares with nobody: it needs `redis` with a `url` and \
             `fleet_secret_files` in the settings; the log of the start says what is wrong with them"
        )),
        (_, true, false) => {
            let last = fleet.nodes.iter().filter_map(|node| node.why.as_ref());
            let why: Vec<&str> = last.map(|(_, words)| &**words).collect();
            let why = if why.is_empty() { "no answer yet".to_owned() } else { why.join("; ") };
            Some(format!(
                "Redis is not heard ({why}): {rules} rules go by `on_redis_down`, with {} hosts; `tidegate fleet` says more",
                fleet.hosts
            ))
        }
    }
}

fn of_pools(moment: &StatusMoment) -> Vec<String> {
    let mut warnings = Vec::new();
    for pool in moment.pools.iter().filter(|pool| pool.configured) {
        let name = &pool.pool;
        if pool.slots.is_none() {
            warnings.push(format!(
                "pool {name}: its slots are unknown, so workers, brake and reserve do nothing: \
                 let its processes say them, or write `slots` in the rules"
            ));
        }
        for (signal, value, _) in &pool.signals {
            if value.is_none() {
                warnings.push(format!("pool {name}: the signal {signal} cannot be read: the log says why"));
            }
        }
    }
    warnings
}
