//! The index finds the same rules as a check of each rule, for any rules and request.

use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate::limit::Rate;
use tidegate::limit::token_bucket::TokenBucketQuota;
use tidegate::rules::source::Span;
use tidegate::rules::{
    Condition, Domain, DomainContents, KeyPart, KeyScratch, ListKind, ListedEntry, Mismatch, Mode, Network,
    Overrides, Pattern, Position, Priorities, Prioritize, Rule, Selection, Transform,
};

/// Few names and values, so that rules often match; the empty text is a value and a pattern too.
const NAMES: [&str; 5] = ["user", "method", "path", "ip", "unheard-of"];
const VALUES: &str = " a b ab abc aba * é É A aB \u{212a} İ Ⱥ ß 10.0.0.1 10.0.1.1 010.0.0.1 ::ffff:10.0.0.1 2001:db8::1 2001:DB8:0::1 2001:db8:1:: ::a00:1";
const TEXTS: &str = r" a b ab A É k i* ⱥ ẞ * ** a* ab* abc* *b *ab *c *b* *ab* *b*c* *é* a*a a*b*a \* é* É* 10.* 10.0.0.1 2001:db8::1 2001:* *::1";
const NETWORKS: &str = "0.0.0.0/0 10.0.0.0/8 10.0.0.0/24 10.0.0.1/32 ::/0 2001:db8::/32 2001:db8::/48 2001:db8::1/128 ::ffff:10.0.0.0/104";

