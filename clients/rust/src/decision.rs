//! Decisions, and the leases of granted ones.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::client::Client;
use crate::connection::{Connection, RequestKey};
use crate::fault::{Fault, Reason};
use crate::wire::{Elements, Op, Value};

/// The kind of a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It may start.
    #[default]
    Allow,
    /// Its caller is over a limit: 429.
    Limit,
    /// The host is full: 503.
    Shed,
    /// It may start after [`Decision::wait`].
    Wait,
    /// It is on a deny list: 403.
    Deny,
}

impl Verdict {
    const ALL: [Verdict; 5] = [Verdict::Allow, Verdict::Limit, Verdict::Shed, Verdict::Wait, Verdict::Deny];

    /// Returns the name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Allow => "allow",
            Verdict::Limit => "limit",
            Verdict::Shed => "shed",
            Verdict::Wait => "wait",
            Verdict::Deny => "deny",
        }
    }
}

/// The outcome of work under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Ok,
    /// It failed.
    Error,
    /// It was dropped, or timed out.
    Dropped,
}

/// The answer to a request. A granted one of [`Client::acquire`] has a lease, which [`Decision::release`] ends; dropping the
/// decision ends it with [`Outcome::Dropped`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Decision {
    /// The kind.
    pub verdict: Verdict,
    /// Of a decision without the daemon, or a refusal by this client.
    pub reason: Option<Reason>,
    /// The binding rule.
    pub rule: Option<String>,
    /// Its limit.
    pub limit: Option<u64>,
    /// The time over which the limit is granted; `None` without a limit, zero for concurrency.
    pub window: Option<Duration>,
    /// The rest of the limit.
    pub remaining: Option<u64>,
    /// The time after which `remaining` is larger.
    pub reset_after: Option<Duration>,
    /// The time after which the same request may pass; `None`: never.
    pub retry_after: Option<Duration>,
    /// Kinds of notes, each with its rule.
    pub notes: Vec<(String, String)>,
    /// The unit of the limit; `None`: requests.
    pub unit: Option<String>,
    /// The rate of the refusing rule, as it is written: `5/min`.
    pub rate: Option<String>,
    /// The help text of the rule, for refused callers.
    pub help: Option<String>,
    /// Of a refusal: the digest of the key, for `tidegate why`.
    pub digest: Option<String>,
    /// Of a refusal: the domain.
    pub domain: Option<String>,
    /// Whether callers must not see the rule.
    pub is_hidden: bool,
    /// Whether an operator, or the rule itself, blocks this caller.
    pub is_blocked: bool,
    pub(crate) lease: Option<Lease>,
}

