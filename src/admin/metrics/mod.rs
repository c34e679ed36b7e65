//! Renders all metrics as OpenMetrics text. Label values come from rules and from fixed lists,
//! never from a caller; every series is there from the start.

mod daemon;
mod decisions;
mod fleet;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use hyper::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use tracing::error;

use super::AdminState;
use super::answer::{self, HttpAnswer};
use super::fleet::{FleetReading, FleetRuleStatus, fleet_rules};
use crate::engine::{InForce, PoolView, Totals};

/// The state at one moment, as far as several families need it, and the daemon to read the rest from.
struct Scrape {
    admin: AdminState,
    totals: Totals,
    in_force: InForce,
    pools: Vec<PoolView>,
    fleet: FleetReading,
    fleet_rules: Vec<FleetRuleStatus>,
}

pub(super) fn metrics(admin: &AdminState) -> HttpAnswer {
    let mut registry = Registry::with_prefix("tidegate");
    registry.register_collector(Box::new(Scrape::take(admin)));
    let mut text = String::with_capacity(TEXT_BYTES);
    if let Err(error) = encode(&mut text, &registry) {
        error!(%error, "the metrics cannot be written");
        return answer::text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n");
    }
    answer::of_kind(StatusCode::OK, OPEN_METRICS, text)
}

impl Scrape {
    fn take(admin: &AdminState) -> Scrape {
        let (engine, now) = (&admin.engine, admin.clock.now());
        let fleet = FleetReading::take(admin, now.at);
        Scrape {
            totals: engine.totals(),
            in_force: engine.in_force(),
            pools: engine.pools(now),
            fleet_rules: fleet_rules(engine, &fleet.view, now.at, &HashMap::new()),
            fleet,
            admin: admin.clone(),
        }
    }
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut sheet = Sheet(encoder);
        decisions::write(self, &mut sheet)?;
        write_work(self, &mut sheet)?;
        fleet::write(self, &mut sheet)?;
        daemon::write(self, &mut sheet)
    }
}

/// Families of series, one after the other, in the order in which they are written. A help text may end with
/// `. Act if CONDITION`, the last column of the table in `docs/metrics.md`, which is written from these texts.
struct Sheet<'e>(DescriptorEncoder<'e>);

type Labels<'l, const N: usize> = [(&'static str, &'l str); N];

