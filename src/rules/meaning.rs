//! Converts rules as written to rules as compiled. An error leaves its rule out.

mod conditions;
mod fleet;
mod limits;
mod overrides;
mod quotas;
mod shed;
mod tree;

use super::de::{self, FileNode};
use super::draft::Draft;
use super::file::{
    Algorithm, CommonFields, ConcurrencyFields, DenyFields, ExemptFields, KeyEntry, PrioritizeFields,
    RuleFields,
};
use super::key::KEY_ATTRIBUTES_MAX;
use super::problem::shown;
use super::source::Report;
use super::values::{Name, PercentText};
use super::yaml::Value;
use super::{
    Condition, Guard, KeyPart, ListKind, ListedEntry, Mode, Prioritize, RefundOn, Rule, Transform, check_name,
};
use conditions::conditions;
pub(super) use fleet::DefaultScope;
use fleet::{fleet, shared};
use limits::Admitted;
pub(super) use shed::shed;
pub(super) use tree::descriptors;

/// A rule, and its shadow rule from `candidate`.
pub(super) type RuleAndCandidate = (Rule, Option<Rule>);

/// Returns the named entries of a file with their fields, in its order: the first of two with the same name keeps it.
pub(super) fn entries(file: FileNode<'_>) -> Vec<(&'static str, FileNode<'_>)> {
    let fields = ["limits", "concurrency", "exempt", "deny"];
    let of_field = |field| file.items(field).map(move |node| (field, node));
    let mut entries: Vec<_> = fields.into_iter().flat_map(of_field).collect();
    entries.sort_by_key(|(_, node)| node.at.byte);
    entries
}

/// Reads one of [`entries`].
pub(super) fn add_entry((field, node): (&str, FileNode<'_>), given: DefaultScope, draft: &mut Draft) {
    match field {
        "limits" => draft.add_rule(node, limit_rule(node, given)),
        "concurrency" => draft.add_rule(node, concurrency_rule(node, given)),
        "exempt" => draft.add_listed(node, listed(node, ListKind::Exempt)),
        _ => draft.add_listed(node, listed(node, ListKind::Deny)),
    }
}

/// What a rule of `limits` and one of `concurrency` do not have in common.
struct KindFields<'n> {
    algorithm: Algorithm,
    admitted: Option<Admitted>,
    unit: Option<Name<'n>>,
    refund_on: Option<RefundOn>,
    max_over: Option<PercentText<0>>,
}

fn limit_rule(node: FileNode<'_>, given: DefaultScope) -> Option<RuleAndCandidate> {
    let fields: RuleFields<'_> = node.read_whole()?;
    let own = |key: &[KeyPart]| KindFields {
        algorithm: fields.algorithm.unwrap_or_default(),
        admitted: limits::admitted(&fields, key, node),
        unit: fields.unit,
        refund_on: fields.refund_on,
        max_over: fields.max_over,
    };
    rule(&fields.common, own, node, given)
}

fn concurrency_rule(node: FileNode<'_>, given: DefaultScope) -> Option<RuleAndCandidate> {
    let fields: ConcurrencyFields<'_> = node.read_whole()?;
    let own = |key: &[KeyPart]| KindFields {
        algorithm: Algorithm::Concurrency,
        admitted: limits::admitted_work(&fields, key, node),
        unit: None,
        refund_on: None,
        max_over: None,
    };
    rule(&fields.common, own, node, given)
}

/// Returns the name of an entry, and its node, even if the entry has errors.
pub(super) fn name_of<'n>(mapping: FileNode<'n>, field: &str) -> Option<(Box<str>, FileNode<'n>)> {
    let node = mapping.get(field)?;
    let name = node.as_scalar().filter(|name| check_name(name, "").is_ok())?;
    Some((name.into(), node))
}