impl Decision {
    /// Whether the request may start, after [`wait`](Decision::wait).
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allow | Verdict::Wait)
    }

    /// Whether the daemon did not decide.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.reason.is_some_and(|reason| !reason.is_refusal())
    }

    /// The HTTP status: 200, 429, 503 or 403.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self.verdict {
            Verdict::Allow | Verdict::Wait => 200,
            Verdict::Limit => 429,
            Verdict::Shed => 503,
            Verdict::Deny => 403,
        }
    }

    /// The time to sleep before the start; zero unless the verdict is [`Verdict::Wait`].
    #[must_use]
    pub fn wait(&self) -> Duration {
        self.retry_after.filter(|_| self.verdict == Verdict::Wait).unwrap_or_default()
    }

    /// Returns the decision if the request may start.
    ///
    /// # Errors
    /// It may not.
    pub fn granted(self) -> Result<Decision, Denied> {
        if self.is_allowed() { Ok(self) } else { Err(Denied(Box::new(self))) }
    }

    /// The number of the lease that is not ended yet.
    #[must_use]
    pub fn lease(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| lease.number)
    }

    /// Ends the lease, without waiting. Does nothing without one.
    pub fn release(mut self, outcome: Outcome) {
        if let Some(lease) = self.lease.take() {
            lease.end(outcome);
        }
    }

    /// Restarts the time of the lease. False: it has ended, or the daemon does not answer.
    pub async fn renew(&self) -> bool {
        let Some(lease) = &self.lease else { return false };
        lease.client.done(Op::Renew, Elements::new(&[Value::Unsigned(lease.number)])).await
    }

    /// Makes a decision without the daemon.
    pub(crate) fn without_daemon(verdict: Verdict, reason: Reason) -> Decision {
        let retry_after =
            Some(if verdict == Verdict::Allow { Duration::ZERO } else { Duration::from_secs(1) });
        Decision { verdict, reason: Some(reason), retry_after, ..Decision::default() }
    }

    /// Reads the elements of a DECISION after its id. Returns it with the number of its lease, or `None` if the protocol forbids
    /// them.
    pub(crate) fn read(elements: &[Value]) -> Option<(Decision, Option<u64>)> {
        let at = |index: usize| elements.get(index).unwrap_or(&Value::Nil);
        let number = |index: usize| match at(index) {
            Value::Nil => Some(None),
            Value::Unsigned(number) => Some(Some(*number)),
            _ => None,
        };
        let verdict = *Verdict::ALL.get(usize::try_from(number(0)??).ok()?)?;
        let micros = |index: usize| number(index).map(|micros| micros.map(Duration::from_micros));
        let mut decision = Decision {
            verdict,
            rule: text(at(1))?,
            limit: number(2)?,
            window: micros(3)?,
            remaining: number(4)?,
            reset_after: micros(5)?,
            retry_after: micros(6)?,
            ..Decision::default()
        };
        match at(8) {
            Value::Nil => {}
            Value::Array(notes) => {
                let (pairs, []) = notes.as_chunks() else { return None };
                for [kind, rule] in pairs {
                    decision.notes.push((text(kind)??, text(rule)??));
                }
            }
            _ => return None,
        }
        if !matches!(at(9), Value::Nil | Value::Array(_)) {
            return None;
        }
        match at(10) {
            Value::Nil => {}
            Value::Map(entries) => decision.read_extra(entries)?,
            _ => return None,
        }
        Some((decision, number(7)?))
    }

    fn read_extra(&mut self, entries: &[(String, Value)]) -> Option<()> {
        for (key, value) in entries {
            match &**key {
                "help" => self.help = text(value)?,
                "unit" => self.unit = text(value)?,
                "rate" => self.rate = text(value)?,
                "digest" => self.digest = text(value)?,
                "hide" => self.is_hidden = boolean(value)?,
                "blocked" => self.is_blocked = boolean(value)?,
                _ => {}
            }
        }
        Some(())
    }
}

/// Reads a text or nil; `None` for other values.
fn text(value: &Value) -> Option<Option<String>> {
    match value {
        Value::Nil => Some(None),
        Value::Text(text) => Some(Some(text.clone())),
        _ => None,
    }
}

fn boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Nil => Some(false),
        Value::Bool(is) => Some(*is),
        _ => None,
    }
}

/// A lease, until it is ended or dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) number: u64,
    pub(crate) client: Client,
    pub(crate) connection: Arc<Connection>,
    /// The request that was granted.
    pub(crate) key: RequestKey,
    pub(crate) is_ended: AtomicBool,
}

impl Lease {
    fn end(&self, outcome: Outcome) {
        if !self.is_ended.swap(true, Ordering::Relaxed) {
            let elements = Elements::new(&[Value::Unsigned(self.number), Value::Unsigned(outcome as u64)]);
            self.client.release(&self.connection, &elements, self.key);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end(Outcome::Dropped);
    }
}

/// The error of a refused request.
#[derive(Debug)]
pub struct Denied(pub Box<Decision>);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message())
    }
}

impl std::error::Error for Denied {}

/// The reply to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Decision(Box<Decision>),
    Done(bool),
    Fault(Fault),
}
