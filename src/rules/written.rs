//! The file as written: which fields there are, which of them work, and where each value stands.

use super::fields::{Field, Fields, list, text};
use super::source::Report;
use super::yaml::Node;

/// One rules file. What could not be read is missing here and noted in the report.
#[derive(Debug, Default)]
pub(super) struct File<'n> {
    pub(super) domain: Option<(&'n Node, &'n str)>,
    pub(super) defaults: Option<Fields<'n>>,
    pub(super) limits: &'n [Node],
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
        let exempt = entries("exempt", LISTED);
        let deny = entries("deny", LISTED);
        let prioritize = entries("prioritize", "write `prioritize: [{match: {…}, priority: …}, …]`");
        File {
            domain: domain.and_then(|node| text(node, "domain", report).map(|name| (node, name))),
            defaults: defaults.and_then(|node| Fields::read(node, "`defaults`", DEFAULTS, report)),
            limits,
            exempt,
            deny,
            priorities: fields.get("priorities"),
            prioritize,
        }
    }

    /// Whether it says nothing about requests.
    pub(super) fn is_empty(&self) -> bool {
        let lists = [self.limits, self.exempt, self.deny, self.prioritize];
        lists.iter().all(|list| list.is_empty()) && self.priorities.is_none()
    }
}

/// The fields of a rules file.
const FILE: &[Field] = &[
    Field::built("domain"),
    Field::built("defaults"),
    Field::built("limits"),
    Field::built("priorities"),
    Field::built("prioritize"),
    Field::built("exempt"),
    Field::built("deny"),
    Field::reserved("concurrency"),
    Field::reserved("shed"),
    Field::reserved("descriptors"),
];

/// The fields of `defaults`.
const DEFAULTS: &[Field] = &[Field::built("scope")];

/// The fields of a rule of `limits`.
pub(super) const RULE: &[Field] = &[
    Field::built("name"),
    Field::built("match"),
    Field::built("key"),
    Field::built("rate"),
    Field::built("burst"),
    Field::built("mode"),
    Field::built("help"),
    Field::built("algorithm"),
    Field::built("scope"),
    Field::built("unit"),
    Field::built("advertise"),
    Field::reserved("candidate"),
    Field::reserved("refund_on"),
    Field::reserved("block"),
    Field::reserved("overrides"),
    Field::reserved("overrides_file"),
    Field::reserved("max_debt"),
    Field::reserved("timezone"),
    Field::reserved("warn_at"),
    Field::reserved("queue"),
    Field::reserved("over"),
    Field::reserved("refused"),
    Field::reserved("buckets"),
    Field::reserved("align"),
    Field::reserved("expires"),
    Field::reserved("max"),
    Field::reserved("max_over"),
    Field::reserved("fleet"),
    Field::reserved("on_redis_down"),
    Field::reserved("guard"),
    Field::reserved("show_keys"),
];

const LISTED: &str = "write a list: `- {name: …, match: {…}}`";

/// The fields of an entry of `exempt` or `deny`; only the latter has a `help`.
pub(super) const LISTED_ENTRY: &[Field] =
    &[Field::built("name"), Field::built("match"), Field::built("help")];

/// The fields of an entry of `prioritize`.
pub(super) const PRIORITIZED: &[Field] = &[Field::built("match"), Field::built("priority")];

/// What a value of `match` may be besides texts.
pub(super) const CONDITION: &[Field] = &[
    Field::built("not"),
    Field::built("cidr"),
    Field::built("glob"),
    Field::built("ignore_case"),
    Field::built("present"),
];

/// What an entry of `key` may be besides a name.
pub(super) const KEY_PART: &[Field] =
    &[Field::built("attribute"), Field::built("lowercase"), Field::built("ipv6_prefix")];
