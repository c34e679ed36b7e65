//! Reader of `match`: conditions on attributes.

use crate::rules::de::{self, FileNode};
use crate::rules::file::ConditionFields;
use crate::rules::problem::shown;
use crate::rules::values::{AttributeName, VALUE_BYTES_MAX};
use crate::rules::yaml::Value;
use crate::rules::{Condition, Network, Pattern};

pub(super) fn conditions(node: FileNode<'_>) -> Option<Vec<Condition>> {
    let pairs = node.pairs();
    if pairs.len() > CONDITIONS_MAX {
        let message = format!("`match` has {} attributes", pairs.len());
        node.error(message, format!("write at most {CONDITIONS_MAX}: each costs every request"));
        return None;
    }
    let mut conditions: Vec<Condition> = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        let Some(AttributeName(attribute)) = key.value("match") else { continue };
        if conditions.iter().any(|known| *known.attribute == *attribute) {
            let message = format!("{} is written twice in `match`", shown(attribute));
            key.error(message, "write one list: any of its values will do");
            continue;
        }
        let mut values = Values { attribute, condition: Condition::new(attribute, Vec::new()), count: 0 };
        values.condition.line = key.at.line;
        values.condition.any_of = values.patterns(value, None);
        values.doubt(value);
        conditions.push(values.condition);
    }
    Some(conditions)
}

struct Values<'n> {
    attribute: &'n str,
    condition: Condition,
    /// The number of values so far, including nested ones.
    count: usize,
}

/// The mapping that contains a value, if not `match` itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ConditionParent {
    /// `not`: may contain other kinds of values.
    Not,
    /// `cidr`: networks only.
    Cidr,
    /// `glob`: texts only.
    Glob { ignore_case: bool },
}

impl Values<'_> {
    /// Reads one value or a list.
    fn patterns(&mut self, node: FileNode<'_>, within: Option<ConditionParent>) -> Vec<Pattern> {
        let items = node.each();
        let attribute = shown(self.attribute);
        if items.len() == 0 {
            let message = format!("{attribute} has an empty list: nothing could ever match");
            node.error(message, "write at least one value, or `\"*\"` for any");
        }
        let others = self.count;
        // A mapping counts by the values in it.
        let texts = items.clone().filter(|item| !matches!(item.value, Value::Map(_)));
        self.count = self.count.saturating_add(texts.count());
        if self.count > VALUES_MAX {
            // Report it once.
            if others <= VALUES_MAX {
                let message = format!("{attribute} has {} values", self.count);
                node.error(message, format!("write at most {VALUES_MAX}, or a pattern with `*`"));
            }
            return Vec::new();
        }
        let mut patterns = Vec::with_capacity(items.len());
        for item in items {
            match (&item.value, within) {
                (Value::Map(_), None | Some(ConditionParent::Not)) => {
                    patterns.extend(self.kind(item, within).unwrap_or_default());
                }
                _ => patterns.extend(self.text(item, within)),
            }
        }
        patterns
    }

    fn text(&self, node: FileNode<'_>, within: Option<ConditionParent>) -> Option<Pattern> {
        let field = within.map_or(self.attribute, |within| within.name());
        let text: &str = node.settle(de::text(node.node, field))?;
        if within == Some(ConditionParent::Cidr) {
            return node.settle(Network::parse(text)).map(Pattern::Network);
        }
        if text.len() > VALUE_BYTES_MAX {
            let message = format!("a value of {} has {} bytes", shown(self.attribute), text.len());
            node.error(message, format!("write at most {VALUE_BYTES_MAX}: no attribute is longer"));
            return None;
        }
        if text.is_empty() {
            let message = format!("an empty value of {} never matches", shown(self.attribute));
            let help = "leave it out: an empty attribute counts as absent, which `{present: false}` matches";
            node.warn(message, help);
        }
        Some(match within {
            Some(ConditionParent::Glob { ignore_case: true }) => Pattern::any_case(text),
            _ => Pattern::parse(text),
        })
    }

    /// Reads a mapping: one kind of value, named by its field.
    fn kind(&mut self, node: FileNode<'_>, within: Option<ConditionParent>) -> Option<Vec<Pattern>> {
        let fields: ConditionFields = node.read_whole()?;
        let written = |name: &str| node.get(name).zip(node.key(name));
        let mut kinds: Vec<_> =
            KINDS.iter().filter_map(|name| written(name).map(|(value, at)| (*name, value, at))).collect();
        kinds.sort_by_key(|(.., at)| at.at.byte);
        let (name, value, at) = match kinds.as_slice() {
            [] => {
                let help =
                    "write a text, a list of texts, or `not`, `cidr`, `glob` or `present` with its value";
                node.error(format!("{} has no value", shown(self.attribute)), help);
                return None;
            }
            [only] => *only,
            [(name, ..), (other, _, at), ..] => {
                let message = format!("`{other}` beside `{name}` in one value of {}", shown(self.attribute));
                let help = format!(
                    "write `[{{{name}: …}}, {{{other}: …}}]` if either will do; what is left out of `cidr` or `glob` goes \
                     into `{{not: {{…}}}}`"
                );
                at.error(message, help);
                return None;
            }
        };
        if let Some(at) = node.key("ignore_case").filter(|_| name != "glob") {
            let help = "write `{glob: …, ignore_case: true}`";
            at.error(format!("`ignore_case` beside `{name}`"), help);
            return None;
        }
        if within == Some(ConditionParent::Not) && matches!(name, "not" | "present") {
            let help =
                "write `{present: true}` or `{present: false}` where `not` stands, or the values themselves";
            at.error(format!("`{name}` within `not`"), help);
            return None;
        }
        Some(match name {
            "present" if fields.present == Some(true) => vec![Pattern::Present],
            "present" => {
                self.condition.or_absent = true;
                Vec::new()
            }
            "not" => vec![Pattern::Not(self.patterns(value, Some(ConditionParent::Not)))],
            "cidr" => self.patterns(value, Some(ConditionParent::Cidr)),
            _ => {
                let ignore_case = fields.ignore_case.unwrap_or_default();
                self.patterns(value, Some(ConditionParent::Glob { ignore_case }))
            }
        })
    }

    fn doubt(&self, node: FileNode<'_>) {
        let attribute = shown(self.attribute);
        let any = self.condition.any_of.iter().any(Pattern::is_any);
        if any && self.condition.or_absent {
            node.warn(format!("this holds whatever {attribute} is"), "leave it out of `match`");
        }
        let is_nothing = |pattern: &Pattern| match pattern {
            Pattern::Not(patterns) => patterns.iter().any(Pattern::is_any),
            _ => false,
        };
        if self.condition.any_of.iter().any(is_nothing) {
            let message = format!("`not` with a pattern for any value never holds for {attribute}");
            node.warn(message, "write `{present: false}` if the attribute shall be absent");
        }
    }
}

impl ConditionParent {
    fn name(self) -> &'static str {
        match self {
            ConditionParent::Not => "not",
            ConditionParent::Cidr => "cidr",
            ConditionParent::Glob { .. } => "glob",
        }
    }
}

/// The fields of a value, of which it has one.
const KINDS: [&str; 4] = ["not", "cidr", "glob", "present"];

/// Conditions are evaluated one by one for each request that reaches the rule.
const CONDITIONS_MAX: usize = 32;

/// Longer lists should be a pattern, or an attribute that the application adds.
const VALUES_MAX: usize = 1_000;
