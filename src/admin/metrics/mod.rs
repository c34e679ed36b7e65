//! Renders all metrics as OpenMetrics text. Label values come from rules and from fixed lists,
//! never from a caller; every series is there from the start.

mod daemon;
mod decisions;

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
use super::fleet::{FleetReading, FleetRuleStatus, admitted_max, fleet_rules};
use crate::clock::Now;
use crate::engine::{InForce, PoolView, ReserveView, Totals};

/// The state at one moment, as far as several families need it, and the daemon to read the rest from.
struct Scrape {
    admin: AdminState,
    now: Now,
    totals: Totals,
    in_force: InForce,
    pools: Vec<PoolView>,
    fleet: FleetReading,
    fleet_rules: Vec<FleetRuleStatus>,
}

/// The page of it.
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
            now,
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
        write_fleet(self, &mut sheet)?;
        daemon::write(self, &mut sheet)
    }
}

/// Families of series, one after the other, in the order in which they are written.
struct Sheet<'e>(DescriptorEncoder<'e>);

/// Label names and their values.
type Labels<'l, const N: usize> = [(&'static str, &'l str); N];

/// Work that is timed, as a histogram has it.
struct Timed {
    /// Of all together.
    seconds: f64,
    /// Upper bound in seconds and count of each bucket, not cumulative; the last bucket has no bound.
    counts: Vec<(f64, u64)>,
}

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

    /// The same with one label.
    fn counters_by(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        counts: impl IntoIterator<Item = (&'static str, u64)>,
    ) -> fmt::Result {
        self.counters(name, help, counts.into_iter().map(|(value, count)| ([(label, value)], count)))
    }

    /// The same with one series.
    fn counter(&mut self, name: &str, help: &str, count: &impl EncodeCounterValue) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        family.encode_counter::<[(&str, &str); 0], _, f64>(count, None)
    }

    /// Writes a family of gauges.
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

    /// The same with one series.
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

    /// Writes a histogram of durations.
    fn histogram(&mut self, name: &str, help: &str, timed: &Timed) -> fmt::Result {
        let count = timed.counts.iter().map(|(_, count)| count).sum();
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        family.encode_histogram::<[(&str, &str); 0]>(timed.seconds, count, &timed.counts, None)
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Room for the text of some fifty rules at once.
const TEXT_BYTES: usize = 128 * 1_024;

fn write_work(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let leases = scrape.admin.engine.leases();
    sheet.gauge("leases", "Leases held", &leases.live)?;
    sheet.counters(
        "lease_ended",
        "Ended leases, by reason: released; expired; session: its process exited; abandoned: its client had stopped \
         waiting",
        [
            ([("reason", "released")], leases.released),
            ([("reason", "expired")], leases.expired),
            ([("reason", "session")], leases.session),
            ([("reason", "abandoned")], leases.abandoned),
        ],
    )?;
    let not_held = &leases.not_held;
    sheet.counters(
        "lease_not_held",
        "RELEASE and RENEW of a lease that the session does not hold, by reason: ended; foreign: another session's; \
         unknown: none of this daemon. They change nothing",
        [
            ([("reason", "ended")], not_held.ended),
            ([("reason", "foreign")], not_held.foreign),
            ([("reason", "unknown")], not_held.unknown),
        ],
    )?;
    sheet.gauge("sessions", "Sessions connected now or within the last 5 s", &leases.sessions)?;
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
    let help = "Slots of a pool; 0: unknown, and nothing is shed by them";
    sheet.gauges("slots", help, series(|(slots, _)| *slots))?;
    sheet.gauges("slots_busy", "Busy slots of a pool", series(|(_, busy)| *busy))
}

fn shedding(pools: &[&PoolView], sheet: &mut Sheet<'_>) -> fmt::Result {
    let chances = pools.iter().flat_map(|pool| {
        let each = pool.shed_probabilities.iter();
        each.map(|(priority, chance)| ([("pool", &*pool.pool), ("priority", &**priority)], *chance))
    });
    let help = "Probability that `workers` sheds a request of a priority";
    sheet.gauges("shed_chance", help, chances)?;
    let help = "Severity of `workers`: up to 0 sheds nothing, 1 sheds all priorities that may be shed";
    sheet.gauges("shed_severity", help, pools.iter().map(|pool| ([("pool", &*pool.pool)], pool.severity)))?;
    let braking = pools.iter().map(|pool| ([("pool", &*pool.pool)], u64::from(pool.braking)));
    sheet.gauges("braking", "Whether the brake of a pool is on", braking)?;
    let readings = || pools.iter().flat_map(|pool| readings(pool));
    let ratios = readings()
        .map(|(pool, signal, value)| ([("pool", pool), ("signal", signal)], value.unwrap_or_default()));
    let help = "Utilization of a pool by each signal; `workers` is the busy share of its slot-time in the last 8 s; 0 if \
                unreadable";
    sheet.gauges("utilization_ratio", help, ratios)?;
    let available = readings()
        .map(|(pool, signal, value)| ([("pool", pool), ("signal", signal)], u64::from(value.is_some())));
    sheet.gauges("signal_available", "Whether a signal can be read", available)
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

fn write_fleet(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let (fleet, counts) = (&*scrape.fleet.view, &scrape.fleet.view.counts);
    let help = "Hosts with heartbeats in Redis, this one included, the most of the last 30 s; 0: this host cannot use a Redis";
    sheet.gauge("fleet_hosts", help, &u64::from(fleet.hosts))?;
    let help =
        "Hosts with another fleet secret than this one, or an older version: they share budgets of their own";
    sheet.gauge("fleet_other_secret_hosts", help, &u64::from(fleet.unlike))?;
    let help = "Whether rules share a budget, permits or a reserve, and the settings name a Redis, also one that cannot be used";
    sheet.gauge("fleet_needed", help, &u64::from(fleet.is_needed))?;
    let help = "Whether Redis answers; 0: in an outage, and if nothing is shared";
    sheet.gauge("fleet_linked", help, &u64::from(fleet.is_linked))?;
    let help = "Outages of Redis";
    sheet.counter("fleet_outages", help, &fleet.outages)?;
    let help = "Age of the last reply of Redis; 0: none yet";
    sheet.gauge(
        "fleet_staleness_seconds",
        help,
        &scrape.fleet.staleness.unwrap_or_default().as_secs_f64(),
    )?;
    let help = "Smoothed round trip to Redis";
    sheet.gauge("fleet_round_trip_seconds", help, &fleet.round_trip.as_secs_f64())?;
    let help = "Keys in the sync with Redis";
    sheet.gauge("fleet_keys", help, &(fleet.keys as u64))?;
    let help = "Cells in answered batches: one for each key of a batch";
    sheet.counter("fleet_cells", help, &counts.cells)?;
    let help = "Batches of cells, by outcome: answered; unanswered: they may have run or not; undecodable: the reply is \
                malformed";
    sheet.counters_by("fleet_batches", help, "outcome", fleet.batches())?;
    let help = "Failed commands, connections and attempts to connect, by class";
    sheet.counters_by("fleet_errors", help, "class", fleet.errors.iter().copied())?;
    let help = "Requests that needed a remote check, by outcome: answered; late: no reply by the deadline; declined: too \
                many were in flight, or checks were stopped";
    sheet.counters_by("fleet_asked", help, "outcome", fleet.remote_checks())?;
    let help = "Times that remote checks stopped for a while: five in a row were late";
    sheet.counter("fleet_asks_stopped", help, &fleet.remote_checks.stopped)?;
    let help = "Tokens charged below zero: admitted beyond a budget";
    sheet.counter("fleet_excess_tokens", help, &counts.excess)?;
    let help = "Estimated false refusals: replies with at least a tenth of the budget, for a key that had just refused";
    sheet.counter("fleet_false_refusals", help, &counts.false_refusals)?;
    let help = "Borrowed tokens that no host can use any more: they expired unused, or their grant was late";
    sheet.counter("fleet_expired_tokens", help, &counts.expired)?;
    let help = "Cells that Redis lost before their expiry; they started empty";
    sheet.counter("fleet_cells_lost", help, &counts.lost)?;
    let help = "Impossible numbers from Redis, cut to the possible range";
    sheet.counter("fleet_clamped", help, &fleet.clamped)?;
    let help = "Ignored fleet overrides: forged: the fleet secret does not authenticate the value in Redis; stale: of an older \
                version; unreadable: no text or too long; unknown: an entry unknown to this version";
    sheet.counters_by("fleet_overrides_rejected", help, "reason", fleet.rejected_overrides())?;
    let help = "Version of the fleet overrides in force; 0: none";
    sheet.gauge("fleet_overrides_version", help, &fleet.overrides.version)?;
    let bounds = scrape.fleet_rules.iter().take(RULES_MAX).filter_map(|rule| {
        let bound = rule.bound.as_ref()?;
        Some(([("domain", &*rule.domain), ("rule", &*rule.rule)], bound.extra))
    });
    let help = "Tokens that all hosts together may admit beyond the budget of one key, once in any span, while Redis answers";
    sheet.gauges("fleet_bound_tokens", help, bounds)?;
    let help = "Budgets that all hosts together may admit at most of one; above 1 while this host or others are cut off from \
                Redis, or have another fleet secret; 0: no budget is shared";
    sheet.gauge("fleet_admitted_max_ratio", help, &admitted_max(&scrape.fleet_rules))?;
    reserves(scrape, sheet)
}

/// Pools whose reserve hosts keep together, or may.
fn reserves(scrape: &Scrape, sheet: &mut Sheet<'_>) -> fmt::Result {
    let each = || scrape.pools.iter().filter_map(|pool| Some(([("pool", &*pool.pool)], pool.reserve?)));
    let shared = each().map(|(pool, reserve)| (pool, u64::from(reserve.shared)));
    let help = "Whether all hosts share the reserve of a pool; 0: this host alone";
    sheet.gauges("fleet_reserve_shared", help, shared)?;
    let stale = |reserve: ReserveView| reserve.elsewhere.map_or(0.0, |hosts| hosts.stale_s);
    let help = "Age of the sums of other hosts for a reserve; 0: this host alone";
    sheet.gauges("fleet_reserve_staleness_seconds", help, each().map(|(pool, of)| (pool, stale(of))))?;
    let most = each().map(|(pool, reserve)| (pool, u64::from(reserve.noncritical_max.unwrap_or_default())));
    let help = "Most noncritical work in progress that the reserve permits on this host; 0 also if the slots are unknown";
    sheet.gauges("fleet_reserve_most", help, most)
}

/// As many as are counted by name.
const RULES_MAX: usize = 512;