impl Sheet<'_> {
    /// Writes a family of counters; `_total` is appended to its name.
    fn counters<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l, N>, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, count) in series {
            let mut metric = family.encode_family(&labels)?;
            metric.encode_counter::<[(&str, &str); 0], _, f64>(&count, None)?;
        }
        Ok(())
    }

    /// Like [`Sheet::counters`], with one label.
    fn counters_by(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        counts: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> fmt::Result {
        self.counters(name, help, counts.into_iter().map(|(value, count)| ([(label, value)], count)))
    }

    /// Writes a counter without labels.
    fn counter(&mut self, name: &str, help: &str, count: &impl EncodeCounterValue) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        family.encode_counter::<[(&str, &str); 0], _, f64>(count, None)
    }

    fn gauges<'l, const N: usize, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Labels<'l, N>, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in series {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Writes a gauge without labels.
    fn gauge(&mut self, name: &str, help: &str, value: &impl EncodeGaugeValue) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(value)
    }

    /// Writes an info family, whose content is its labels; `_info` is appended to its name.
    fn infos<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = Labels<'l, N>>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        series.into_iter().try_for_each(|labels| family.encode_info(&labels))
    }

    /// Writes a histogram of durations: of all together, and the upper bound in seconds and count of each bucket, not
    /// cumulative; the last bucket has no bound.
    fn histogram(&mut self, name: &str, help: &str, seconds: f64, counts: &[(f64, u64)]) -> fmt::Result {
        let count = counts.iter().map(|(_, count)| count).sum();
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        family.encode_histogram::<[(&str, &str); 0]>(seconds, count, counts, None)
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Room for the text of some fifty rules at once.
const TEXT_BYTES: usize = 128 * 1_024;

fn write_work(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let leases = scrape.admin.engine.leases();
    let help = "Leases in progress. Act if it only grows: leases are not released";
    sheet.gauge("leases", help, &leases.live)?;
    let help = "Ended leases, by reason: released; expired; session: its process exited; abandoned: its client had \
                stopped waiting. Act if many expired: work takes longer than `expires`, or is not released";
    let ended = [
        ("released", leases.released),
        ("expired", leases.expired),
        ("session", leases.session),
        ("abandoned", leases.abandoned),
    ];
    sheet.counters_by("lease_ended", help, "reason", ended)?;
    let help = "RELEASE and RENEW of a lease that the session does not hold, by reason: ended; foreign: another \
                session's; unknown: none of this daemon, as after a `kill -9`. They change nothing. Act if foreign is \
                above 0: a client mixes up processes; or ended grows: released twice, or work outlasts `expires`";
    let of = &leases.not_held;
    let not_held = [("ended", of.ended), ("foreign", of.foreign), ("unknown", of.unknown)];
    sheet.counters_by("lease_not_held", help, "reason", not_held)?;
    let help = "Application processes connected now or within the last 5 s. Act if 0: no application asks";
    sheet.gauge("sessions", help, &leases.sessions)?;
    slots(&scrape.pools, sheet)?;
    let watched: Vec<&PoolView> = scrape.pools.iter().filter(|pool| pool.configured).collect();
    shedding(&watched, sheet)
}

/// Pools that no rule names have names chosen by clients, so they share one series.
fn slots(pools: &[PoolView], sheet: &mut Sheet<'_>) -> fmt::Result {
    let mut by_name: BTreeMap<&str, (u64, u64)> = BTreeMap::from([(OTHER, (0, 0))]);
    for pool in pools {
        let name = if pool.configured { &*pool.pool } else { OTHER };
        let (slots, busy) = by_name.entry(name).or_default();
        *slots += u64::from(pool.slots.unwrap_or_default());
        *busy += u64::from(pool.busy);
    }
    let series = |of: fn(&(u64, u64)) -> u64| {
        by_name.iter().map(move |(name, sums)| ([("pool", *name)], of(sums))).collect::<Vec<_>>()
    };
    let help =
        "Slots of a pool; 0: unknown, and nothing is shed by them. Act if 0 for a pool that should be shed";
    sheet.gauges("slots", help, series(|(slots, _)| *slots))?;
    sheet.gauges("slots_busy", "Busy slots of a pool. Act if equal to its slots", series(|(_, busy)| *busy))
}

fn shedding(pools: &[&PoolView], sheet: &mut Sheet<'_>) -> fmt::Result {
    let chances = pools.iter().flat_map(|pool| {
        let each = pool.shed_probabilities.iter();
        each.map(|(priority, chance)| ([("pool", &*pool.pool), ("priority", &**priority)], *chance))
    });
    let help = "Probability that `workers` sheds a request of a priority. Act if above 0 for some minutes";
    sheet.gauges("shed_chance", help, chances)?;
    let help = "Severity of `workers`: up to 0 sheds nothing, 1 sheds all priorities that may be shed. Act if \
                above 0";
    sheet.gauges("shed_severity", help, pools.iter().map(|pool| ([("pool", &*pool.pool)], pool.severity)))?;
    let braking = pools.iter().map(|pool| ([("pool", &*pool.pool)], u64::from(pool.braking)));
    let help = "1 while the brake of a pool is on. Act if 1 for longer than a deployment";
    sheet.gauges("braking", help, braking)?;
    let readings = || pools.iter().flat_map(|pool| readings(pool));
    let ratios = readings()
        .map(|(pool, signal, value)| ([("pool", pool), ("signal", signal)], value.unwrap_or_default()));
    let help = "Utilization of a pool by each signal; `workers` is the busy share of its slot-time in the last 8 \
                s; 0 if unreadable. Act if above `bad`";
    sheet.gauges("utilization_ratio", help, ratios)?;
    let available = readings()
        .map(|(pool, signal, value)| ([("pool", pool), ("signal", signal)], u64::from(value.is_some())));
    sheet.gauges("signal_available", "1 if a signal can be read. Act if 0: the log says why", available)
}

/// The share of busy slots, and every signal of the rules.
fn readings(pool: &PoolView) -> impl Iterator<Item = (&str, &str, Option<f64>)> {
    let signals = pool.signals.iter().map(|signal| (&*signal.name, signal.utilization));
    let workers = pool.signals.iter().all(|signal| *signal.name != *WORKERS);
    let workers = workers.then_some((WORKERS, pool.utilization));
    workers.into_iter().chain(signals).map(|(name, value)| (&*pool.pool, name, value))
}

const OTHER: &str = "other";

const WORKERS: &str = "workers";
