//! What is told of a value: the words of the rules as they are, all else as digests, so that under the same rules the same
//! are matched and the same caller stays the same caller.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::digest::Key;
use super::words::{OfAttribute, Words};
use crate::rules::RuleSet;

/// How the values of one recording are told.
#[derive(Debug)]
pub struct Disguise {
    key: Key,
    told: Told,
    domains: HashMap<Box<str>, Words>,
}

/// What is told as it is, beside the words of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Every value.
    pub all: bool,
    /// The values of these attributes.
    pub attributes: Vec<Box<str>>,
}

/// A value as it is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Disguised<'v> {
    pub(super) text: Cow<'v, str>,
    /// Whether the rules see in it what they saw.
    pub(super) is_seen_alike: bool,
}

impl Disguise {
    /// By the words of these rules.
    #[must_use]
    pub fn new(key: Key, rules: &RuleSet, told: Told) -> Disguise {
        let of = |domain: &std::sync::Arc<_>| Words::of(domain);
        let domains = rules.domains().iter().map(|domain| (domain.name().into(), of(domain))).collect();
        Disguise { key, told, domains }
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Whether a priority is told. One that the rules do not know is to them as none.
    pub(super) fn tells_priority(&self, domain: &str, name: &str) -> bool {
        self.told.all || self.domains.get(domain).is_some_and(|words| words.know_priority(name))
    }

    /// A value of an attribute, as it is told.
    pub(super) fn value<'v>(&self, domain: &str, attribute: &str, value: &'v str) -> Disguised<'v> {
        let words = self.domains.get(domain);
        let is_told = self.told.all
            || value.is_empty()
            || self.told.attributes.iter().any(|told| **told == *attribute)
            || words.is_some_and(|words| words.name(attribute, value));
        if is_told {
            return Disguised { text: value.into(), is_seen_alike: true };
        }
        let letters = || self.key.letters_of(attribute, value);
        let Some(words) = words else { return Disguised { text: letters().into(), is_seen_alike: true } };
        let found = match (words.of_attribute(attribute), value.parse::<IpAddr>()) {
            (Some(of), Ok(address)) if of.is_address => {
                let address = self.address(attribute, of, address.to_canonical()).to_string();
                words.see_the_same(attribute, value, &address).then_some(address)
            }
            _ => self.among_pieces(words, attribute, value),
        };
        let is_seen_alike = found.is_some();
        Disguised { text: found.unwrap_or_else(letters).into(), is_seen_alike }
    }

    /// A value of which no more is told than what pieces of patterns it has, with a digest in place of all between them.
    fn among_pieces(&self, words: &Words, attribute: &str, value: &str) -> Option<String> {
        let pieces = words.pieces_in(attribute, value);
        // What stands between may look like a piece of another pattern by chance: then not a second time.
        { 0..TRIES }.find_map(|attempt| {
            let purpose: Cow<'_, str> =
                if attempt == 0 { attribute.into() } else { format!("{attribute}/{attempt}").into() };
            let (mut told, mut start, mut gaps) = (String::new(), 0, 0);
            for run in pieces.chunk_by(|one, other| one == other) {
                let text = value.get(start..start + run.len())?;
                start += run.len();
                if run.first() == Some(&true) {
                    told.push_str(text);
                } else {
                    gaps += 1;
                    told.push_str(&self.key.letters_of(&purpose, text));
                }
            }
            (gaps <= GAPS_MAX && words.see_the_same(attribute, value, &told)).then_some(told)
        })
    }

    /// Another address that is in the same networks of the rules as this one. Two that have their first bits in common
    /// have others in common, as many as before.
    fn address(&self, attribute: &str, words: &OfAttribute, address: IpAddr) -> IpAddr {
        // Past the last bit by which any network can be told from it, and no further, bits are free to change.
        let told = |network: &crate::rules::Network| {
            let shared = shared_bits(network.address(), address)?;
            Some(u32::from(network.bits()).min(shared + 1))
        };
        let kept = words.networks.iter().filter_map(told).max().unwrap_or_default();
        let (bits, width) = to_bits(address);
        let mut told = bits;
        for place in kept..width {
            let behind = width - place;
            let before = bits.checked_shr(behind).unwrap_or_default();
            let mut bytes = [0; 18];
            let parts = before.to_be_bytes().into_iter().chain([u8::try_from(place).unwrap_or_default()]);
            let parts = parts.chain([u8::from(address.is_ipv4())]);
            bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
            told ^= u128::from(self.key.digest(attribute, &bytes) & 1) << (behind - 1);
        }
        of_bits(told, width)
    }
}

