//! Conditions and attribute names that are valid, and probably match nothing: what a reader of other tools writes.

use super::de::nearest;
use super::network::Network;
use super::problem::shown;
use super::{Condition, Pattern};

/// Returns a warning and its help for the first value of a condition that probably matches no request.
pub(super) fn suspect_value(condition: &Condition) -> Option<(String, String)> {
    condition.any_of.iter().find_map(|pattern| suspect_pattern(&condition.attribute, pattern))
}

fn suspect_pattern(attribute: &str, pattern: &Pattern) -> Option<(String, String)> {
    let text = match pattern {
        Pattern::Exact(text) => text.to_string(),
        Pattern::Glob(glob) => glob.to_string(),
        Pattern::Not(patterns) => {
            return patterns.iter().find_map(|pattern| suspect_pattern(attribute, pattern));
        }
        Pattern::AnyCase(_) | Pattern::Network(_) | Pattern::Present => return None,
    };
    let (attribute, value) = (shown(attribute), shown(&text));
    if text.contains('/') && Network::parse(&text).is_ok() {
        let message =
            format!("{attribute} is compared with the text {value}, not with the addresses of this network");
        return Some((message, format!("write {{cidr: {text}}}")));
    }
    let capitals = text.to_ascii_uppercase();
    if attribute == "`method`" && text != capitals && METHODS.contains(&&*capitals) {
        let message = format!(
            "{attribute} is never {value}: values are compared by case, and methods are sent in capitals"
        );
        return Some((message, format!("write {capitals}")));
    }
    let methods: Vec<&str> = capitals.split([',', '|', ' ']).filter(|part| !part.is_empty()).collect();
    if attribute == "`method`" && methods.len() > 1 && methods.iter().all(|part| METHODS.contains(part)) {
        let message = format!("{attribute} is never {value}: a request has one method");
        return Some((message, format!("write a list: [{}]", methods.join(", "))));
    }
    let is_relative = text.starts_with(|first: char| first.is_alphanumeric()) && !text.contains(':');
    if attribute == "`path`" && is_relative {
        let message = format!("{attribute} is never {value}: paths start with a slash");
        return Some((message, "write it with a `/` before it".to_owned()));
    }
    let is_path = attribute == "`path`";
    if is_path && let Some(glob) = glob_of_route(&text) {
        let message = format!("{value} looks like a route: paths have the values in its place");
        return Some((message, format!("write `route` instead of `path`, or `path: {glob}`")));
    }
    if is_regular_expression(&text, is_path) {
        let compared = if matches!(pattern, Pattern::Glob(_)) { "a pattern with `*`" } else { "text" };
        let message = format!("{value} looks like a regular expression, but is compared as {compared}");
        return Some((message, "`*` stands for any characters, also none: `/v1/*`".to_owned()));
    }
    if is_path && text.starts_with('/') && (text.contains("**") || text.contains('?')) {
        let message = format!("{value} has signs of other globs: here `?` is itself, and `**` is `*`");
        return Some((
            message,
            "`*` stands for any characters, `/` included; paths are sent without their query".to_owned(),
        ));
    }
    None
}

fn is_regular_expression(text: &str, is_path: bool) -> bool {
    let is_anchored =
        text.len() > 1 && (text.starts_with('^') || text.starts_with('/') && text.ends_with('$'));
    // `10.0.0.*` and `report.*` are patterns.
    let after_word = |at: usize| text.get(..at).is_some_and(|before| before.ends_with(char::is_alphanumeric));
    let any = |part| text.match_indices(part).any(|(at, _)| is_path || !after_word(at));
    is_anchored
        || any(".*")
        || [".+", "\\d", "\\w", "[a-z", "[0-9", "[A-Z", "(?"].iter().any(|part| text.contains(part))
}

/// Returns the pattern for the paths of a route: `/items/*` for `/items/<int:id>`, `/items/:id` and `/items/{id}`.
fn glob_of_route(text: &str) -> Option<String> {
    let is_parameter = |part: &&str| {
        let enclosed = |open, close| part.len() > 2 && part.starts_with(open) && part.ends_with(close);
        let named = part.strip_prefix(':').is_some_and(|name| name.starts_with(char::is_alphabetic));
        named || enclosed('<', '>') || enclosed('{', '}')
    };
    let parts = || text.split('/');
    let is_route = text.starts_with('/') && parts().any(|part| is_parameter(&part));
    is_route.then(|| {
        parts().map(|part| if is_parameter(&part) { "*" } else { part }).collect::<Vec<_>>().join("/")
    })
}

/// Returns the attribute that is probably meant by a name: one that middlewares send, or another of the domain.
pub(super) fn suspect_name<'k>(name: &str, others: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if SENT.contains(&name) {
        return None;
    }
    if let Some(sent) = SENT.into_iter().find(|sent| sent.eq_ignore_ascii_case(name)) {
        return Some(sent);
    }
    let known = SENT.into_iter().chain(others).filter(|known| known.len() >= LETTERS_MIN && *known != name);
    nearest(name, known, LETTERS_MIN)
}

/// The attributes that middlewares send.
const SENT: [&str; 5] = ["method", "path", "route", "ip", "user"];

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// A name of fewer letters is near to many others, and at most a quarter of the letters is wrong.
const LETTERS_MIN: usize = 4;