/// Makes a rule and its shadow rule. `own` reads the fields that are not common, given the key.
fn rule<'n>(
    common: &CommonFields<'_>,
    own: impl FnOnce(&[KeyPart]) -> KindFields<'n>,
    mapping: FileNode<'_>,
    given: DefaultScope,
) -> Option<RuleAndCandidate> {
    let errors_before = mapping.report.errors();
    let key = key(common, mapping)?;
    let own = own(&key);
    let conditions = conditions_of(mapping);
    let fleet = fleet(common, &own, mapping, given);
    let show_keys = show_keys(common, &key, mapping.report);
    if common.guard == Some(Guard::Shadow) && key.is_empty() {
        let message = "`guard` counts callers, and `key: []` takes all for one";
        mapping.warn_at("guard", message, "leave `guard` out: it will never act");
    }
    let position = mapping.field("name").position();
    let Admitted { limit, overrides, candidate, expires } = own.admitted?;
    let limit = match &fleet {
        Some(settings) => shared(limit, settings),
        None => limit,
    };
    let rule = Rule {
        conditions: conditions?,
        key,
        mode: common.mode.unwrap_or_default(),
        help: common.help.map(|help| help.0.into()),
        unit: own.unit.filter(|unit| unit.0 != REQUESTS).map(|unit| unit.0.into()),
        advertise: common.advertise.unwrap_or(true),
        warn_at: common.warn_at.map(|share| share.0),
        refund_on: own.refund_on,
        show_keys,
        guard: common.guard.unwrap_or_default(),
        overrides,
        expires,
        fleet,
        ..Rule::new(common.name.0, position, limit)
    };
    let candidate = candidate.map(|limit| rule.candidate(limit, mapping.field("candidate").position()));
    (mapping.report.errors() == errors_before).then_some((rule, candidate))
}

/// Reads `match`; without it, all requests match.
fn conditions_of(mapping: FileNode<'_>) -> Option<Vec<Condition>> {
    mapping.get("match").map_or(Some(Vec::new()), conditions)
}

fn listed(node: FileNode<'_>, kind: ListKind) -> Option<ListedEntry> {
    let errors_before = node.report.errors();
    let fields = match kind {
        ListKind::Exempt => node.read().map(|ExemptFields { name, .. }| (name, None, None)),
        ListKind::Deny => node.read().map(|DenyFields { name, mode, help, .. }| (name, mode, help)),
    };
    let conditions = conditions_of(node);
    let at = node.field("name");
    let listed = fields.zip(conditions).filter(|_| node.report.errors() == errors_before);
    let listed = listed.map(|((name, mode, help), conditions)| ListedEntry {
        name: name.0.into(),
        position: at.position(),
        kind,
        conditions,
        mode: mode.unwrap_or_default(),
        help: help.map(|help| help.0.into()),
    });
    if let Some(listed) = listed.as_ref().filter(|it| it.conditions.is_empty() && it.mode == Mode::Enforce) {
        let name = shown(&listed.name);
        let message = match kind {
            ListKind::Exempt => format!("{name} exempts every request: no limit of this domain is reached"),
            ListKind::Deny => format!("{name} denies every request that is not exempt"),
        };
        at.warn(message, "write a `match`, or remove the entry");
    }
    listed
}

fn key(fields: &CommonFields<'_>, mapping: FileNode<'_>) -> Option<Vec<KeyPart>> {
    if fields.key.len() > KEY_ATTRIBUTES_MAX {
        let message = format!("`key` has {} attributes", fields.key.len());
        mapping.error_at("key", message, format!("write at most {KEY_ATTRIBUTES_MAX}"));
        return None;
    }
    let mut key: Vec<KeyPart> = Vec::with_capacity(fields.key.len());
    let nodes = mapping.items("key");
    for (entry, node) in fields.key.iter().zip(nodes) {
        let part = match &entry.value {
            KeyEntry::Text(attribute) => KeyPart::plain(attribute.0),
            KeyEntry::Mapping(part) => {
                let bits = part.ipv6_prefix.map_or(0, u32::from);
                let at = node.field("ipv6_prefix");
                let ipv6_prefix = u8::try_from(bits).ok().filter(|bits| *bits <= IPV6_BITS);
                if ipv6_prefix.is_none() {
                    let help = format!(
                        "write a number of bits from 1 to {IPV6_BITS}, such as 64, which one network has"
                    );
                    at.error(format!("an IPv6 address has no {bits} bits"), help);
                }
                if (1..PROVIDER_BITS).contains(&bits) {
                    let message =
                        format!("`ipv6_prefix: {bits}` counts the customers of whole providers as one");
                    at.warn(message, "64 is one network; one customer may have 56 or 48");
                }
                let transform = Transform {
                    lowercase: part.lowercase.unwrap_or_default(),
                    ipv6_prefix: ipv6_prefix.filter(|bits| *bits > 0),
                };
                KeyPart { transform, ..KeyPart::plain(part.attribute.0) }
            }
        };
        let known = key.iter().map(|known| &*known.attribute);
        if mapping.report.is_new(node.at("attribute"), &part.attribute, known, "key") {
            key.push(part);
        }
    }
    Some(key)
}

