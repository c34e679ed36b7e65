//! The structure of rules files: sections, fields and their nodes.

use super::concurrency_fields;
pub(super) use super::descriptor_fields::{DESCRIPTOR, RATE_LIMIT, REPLACED};
use super::field::{Field, Kind, Section};
use super::fields::{Fields, list, text};
pub(super) use super::rule_fields::{CANDIDATE, FLEET_TERMS, OVER, OVERRIDE, RULE};
use super::rule_fields::{HELP, MATCH, MODE, NAME, SCOPE, VALUES};
use super::shed_fields::{BRAKE, CALLERS, QUEUE_AGE, RESERVE, SHED, SIGNAL, WORKERS};
use super::source::Report;
use super::yaml::{Node, Value};

/// A rules file. Unreadable parts are missing here and reported.
#[derive(Debug, Default)]
pub(super) struct File<'n> {
    pub(super) domain: Option<(&'n Node, &'n str)>,
    pub(super) defaults: Option<Fields<'n>>,
    pub(super) limits: &'n [Node],
    pub(super) concurrency: &'n [Node],
    pub(super) sheds: &'n [Node],
    pub(super) descriptors: &'n [Node],
    pub(super) exempt: &'n [Node],
    pub(super) deny: &'n [Node],
    pub(super) priorities: Option<&'n Node>,
    pub(super) prioritize: &'n [Node],
}

impl<'n> File<'n> {
    pub(super) fn read(root: &'n Node, report: &mut Report<'_>) -> File<'n> {
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
        lists.all(<[Node]>::is_empty) && self.priorities.is_none()
    }
}

const FILE: &[Field] = &[
    Field::built("domain").of(Kind::Name).required().about("the name that the application asks by"),
    Field::built("defaults")
        .of(Kind::Section("defaults"))
        .or("none")
        .about("what holds for the rules of this file that do not say otherwise"),
    Field::built("priorities")
        .of(Kind::List(&Kind::Name))
        .or("none")
        .about("the names of the priorities, the most important first; once in a domain; see Priorities"),
    Field::built("prioritize").of(Kind::List(&Kind::Section("priority"))).or("none").about(
        "which requests have which priority: the first entry that matches, else the last of `priorities`",
    ),
    Field::built("exempt")
        .of(Kind::List(&Kind::Section("exemption")))
        .or("none")
        .about("requests that no rule judges; see Lists"),
    Field::built("deny")
        .of(Kind::List(&Kind::Section("denial")))
        .or("none")
        .about("requests that are refused always; see Lists"),
    Field::built("limits").of(Kind::List(&Kind::Section("rule"))).or("none").about("the rules"),
    Field::built("concurrency")
        .of(Kind::List(&Kind::Section("concurrency rule")))
        .or("none")
        .about("rules that limit work at once; see Concurrency"),
    Field::built("shed")
        .of(Kind::List(&Kind::Section("shed entry")))
        .or("none")
        .about("what is refused when a pool of processes is full; see Shedding"),
    Field::built("descriptors")
        .of(Kind::List(&Kind::Section("descriptor")))
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
    &[MATCH, Field::built("priority").of(Kind::Name).required().about("one of `priorities`")];

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
        .of(Kind::Boolean)
        .or("`false`")
        .about("whether `glob` is compared without case"),
    Field::built("present").of(Kind::Boolean).or("none").about("whether the attribute is there at all"),
];

/// Fields of an entry of `key` in its mapping form.
pub(super) const KEY_PART: &[Field] = &[
    Field::built("attribute").of(Kind::Name).required().about("the attribute whose values are counted apart"),
    Field::built("lowercase")
        .of(Kind::Boolean)
        .or("`false`")
        .about("whether its letters count in lower case"),
    Field::built("ipv6_prefix")
        .of(Kind::Whole(1, 128))
        .or("none")
        .about("how many bits of an IPv6 address count; IPv4 stays whole"),
];

/// One text, or a list of alternatives.
const TEXTS: Kind = Kind::Either(&[Kind::Text, Kind::List(&Kind::Text)]);

/// The fields of every kind of mapping in a rules file, in the order of the docs.
pub(super) const SECTIONS: &[Section] = &[
    Section { name: "file", place: "file", fields: FILE },
    Section { name: "defaults", place: "`defaults`", fields: DEFAULTS },
    Section { name: "rule", place: "rule", fields: RULE },
    Section { name: "candidate", place: "`candidate`", fields: CANDIDATE },
    Section { name: "override", place: "`overrides`", fields: OVERRIDE },
    Section { name: "over", place: "`over`", fields: OVER },
    Section { name: "fleet", place: "`fleet` in a rule", fields: FLEET_TERMS },
    Section { name: "concurrency rule", place: "`concurrency`", fields: concurrency_fields::CONCURRENCY },
    Section {
        name: "concurrency candidate",
        place: "`candidate` in `concurrency`",
        fields: concurrency_fields::CANDIDATE,
    },
    Section {
        name: "concurrency override",
        place: "`overrides` in `concurrency`",
        fields: concurrency_fields::OVERRIDE,
    },
    Section { name: "shed entry", place: "`shed`", fields: SHED },
    Section { name: "callers", place: "`callers`", fields: CALLERS },
    Section { name: "queue_age", place: "`queue_age`", fields: QUEUE_AGE },
    Section { name: "workers", place: "`workers`", fields: WORKERS },
    Section { name: "brake", place: "`brake`", fields: BRAKE },
    Section { name: "reserve", place: "`fleet` in `shed`", fields: RESERVE },
    Section { name: "signal", place: "`signals`", fields: SIGNAL },
    Section { name: "exemption", place: "`exempt`", fields: EXEMPTION },
    Section { name: "denial", place: "`deny`", fields: LISTED_ENTRY },
    Section { name: "priority", place: "`prioritize`", fields: PRIORITIZED },
    Section { name: "condition", place: "value of `match`", fields: CONDITION },
    Section { name: "key part", place: "entry of `key`", fields: KEY_PART },
    Section { name: "descriptor", place: "`descriptors`", fields: DESCRIPTOR },
    Section { name: "rate limit", place: "`rate_limit`", fields: RATE_LIMIT },
    Section { name: "replacement", place: "`replaces`", fields: REPLACED },
];
