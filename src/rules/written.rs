//! The file as written: which fields there are, which of them work, and where each value stands.

use super::field::{Field, Kind, Section};
use super::fields::{Fields, list, text};
use super::rule_fields::SCOPE;
pub(super) use super::rule_fields::{CANDIDATE, OVER, OVERRIDE, RULE};
use super::source::Report;
use super::yaml::Node;

/// One rules file. What could not be read is missing here and noted in the report.
#[derive(Debug, Default)]
pub(super) struct File<'n> {
    pub(super) domain: Option<(&'n Node, &'n str)>,
    pub(super) defaults: Option<Fields<'n>>,
    pub(super) limits: &'n [Node],
}

impl<'n> File<'n> {
    pub(super) fn read(root: &'n Node, report: &mut Report<'_>) -> File<'n> {
        let Some(fields) = Fields::read(root, "a rules file", FILE, report) else { return File::default() };
        let domain =
            fields.required("domain", "write `domain: NAME`, the name the application asks by", report);
        let defaults = fields.get("defaults");
        let limits = fields.get("limits");
        File {
            domain: domain.and_then(|node| text(node, "domain", report).map(|name| (node, name))),
            defaults: defaults.and_then(|node| Fields::read(node, "`defaults`", DEFAULTS, report)),
            limits: limits
                .and_then(|node| list(node, "limits", "start each rule with a dash: `- name: …`", report))
                .unwrap_or_default(),
        }
    }
}

/// The fields of a rules file.
const FILE: &[Field] = &[
    Field::built("domain").of(Kind::Name).required().about("the name that the application asks by"),
    Field::built("defaults")
        .of(Kind::Section("defaults"))
        .or("none")
        .about("what holds for the rules of this file that do not say otherwise"),
    Field::built("limits").of(Kind::List(&Kind::Section("rule"))).or("none").about("the rules"),
    Field::reserved("priorities").about("the names of the priorities, the most important first"),
    Field::reserved("prioritize").about("which requests have which priority"),
    Field::reserved("exempt").about("what no rule judges"),
    Field::reserved("deny").about("what is refused always"),
    Field::reserved("concurrency").about("limits of work at once"),
    Field::reserved("shed").about("what is refused when the host is full"),
    Field::reserved("descriptors").about("a descriptor tree"),
];

/// The fields of `defaults`.
const DEFAULTS: &[Field] = &[SCOPE.or("`host`")];

/// What a value of `match` may be besides texts.
pub(super) const CONDITION: &[Field] = &[
    Field::reserved("not").about("none of these"),
    Field::reserved("cidr").about("an address of this network"),
    Field::reserved("glob").about("a pattern"),
    Field::reserved("ignore_case").about("whether the pattern is compared without case"),
    Field::reserved("present").about("whether the attribute is there at all"),
];

/// What an entry of `key` may be besides a name.
pub(super) const KEY_PART: &[Field] = &[
    Field::reserved("attribute").about("its name"),
    Field::reserved("lowercase").about("whether its letters count in lower case"),
    Field::reserved("ipv6_prefix").about("how many bits of an IPv6 address count"),
];

/// The fields of every kind of mapping in a rules file, in the order of the table.
pub(super) const SECTIONS: &[Section] = &[
    Section { name: "file", place: "file", fields: FILE },
    Section { name: "defaults", place: "`defaults`", fields: DEFAULTS },
    Section { name: "rule", place: "rule", fields: RULE },
    Section { name: "candidate", place: "`candidate`", fields: CANDIDATE },
    Section { name: "override", place: "`overrides`", fields: OVERRIDE },
    Section { name: "over", place: "`over`", fields: OVER },
    Section { name: "condition", place: "value of `match`", fields: CONDITION },
    Section { name: "key part", place: "entry of `key`", fields: KEY_PART },
];
