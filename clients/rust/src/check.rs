//! A request on its way to a decision: its options, and work under its lease.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use crate::attributes::{Attributes, Cost, check_names, check_units};
use crate::client::Client;
use crate::decision::{Decision, Denied, Outcome};
use crate::wire::{Op, Request, Value, is_name, shorten_idem};

/// The decision without the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The request may start.
    #[default]
    Allow,
    /// It gets status 503.
    Refuse,
}

/// A request. It is sent when it is awaited; dropping it then abandons it, and ends a late grant.
#[derive(Clone, Debug)]
pub struct Check {
    client: Client,
    op: Op,
    domain: String,
    attributes: Attributes,
    cost: Cost,
    priority: Option<String>,
    options: Vec<(String, Value)>,
    on_failure: OnFailure,
}

impl Check {
    pub(crate) fn new(client: &Client, op: Op, domain: String, attributes: Attributes) -> Check {
        Check {
            client: client.clone(),
            op,
            domain,
            attributes,
            cost: Cost::from(1),
            priority: None,
            options: Vec::new(),
            on_failure: OnFailure::Allow,
        }
    }

    /// Sets the cost, by default 1: a number of requests, or of each unit.
    #[must_use]
    pub fn cost(mut self, cost: impl Into<Cost>) -> Check {
        self.cost = cost.into();
        self
    }

    /// Sets the name of the priority; never from a header of an end user. An invalid name counts as none.
    #[must_use]
    pub fn priority(mut self, name: impl Into<String>) -> Check {
        self.priority = Some(name.into()).filter(|name| is_name(name));
        self
    }

    /// Sets an idempotency key: a retry within 60 s gets the same grant. Never from a header of an end user alone.
    #[must_use]
    pub fn idem(mut self, key: &str) -> Check {
        self.options.retain(|(name, _)| name != "idem");
        let key = Some(shorten_idem(key)).filter(|key| !key.is_empty());
        self.options.extend(key.map(|key| ("idem".to_owned(), Value::Text(key))));
        self
    }

    /// Sets how long the request already waited for the application.
    #[must_use]
    pub fn queued(self, time: Duration) -> Check {
        self.time("queued_us", time)
    }

    /// Sets the longest accepted wait; zero: none.
    #[must_use]
    pub fn max_wait(self, time: Duration) -> Check {
        self.time("max_wait_us", time)
    }

    /// Sets the decision without the daemon.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Check {
        self.on_failure = on_failure;
        self
    }

    /// Runs work under a lease, after the wait if any, and reports its outcome.
    ///
    /// # Errors
    /// It may not start, or failed.
    pub async fn run<T, E>(self, work: impl Future<Output = Result<T, E>>) -> Result<T, RunError<E>> {
        let decision = self.await.granted().map_err(RunError::Denied)?;
        if !decision.wait().is_zero() {
            tokio::time::sleep(decision.wait()).await;
        }
        let done = work.await;
        decision.release(if done.is_ok() { Outcome::Ok } else { Outcome::Error });
        done.map_err(RunError::Work)
    }

    fn time(mut self, name: &str, time: Duration) -> Check {
        let micros = u64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        self.options.retain(|(known, _)| known != name);
        self.options.push((name.to_owned(), Value::Unsigned(micros)));
        self
    }
}

impl IntoFuture for Check {
    type Output = Decision;
    type IntoFuture = Pin<Box<dyn Future<Output = Decision> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Check { client, op, domain, attributes, cost, priority, options, on_failure } = self;
        let checked = check_names([&*domain].into_iter()).and_then(|()| check_units(&cost.0));
        let request = checked.and_then(|()| attributes.checked()).map(|descriptors| Request {
            op,
            domain,
            descriptors,
            cost: cost.0,
            priority,
            options,
        });
        Box::pin(async move { client.decide(request, on_failure).await })
    }
}

/// The error of [`Check::run`].
#[derive(Debug)]
pub enum RunError<E> {
    /// The work did not start.
    Denied(Denied),
    /// Its own error.
    Work(E),
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Denied(denied) => denied.fmt(f),
            RunError::Work(error) => error.fmt(f),
        }
    }
}

impl<E: std::error::Error> std::error::Error for RunError<E> {}
