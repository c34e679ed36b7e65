//! Reader of entries of `exempt` and `deny`.

use super::{conditions_of, name_of};
use crate::rules::de::{self, Mapping};
use crate::rules::file::{DenyFields, ExemptFields};
use crate::rules::problem::shown;
use crate::rules::source::{Report, Span};
use crate::rules::yaml::YamlNode;
use crate::rules::{ListKind, ListedEntry, Mode};

pub(crate) struct ReadListEntry {
    /// Its name and span, even if the entry has errors: no other entry may have the name.
    pub(crate) name: Option<(Box<str>, Span)>,
    /// The entry, if it has no errors.
    pub(crate) listed: Option<ListedEntry>,
}

pub(crate) fn listed(node: &YamlNode, kind: ListKind, report: &mut Report<'_>) -> ReadListEntry {
    let errors_before = report.errors();
    let mapping = Mapping(node);
    let fields = match kind {
        ListKind::Exempt => de::read(node, report).map(|ExemptFields { name, .. }| (name, None, None)),
        ListKind::Deny => {
            de::read(node, report).map(|DenyFields { name, mode, help, .. }| (name, mode, help))
        }
    };
    let conditions = conditions_of(mapping, report);
    let at = mapping.at("name");
    let listed = fields.zip(conditions).filter(|_| report.errors() == errors_before);
    let listed = listed.map(|((name, mode, help), conditions)| ListedEntry {
        name: name.0.into(),
        position: report.source().position(at),
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
        report.warning(at, message, "write a `match`, or remove the entry");
    }
    ReadListEntry { name: name_of(mapping, "name"), listed }
}
