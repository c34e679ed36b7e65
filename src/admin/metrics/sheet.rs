//! Families of series one after the other, in the order in which they are written. It counts nothing.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue};
use prometheus_client::metrics::MetricType;

/// The page while it is written.
pub(super) struct Sheet<'e>(DescriptorEncoder<'e>);

/// Label names and their values.
pub(super) type Labels<'l, const N: usize> = [(&'static str, &'l str); N];

/// Work that is timed, as a histogram has it.
pub(super) struct Timed {
    /// Of all together.
    pub(super) seconds: f64,
    /// Upper bound in seconds and count of each bucket, not cumulative; the last bucket has no bound.
    pub(super) counts: Vec<(f64, u64)>,
}

impl<'e> Sheet<'e> {
    pub(super) fn new(encoder: DescriptorEncoder<'e>) -> Sheet<'e> {
        Sheet(encoder)
    }

    /// Writes a family of counters; `_total` is appended to its name.
    pub(super) fn counters<'l, const N: usize>(
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

    /// The same with one series.
    pub(super) fn counter(&mut self, name: &str, help: &str, count: &impl EncodeCounterValue) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        family.encode_counter::<[(&str, &str); 0], _, f64>(count, None)
    }

    /// Writes a family of gauges.
    pub(super) fn gauges<'l, const N: usize, V: EncodeGaugeValue>(
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
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: &impl EncodeGaugeValue) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(value)
    }

    /// Writes an info family, whose content is its labels; `_info` is appended to its name.
    pub(super) fn infos<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = Labels<'l, N>>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        series.into_iter().try_for_each(|labels| family.encode_info(&labels))
    }

    /// Writes a histogram of durations.
    pub(super) fn histogram(&mut self, name: &str, help: &str, timed: &Timed) -> fmt::Result {
        let count = timed.counts.iter().map(|(_, count)| count).sum();
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        family.encode_histogram::<[(&str, &str); 0]>(timed.seconds, count, &timed.counts, None)
    }
}
