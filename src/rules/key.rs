//! Keys of rules: attributes, optionally transformed so that different spellings of one caller share a state.

use std::fmt::{self, Write};
use std::net::IpAddr;

use arrayvec::ArrayVec;

use super::{fold, network};

/// One attribute of a key.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct KeyPart {
    /// The attribute's name.
    pub attribute: Box<str>,
    /// The transformation of its value.
    #[serde(flatten)]
    pub transform: Transform,
}

/// The transformation of a value in a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Transform {
    /// Convert to lower case.
    pub lowercase: bool,
    /// Prefix length to which IPv6 addresses are cut, 1 to 128; IPv4 addresses stay whole.
    pub ipv6_prefix: Option<u8>,
}

impl KeyPart {
    /// Makes a part without a transformation.
    pub fn plain(attribute: &str) -> KeyPart {
        KeyPart { attribute: attribute.into(), transform: Transform::default() }
    }

    /// Whether the value is used as sent.
    pub(crate) fn is_plain(&self) -> bool {
        self.transform == Transform::default()
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeyPart { attribute, transform: Transform { lowercase, ipv6_prefix } } = self;
        let case = if *lowercase { " in lower case" } else { "" };
        let prefix = ipv6_prefix.map(|bits| format!(" /{bits}")).unwrap_or_default();
        write!(f, "{attribute}{case}{prefix}")
    }
}

impl Transform {
    /// Appends the transformed value. With `ipv6_prefix` an address gets its canonical form, cut to the
    /// prefix; an IPv4-mapped address becomes IPv4. Other texts are kept.
    pub fn push(self, value: &str, to: &mut String) {
        if let Some(bits) = self.ipv6_prefix
            && let Some(address) = network::address(value)
        {
            let address = match address {
                IpAddr::V4(_) => address,
                IpAddr::V6(_) => network::masked(address, bits),
            };
            // Writing to a string cannot fail.
            let _ = write!(to, "{address}");
        } else if self.lowercase {
            fold::push_lowercase(value, to);
        } else {
            to.push_str(value);
        }
    }
}

/// The transformed values of one key. The buffer is reused, so that only the first few keys allocate.
#[derive(Clone, Debug, Default)]
pub struct KeyScratch {
    text: String,
    /// The end of each value in `text`.
    ends: ArrayVec<usize, KEY_ATTRIBUTES_MAX>,
}

impl KeyScratch {
    /// Returns the values in the order of the key.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        let start = |value: usize| value.checked_sub(1).and_then(|before| self.ends.get(before).copied());
        (0..self.ends.len()).map(move |value| {
            let end = self.ends.get(value).copied().unwrap_or_default();
            self.text.get(start(value).unwrap_or_default()..end).unwrap_or_default()
        })
    }

    pub(super) fn fill<'a>(&mut self, values: impl Iterator<Item = (Transform, &'a str)>) {
        self.text.clear();
        self.ends.clear();
        for (transform, value) in values.take(KEY_ATTRIBUTES_MAX) {
            transform.push(value, &mut self.text);
            self.ends.push(self.text.len());
        }
    }
}

/// The maximum of one descriptor.
pub(super) const KEY_ATTRIBUTES_MAX: usize = 16;