/// How many first bits two addresses of one kind share.
fn shared_bits(one: IpAddr, other: IpAddr) -> Option<u32> {
    let ((one, width), (other, of_other)) = (to_bits(one), to_bits(other));
    (width == of_other).then(|| ((one ^ other) << (128 - width)).leading_zeros().min(width))
}

fn to_bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u32::from(address).into(), 32),
        IpAddr::V6(address) => (address.into(), 128),
    }
}

fn of_bits(bits: u128, width: u32) -> IpAddr {
    match u32::try_from(bits) {
        Ok(bits) if width == 32 => Ipv4Addr::from(bits).into(),
        _ => Ipv6Addr::from(bits).into(),
    }
}

/// The chance that a digest of sixteen letters holds a piece of one letter is high, and four times over still not small;
/// pieces are longer.
const TRIES: usize = 8;

/// A value that grows too much is no value any more. Patterns have a star or two.
const GAPS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Disguise, Told};
    use crate::record::Key;
    use crate::rules::{RuleSet, read_text};

    const RULES: &str = "\
domain: api
deny:
  - {name: banned, match: {user: [mallory, eve]}}
  - {name: bots, match: {agent: {glob: '*gptbot*', ignore_case: true}}}
  - {name: inside, match: {ip: {cidr: [10.0.0.0/8, 10.1.2.3/32, '2001:db8::/32']}}}
limits:
  - {name: per-user, key: [user], rate: 2/s}
  - {name: writes, match: {method: POST, path: '/v1/users/*/orders*'}, key: [user], rate: 1/s}
  - {name: not-static, match: {path: {not: ['/static/*', '*.css']}}, key: [ip], rate: 1/s}
  - {name: nets, key: [{attribute: ip, ipv6_prefix: 64}], rate: 1/s}
descriptors:
  - {key: tenant, value: acme, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: tenant, value: 'b*z', rate_limit: {unit: second, requests_per_unit: 1}}
