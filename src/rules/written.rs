//! The file as written: which fields there are, which of them work, and where each value stands.

use super::fields::{Field, Fields, list, text};
use super::source::Report;
use super::yaml::{Node, Value};

/// One rules file. What could not be read is missing here and noted in the report.
#[derive(Debug, Default)]
pub(super) struct File<'n> {
    pub(super) domain: Option<(&'n Node, &'n str)>,
    pub(super) defaults: Option<Fields<'n>>,
    pub(super) limits: &'n [Node],
    pub(super) descriptors: &'n [Node],
}

impl<'n> File<'n> {
    pub(super) fn read(root: &'n Node, report: &mut Report<'_>) -> File<'n> {
        let Some(fields) = Fields::read(root, "a rules file", FILE, report) else { return File::default() };
        let domain =
            fields.required("domain", "write `domain: NAME`, the name the application asks by", report);
        let defaults = fields.get("defaults");
        let limits = fields.get("limits");
        // That service takes no value for an empty list.
        let descriptors = fields.get("descriptors").filter(|node| node.value != Value::Null);
        File {
            domain: domain.and_then(|node| text(node, "domain", report).map(|name| (node, name))),
            defaults: defaults.and_then(|node| Fields::read(node, "`defaults`", DEFAULTS, report)),
            limits: limits
                .and_then(|node| list(node, "limits", "start each rule with a dash: `- name: …`", report))
                .unwrap_or_default(),
            descriptors: descriptors
                .and_then(|node| {
                    list(node, "descriptors", "start each descriptor with a dash: `- key: …`", report)
                })
                .unwrap_or_default(),
        }
    }
}

/// The fields of a rules file.
const FILE: &[Field] = &[
    Field::built("domain"),
    Field::built("defaults"),
    Field::built("limits"),
    Field::reserved("priorities"),
    Field::reserved("prioritize"),
    Field::reserved("exempt"),
    Field::reserved("deny"),
    Field::reserved("concurrency"),
    Field::reserved("shed"),
    Field::built("descriptors"),
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

/// What a value of `match` may be besides texts.
pub(super) const CONDITION: &[Field] = &[
    Field::reserved("not"),
    Field::reserved("cidr"),
    Field::reserved("glob"),
    Field::reserved("ignore_case"),
    Field::reserved("present"),
];

/// What an entry of `key` may be besides a name.
pub(super) const KEY_PART: &[Field] =
    &[Field::reserved("attribute"), Field::reserved("lowercase"), Field::reserved("ipv6_prefix")];

/// The fields of a descriptor.
pub(super) const DESCRIPTOR: &[Field] = &[
    Field::built("key"),
    Field::built("value"),
    Field::built("rate_limit"),
    Field::built("descriptors"),
    Field::built("shadow_mode"),
    Field::built("share_threshold"),
    Field::built("quota_mode"),
    Field::built("detailed_metric"),
    Field::built("value_to_metric"),
    Field::built("metadata"),
];

/// The fields of a descriptor's `rate_limit`.
pub(super) const RATE_LIMIT: &[Field] = &[
    Field::built("unit"),
    Field::built("requests_per_unit"),
    Field::built("unlimited"),
    Field::built("name"),
    Field::built("replaces"),
];

/// The fields of an entry of `replaces`.
pub(super) const REPLACED: &[Field] = &[Field::built("name")];
