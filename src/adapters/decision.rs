//! A decision, in the words of the clients, with times in seconds; and the headers, message and body of its HTTP response, the same
//! bytes as in every client: tests/vectors/answers.json.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::Number;

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
        self.message = message(&self);
        self.headers = headers(&self);
        self
    }
}

/// Returns RateLimit (ratelimit-headers-11), X-Ratelimit and, of a refusal, Retry-After headers.
fn headers(decision: &HttpDecision) -> BTreeMap<&'static str, String> {
    let mut headers = BTreeMap::new();
    if let Some((rule, limit)) = named(decision) {
        let (limit, remaining) =
            (limit.min(NUMBER_MAX), decision.remaining.unwrap_or_default().min(NUMBER_MAX));
        let window = decision.window.filter(|window| window.0 > 0);
        let unit = if window.is_some() { unit(decision) } else { "concurrent-requests" };
        let name = quoted(rule);
        let mut level = format!("{name};r={remaining}");
        let mut policy = format!("{name};q={limit}");
        if unit != "requests" {
            policy = format!("{policy};qu={}", quoted(unit));
        }
        if let Some(window) = window {
            level = format!("{level};t={}", whole(decision.reset_after.unwrap_or_default()));
            policy = format!("{policy};w={}", whole(window));
        }
        headers.insert("RateLimit", level);
        headers.insert("RateLimit-Policy", policy);
        headers.insert("X-Ratelimit-Limit", limit.to_string());
        headers.insert("X-Ratelimit-Remaining", remaining.to_string());
    }
    if let Some(retry) = decision.retry_after.filter(|_| !decision.allowed) {
        let retry = whole(retry).clamp(1, NUMBER_MAX).to_string();
        if !decision.hide {
            headers.insert("X-Ratelimit-Retry-After", retry.clone());
        }
        headers.insert("Retry-After", retry);
    }
    headers
}

/// Returns one sentence for people: the rule, its limit, and the time of a retry.
fn message(decision: &HttpDecision) -> String {
    let cause = match (decision.verdict, named(decision)) {
        (Verdict::Allow | Verdict::Wait, _) => return "Allowed.".to_owned(),
        (Verdict::Deny, _) => return "This request is not allowed.".to_owned(),
        (Verdict::Limit, _) if decision.blocked => "This caller is blocked.".to_owned(),
        (Verdict::Limit, Some((rule, limit))) => {
            format!("Over the limit {rule} of {}.", quota(decision, limit))
        }
        (Verdict::Limit, None) => "Too many requests.".to_owned(),
        (Verdict::Shed, _) if decision.reason.is_some() => "The request could not be judged.".to_owned(),
        (Verdict::Shed, _) => "The service is at its capacity.".to_owned(),
    };
    match decision.retry_after {
        None => format!("{cause} It asks for more than the limit holds: it can never pass."),
        Some(retry) => format!("{cause} Try again in {} s.", whole(retry).max(1)),
    }
}

/// A body of RFC 9457.
#[derive(Serialize)]
struct ProblemBody<'d> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: &'d str,
    #[serde(rename = "violated-policies", skip_serializing_if = "Option::is_none")]
    violated_policies: Option<[&'d str; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<&'d str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    help: Option<&'d str>,
}

/// Returns the body of a refusal, application/problem+json, of a request in this domain.
pub(super) fn problem(decision: &HttpDecision, domain: &str) -> Vec<u8> {
    let (about, title) = match decision.verdict {
        Verdict::Limit if decision.blocked => ("urn:tidegate:problem:blocked", "Too Many Requests"),
        Verdict::Limit => {
            ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Too Many Requests")
        }
        Verdict::Shed => {
            let about = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
            (about, "Service Unavailable")
        }
        _ => ("about:blank", "Forbidden"),
    };
    let violated = named(decision).filter(|_| decision.verdict == Verdict::Limit);
    let digest = decision.digest.as_deref().filter(|_| violated.is_some());
    let body = ProblemBody {
        r#type: about,
        title,
        status: decision.status,
        detail: &decision.message,
        violated_policies: violated.map(|(rule, _)| [rule]),
        limit: violated.map(|(_, limit)| limit),
        window: violated.map(|_| thousandths(decision.window.unwrap_or_default())),
        domain: digest.map(|_| domain),
        digest,
        retry_after: decision.retry_after.map(thousandths),
        help: decision.help.as_deref(),
    };
    serde_json::to_vec(&body).unwrap_or_default()
}

/// The rule and its limit, if the response may name them.
fn named(decision: &HttpDecision) -> Option<(&str, u64)> {
    decision.rule.as_deref().zip(decision.limit).filter(|_| !decision.hide)
}

