//! Bodies of requests in JSON, and their frames. The decision thread checks names and lengths.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::encode;
use super::exchange::REQUEST_ID;
use super::json::{self, NamedTexts, Units};
use crate::protocol::{
    ChargeFrame, CheckRequest, IDEM_BYTES_MAX, RefundReference, RequestFrame, RequestOptions, UnitsField,
    WorkOutcome, shorten,
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

/// The op of a [`CheckBody`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckOp {
    Hit,
    Acquire,
    Peek,
}

impl CheckBody {
    /// A HIT of cost 1 that does not wait.
    pub(super) fn hit(domain: &str, attributes: NamedTexts) -> CheckBody {
        let domain = domain.to_owned();
        CheckBody { domain, attributes, max_wait: Some(0.0), ..CheckBody::default() }
    }

    /// Returns the request as a frame, or a message for the client.
    pub(super) fn frame(&self, op: CheckOp) -> Result<Vec<u8>, String> {
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
        let request = match op {
            CheckOp::Hit => RequestFrame::Hit(request),
            CheckOp::Acquire => RequestFrame::Acquire(request),
            CheckOp::Peek => RequestFrame::Peek(request),
        };
        frame(&request, &self.attributes, &self.descriptors)
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
    encode::fitting(request, texts.into_iter().filter(|pairs| !pairs.is_empty()).collect())
}

/// Leaves out empty values.
fn present(pairs: &[(String, String)]) -> encode::Pairs<'_> {
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
