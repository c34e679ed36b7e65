//! Renders all metrics as OpenMetrics text. Label values come from rules and from fixed lists,
//! never from a caller; every series is there from the start.

mod daemon;
mod decisions;
mod fleet;
mod work;

use std::collections::HashMap;
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
use crate::clock::Now;
use crate::engine::{InForce, PoolView, Totals};

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
        work::write(self, &mut sheet)?;
        fleet::write(self, &mut sheet)?;
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