/// Returns the quota as the rule writes it, if the daemon sends that, else the limit and its window.
fn quota(decision: &HttpDecision, limit: u64) -> String {
    let unit = unit(decision);
    if let Some((count, periods, (_, article, noun))) = decision.rate.as_deref().and_then(read_rate) {
        let unit = if (count, unit) == ("1", "requests") { "request" } else { unit };
        return match periods {
            "" | "1" => format!("{count} {unit} {article} {noun}"),
            _ => format!("{count} {unit} in {periods} {noun}s"),
        };
    }
    match decision.window.filter(|window| window.0 > 0) {
        Some(window) => format!("{limit} {unit} in {} s", thousandths(window)),
        None => format!("{limit} at once"),
    }
}

/// Reads a rate such as `300/15min`: the count, the number of periods, the period.
fn read_rate(rate: &str) -> Option<(&str, &str, (&'static str, &'static str, &'static str))> {
    let (count, period) = rate.split_once('/')?;
    let name = period.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let periods = period.strip_suffix(name)?;
    let is_number = |text: &str| text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit());
    let known = PERIODS.into_iter().find(|(known, ..)| *known == name)?;
    (!count.is_empty() && is_number(count) && is_number(periods)).then_some((count, periods, known))
}

fn unit(decision: &HttpDecision) -> &str {
    decision.unit.as_deref().unwrap_or("requests")
}

/// A string of structured fields: ASCII, other characters as `?`.
fn quoted(text: &str) -> String {
    let ascii: String =
        text.chars().map(|character| if character.is_ascii() { character } else { '?' }).collect();
    serde_json::json!(ascii).to_string()
}

/// Rounds up to seconds.
fn whole(duration: Seconds) -> u64 {
    duration.0.div_ceil(1_000_000)
}

/// Seconds, rounded up to milliseconds.
#[allow(clippy::cast_precision_loss, reason = "it is exact for centuries")]
fn thousandths(duration: Seconds) -> Number {
    let millis = duration.0.div_ceil(1_000);
    let fraction = Number::from_f64(millis as f64 / 1e3).filter(|_| !millis.is_multiple_of(1_000));
    fraction.unwrap_or_else(|| (millis / 1_000).into())
}

/// Structured fields hold 15 digits.
const NUMBER_MAX: u64 = 999_999_999_999_999;

const PERIODS: [(&str, &str, &str); 7] = [
    ("ms", "a", "millisecond"),
    ("s", "a", "second"),
    ("min", "a", "minute"),
    ("h", "an", "hour"),
    ("day", "a", "day"),
    ("week", "a", "week"),
    ("month", "a", "month"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::{HttpDecision, problem};
    use crate::protocol::{MissReason, ReplyScratch, WireReply, decode_reply};

    /// The response of every client to this decision, in the style with all headers.
    #[test]
    fn answers_as_clients_do() {
        let answers = include_str!("../../tests/vectors/answers.json");
        let answers: Vec<Value> = serde_json::from_str(answers).unwrap();
        let mut compared = 0;
        for answer in answers.iter().filter(|answer| answer["style"] == "both") {
            let name = answer["name"].as_str().unwrap();
            let decision = match answer["reason"].as_str() {
                Some(_) if answer["status"] == 200 => HttpDecision::degraded(MissReason::Timeout),
                Some(_) => HttpDecision::rejected("invalid"),
                None => {
                    let hex = answer["decision"].as_str().unwrap();
                    let byte = |index: usize| u8::from_str_radix(&hex[index..index + 2], 16).unwrap();
                    let frame: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
                    let mut scratch = ReplyScratch::default();
                    let Ok(WireReply::Decision(reply)) = decode_reply(&frame[4..], &mut scratch) else {
                        panic!("{name}: no decision")
                    };
                    HttpDecision::from_reply(&reply)
                }
            };
            // Redirects of the application have no headers; here there is no application.
            if ["allowed_redirect", "allowed_not_modified"].contains(&name) {
                continue;
            }
            let of_body = ["Content-Type", "Content-Length", "Cache-Control"];
            let headers = answer["headers"].as_array().unwrap().iter();
            let headers =
                headers.map(|pair| (pair[0].as_str().unwrap(), pair[1].as_str().unwrap().to_owned()));
            let headers: BTreeMap<_, _> = headers.filter(|(name, _)| !of_body.contains(name)).collect();
            assert_eq!(decision.headers, headers, "{name}");
            assert_eq!(decision.message, answer["message"].as_str().unwrap(), "{name}");
            if let Some(body) = answer["body"].as_str() {
                assert_eq!(String::from_utf8(problem(&decision, "shop")).unwrap(), body, "{name}");
                assert_eq!(answer["status"], decision.status, "{name}");
            }
            compared += 1;
        }
        assert!(compared > 25, "{compared}");
    }
}