fn show_keys(fields: &CommonFields<'_>, key: &[KeyPart], report: &Report<'_>) -> Vec<Box<str>> {
    let mut shown_keys: Vec<Box<str>> = Vec::new();
    for item in fields.show_keys.iter().flatten() {
        let name = item.value.0;
        if key.iter().all(|part| *part.attribute != *name) {
            let message = format!("{} is not in `key`", shown(name));
            report.error(item.at, message, "write attributes of `key`, whose values operators may then see");
        } else if report.is_new(item.at, name, shown_keys.iter().map(|known| &**known), "show_keys") {
            shown_keys.push(name.into());
        }
    }
    shown_keys
}

/// Reads the names of the priorities, highest first; `None` after errors.
pub(super) fn priorities(node: FileNode<'_>) -> Option<Vec<Box<str>>> {
    let errors_before = node.report.errors();
    // The reader of the file reports a value that is no list.
    let Value::List(_) = node.value else { return None };
    let items = node.each();
    if items.len() == 0 {
        let help = "write `priorities: [MOST IMPORTANT, …, LEAST]`";
        node.error("`priorities` has an empty list", help);
    }
    if items.len() > PRIORITIES_MAX {
        let message = format!("`priorities` has {} names", items.len());
        node.error(message, format!("write at most {PRIORITIES_MAX}: four are usual"));
        return None;
    }
    let mut names: Vec<Box<str>> = Vec::with_capacity(items.len());
    for item in items {
        let Some(Name(name)) = item.value("priorities") else { continue };
        if node.report.is_new(item.at, name, names.iter().map(|known| &**known), "priorities") {
            names.push(name.into());
        }
    }
    (node.report.errors() == errors_before).then_some(names)
}

/// Reads an entry of `prioritize`. `names` are the priorities of its domain; `None` if they are unknown.
pub(super) fn prioritize(node: FileNode<'_>, names: Option<&[Box<str>]>) -> Option<Prioritize> {
    let fields: PrioritizeFields<'_> = node.read()?;
    let conditions = conditions_of(node)?;
    let (wanted, names) = (fields.priority.0, names?);
    let Some(priority) = names.iter().position(|name| **name == *wanted) else {
        let message = format!("unknown priority {}", shown(wanted));
        node.error_at("priority", message, suggest(wanted, names));
        return None;
    };
    Some(Prioritize { position: node.position(), conditions, priority })
}

fn suggest(name: &str, known: &[Box<str>]) -> String {
    match de::nearest(name, known.iter().map(|name| &**name), de::TYPO) {
        Some(near) => format!("did you mean {}?", shown(near)),
        None => {
            let known: Vec<_> = known.iter().map(|name| shown(name)).collect();
            format!("`priorities` has {}", known.join(", "))
        }
    }
}

/// Shedding iterates over them.
const PRIORITIES_MAX: usize = 64;

const IPV6_BITS: u8 = 128;

/// The shortest prefix usually allocated to a provider, in bits.
const PROVIDER_BITS: u32 = 32;

/// The unit of a rule that names none.
pub(super) const REQUESTS: &str = "requests";
