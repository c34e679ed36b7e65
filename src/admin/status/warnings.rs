//! Warnings of the status, each with a fix.

use super::DaemonStatus;
use crate::admin::AdminState;
use crate::admin::fleet::FleetReading;
use crate::admin::switches::everything_everywhere;
use crate::engine::{Mode, PoolView};
use crate::fleet::link::NodeState;

/// Returns the warnings of a status that has none yet.
pub(super) fn warnings(admin: &AdminState, status: &DaemonStatus, fleet: &FleetReading) -> Vec<String> {
    let mut warnings = admin.control.unready();
    warnings.extend(admin.ledger.warnings(admin.clock.now()));
    let mut warn = |holds: bool, text: &dyn Fn() -> String| {
        if holds {
            warnings.push(text());
        }
    };
    let DaemonStatus { rules, unmatched, memory, panics, .. } = status;
    warn(!rules.good, &|| {
        format!("not all rules that are written are in force: `tidegate check {}` says why", rules.path)
    });
    warn(admin.engine.in_force().domains().len() == 0, &|| {
        format!("no rule is in force, everything is allowed: write rules in {}", rules.path)
    });
    match admin.engine.mode() {
        Mode::Enforce => {}
        _ if admin.engine.is_off() => {
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
    warn(unmatched.domain > 0, &|| {
        let count = unmatched.domain;
        format!("{count} requests were for domains without rules: does the application name the right one?")
    });
    for (file, _) in status.state.bad.iter().filter(|(_, count)| **count > 0) {
        warn(true, &|| {
            format!(
                "`{file}` of the state directory was of no use at the start, so what it kept is lost: the log says why"
            )
        });
    }
    warn(memory.evictions > 0, &|| {
        format!("{} keys were dropped while they mattered: raise memory.max", memory.evictions)
    });
    warn(*panics > 0, &|| format!("{panics} judgements panicked: the log says where; please report it"));
    let missed = status.missed_in_all();
    warn(missed > 0, &|| format!("clients made {missed} decisions without the daemon: `missed` says why"));
    let refused: u64 = status.connections.refused.values().sum();
    warn(refused > 0, &|| {
        format!("{refused} connections were not let in: raise connections.max or .per_user")
    });
    warnings.extend(of_fleet(status, fleet));
    warnings.extend(fleet.secret_warning());
    warnings.extend(fleet.forged_warning());
    warnings.extend(everything_everywhere(admin));
    warnings.extend(of_pools(&status.pools));
    warnings
}

fn of_fleet(status: &DaemonStatus, fleet: &FleetReading) -> Option<String> {
    let rules = status.fleet.as_ref().map_or(0, |fleet| fleet.rules);
    match (rules, fleet.is_set, fleet.view.is_linked) {
        (0, ..) | (_, true, true) => None,
        (_, false, _) => Some(format!(
            "{rules} rules have `scope: fleet`, and this host shares with no other host: it needs `redis` with a `url` and \
             `fleet_secret_files` in the settings; the log of the start says what is wrong with them"
        )),
        (_, true, false) => {
            let why = fleet.view.nodes.iter().filter_map(|node| match &node.state {
                NodeState::Down(error) => Some(error.to_string()),
                NodeState::Starting | NodeState::Up => None,
            });
            let why: Vec<String> = why.collect();
            let why = if why.is_empty() { "no answer yet".to_owned() } else { why.join("; ") };
            Some(format!(
                "Redis is not heard ({why}): {rules} rules go by `on_redis_down`, with {} hosts; `tidegate fleet` says more",
                fleet.view.hosts
            ))
        }
    }
}

fn of_pools(pools: &[PoolView]) -> Vec<String> {
    let mut warnings = Vec::new();
    for pool in pools.iter().filter(|pool| pool.configured) {
        let name = &pool.pool;
        if pool.slots.is_none() {
            warnings.push(format!(
                "pool {name}: its slots are unknown, so workers, brake and reserve do nothing: \
                 let its processes say them, or write `slots` in the rules"
            ));
        }
        for signal in pool.signals.iter().filter(|signal| !signal.readable) {
            warnings
                .push(format!("pool {name}: the signal {} cannot be read: the log says why", signal.name));
        }
    }
    warnings
}