";

    fn disguise(told: Told) -> Disguise {
        let loaded = read_text("rules.yaml", RULES);
        assert!(!loaded.has_errors(), "{:?}", loaded.problems);
        Disguise::new(Key::from_bytes([3; 16]), &RuleSet::new(loaded.domains), told)
    }

    fn told(attribute: &str, value: &str) -> String {
        let disguise = disguise(Told::default());
        let disguised = disguise.value("api", attribute, value);
        assert!(disguised.is_seen_alike, "{attribute}={value}");
        disguised.text.into_owned()
    }

    #[test]
    fn words_of_the_rules_are_told_and_nothing_else() {
        for (attribute, value) in [("user", "mallory"), ("method", "POST"), ("tenant", "acme"), ("any", "")] {
            assert_eq!(told(attribute, value), value);
        }
        for (attribute, value, start, end) in [
            ("user", "ann", "", ""),
            ("method", "DELETE", "", ""),
            ("path", "/v1/users/4711/orders?page=2", "/v1/users/", ""),
            ("path", "/static/ann.png", "/static/", ""),
            ("path", "/ann/style.css", "", ".css"),
            ("agent", "Mozilla/5.0 (ann) GPTBot/1.0", "", ""),
            ("tenant", "blitz", "b", "z"),
            ("token", "4711", "", ""),
        ] {
            let told = told(attribute, value);
            assert!(told.starts_with(start) && told.ends_with(end), "{value}: {told}");
            for personal in ["ann", "4711", "page", "lit", "DELETE"] {
                assert!(!told.contains(personal), "{value}: {told}");
            }
        }
        assert!(told("path", "/v1/users/4711/orders?page=2").contains("/orders"));
        assert!(told("agent", "Mozilla/5.0 GPTBot/1.0").contains("GPTBot"));
        assert_ne!(told("path", "/v1/users/1/orders"), told("path", "/v1/users/2/orders"));
    }

    #[test]
    fn addresses_stay_in_their_networks_and_beside_their_neighbours() {
        assert_eq!(told("ip", "10.1.2.3"), "10.1.2.3", "a rule names it");
        let address = told("ip", "10.200.2.3");
        assert!(address.starts_with("10.") && address != "10.200.2.3", "{address}");
        assert!(!told("ip", "192.0.2.7").starts_with("10."));
        let (one, mate, other) =
            (told("ip", "2001:db8:1:2::1"), told("ip", "2001:DB8:1:2::ffff"), told("ip", "2001:db8:1:3::1"));
        let net = |address: &str| address.parse::<std::net::Ipv6Addr>().unwrap().segments()[..4].to_vec();
        assert_eq!(net(&one)[..2], [0x2001, 0xdb8]);
        assert_eq!(net(&one), net(&mate));
        assert_ne!(net(&one), net(&other));
        assert_ne!(one, mate);
        assert!(told("ip", "unknown").parse::<std::net::IpAddr>().is_err());
    }

    #[test]
    fn what_is_asked_for_is_told_in_clear() {
        let kept = disguise(Told { all: false, attributes: vec!["path".into()] });
        assert_eq!(kept.value("api", "path", "/a").text, "/a");
        assert_ne!(kept.value("api", "user", "ann").text, "ann");
        assert_eq!(
            disguise(Told { all: true, attributes: Vec::new() }).value("api", "user", "ann").text,
            "ann"
        );
        assert_ne!(kept.value("other", "user", "mallory").text, "mallory", "no rule of that domain names it");
    }

    fn value() -> impl Strategy<Value = String> {
        const PIECES: &[&str] =
            &["/v1/users/", "/orders", "/static/", ".css", "gptbot", "GPTBot", "b", "z", "x", "É", "4711"];
        prop::collection::vec(prop::sample::select(PIECES), 0..6).prop_map(|pieces| pieces.concat())
    }

    fn address() -> impl Strategy<Value = String> {
        let near = prop::sample::select(&[0x0a01_0203_u32, 0x0a00_0000, 0x0b00_0000, 0xc000_0201][..]);
        let v4 =
            (near, 0..32u32).prop_map(|(near, bit)| std::net::Ipv4Addr::from(near ^ 1 << bit).to_string());
        let v6 = (0..128u32)
            .prop_map(|bit| std::net::Ipv6Addr::from(0x2001_0db8_u128 << 96 ^ 1 << bit).to_string());
        prop_oneof![v4, v6]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_same_rules_match_what_is_told(
            (user, path, agent, tenant, ip) in (value(), value(), value(), value(), address()),
        ) {
            let rules = RuleSet::new(read_text("rules.yaml", RULES).domains);
            let disguise = disguise(Told::default());
            let asked = [("user", user), ("path", path), ("agent", agent), ("tenant", tenant), ("ip", ip)];
            let disguised: Vec<_> =
                asked.iter().map(|(key, value)| (*key, disguise.value("api", key, value))).collect();
            prop_assume!(disguised.iter().all(|(_, told)| told.is_seen_alike));
            let asked: Vec<(&str, &str)> = asked.iter().map(|(key, value)| (*key, &**value)).collect();
            let told: Vec<(&str, &str)> = disguised.iter().map(|(key, told)| (*key, &*told.text)).collect();
            let domain = &rules.domains()[0];
            let matching = |attributes: &[(&'static str, &str)]| {
                let all = u32::try_from(domain.rules().len() + domain.lists().len()).unwrap();
                let matching = (0..all).filter(|number| domain.why_not(*number, attributes).is_none());
                let nodes = attributes.iter().map(|pair| domain.tree().find(&[*pair])).collect::<Vec<_>>();
                (matching.collect::<Vec<_>>(), nodes)
            };
            let (asked, told): (Vec<_>, Vec<_>) = (
                asked.iter().map(|(key, value)| (*key, *value)).collect(),
                told.iter().map(|(key, value)| (*key, *value)).collect(),
            );
            prop_assert_eq!(matching(&asked), matching(&told), "{:?}", told);
        }
    }
}
