//! Reader of mappings: each known field at most once; an unknown field is an error with a suggestion.

pub use super::field::Field;
use super::problem::{ValueProblem, shown};
use super::source::{Report, Span};
use super::yaml::{ScalarKind, Value, YamlNode};

/// The known fields of a mapping, the first of each name.
#[derive(Debug)]
pub struct Fields<'n> {
    at: Span,
    what: &'static str,
    pairs: Vec<(&'static str, Span, &'n YamlNode)>,
    is_empty: bool,
}

impl<'n> Fields<'n> {
    /// Reads a mapping. `what` names it in messages ("a rule").
    pub fn read(
        node: &'n YamlNode,
        what: &'static str,
        known: &[Field],
        report: &mut Report<'_>,
    ) -> Option<Self> {
        let Value::Map(written) = &node.value else {
            let mend = format!("write fields and values, such as `{}: …`", first_name(known));
            report.error(node.at, format!("{what} is a mapping, not {}", node.kind()), mend);
            return None;
        };
        let mut fields = Fields { at: node.at, what, pairs: Vec::new(), is_empty: written.is_empty() };
        for (key, value) in written {
            let Some(name) = key.as_scalar() else {
                let message = format!("the name of a field is a text, not {}", key.kind());
                report.error(key.at, message, "if a value was meant, write it in quotes");
                continue;
            };
            match known.iter().find(|field| field.name == name) {
                None => {
                    let message = format!("unknown field {} in {what}", shown(name));
                    report.error(key.at, message, suggest(name, known));
                    continue;
                }
                Some(field) if !field.built => {
                    let message = format!("`{name}` is not supported yet");
                    report.error(key.at, message, "leave it out: the name is reserved for a later version");
                    continue;
                }
                Some(field) => match fields.pairs.iter().find(|(seen, ..)| *seen == name) {
                    Some((_, first, _)) => {
                        let mend = format!("keep one of the two; the first is on line {}", first.line);
                        report.error(key.at, format!("`{name}` is written twice in {what}"), mend);
                    }
                    None => fields.pairs.push((field.name, key.at, value)),
                },
            }
        }
        Some(fields)
    }

    /// Returns the value of a field, if it is present.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'n YamlNode> {
        self.pairs.iter().find(|(known, ..)| *known == name).map(|(.., value)| *value)
    }

    /// Returns the value of a required field, or reports its absence.
    pub fn required(&self, name: &str, mend: &str, report: &mut Report<'_>) -> Option<&'n YamlNode> {
        let value = self.get(name);
        if value.is_none() {
            report.error(self.at, format!("{} needs `{name}`", self.what), mend);
        }
        value
    }

    /// Whether the mapping has no fields, known or unknown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Iterates over the known fields in file order: name, span of the name, value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Span, &'n YamlNode)> + '_ {
        self.pairs.iter().copied()
    }

    /// Returns the span of the mapping.
    #[must_use]
    pub fn at(&self) -> Span {
        self.at
    }
}

/// Reads a text; numbers and booleans count as texts, as written.
pub fn text<'n>(node: &'n YamlNode, field: &str, report: &mut Report<'_>) -> Option<&'n str> {
    let text = node.as_scalar();
    if text.is_none() {
        let (message, mend) = match node.value {
            Value::Null => (
                format!("`{field}` has no value"),
                "write one, in quotes if a word like \"null\" is meant, or leave the field out",
            ),
            _ => (format!("`{field}` is a text, not {}", node.kind()), "write one text"),
        };
        report.error(node.at, message, mend);
    }
    text
}

/// Reads a boolean: `true` or `false`.
pub fn boolean(node: &YamlNode, field: &str, report: &mut Report<'_>) -> Option<bool> {
    match &node.value {
        Value::Scalar(ScalarKind::Boolean, text) => Some(text.eq_ignore_ascii_case("true")),
        Value::Scalar(_, text) => {
            let message = format!("`{field}` is true or false, not {}", shown(text));
            report.error(node.at, message, "write `true` or `false`, without quotes");
            None
        }
        _ => {
            let message = format!("`{field}` is true or false, not {}", node.kind());
            report.error(node.at, message, "write `true` or `false`");
            None
        }
    }
}

/// Reads a list.
pub fn list<'n>(
    node: &'n YamlNode,
    field: &str,
    mend: &str,
    report: &mut Report<'_>,
) -> Option<&'n [YamlNode]> {
    match &node.value {
        Value::List(items) => Some(items),
        Value::Null => {
            report.error(node.at, format!("`{field}` has no value"), mend);
            None
        }
        _ => {
            report.error(node.at, format!("`{field}` is a list, not {}", node.kind()), mend);
            None
        }
    }
}

/// Reads one of the known words.
pub fn choice<T: Copy>(
    node: &YamlNode,
    field: &str,
    words: &[(Field, T)],
    report: &mut Report<'_>,
) -> Option<T> {
    let text = text(node, field, report)?;
    match words.iter().find(|(word, _)| word.name == text) {
        Some((word, value)) if word.built => Some(*value),
        Some((word, _)) => {
            let message = format!("`{field}: {}` is not supported yet", word.name);
            let mend = match words.iter().find(|(word, _)| word.built) {
                Some((built, _)) => format!("write `{}`, or leave `{field}` out", built.name),
                None => format!("leave `{field}` out"),
            };
            report.error(node.at, message, mend);
            None
        }
        None => {
            let known: Vec<Field> = words.iter().map(|(word, _)| *word).collect();
            report.error(node.at, format!("unknown {field} {}", shown(text)), suggest(text, &known));
            None
        }
    }
}

/// Checks a name of a domain, rule or attribute: short enough for the wire, and unambiguous in `domain/rule`.
pub(crate) fn check_name(name: &str, what: &str) -> Result<(), ValueProblem> {
    let bad = name.chars().find(|character| character.is_control() || matches!(character, ':' | '/'));
    if name.is_empty() {
        return Err(ValueProblem::new(format!("the name of {what} is empty"), "write 1 to 64 bytes"));
    }
    if name.len() > NAME_BYTES_MAX {
        let message = format!("the name of {what} has {} bytes: {}", name.len(), shown(name));
        return Err(ValueProblem::new(message, format!("write at most {NAME_BYTES_MAX} bytes")));
    }
    match bad {
        None => Ok(()),
        Some(character) => {
            let message = format!("the name of {what} may not hold {character:?}: {}", shown(name));
            Err(ValueProblem::new(message, "leave out `:`, `/` and control characters; `-` and `.` are fine"))
        }
    }
}

/// Suggests the nearest known name, or lists all of them.
fn suggest(name: &str, known: &[Field]) -> String {
    let plain = name.to_lowercase().replace('-', "_");
    let distance = |field: &Field| (strsim::osa_distance(&plain, field.name), !field.built);
    let nearest = known.iter().min_by_key(|field| distance(field));
    // Up to a third of the letters wrong counts as a typo.
    match nearest
        .filter(|field| name.len() <= NAME_BYTES_MAX && distance(field).0 * 3 <= field.name.len().max(3))
    {
        Some(field) => format!("did you mean `{}`?", field.name),
        None => {
            let names: Vec<_> = known.iter().filter(|field| field.built).map(|field| field.name).collect();
            format!("known here: {}", names.join(", "))
        }
    }
}

fn first_name(known: &[Field]) -> &'static str {
    known.first().map_or("field", |field| field.name)
}

/// The maximum on the wire.
pub const NAME_BYTES_MAX: usize = 64;
