//! Reports to the daemon that ride on the next request: decisions without it, and requests that were given up.

use std::collections::BTreeMap;

use crate::client::Client;
use crate::connection::RequestKey;
use crate::fault::Reason;
use crate::wire::Value;

/// Reports that no request has carried yet.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    pub(crate) missed: BTreeMap<Reason, u64>,
    pub(crate) abandoned: Vec<RequestKey>,
}

impl Reports {
    /// Adds others. The daemon keeps 1 024 abandoned requests of a session.
    pub(crate) fn add(&mut self, others: Reports) {
        for (reason, count) in others.missed {
            *self.missed.entry(reason).or_default() += count;
        }
        self.abandoned.extend(others.abandoned);
        self.abandoned.truncate(ABANDONED_MAX);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.missed.is_empty() && self.abandoned.is_empty()
    }

    pub(crate) fn options(&self) -> Vec<(String, Value)> {
        let missed =
            self.missed.iter().map(|(reason, count)| (reason.name().to_owned(), Value::Unsigned(*count)));
        let pair = |key: &RequestKey| Value::Array(vec![Value::Unsigned(key.0), Value::Unsigned(key.1)]);
        let abandoned = Value::Array(self.abandoned.iter().map(pair).collect());
        vec![("missed".to_owned(), Value::Map(missed.collect())), ("abandoned".to_owned(), abandoned)]
    }
}

/// Reports on their way. Those of a request without a reply, or of a dropped future, go with the next one.
pub(crate) struct ReportGuard<'c> {
    pub(crate) client: &'c Client,
    pub(crate) reports: Reports,
}

impl Drop for ReportGuard<'_> {
    fn drop(&mut self) {
        let reports = std::mem::take(&mut self.reports);
        if !reports.is_empty() {
            self.client.report_again(reports);
        }
    }
}

const ABANDONED_MAX: usize = 512;
