//! The messages of Envoy's rate limit service (envoy/service/ratelimit/v3/rls.proto) and of health checks, as far as they are
//! used here. Texts are bytes: Envoy sends header values that are not UTF-8.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};

#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) domain: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub(super) descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint32, tag = "3")]
    pub(super) hits_addend: u32,
}

/// A list of entries that one limit may count.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(super) entries: Vec<DescriptorEntry>,
    #[prost(message, optional, tag = "2")]
    pub(super) limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    pub(super) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(super) is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct DescriptorEntry {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

/// The limit that a descriptor has of its own.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    /// The number of a unit.
    #[prost(int32, tag = "2")]
    pub(super) unit: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    pub(super) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(super) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(super) response_headers_to_add: Vec<HeaderValue>,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) raw_body: Vec<u8>,
}

/// Codes of a response and of a descriptor.
pub(super) const OK: i32 = 1;
pub(super) const OVER_LIMIT: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(super) struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub(super) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(super) duration_until_reset: Option<WholeSeconds>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    /// The number of a unit of the service; 0: none of them.
    #[prost(int32, tag = "2")]
    pub(super) unit: i32,
    #[prost(string, tag = "3")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WholeSeconds {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) service: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

/// Whether a request has few enough descriptors and entries to be decoded: each takes some times its bytes.
pub(super) fn is_small(mut request: &[u8]) -> Result<bool, DecodeError> {
    let (mut descriptors, mut entries) = (0, 0);
    while request.has_remaining() {
        let (tag, wire_type) = decode_key(&mut request)?;
        if (tag, wire_type) != (DESCRIPTORS_TAG, WireType::LengthDelimited) {
            skip_field(wire_type, tag, &mut request, DecodeContext::default())?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut request)?).unwrap_or(usize::MAX);
        let (descriptor, rest) = request.split_at_checked(length).unwrap_or((request, &[]));
        descriptors += 1;
        entries += count_entries(descriptor)?;
        if descriptors > DESCRIPTORS_MAX || entries > ENTRIES_MAX {
            return Ok(false);
        }
        request = rest;
    }
    Ok(true)
}

/// Counts the entries of a descriptor, up to one too many.
fn count_entries(mut descriptor: &[u8]) -> Result<usize, DecodeError> {
    let mut entries = 0;
    while descriptor.has_remaining() && entries <= ENTRIES_MAX {
        let (tag, wire_type) = decode_key(&mut descriptor)?;
        skip_field(wire_type, tag, &mut descriptor, DecodeContext::default())?;
        entries += usize::from(tag == ENTRIES_TAG);
    }
    Ok(entries)
}

const DESCRIPTORS_TAG: u32 = 2;
const ENTRIES_TAG: u32 = 1;

/// Four requests of the protocol.
pub(super) const DESCRIPTORS_MAX: usize = 4 * crate::protocol::DESCRIPTORS_MAX;

/// In all descriptors together: a single one may have more than are judged.
pub(super) const ENTRIES_MAX: usize = DESCRIPTORS_MAX * crate::protocol::PAIRS_MAX;
