//! The fields of one mapping: the known ones, each once; every other is an error with a mend.

pub use super::field::Field;
use super::problem::{Wrong, shown};
use super::source::{Place, Report};
use super::yaml::{Kind, Node, Value};

/// The known fields that were written, the first of each name.
#[derive(Debug)]
pub struct Fields<'n> {
    at: Place,
    what: &'static str,
    pairs: Vec<(&'static str, Place, &'n Node)>,
    is_empty: bool,
}

impl<'n> Fields<'n> {
    /// Reads a mapping; `what` it is stands in the messages ("a rule").
    pub fn read(
        node: &'n Node,
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

    /// The value of a field, if it was written.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'n Node> {
        self.pairs.iter().find(|(known, ..)| *known == name).map(|(.., value)| *value)
    }

    /// The value of a field that must be there.
    pub fn required(&self, name: &str, mend: &str, report: &mut Report<'_>) -> Option<&'n Node> {
        let value = self.get(name);
        if value.is_none() {
            report.error(self.at, format!("{} needs `{name}`", self.what), mend);
        }
        value
    }

    /// Whether nothing at all was written, known or not.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// The known fields that were written, in file order: name, place of the name, value.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Place, &'n Node)> + '_ {
        self.pairs.iter().copied()
    }

    /// Where the mapping starts.
    #[must_use]
    pub fn at(&self) -> Place {
        self.at
    }
}

/// The text of a scalar; a number or boolean is taken as it was written.
pub fn text<'n>(node: &'n Node, field: &str, report: &mut Report<'_>) -> Option<&'n str> {
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

/// A boolean: `true` or `false` and nothing else.
pub fn boolean(node: &Node, field: &str, report: &mut Report<'_>) -> Option<bool> {
    match &node.value {
        Value::Scalar(Kind::Boolean, text) => Some(text.eq_ignore_ascii_case("true")),
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

/// The items of a list.
pub fn list<'n>(node: &'n Node, field: &str, mend: &str, report: &mut Report<'_>) -> Option<&'n [Node]> {
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

/// One of a few words.
pub fn choice<T: Copy>(node: &Node, field: &str, words: &[(Field, T)], report: &mut Report<'_>) -> Option<T> {
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

/// A name of a domain, a rule or an attribute: what the socket carries and what `domain/rule` can be taken apart at.
pub(crate) fn check_name(name: &str, what: &str) -> Result<(), Wrong> {
    let bad = name.chars().find(|character| character.is_control() || matches!(character, ':' | '/'));
    if name.is_empty() {
        return Err(Wrong::new(format!("the name of {what} is empty"), "write 1 to 64 bytes"));
    }
    if name.len() > NAME_BYTES_MAX {
        let message = format!("the name of {what} has {} bytes: {}", name.len(), shown(name));
        return Err(Wrong::new(message, format!("write at most {NAME_BYTES_MAX} bytes")));
    }
    match bad {
        None => Ok(()),
        Some(character) => {
            let message = format!("the name of {what} may not hold {character:?}: {}", shown(name));
            Err(Wrong::new(message, "leave out `:`, `/` and control characters; `-` and `.` are fine"))
        }
    }
}

/// The nearest known name, else all of them.
fn suggest(name: &str, known: &[Field]) -> String {
    let plain = name.to_lowercase().replace('-', "_");
    let distance = |field: &Field| (strsim::osa_distance(&plain, field.name), !field.built);
    let nearest = known.iter().min_by_key(|field| distance(field));
    // A third of the letters wrong is a slip; more is another word.
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

/// As the socket carries them.
pub const NAME_BYTES_MAX: usize = 64;
