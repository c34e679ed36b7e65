//! The counters of the fleet as operators see them.

use std::collections::HashMap;
use std::time::Duration;

use crate::admin::{BudgetCounts, FleetNode, FleetRecord, OverridesRecord};
use crate::clock::Timestamp;
use crate::fleet::counters::{FleetCounters, FleetView};
use crate::fleet::link::{FailureClass, NodeState, NodeStatus};
use crate::fleet::overrides::OverridesView;
use crate::fleet::tally::BudgetCounters;

/// Reads the counters; `None`: the settings name no Redis. Every name is present from the start.
pub(super) fn fleet_record(counters: Option<&FleetCounters>, now: Timestamp) -> FleetRecord {
    let nothing = FleetCounters::default();
    let is_set = counters.is_some();
    let counters = counters.unwrap_or(&nothing);
    let view = counters.read();
    let happened = &view.happened;
    let host: String = view.host.iter().take(HOST_BYTES_SHOWN).map(|byte| format!("{byte:02x}")).collect();
    FleetRecord {
        is_set,
        host: if is_set { host } else { String::new() },
        secret: is_set.then(|| view.secret.to_string()),
        unlike: view.unlike,
        is_needed: view.is_needed,
        is_linked: view.is_linked,
        hosts: if is_set { view.hosts } else { 0 },
        alive: view.alive,
        round_trip: view.round_trip,
        staleness: counters.staleness(now),
        nodes: view.nodes.iter().map(node).collect(),
        keys: view.keys as u64,
        cells: happened.cells,
        cells_per_second: view.cells_per_second,
        batches: vec![
            ("answered", happened.batches),
            ("stale", happened.stale),
            ("unknown", happened.unknown),
            ("given_up", happened.given_up),
            ("undecodable", view.undecodable),
        ],
        repeats: happened.repeats,
        errors: errors(&view),
        overrides: overrides(&view.overrides),
        outages: view.outages,
        asked: vec![
            ("answered", view.asked.answered),
            ("late", view.asked.missed),
            ("declined", view.asked.declined),
        ],
        asks_stopped: view.asked.stopped,
        excess: happened.excess,
        false_refusals: happened.false_refusals,
        lost: happened.lost,
        clamped: view.clamped,
        budgets: budgets(&view),
    }
}

fn overrides(view: &OverridesView) -> OverridesRecord {
    OverridesRecord { version: view.version, rejected: view.rejected.to_vec(), is_forged: view.is_forged }
}

/// Returns the errors by class; every class is present before the first connection.
fn errors(view: &FleetView) -> Vec<(&'static str, u64)> {
    let counted = |name: &str| view.errors.iter().find(|(known, _)| *known == name).map(|(_, count)| *count);
    FailureClass::NAMES.into_iter().map(|name| (name, counted(name).unwrap_or_default())).collect()
}

/// Returns the counts of every budget that was requested, or whose version is known.
fn budgets(view: &FleetView) -> HashMap<u64, BudgetCounts> {
    let mut budgets: HashMap<u64, BudgetCounts> =
        view.tallies.iter().map(|(budget, tally)| (*budget, of_budget(tally))).collect();
    for (budget, version) in &view.versions {
        let counts = budgets.entry(*budget).or_default();
        counts.version = counts.version.max(*version);
    }
    budgets
}

fn node(node: &NodeStatus) -> FleetNode {
    let (state, why) = match &node.state {
        NodeState::Starting => ("starting", None),
        NodeState::Up => ("up", None),
        NodeState::Down(error) => ("down", Some((error.class.name(), error.to_string()))),
    };
    FleetNode {
        url: node.url.to_string(),
        state,
        why,
        round_trip: node.round_trip_us.map(Duration::from_micros),
        connections: node.connections,
    }
}

fn of_budget(tally: &BudgetCounters) -> BudgetCounts {
    BudgetCounts {
        version: tally.version,
        keys: tally.keys,
        cells: tally.cells,
        cells_per_second: tally.cells_per_second,
        lost: tally.lost,
        excess_micro: tally.excess,
        false_refusals: tally.false_refusals,
        heard: tally.heard,
    }
}

/// Enough to distinguish hosts by eye.
const HOST_BYTES_SHOWN: usize = 4;
