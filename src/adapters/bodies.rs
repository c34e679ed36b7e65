//! Bodies of requests in JSON, the frames of requests, and the OpenAPI document made from the bodies. The decision thread checks
//! names and lengths; values are shortened as every client does, so that the length of a value refuses no request.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use hyper::body::Bytes;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Value, json};

use super::decision::HttpDecision;
use super::handler::REQUEST_ID;
use super::json::{self, NamedTexts, Units};
use crate::protocol::{
    ChargeFrame, CheckRequest, DescriptorList, IDEM_BYTES_MAX, Op, RefundReference, RequestFrame,
    RequestOptions, UnitsField, WorkOutcome, encode_request, shorten, shorten_value,
};

/// A request to check: hit, acquire or peek.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckBody {
    /// The domain whose rules decide.
    pub(super) domain: String,
    /// Attributes of the caller; empty values count as absent.
    #[serde(default, deserialize_with = "json::named_texts")]
    #[schemars(with = "BTreeMap<String, String>")]
    pub(super) attributes: NamedTexts,
    /// For descriptor trees: lists of pairs, in order, instead of `attributes`.
    #[serde(default, deserialize_with = "json::descriptors")]
    pub(super) descriptors: Vec<NamedTexts>,
    /// The cost: 1 by default, or a number for each unit.
    #[serde(default)]
    pub(super) cost: Option<Units<u64>>,
    /// The name of the priority.
    #[serde(default, deserialize_with = "json::optional_text")]
    priority: Option<String>,
    /// The idempotency key. A retry needs the same session.
    #[serde(default, deserialize_with = "json::optional_text")]
    idem: Option<String>,
    /// Seconds for which the request already waited for the application.
    #[serde(default)]
    queued: Option<f64>,
    /// The longest accepted wait, in seconds.
    #[serde(default)]
    pub(super) max_wait: Option<f64>,
    /// Whether the answer lists every limit that matched.
    #[serde(default)]
    all: bool,
}

/// A charge after the fact.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ChargeBody {
    /// The domain whose rules are charged.
    pub(super) domain: String,
    /// Attributes of the caller; empty values count as absent.
    #[serde(default, deserialize_with = "json::named_texts")]
    #[schemars(with = "BTreeMap<String, String>")]
    attributes: NamedTexts,
    /// For descriptor trees: lists of pairs, in order, instead of `attributes`.
    #[serde(default, deserialize_with = "json::descriptors")]
    descriptors: Vec<NamedTexts>,
    /// The amount: 1 by default, or a number for each unit. A negative one refunds part of `of`.
    #[serde(default)]
    amount: Option<Units<i64>>,
    /// The idempotency key.
    #[serde(default, deserialize_with = "json::optional_text")]
    idem: Option<String>,
    /// The grant or charge that is refunded.
    #[serde(default)]
    of: Option<RefundOf>,
}

