//! Checks of `key` and `show_keys`.

use crate::rules::de::{self, Mapping};
use crate::rules::file::{CommonFields, KeyEntry};
use crate::rules::key::KEY_ATTRIBUTES_MAX;
use crate::rules::problem::shown;
use crate::rules::source::Report;
use crate::rules::{KeyPart, Transform};

pub(super) fn key(
    fields: &CommonFields<'_>,
    mapping: Mapping<'_>,
    report: &mut Report<'_>,
) -> Option<Vec<KeyPart>> {
    if fields.key.len() > KEY_ATTRIBUTES_MAX {
        let message = format!("`key` has {} attributes", fields.key.len());
        report.error(mapping.at("key"), message, format!("write at most {KEY_ATTRIBUTES_MAX}"));
        return None;
    }
    let mut key: Vec<KeyPart> = Vec::with_capacity(fields.key.len());
    let nodes = de::items(mapping, "key");
    for (entry, node) in fields.key.iter().zip(nodes) {
        let part = match &entry.value {
            KeyEntry::Text(attribute) => KeyPart::plain(attribute.0),
            KeyEntry::Mapping(part) => {
                let bits = part.ipv6_prefix.map_or(0, u32::from);
                let at = Mapping(node).at("ipv6_prefix");
                let ipv6_prefix = u8::try_from(bits).ok().filter(|bits| *bits <= IPV6_BITS);
                if ipv6_prefix.is_none() {
                    let mend = format!(
                        "write a number of bits from 1 to {IPV6_BITS}, such as 64, which one network has"
                    );
                    report.error(at, format!("an IPv6 address has no {bits} bits"), mend);
                }
                if (1..PROVIDER_BITS).contains(&bits) {
                    let message =
                        format!("`ipv6_prefix: {bits}` counts the customers of whole providers as one");
                    report.warning(at, message, "64 is one network, 56 or 48 what one customer may have");
                }
                let transform = Transform {
                    lowercase: part.lowercase.unwrap_or_default(),
                    ipv6_prefix: ipv6_prefix.filter(|bits| *bits > 0),
                };
                KeyPart { transform, ..KeyPart::plain(part.attribute.0) }
            }
        };
        if key.iter().any(|known| known.attribute == part.attribute) {
            let message = format!("{} is written twice in `key`", shown(&part.attribute));
            report.error(Mapping(node).at("attribute"), message, "keep one of the two");
            continue;
        }
        key.push(part);
    }
    Some(key)
}

pub(super) fn show_keys(
    fields: &CommonFields<'_>,
    key: &[KeyPart],
    report: &mut Report<'_>,
) -> Vec<Box<str>> {
    let mut shown_keys: Vec<Box<str>> = Vec::new();
    for item in fields.show_keys.iter().flatten() {
        let name = item.value.0;
        if key.iter().all(|part| *part.attribute != *name) {
            let message = format!("{} is not in `key`", shown(name));
            report.error(item.at, message, "write attributes of `key`, whose values operators may then see");
        } else if shown_keys.iter().any(|known| **known == *name) {
            let message = format!("{} is written twice in `show_keys`", shown(name));
            report.error(item.at, message, "keep one of the two");
        } else {
            shown_keys.push(name.into());
        }
    }
    shown_keys
}

const IPV6_BITS: u8 = 128;

/// The shortest prefix usually allocated to a provider, in bits.
const PROVIDER_BITS: u32 = 32;
