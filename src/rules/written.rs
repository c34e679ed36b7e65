//! The structure of rules files: sections, fields and their nodes.

use super::concurrency_fields;
pub(super) use super::descriptor_fields::{DESCRIPTOR, RATE_LIMIT, REPLACED};
use super::field::{Field, FieldKind, FieldSection};
use super::fields::{Fields, list, text};
pub(super) use super::rule_fields::{CANDIDATE, FLEET_TERMS, OVER, OVERRIDE, RULE};
use super::rule_fields::{HELP, MATCH, MODE, NAME, SCOPE, VALUES};
use super::shed_fields::{BRAKE, CALLERS, QUEUE_AGE, RESERVE, SHED, SIGNAL, WORKERS};
use super::source::Report;
use super::yaml::{Value, YamlNode};

/// A rules file. Unreadable parts are missing here and reported.
#[derive(Debug, Default)]
pub(super) struct File<'n> {
    pub(super) domain: Option<(&'n YamlNode, &'n str)>,
    pub(super) defaults: Option<Fields<'n>>,
    pub(super) limits: &'n [YamlNode],
    pub(super) concurrency: &'n [YamlNode],
    pub(super) sheds: &'n [YamlNode],
    pub(super) descriptors: &'n [YamlNode],
    pub(super) exempt: &'n [YamlNode],
    pub(super) deny: &'n [YamlNode],
    pub(super) priorities: Option<&'n YamlNode>,
    pub(super) prioritize: &'n [YamlNode],
}

impl<'n> File<'n> {
    pub(super) fn read(root: &'n YamlNode, report: &mut Report<'_>) -> File<'n> {
        let Some(fields) = Fields::read(root, "a rules file", FILE, report) else { return File::default() };
        let domain =
            fields.required("domain", "write `domain: NAME`, the name the application asks by", report);
        let defaults = fields.get("defaults");
        let mut entries = |name: &str, mend: &str| {
            fields.get(name).and_then(|node| list(node, name, mend, report)).unwrap_or_default()
        };
        let limits = entries("limits", "start each rule with a dash: `- name: …`");
        let concurrency = entries("concurrency", "start each rule with a dash: `- name: …`");
        let sheds = entries("shed", "start each entry with a dash: `- pool: …`");
        let exempt = entries("exempt", LISTED);
        let deny = entries("deny", LISTED);
        let prioritize = entries("prioritize", "write `prioritize: [{match: {…}, priority: …}, …]`");
        // envoyproxy/ratelimit reads a missing value as an empty list.
        let descriptors = fields.get("descriptors").filter(|node| node.value != Value::Null);
        let descriptors = descriptors.and_then(|node| list(node, "descriptors", DESCRIPTORS, report));
        File {
            domain: domain.and_then(|node| text(node, "domain", report).map(|name| (node, name))),
            defaults: defaults.and_then(|node| Fields::read(node, "`defaults`", DEFAULTS, report)),
            limits,
            concurrency,
            sheds,
            exempt,
            deny,
            priorities: fields.get("priorities"),
            prioritize,
            descriptors: descriptors.unwrap_or_default(),
        }
    }

    /// Whether it has no entries for requests.
    pub(super) fn is_empty(&self) -> bool {
        let rules = [self.limits, self.concurrency, self.sheds, self.descriptors];
        let mut lists = rules.into_iter().chain([self.exempt, self.deny, self.prioritize]);
        lists.all(<[YamlNode]>::is_empty) && self.priorities.is_none()
    }
}

const FILE: &[Field] = &[
    Field::built("domain").of(FieldKind::Name).required().about("the name that the application asks by"),
    Field::built("defaults")
        .of(FieldKind::Section("defaults"))
        .or("none")
        .about("what holds for the rules of this file that do not say otherwise"),
    Field::built("priorities")
        .of(FieldKind::List(&FieldKind::Name))
        .or("none")
        .about("the names of the priorities, the most important first; once in a domain; see Priorities"),
    Field::built("prioritize").of(FieldKind::List(&FieldKind::Section("priority"))).or("none").about(
        "which requests have which priority: the first entry that matches, else the last of `priorities`",
    ),
    Field::built("exempt")
        .of(FieldKind::List(&FieldKind::Section("exemption")))
        .or("none")
        .about("requests that no rule judges; see Lists"),
    Field::built("deny")
        .of(FieldKind::List(&FieldKind::Section("denial")))
        .or("none")
        .about("requests that are refused always; see Lists"),
    Field::built("limits").of(FieldKind::List(&FieldKind::Section("rule"))).or("none").about("the rules"),
    Field::built("concurrency")
        .of(FieldKind::List(&FieldKind::Section("concurrency rule")))
        .or("none")
        .about("rules that limit work at once; see Concurrency"),
    Field::built("shed")
        .of(FieldKind::List(&FieldKind::Section("shed entry")))
        .or("none")
        .about("what is refused when a pool of processes is full; see Shedding"),
    Field::built("descriptors")
        .of(FieldKind::List(&FieldKind::Section("descriptor")))
        .or("none")
        .about("a descriptor tree; see docs/descriptors.md"),
];

