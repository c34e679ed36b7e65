//! Reader of `key`.

use super::attribute;
use crate::rules::fields::{Fields, boolean, list};
use crate::rules::problem::shown;
use crate::rules::source::{Report, Span};
use crate::rules::written::KEY_PART;
use crate::rules::yaml::{Value, YamlNode};
use crate::rules::{KeyPart, Transform, amount};

pub(super) fn key(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Vec<KeyPart>> {
    let mend = "write `key: [user]` to count each user apart, `key: []` for one counter";
    let node = fields.required("key", mend, report)?;
    let mend = match node.as_scalar() {
        Some(name) => format!("write `key: [{name}]`"),
        None => mend.to_owned(),
    };
    let items = list(node, "key", &mend, report)?;
    if items.len() > KEY_ATTRIBUTES_MAX {
        let message = format!("`key` has {} attributes", items.len());
        report.error(node.at, message, format!("write at most {KEY_ATTRIBUTES_MAX}"));
        return None;
    }
    let mut key: Vec<KeyPart> = Vec::with_capacity(items.len());
    for item in items {
        let Some((at, part)) = part(item, report) else { continue };
        if key.iter().any(|known| known.attribute == part.attribute) {
            let message = format!("{} is written twice in `key`", shown(&part.attribute));
            report.error(at, message, "keep one of the two");
            continue;
        }
        key.push(part);
    }
    Some(key)
}

/// Reads a name, or a mapping with its transformation; returns the span of the name.
fn part(node: &YamlNode, report: &mut Report<'_>) -> Option<(Span, KeyPart)> {
    let Value::Map(_) = node.value else {
        return Some((node.at, KeyPart::plain(attribute(node, "key", report)?)));
    };
    let fields = Fields::read(node, "an entry of `key`", KEY_PART, report)?;
    if fields.is_empty() {
        report.error(node.at, "an entry of `key` is empty", "write the name of an attribute");
        return None;
    }
    let name = fields.required("attribute", "write `{attribute: NAME, …}`", report)?;
    let part = KeyPart::plain(attribute(name, "key", report)?);
    let lowercase = fields.get("lowercase").and_then(|node| boolean(node, "lowercase", report));
    let ipv6_prefix = fields.get("ipv6_prefix").and_then(|node| ipv6_prefix(node, report));
    let transform = Transform { lowercase: lowercase.unwrap_or_default(), ipv6_prefix };
    Some((name.at, KeyPart { transform, ..part }))
}

fn ipv6_prefix(node: &YamlNode, report: &mut Report<'_>) -> Option<u8> {
    let bits = report.settle(node.at, amount::read(node, "ipv6_prefix"))?;
    let known = u8::try_from(bits).ok().filter(|bits| *bits <= IPV6_BITS);
    if known.is_none() {
        let mend = format!("write a number of bits from 1 to {IPV6_BITS}, such as 64, which one network has");
        report.error(node.at, format!("an IPv6 address has no {bits} bits"), mend);
    }
    if bits < PROVIDER_BITS {
        let message = format!("`ipv6_prefix: {bits}` counts the customers of whole providers as one");
        report.warning(node.at, message, "64 is one network, 56 or 48 what one customer may have");
    }
    known
}

/// The maximum of one descriptor.
const KEY_ATTRIBUTES_MAX: usize = 16;

const IPV6_BITS: u8 = 128;

/// The shortest prefix usually allocated to a provider, in bits.
const PROVIDER_BITS: u32 = 32;