/// The end of a lease.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseBody {
    /// The lease, as the decision has it.
    lease: String,
    /// The outcome of the work.
    #[serde(default = "ok")]
    outcome: WorkOutcome,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum RefundOf {
    Idem(#[serde(deserialize_with = "json::text")] String),
    Lease(String),
}

impl CheckBody {
    /// A HIT of cost 1 that does not wait.
    pub(super) fn hit(domain: &str, attributes: NamedTexts) -> CheckBody {
        let domain = domain.to_owned();
        CheckBody { domain, attributes, max_wait: Some(0.0), ..CheckBody::default() }
    }

    /// Returns the request as a frame, or a message for the client.
    pub(super) fn frame(&self, op: Op) -> Result<Vec<u8>, String> {
        let units: Vec<(&str, u64)> = match &self.cost {
            Some(Units::Each(units)) => units.iter().map(|(unit, cost)| (&**unit, *cost)).collect(),
            _ => Vec::new(),
        };
        let idem = self.idem.as_deref().filter(|idem| !idem.is_empty()).map(shortened_idem);
        let request = CheckRequest {
            cost: match &self.cost {
                None => UnitsField::Requests(1),
                Some(Units::Requests(cost)) => UnitsField::Requests(*cost),
                Some(Units::Each(_)) => UnitsField::Units(units.as_slice().into()),
            },
            priority: self.priority.as_deref(),
            options: RequestOptions {
                idem: idem.as_deref().map(str::as_bytes),
                queued_us: self.queued.map(|time| micros(time, "queued")).transpose()?,
                max_wait_us: self.max_wait.map(|time| micros(time, "max_wait")).transpose()?,
                all: self.all,
                ..RequestOptions::default()
            },
            ..CheckRequest::new(REQUEST_ID, &self.domain)
        };
        frame(&RequestFrame::Check(op, request), &self.attributes, &self.descriptors)
    }
}

impl ChargeBody {
    /// As [`CheckBody::frame`].
    pub(super) fn frame(&self) -> Result<Vec<u8>, String> {
        let units: Vec<(&str, i64)> = match &self.amount {
            Some(Units::Each(units)) => units.iter().map(|(unit, amount)| (&**unit, *amount)).collect(),
            _ => Vec::new(),
        };
        let idem = self.idem.as_deref().filter(|idem| !idem.is_empty()).map(shortened_idem);
        let of_idem = match &self.of {
            Some(RefundOf::Idem(idem)) => Some(shortened_idem(idem)),
            _ => None,
        };
        let of = match &self.of {
            Some(RefundOf::Lease(lease)) => Some(RefundReference::Lease(lease_of(lease)?)),
            _ => of_idem.as_deref().map(|idem| RefundReference::IdempotencyKey(idem.as_bytes())),
        };
        let request = ChargeFrame {
            id: Some(REQUEST_ID),
            domain: &self.domain,
            amount: match &self.amount {
                None => UnitsField::Requests(1),
                Some(Units::Requests(amount)) => UnitsField::Requests(*amount),
                Some(Units::Each(_)) => UnitsField::Units(units.as_slice().into()),
            },
            options: RequestOptions {
                idem: idem.as_deref().map(str::as_bytes),
                of,
                ..RequestOptions::default()
            },
        };
        frame(&RequestFrame::Charge(request), &self.attributes, &self.descriptors)
    }
}

impl ReleaseBody {
    /// As [`CheckBody::frame`].
    pub(super) fn frame(&self) -> Result<Vec<u8>, String> {
        let lease = lease_of(&self.lease)?;
        let request = RequestFrame::Release { id: Some(REQUEST_ID), lease, outcome: self.outcome };
        frame(&request, &[], &[])
    }
}

fn frame(
    request: &RequestFrame<'_>,
    attributes: &[(String, String)],
    descriptors: &[NamedTexts],
) -> Result<Vec<u8>, String> {
    if !attributes.is_empty() && !descriptors.is_empty() {
        return Err("`attributes` and `descriptors`: only one of them can hold".to_owned());
    }
    let given = descriptors.iter().map(|pairs| present(pairs));
    let texts = if descriptors.is_empty() { vec![present(attributes)] } else { given.collect() };
    fitting(request, texts.into_iter().filter(|pairs| !pairs.is_empty()).collect())
}

/// Leaves out empty values.
fn present(pairs: &[(String, String)]) -> Pairs<'_> {
    let present = pairs.iter().filter(|(_, value)| !value.is_empty());
    present.map(|(key, value)| (&**key, value.into())).collect()
}

fn shortened_idem(idem: &str) -> Cow<'_, str> {
    shorten(idem, IDEM_BYTES_MAX, IDEM_BYTES_KEPT)
}

fn lease_of(text: &str) -> Result<u64, String> {
    let lease = text.parse().ok().filter(|lease| *lease > 0);
    lease.ok_or_else(|| "`lease` is the text of digits that the decision has".to_owned())
}

/// Reads seconds, rounded up to microseconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped, and saturates")]
fn micros(seconds: f64, field: &str) -> Result<u64, String> {
    if !seconds.is_finite() || seconds < 0.0 {
        return Err(format!("`{field}` is a number of seconds, 0 or more"));
    }
    // 0.07 * 1e6 is above 70 000.
    Ok(((seconds * 1e9).round() / 1e3).ceil().min(1e18) as u64)
}

fn ok() -> WorkOutcome {
    WorkOutcome::Ok
}

/// As in docs/protocol.md, "Input never means allow".
const IDEM_BYTES_KEPT: usize = 30;

/// The answer to release and charge.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "for its schema")]
struct DoneBody {
    /// False: nothing changed.
    ok: bool,
    /// Whether the daemon did not answer, for the `reason`.
    degraded: bool,
    /// As in a decision.
    reason: Option<String>,
}