const DEFAULTS: &[Field] = &[SCOPE.or("that of the settings, else `host`")];

const DESCRIPTORS: &str = "start each descriptor with a dash: `- key: …`";
const LISTED: &str = "write a list: `- {name: …, match: {…}}`";

/// The fields of an entry of `deny`; `exempt` lacks `mode` and `help`.
pub(super) const LISTED_ENTRY: &[Field] = &[NAME, MATCH, MODE, HELP];

const EXEMPTION: &[Field] = &[NAME, MATCH];

pub(super) const PRIORITIZED: &[Field] =
    &[MATCH, Field::built("priority").of(FieldKind::Name).required().about("one of `priorities`")];

/// Fields of a value of `match` in its mapping form.
pub(super) const CONDITION: &[Field] = &[
    Field::built("not")
        .of(VALUES)
        .or("none")
        .about("none of these values; an absent attribute never matches"),
    Field::built("cidr")
        .of(TEXTS)
        .or("none")
        .about("an address of one of these networks, such as `192.0.2.0/24`"),
    Field::built("glob").of(TEXTS).or("none").about("one of these patterns"),
    Field::built("ignore_case")
        .of(FieldKind::Boolean)
        .or("`false`")
        .about("whether `glob` is compared without case"),
    Field::built("present").of(FieldKind::Boolean).or("none").about("whether the attribute is there at all"),
];

/// Fields of an entry of `key` in its mapping form.
pub(super) const KEY_PART: &[Field] = &[
    Field::built("attribute")
        .of(FieldKind::Name)
        .required()
        .about("the attribute whose values are counted apart"),
    Field::built("lowercase")
        .of(FieldKind::Boolean)
        .or("`false`")
        .about("whether its letters count in lower case"),
    Field::built("ipv6_prefix")
        .of(FieldKind::Whole(1, 128))
        .or("none")
        .about("how many bits of an IPv6 address count; IPv4 stays whole"),
];

/// One text, or a list of alternatives.
const TEXTS: FieldKind = FieldKind::Either(&[FieldKind::Text, FieldKind::List(&FieldKind::Text)]);

/// The fields of every kind of mapping in a rules file, in the order of the docs.
pub(super) const SECTIONS: &[FieldSection] = &[
    FieldSection { name: "file", place: "file", fields: FILE },
    FieldSection { name: "defaults", place: "`defaults`", fields: DEFAULTS },
    FieldSection { name: "rule", place: "rule", fields: RULE },
    FieldSection { name: "candidate", place: "`candidate`", fields: CANDIDATE },
    FieldSection { name: "override", place: "`overrides`", fields: OVERRIDE },
    FieldSection { name: "over", place: "`over`", fields: OVER },
    FieldSection { name: "fleet", place: "`fleet` in a rule", fields: FLEET_TERMS },
    FieldSection {
        name: "concurrency rule",
        place: "`concurrency`",
        fields: concurrency_fields::CONCURRENCY,
    },
    FieldSection {
        name: "concurrency candidate",
        place: "`candidate` in `concurrency`",
        fields: concurrency_fields::CANDIDATE,
    },
    FieldSection {
        name: "concurrency override",
        place: "`overrides` in `concurrency`",
        fields: concurrency_fields::OVERRIDE,
    },
    FieldSection { name: "shed entry", place: "`shed`", fields: SHED },
    FieldSection { name: "callers", place: "`callers`", fields: CALLERS },
    FieldSection { name: "queue_age", place: "`queue_age`", fields: QUEUE_AGE },
    FieldSection { name: "workers", place: "`workers`", fields: WORKERS },
    FieldSection { name: "brake", place: "`brake`", fields: BRAKE },
    FieldSection { name: "reserve", place: "`fleet` in `shed`", fields: RESERVE },
    FieldSection { name: "signal", place: "`signals`", fields: SIGNAL },
    FieldSection { name: "exemption", place: "`exempt`", fields: EXEMPTION },
    FieldSection { name: "denial", place: "`deny`", fields: LISTED_ENTRY },
    FieldSection { name: "priority", place: "`prioritize`", fields: PRIORITIZED },
    FieldSection { name: "condition", place: "value of `match`", fields: CONDITION },
    FieldSection { name: "key part", place: "entry of `key`", fields: KEY_PART },
    FieldSection { name: "descriptor", place: "`descriptors`", fields: DESCRIPTOR },
    FieldSection { name: "rate limit", place: "`rate_limit`", fields: RATE_LIMIT },
    FieldSection { name: "replacement", place: "`replaces`", fields: REPLACED },
];
