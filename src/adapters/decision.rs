//! A decision, in the words of the clients. Times are in seconds.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::answers;
use crate::protocol::{DecisionReply, MissReason, Verdict};

/// A decision.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct HttpDecision {
    /// Whether the request may start.
    pub(super) allowed: bool,
    /// The verdict; `wait`: allowed, start after `wait`.
    pub(super) verdict: Verdict,
    /// Whether the daemon did not decide: the request is allowed for the `reason`.
    pub(super) degraded: bool,
    /// `timeout`, `unreachable` or `protocol` of a degraded decision.
    pub(super) reason: Option<&'static str>,
    /// The binding rule.
    pub(super) rule: Option<String>,
    /// Its limit.
    pub(super) limit: Option<u64>,
    /// The time over which the limit is granted.
    pub(super) window: Option<Seconds>,
    /// The rest of the limit.
    pub(super) remaining: Option<u64>,
    /// The time after which `remaining` is larger.
    pub(super) reset_after: Option<Seconds>,
    /// The time after which the same request would pass; null: never.
    pub(super) retry_after: Option<Seconds>,
    /// The time to sleep before the start.
    pub(super) wait: Seconds,
    /// The lease to release. A text, as numbers of JSON lose digits in many languages.
    pub(super) lease: Option<String>,
    /// Kinds of notes, each with its rule.
    pub(super) notes: Vec<(&'static str, String)>,
    /// Every limit that matched, if the request asked for them.
    pub(super) all: Option<Vec<LimitLevel>>,
    /// The help text of the rule for refused callers.
    pub(super) help: Option<String>,
    /// The key of the rule that refuses, as `tidegate why --digest` finds it.
    pub(super) digest: Option<String>,
    /// The HTTP status for the caller.
    pub(super) status: u16,
    /// One sentence for the caller.
    pub(super) message: String,
    /// The headers for the caller.
    pub(super) headers: BTreeMap<&'static str, String>,
    #[serde(skip)]
    pub(super) hide: bool,
    #[serde(skip)]
    pub(super) blocked: bool,
    #[serde(skip)]
    pub(super) unit: Option<String>,
    #[serde(skip)]
    pub(super) rate: Option<String>,
}

/// The level of one limit.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LimitLevel {
    pub(super) rule: String,
    pub(super) limit: u64,
    pub(super) window: Seconds,
    pub(super) remaining: u64,
    pub(super) reset_after: Seconds,
    #[serde(skip)]
    pub(super) refuses: bool,
    /// As in [`LimitEntry`](crate::protocol::LimitEntry).
    #[serde(skip)]
    pub(super) descriptors: u64,
}

/// A duration in microseconds, written in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seconds(pub(super) u64);

impl Serialize for Seconds {
    #[allow(clippy::cast_precision_loss, reason = "it is exact for 285 years")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0 as f64 / 1e6)
    }
}

impl JsonSchema for Seconds {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Seconds".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "number", "minimum": 0})
    }
}

impl HttpDecision {
    pub(super) fn from_reply(reply: &DecisionReply<'_>) -> HttpDecision {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let level = |of: &crate::protocol::LimitEntry<'_>| LimitLevel {
            rule: of.rule.to_owned(),
            limit: of.limit,
            window: Seconds(of.window_us),
            remaining: of.remaining,
            reset_after: Seconds(of.reset_us),
            refuses: of.refuses,
            descriptors: of.descriptors,
        };
        let wait = reply.retry_us.filter(|_| reply.verdict == Verdict::Wait).unwrap_or_default();
        HttpDecision {
            rule: text(reply.rule),
            limit: reply.limit,
            window: reply.window_us.map(Seconds),
            remaining: reply.remaining,
            reset_after: reply.reset_us.map(Seconds),
            retry_after: reply.retry_us.map(Seconds),
            wait: Seconds(wait),
            lease: reply.lease.map(|lease| lease.to_string()),
            notes: reply.notes.iter().map(|(kind, rule)| (kind.name(), (*rule).to_owned())).collect(),
            all: reply.all.map(|all| all.iter().map(level).collect()),
            help: text(reply.help),
            digest: text(reply.digest),
            hide: reply.hide,
            blocked: reply.blocked,
            unit: text(reply.unit),
            rate: text(reply.rate),
            ..HttpDecision::bare(reply.verdict)
        }
        .answered()
    }

    /// Returns the decision without the daemon: allowed.
    pub(super) fn degraded(reason: MissReason) -> HttpDecision {
        let (reason, retry_after) = (Some(reason.name()), Some(Seconds(0)));
        HttpDecision { degraded: true, reason, retry_after, ..HttpDecision::bare(Verdict::Allow) }.answered()
    }

    /// Returns the refusal of a request that the daemon does not judge.
    pub(super) fn rejected(reason: &'static str) -> HttpDecision {
        let retry_after = Some(Seconds(1_000_000));
        HttpDecision { reason: Some(reason), retry_after, ..HttpDecision::bare(Verdict::Shed) }.answered()
    }

    fn bare(verdict: Verdict) -> HttpDecision {
        let (allowed, status) = match verdict {
            Verdict::Allow | Verdict::Wait => (true, 200),
            Verdict::Limit => (false, 429),
            Verdict::Shed => (false, 503),
            Verdict::Deny => (false, 403),
        };
        HttpDecision { allowed, verdict, status, ..HttpDecision::default() }
    }

    fn answered(mut self) -> HttpDecision {
        self.message = answers::message(&self);
        self.headers = answers::headers(&self);
        self
    }
}
