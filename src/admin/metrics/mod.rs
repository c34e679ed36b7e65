//! Renders all metrics as OpenMetrics text. Label values come from rules and from fixed lists,
//! never from a caller; every series is there from the start.

mod daemon;
mod decisions;
mod fleet;
mod sheet;
mod switches;
mod work;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use hyper::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tracing::error;

use super::AdminState;
use super::answer::{self, HttpAnswer};
use super::control::{ProcessRecord, RulesRecord};
use super::fleet::{FleetReading, FleetRuleStatus, fleet_rules};
use crate::clock::Now;
use crate::engine::{HeldBytes, InForce, LeaseTotals, PoolView, Totals};
use crate::record::Recorder;
use crate::server::ServerCounters;
use crate::state::SnapshotStats;
use sheet::Sheet;
use switches::Switches;

/// Everything at one moment.
#[derive(Debug)]
struct Scrape {
    now: Now,
    began: Now,
    totals: Totals,
    in_force: InForce,
    leases: LeaseTotals,
    pools: Vec<PoolView>,
    keys: u64,
    memory_bytes: u64,
    memory_bytes_max: u64,
    held: HeldBytes,
    switches: Switches,
    rules: RulesRecord,
    server: Arc<ServerCounters>,
    snapshots: Arc<SnapshotStats>,
    process: ProcessRecord,
    fleet: FleetReading,
    fleet_rules: Vec<FleetRuleStatus>,
    recorder: Arc<Recorder>,
}

/// The page of it.
pub(super) fn metrics(desk: &AdminState) -> HttpAnswer {
    let mut registry = Registry::with_prefix("tidegate");
    registry.register_collector(Box::new(Scrape::take(desk)));
    let mut text = String::with_capacity(TEXT_BYTES);
    if let Err(error) = encode(&mut text, &registry) {
        error!(%error, "the metrics cannot be written");
        return answer::text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n");
    }
    answer::of_kind(StatusCode::OK, OPEN_METRICS, text)
}

impl Scrape {
    fn take(desk: &AdminState) -> Scrape {
        let (engine, now) = (&desk.engine, desk.clock.now());
        let fleet = FleetReading::take(desk, now.at);
        Scrape {
            now,
            began: desk.clock.started_at(),
            totals: engine.totals(),
            in_force: engine.in_force(),
            leases: engine.leases(),
            pools: engine.pools(now),
            keys: engine.keys() as u64,
            memory_bytes: engine.memory_bytes() as u64,
            memory_bytes_max: engine.memory_bytes_max() as u64,
            held: engine.held_bytes(),
            switches: Switches::of(engine),
            rules: desk.control.rules(),
            server: Arc::clone(&desk.server),
            snapshots: Arc::clone(&desk.snapshots),
            process: desk.control.process(),
            fleet_rules: fleet_rules(engine, &fleet.view, now.at, &HashMap::new()),
            fleet,
            recorder: Arc::clone(&desk.recorder),
        }
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut sheet = Sheet::new(encoder);
        decisions::write(self, &mut sheet)?;
        work::write(self, &mut sheet)?;
        fleet::write(self, &mut sheet)?;
        daemon::write(self, &mut sheet)?;
        switches::write(self, &mut sheet)
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Room for the text of some fifty rules at once.
const TEXT_BYTES: usize = 128 * 1_024;