/// A pattern as written.
#[derive(Clone, Debug)]
enum Said {
    Text(&'static str),
    AnyCase(&'static str),
    Network(&'static str, u8),
    Not(Vec<Said>),
    Present,
}

impl Said {
    fn pattern(&self) -> Pattern {
        match self {
            Said::Text(text) => Pattern::parse(text),
            Said::AnyCase(text) => Pattern::any_case(text),
            Said::Network(address, bits) => {
                Pattern::Network(Network::new(address.parse().unwrap(), *bits).unwrap())
            }
            Said::Not(said) => Pattern::Not(said.iter().map(Said::pattern).collect()),
            Said::Present => Pattern::Present,
        }
    }

    /// The meaning of a pattern, as plainly as possible.
    fn holds(&self, value: &str) -> bool {
        match self {
            Said::Text(text) => fits(text, value),
            Said::AnyCase(text) => fits(&lower(text), &lower(value)),
            Said::Network(network, bits) => {
                let Ok(address) = value.parse::<IpAddr>() else { return false };
                let network: IpAddr = network.parse().unwrap();
                let bits = usize::from(*bits) + if network.is_ipv4() { 96 } else { 0 };
                let (network, address) = (digits(network), digits(address));
                // Only IPv6 has shorter prefixes.
                (bits >= 96 || !address.starts_with(&digits([0; 4].into())[..96]))
                    && network[..bits] == address[..bits]
            }
            Said::Not(said) => !said.iter().any(|said| said.holds(value)),
            Said::Present => true,
        }
    }
}

/// The 128 binary digits of an address, IPv4 being mapped into IPv6.
fn digits(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("{:0128b}", u128::from(v4.to_ipv6_mapped())),
        IpAddr::V6(v6) => format!("{:0128b}", u128::from(v6)),
    }
}

/// Tries every length for every star.
fn fits(pattern: &str, value: &str) -> bool {
    if let Some(rest) = pattern.strip_prefix(r"\*") {
        return value.strip_prefix('*').is_some_and(|value| fits(rest, value));
    }
    if let Some(rest) = pattern.strip_prefix('*') {
        return (0..=value.len()).filter_map(|at| value.get(at..)).any(|value| fits(rest, value));
    }
    match pattern.chars().next() {
        None => value.is_empty(),
        Some(first) => {
            value.strip_prefix(first).is_some_and(|value| fits(&pattern[first.len_utf8()..], value))
        }
    }
}

fn lower(text: &str) -> String {
    text.chars().map(|character| character.to_lowercase().next().unwrap()).collect()
}

/// A condition on one attribute: its values, and whether it may be absent.
type Asked = (&'static str, Vec<Said>, bool);

/// The conditions of an entry, as the plain matcher reads them.
#[derive(Clone, Debug)]
struct Asks {
    conditions: Vec<Asked>,
    key: Vec<(&'static str, Transform)>,
    mode: Mode,
}

impl Asks {
    fn match_(&self, attributes: &[(&str, &str)]) -> bool {
        let value = |name: &str| {
            let first = attributes.iter().find(|(known, _)| *known == name);
            first.map(|(_, value)| *value).filter(|value| !value.is_empty())
        };
        self.key.iter().all(|(name, _)| value(name).is_some())
            && self.conditions.iter().all(|(name, any_of, or_absent)| match value(name) {
                Some(value) => any_of.iter().any(|said| said.holds(value)),
                None => *or_absent,
            })
    }

    fn conditions(&self) -> Vec<Condition> {
        let condition = |(name, any_of, or_absent): &Asked| Condition {
            or_absent: *or_absent,
            ..Condition::new(name, any_of.iter().map(Said::pattern).collect())
        };
        self.conditions.iter().map(condition).collect()
    }

    fn rule(&self, overrides: &[Asks]) -> Rule {
        let list = (1..).zip(overrides).map(|(number, asks)| (asks.conditions(), number)).collect();
        let key = self
            .key
            .iter()
            .map(|(name, transform)| KeyPart { transform: *transform, ..KeyPart::plain(name) });
        let quota = TokenBucketQuota::new(Rate::new(1, 1_000_000_000).unwrap(), 1).unwrap();
        Rule {
            conditions: self.conditions(),
            key: key.collect(),
            mode: self.mode,
            overrides: (!overrides.is_empty()).then(|| Arc::new(Overrides { list, ..Overrides::default() })),
            ..Rule::new("rule", position(), quota.into())
        }
    }

    fn listed(&self, kind: ListKind) -> ListedEntry {
        ListedEntry {
            name: "entry".into(),
            position: position(),
            kind,
            conditions: self.conditions(),
            mode: Mode::Enforce,
            help: None,
        }
    }
}

fn position() -> Position {
    Position { file: "rules.yaml".into(), span: Span::START }
}

/// A domain with all its parts.
#[derive(Clone, Debug)]
struct Whole {
    rules: Vec<(Asks, Vec<Asks>)>,
    exempt: Vec<Asks>,
    deny: Vec<Asks>,
    prioritize: Vec<Asks>,
}

impl Whole {
    fn domain(&self) -> Domain {
        let rules = self.rules.iter().map(|(asks, overrides)| asks.rule(overrides)).collect();
        // As in files: the lists alternate.
        let mut lists: Vec<_> = self.deny.iter().map(|asks| asks.listed(ListKind::Deny)).collect();
        lists.extend(self.exempt.iter().map(|asks| asks.listed(ListKind::Exempt)));
        let prioritize = self.prioritize.iter().enumerate();
        let prioritize = prioritize
            .map(|(priority, asks)| Prioritize {
                position: position(),
                conditions: asks.conditions(),
                priority,
            })
            .collect();
        let names = (0..=self.prioritize.len()).map(|number| number.to_string().into()).collect();
        Domain::with(
            "api",
            DomainContents {
                rules,
                lists,
                priorities: Priorities { names, prioritize },
                ..DomainContents::default()
            },
        )
    }

    /// The numbers that match, by looking at each.
    fn naive(&self, attributes: &[(&str, &str)]) -> Vec<u32> {
        let all = self.rules.iter().map(|(asks, _)| asks).chain(&self.exempt).chain(&self.deny);
        (0..).zip(all).filter(|(_, asks)| asks.match_(attributes)).map(|(number, _)| number).collect()
    }

    fn check(&self, requests: &[Vec<(&str, &str)>]) {
        let domain = self.domain();
        // Reused for every request, as in a decision thread.
        let (mut matching, mut scratch) = (Vec::new(), KeyScratch::default());
        for (request, by_names) in requests.iter().flat_map(|request| [(request, false), (request, true)]) {
            let mut selection = Selection::default();
            let others: Vec<_> = request.iter().map(|(name, _)| (*name, "other")).collect();
            let known = if by_names { domain.select_by_names(&others) } else { None };
            if !known.is_some_and(|known| known.select(request, &mut selection, &mut matching)) {
                domain.select(request, &mut selection, &mut matching);
            }
            assert_eq!(matching, self.naive(request), "{request:?}");
            for number in 0..u32::try_from(self.rules.len() + self.exempt.len() + self.deny.len()).unwrap() {
                let mode = self.rules.get(number as usize).map_or(Mode::Enforce, |(asks, _)| asks.mode);
                let (why_not, is_disabled) = (domain.why_not(number, mode, request), mode == Mode::Disabled);
                assert_eq!(why_not == Some(Mismatch::Disabled), is_disabled, "{number}: {why_not:?}");
                let is_found = matching.contains(&number);
                assert!(is_disabled || why_not.is_none() == is_found, "{number}: {why_not:?} {request:?}");
                assert_eq!(domain.listed(number).is_some(), number as usize >= self.rules.len());
            }
            let first_of = |list: &[Asks]| list.iter().position(|asks| asks.match_(request));
            for number in matching.iter().filter(|number| (**number as usize) < self.rules.len()) {
                let (asks, overrides) = &self.rules[*number as usize];
                let value = |name: &str| request.iter().find(|(known, _)| *known == name).unwrap().1;
                let sent: Vec<_> = asks.key.iter().map(|(name, _)| value(name)).collect();
                assert_eq!(domain.key_values(*number, &selection).collect::<Vec<_>>(), sent, "{request:?}");
                let mut counted = vec![String::new(); sent.len()];
                for ((text, (_, transform)), sent) in counted.iter_mut().zip(&asks.key).zip(&sent) {
                    transform.push(sent, text);
                }
                let found = domain.transformed_key(*number, &selection, &mut scratch).values();
                assert_eq!(found.collect::<Vec<_>>(), counted, "{request:?}");
                assert!(!domain.key_is_plain(*number) || sent == counted);
                let first = first_of(overrides).map(|at| u32::try_from(at + 1).unwrap());
                assert_eq!(domain.override_of(*number, &selection), first, "{request:?}");
            }
            let expected = first_of(&self.prioritize).unwrap_or(self.prioritize.len()).to_string();
            assert_eq!(domain.priority(None, &selection), Some(&*expected), "{request:?}");
            assert_eq!(domain.priority(Some("unheard-of"), &selection), Some(&*expected), "{request:?}");
            assert_eq!(domain.priority(Some("0"), &selection), Some("0"));
        }
    }
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..4])
}

fn one_of(words: &'static str) -> impl Strategy<Value = &'static str> {
    prop::sample::select(words.split(' ').collect::<Vec<_>>())
}

fn said() -> impl Strategy<Value = Said> {
    let plain = prop_oneof![
        6 => one_of(TEXTS).prop_map(Said::Text),
        3 => one_of(TEXTS).prop_map(Said::AnyCase),
        3 => one_of(NETWORKS).prop_map(|network| {
            let (network, bits) = network.split_once('/').unwrap();
            Said::Network(network, bits.parse().unwrap())
        }),
    ];
    let not = prop::collection::vec(plain.clone(), 1..12).prop_map(Said::Not);
    prop_oneof![20 => plain, 2 => not, 1 => Just(Said::Present)]
}

/// Sometimes more values than the linear comparison takes.
fn asked() -> impl Strategy<Value = Asked> {
    let any_of =
        prop_oneof![4 => prop::collection::vec(said(), 1..4), 1 => prop::collection::vec(said(), 6..14)];
    let alone = (name(), any_of, prop::bool::weighted(0.2));
    prop_oneof![9 => alone, 1 => name().prop_map(|name| (name, Vec::new(), true))]
}

fn asks() -> impl Strategy<Value = Asks> {
    let mode = prop_oneof![4 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Disabled)];
    let bits = prop_oneof![3 => Just(None), 1 => (1..=128u8).prop_map(Some)];
    let transform =
        (any::<bool>(), bits).prop_map(|(lowercase, ipv6_prefix)| Transform { lowercase, ipv6_prefix });
    let key = prop::collection::btree_map(name(), transform, 0..2);
    (prop::collection::vec(asked(), 0..3), key, mode).prop_map(|(conditions, key, mode)| Asks {
        conditions,
        key: key.into_iter().collect(),
        mode,
    })
}

/// Without the fields that only a rule has.
fn entry() -> impl Strategy<Value = Asks> {
    asks().prop_map(|asks| Asks { key: Vec::new(), mode: Mode::Enforce, ..asks })
}

fn whole() -> impl Strategy<Value = Whole> {
    // Few are compared one by one.
    let entries =
        || prop_oneof![4 => prop::collection::vec(entry(), 0..3), 1 => prop::collection::vec(entry(), 9..14)];
    (prop::collection::vec((asks(), entries()), 0..12), entries(), entries(), entries())
        .prop_map(|(rules, exempt, deny, prioritize)| Whole { rules, exempt, deny, prioritize })
}

fn request() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    prop::collection::vec((prop::sample::select(&NAMES[..]), one_of(VALUES)), 0..9)
}

/// Few letters, so that one is often the prefix of another.
fn prefix() -> impl Strategy<Value = String> {
    let letter = || prop::sample::select(&['\0', 'a', 'b', 'ÿ'][..]);
    let start = prop::sample::select(&["", "aaaaaaa"][..]);
    (start, prop::collection::vec(letter(), 0..12))
        .prop_map(|(start, end)| start.chars().chain(end).collect())
}

proptest! {
    #![proptest_config(crate::rng::cases(120))]

    #[test]
    fn index_matches_linear_search(
        whole in whole(),
        requests in prop::collection::vec(request(), 1..6),
    ) {
        whole.check(&requests);
    }

    #[test]
    fn finds_all_prefixes(
        known in prop::collection::vec(prefix(), 0..20),
        texts in prop::collection::vec(prefix(), 1..9),
    ) {
        let patterns = known.iter().map(|prefix| &*Box::leak(format!("{prefix}*").into_boxed_str()));
        let rules = patterns.map(|pattern| rule_of(vec![("path", vec![Said::Text(pattern)], false)], &[]));
        let requests: Vec<_> = texts.iter().map(|text| vec![("path", text.as_str())]).collect();
        only(rules.collect()).check(&requests);
    }
}

fn rule_of(conditions: Vec<Asked>, key: &[&'static str]) -> (Asks, Vec<Asks>) {
    let key = key.iter().map(|name| (*name, Transform::default())).collect();
    (Asks { conditions, key, mode: Mode::Enforce }, Vec::new())
}

fn only(rules: Vec<(Asks, Vec<Asks>)>) -> Whole {
    Whole { rules, exempt: Vec::new(), deny: Vec::new(), prioritize: Vec::new() }
}

/// More attributes than a request can carry, and a request of maximum size.
#[test]
fn matches_with_maximum_attributes() {
    let names: Vec<&'static str> =
        (0..300).map(|number| &*Box::leak(format!("attribute-{number}").into_boxed_str())).collect();
    let whole = only(names.iter().map(|name| rule_of(Vec::new(), &[name])).collect());
    let request: Vec<_> = names.iter().step_by(2).take(128).map(|name| (*name, "x")).collect();
    assert_eq!(whole.naive(&request).len(), 128);
    whole.check(&[request]);
}

/// Names that differ only at an end or in the middle, few ones and many.
#[test]
fn tells_names_of_any_length_apart() {
    let mut names: Vec<String> = (1..40).map(|length| "a".repeat(length)).collect();
    for length in [3, 4, 7, 8, 9, 15, 16, 17, 20, 40] {
        for at in [0, length / 2, length - 1] {
            let (start, end) = ("a".repeat(at), "a".repeat(length - at - 1));
            names.push(format!("{start}b{end}"));
        }
    }
    let names: Vec<&'static str> = names.into_iter().map(|name| &*name.leak()).collect();
    let requests: Vec<_> = names.iter().map(|name| vec![(*name, "x")]).collect();
    for known in names.windows(12).chain([&*names]) {
        only(known.iter().map(|name| rule_of(Vec::new(), &[name])).collect()).check(&requests);
    }
}

#[test]
fn every_character_matches_its_lower_case_in_any_case() {
    for character in
        (char::MIN..=char::MAX).filter(|character| character.to_lowercase().next() != Some(*character))
    {
        let (text, lowered) = (character.to_string(), lower(&character.to_string()));
        let condition = Condition::new("path", vec![Pattern::any_case(&lowered)]);
        assert!(condition.holds(Some(&text)) && condition.holds(Some(&lowered)), "{character:?}");
        // The buffer for a value has so much room.
        assert!(lowered.len() * 2 <= character.len_utf8() * 3, "{character:?}");
    }
}

/// Longer than the socket allows: slower paths must agree.
#[test]
fn matches_values_of_any_length() {
    // Longer than a request carries.
    let value = format!("{}É", "aB".repeat(600));
    let start: &'static str = Box::leak(format!("{}*", "aB".repeat(400)).into_boxed_str());
    let end: &'static str = Box::leak(format!("*{}é", "ab".repeat(400)).into_boxed_str());
    // Parts are looked up by their first 32 bytes.
    let part: &'static str = Box::leak(format!("*{}É*", "aB".repeat(20)).into_boxed_str());
    let other: &'static str = Box::leak(format!("*{}A*", "aB".repeat(20)).into_boxed_str());
    let said = [Said::Text(start), Said::AnyCase(end), Said::Text(end), Said::AnyCase(start)];
    let parts = [Said::Text(part), Said::Text(other), Said::AnyCase(part)];
    let said = said.into_iter().chain(parts);
    let rules = said.map(|said| rule_of(vec![("path", vec![said], false)], &[])).collect();
    let whole = only(rules);
    assert_eq!(whole.naive(&[("path", &value)]), [0, 1, 3, 4, 6]);
    whole.check(&[vec![("path", &value)]]);
}

#[test]
fn reports_why_a_rule_does_not_match() {
    let conditions = vec![("method", vec![Said::Text("POST")], false), ("ip", Vec::new(), true)];
    let domain = only(vec![rule_of(conditions, &["user"])]).domain();
    let why_not =
        |number, attributes: &[(&str, &str)]| match domain.why_not(number, Mode::Enforce, attributes)? {
            Mismatch::Disabled => Some("disabled".to_owned()),
            Mismatch::Absent { attribute, line } => Some(format!("no {attribute} on line {line}")),
            Mismatch::Condition(condition) => Some(format!("another {}", condition.attribute)),
        };
    let post = ("method", "POST");
    assert_eq!(why_not(0, &[post, ("user", "u")]), None);
    assert_eq!(why_not(0, &[post]).as_deref(), Some("no user on line 0"));
    assert_eq!(why_not(0, &[("method", "")]).as_deref(), Some("no method on line 0"));
    assert_eq!(why_not(0, &[("method", "GET"), post]).as_deref(), Some("another method"));
    assert_eq!(why_not(0, &[post, ("user", "u"), ("ip", "x")]).as_deref(), Some("another ip"));
    assert_eq!(why_not(1, &[]), None);
    assert_eq!(domain.why_not(0, Mode::Disabled, &[]), Some(Mismatch::Disabled));
}
