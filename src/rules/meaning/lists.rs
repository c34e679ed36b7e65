//! Reader of entries of `exempt` and `deny`.

use super::{conditions, help, mode, name};
use crate::rules::fields::Fields;
use crate::rules::problem::shown;
use crate::rules::source::{Report, Span};
use crate::rules::written::LISTED_ENTRY;
use crate::rules::yaml::YamlNode;
use crate::rules::{ListKind, ListedEntry, Mode};

pub(crate) struct MeantListed {
    /// Its name and span, even if the entry has errors: no other entry may have the name.
    pub(crate) name: Option<(Box<str>, Span)>,
    /// The entry, if it has no errors.
    pub(crate) listed: Option<ListedEntry>,
}

pub(crate) fn listed(node: &YamlNode, kind: ListKind, report: &mut Report<'_>) -> MeantListed {
    let errors_before = report.errors();
    let what = match kind {
        ListKind::Exempt => "an entry of `exempt`",
        ListKind::Deny => "an entry of `deny`",
    };
    let Some(fields) = Fields::read(node, what, LISTED_ENTRY, report) else {
        return MeantListed { name: None, listed: None };
    };
    let name = name(&fields, report);
    let conditions = fields.get("match").map_or(Some(Vec::new()), |node| conditions(node, report));
    let help = fields.get("help").and_then(|node| help(node, report));
    let mode = mode(&fields, report);
    if kind == ListKind::Exempt {
        for (field, at, _) in fields.iter().filter(|(field, ..)| ["mode", "help"].contains(field)) {
            let message = format!("`{field}` in an entry of `exempt`");
            report.error(at, message, "leave it out: what is exempt is not refused");
        }
    }
    let listed = || {
        let (name, at) = name.clone()?;
        let position = report.source().position(at);
        Some(ListedEntry { name, position, kind, conditions: conditions?, mode: mode?, help })
    };
    let listed = listed().filter(|_| report.errors() == errors_before);
    if let Some((listed, (_, at))) = listed
        .as_ref()
        .zip(name.as_ref())
        .filter(|(it, _)| it.conditions.is_empty() && it.mode == Mode::Enforce)
    {
        let (name, mend) = (shown(&listed.name), "write a `match`, or remove the entry");
        let message = match kind {
            ListKind::Exempt => format!("{name} exempts every request: no limit of this domain is reached"),
            ListKind::Deny => format!("{name} denies every request that is not exempt"),
        };
        report.warning(*at, message, mend);
    }
    MeantListed { name, listed }
}
