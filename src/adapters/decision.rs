//! A decision, in the words of the clients, with times in seconds. The Rust client has the headers, message and body of its HTTP
//! response.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tidegate_client::{Decision, Reason};

use crate::clock::Micros;
use crate::protocol::{DecisionReply, Verdict};

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
    /// The decision as the Rust client has it, whose HTTP response this is.
    #[serde(skip)]
    pub(super) answer: Decision,
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
        let time = |micros: Option<u64>| micros.map(Duration::from_micros);
        let level = |of: &crate::protocol::LimitEntry<'_>| LimitLevel {
            rule: of.rule.to_owned(),
            limit: of.limit,
            window: Seconds(of.window_us),
            remaining: of.remaining,
            reset_after: Seconds(of.reset_us),
            refuses: of.refuses,
            descriptors: of.descriptors,
        };
        let mut answer = Decision::default();
        answer.verdict = match reply.verdict {
            Verdict::Allow => tidegate_client::Verdict::Allow,
            Verdict::Limit => tidegate_client::Verdict::Limit,
            Verdict::Shed => tidegate_client::Verdict::Shed,
            Verdict::Wait => tidegate_client::Verdict::Wait,
            Verdict::Deny => tidegate_client::Verdict::Deny,
        };
        (answer.rule, answer.limit, answer.window) = (text(reply.rule), reply.limit, time(reply.window_us));
        (answer.remaining, answer.reset_after) = (reply.remaining, time(reply.reset_us));
        (answer.retry_after, answer.help) = (time(reply.retry_us), text(reply.help));
        (answer.unit, answer.rate, answer.digest) = (text(reply.unit), text(reply.rate), text(reply.digest));
        (answer.is_hidden, answer.is_blocked) = (reply.hide, reply.blocked);
        HttpDecision {
            lease: reply.lease.map(|lease| lease.to_string()),
            notes: reply.notes.iter().map(|(kind, rule)| (kind.name(), (*rule).to_owned())).collect(),
            all: reply.all.map(|all| all.iter().map(level).collect()),
            ..HttpDecision::new(reply.verdict, answer)
        }
    }

    /// Returns the decision without the daemon: allowed; or the refusal of a request that the daemon does not judge.
    pub(super) fn without_daemon(reason: Reason) -> HttpDecision {
        let mut answer = Decision::default();
        (answer.reason, answer.retry_after) = (Some(reason), Some(Duration::ZERO));
        if !reason.is_refusal() {
            return HttpDecision::new(Verdict::Allow, answer);
        }
        answer.verdict = tidegate_client::Verdict::Shed;
        answer.retry_after = Some(Duration::from_secs(1));
        HttpDecision::new(Verdict::Shed, answer)
    }

    fn new(verdict: Verdict, answer: Decision) -> HttpDecision {
        let seconds = |time: Option<Duration>| time.map(|time| Seconds(Micros::from(time).0));
        HttpDecision {
            allowed: answer.is_allowed(),
            verdict,
            degraded: answer.is_degraded(),
            reason: answer.reason.map(Reason::name),
            rule: answer.rule.clone(),
            limit: answer.limit,
            window: seconds(answer.window),
            remaining: answer.remaining,
            reset_after: seconds(answer.reset_after),
            retry_after: seconds(answer.retry_after),
            wait: seconds(Some(answer.wait())).unwrap_or_default(),
            help: answer.help.clone(),
            digest: answer.digest.clone(),
            status: answer.status(),
            message: answer.message(),
            headers: answer.headers().into_iter().collect(),
            answer,
            ..HttpDecision::default()
        }
    }
}
