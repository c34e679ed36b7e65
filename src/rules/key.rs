//! What a rule counts by: attributes, perhaps transformed so that what is one caller counts as one.

/// One attribute of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPart {
    /// The attribute's name.
    pub attribute: Box<str>,
    /// What is done to its value before it is counted by.
    pub transform: Transform,
}

/// What is done to a value before it is counted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transform {
    /// Letters in lower case.
    pub lowercase: bool,
    /// The bits of an IPv6 address that count, 1 to 128; IPv4 stays whole.
    pub ipv6_prefix: Option<u8>,
}

impl KeyPart {
    /// An attribute as it is sent.
    #[must_use]
    pub fn plain(attribute: &str) -> KeyPart {
        KeyPart { attribute: attribute.into(), transform: Transform::default() }
    }

    /// Whether the value counts as it is sent.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.transform == Transform::default()
    }
}