/// A request that was not passed on.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "for its schema")]
struct ErrorBody {
    /// The fault, and often a help.
    error: String,
}

/// The document (OpenAPI 3.1), made once: it takes as long as some hundred decisions.
pub(super) static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| format!("{}\n", document()).into());

fn document() -> Value {
    let mut schemas = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let check = schemas.subschema_for::<CheckBody>();
    let decision = schemas.subschema_for::<HttpDecision>();
    let (charge, release) = (schemas.subschema_for::<ChargeBody>(), schemas.subschema_for::<ReleaseBody>());
    let done = schemas.subschema_for::<DoneBody>();
    let error = schemas.subschema_for::<ErrorBody>();
    let post = |summary: &str, needs_session: bool, body: &Schema, answer: &Schema| {
        let content = |schema: &Schema| json!({"application/json": {"schema": schema}});
        json!({"post": {
            "summary": summary,
            "parameters": [{
                "name": "Tidegate-Session", "in": "header", "required": needs_session,
                "description": "A random text that the process keeps; its leases end 60 s after its last request.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 128}
            }],
            "requestBody": {"required": true, "content": content(body)},
            "responses": {
                "200": {"description": "The answer.", "content": content(answer)},
                "default": {"description": "The request was not passed on.", "content": content(&error)}
            }
        }})
    };
    let described = |description: &str| json!({"description": description});
    let auth = json!({
        "summary": "Checks the request of a proxy, whose headers the settings name.",
        "parameters": [{
            "name": "refusal", "in": "query", "schema": {"const": "403"},
            "description": "Answers refusals with 403, and their own status in Tidegate-Status."
        }],
        "responses": {
            "204": described("Allowed."),
            "403": described("On a deny list."),
            "429": described("Over a limit: Retry-After."),
            "503": described("The service is at its capacity: Retry-After.")
        }
    });
    json!({
        "openapi": "3.1.0",
        "info": {"title": "tidegate", "version": env!("CARGO_PKG_VERSION")},
        "paths": {
            "/v1/hit": post("Checks a request without an end.", false, &check, &decision),
            "/v1/acquire": post("Checks a request that ends with release.", true, &check, &decision),
            "/v1/peek": post("Decides as acquire would, and changes nothing.", false, &check, &decision),
            "/v1/release": post("Ends a lease.", true, &release, &done),
            "/v1/charge": post("Charges afterwards, or refunds.", false, &charge, &done),
            "/v1/auth": {"get": auth, "post": auth}
        },
        "components": {"schemas": schemas.take_definitions(true)}
    })
}

/// The names and values of one descriptor.
pub(super) type Pairs<'t> = Vec<(&'t str, Cow<'t, str>)>;

/// Returns the frame of a request, or a message for the client. Long values are cut; if the frame is still too large, the
/// longest become digests.
pub(super) fn fitting(
    request: &RequestFrame<'_>,
    mut descriptors: Vec<Pairs<'_>>,
) -> Result<Vec<u8>, String> {
    for (_, value) in descriptors.iter_mut().flatten() {
        if let Cow::Owned(shortened) = shorten_value(value) {
            *value = shortened.into();
        }
    }
    loop {
        let mut frame = Vec::new();
        let Err(error) = encode_request(&mut frame, request, &listed(&descriptors)?) else {
            return Ok(frame);
        };
        // Of equally long ones the first, as every client does: `max_by_key` returns the last.
        let values = descriptors.iter_mut().flatten().map(|(_, value)| value).rev();
        match values.max_by_key(|value| value.len()).filter(|value| value.len() > DIGEST_BYTES) {
            Some(longest) => *longest = shorten(longest, DIGEST_BYTES, 0).into_owned().into(),
            None => return Err(error.to_string()),
        }
    }
}

fn listed<'t>(descriptors: &'t [Pairs<'_>]) -> Result<DescriptorList<'t>, String> {
    let mut list = DescriptorList::new();
    for descriptor in descriptors {
        let pairs: Vec<(&str, &str)> = descriptor.iter().map(|(key, value)| (*key, &**value)).collect();
        if !list.push(&pairs) {
            return Err("a request has at most 8 descriptors of at most 16 attributes".to_owned());
        }
    }
    Ok(list)
}

/// A tilde and 32 digits.
const DIGEST_BYTES: usize = 33;
