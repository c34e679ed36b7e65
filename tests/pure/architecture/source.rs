//! A parser for paths in Rust source: words and signs without comments and texts, and the room that each path
//! names.

/// A word or a sign of a source file, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// The words and signs of a text. Comments, strings and characters are left out; `::` is one sign.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let (mut tokens, mut line, mut rest) = (Vec::new(), 1, text);
    while let Some(first) = rest.chars().next() {
        let length = match end_of_skipped(rest) {
            Some(end) => end,
            None => {
                let is_word = |byte: &u8| *byte == b'_' || byte.is_ascii_alphanumeric();
                let word = rest.bytes().take_while(is_word).count();
                let length = if rest.starts_with("::") { 2 } else { word.max(first.len_utf8()) };
                tokens.push(Token { text: rest[..length].to_owned(), line });
                length
            }
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    tokens
}

/// Where white space, a comment, a string, a character or a lifetime that begins here ends.
fn end_of_skipped(rest: &str) -> Option<usize> {
    let after = |part: &str, end: &str| {
        part.find(end).map_or(rest.len(), |at| rest.len() - part.len() + at + end.len())
    };
    let quoted = rest.strip_prefix(['b', 'c']).unwrap_or(rest);
    if let Some(raw) = quoted.strip_prefix('r').filter(|raw| raw.trim_start_matches('#').starts_with('"')) {
        let marks = raw.len() - raw.trim_start_matches('#').len();
        return Some(after(&raw[marks + 1..], &format!("\"{}", &raw[..marks])));
    }
    match (rest.as_bytes(), quoted.as_bytes()) {
        ([b' ' | b'\n', ..], _) => Some(rest.len() - rest.trim_start().len()),
        ([b'/', b'/', ..], _) => Some(rest.find('\n').unwrap_or(rest.len())),
        ([b'/', b'*', ..], _) => Some(after(rest, "*/")),
        ([b'\'', next, ..], _) if *next != b'\\' && rest.chars().nth(2) != Some('\'') => {
            let ends = |byte: u8| byte != b'_' && !byte.is_ascii_alphanumeric();
            Some(1 + rest[1..].bytes().position(ends).unwrap_or(rest.len() - 1))
        }
        (_, [mark @ (b'"' | b'\''), inside @ ..]) => {
            let (mut bytes, begin) = (inside.iter().enumerate(), rest.len() - inside.len());
            while let Some((at, byte)) = bytes.next() {
                match byte {
                    b'\\' => drop(bytes.next()),
                    byte if byte == mark => return Some(begin + at + 1),
                    _ => {}
                }
            }
            Some(rest.len())
        }
        _ => None,
    }
}

/// The rooms that a file names, each with the line. `*` means all of them: `use crate::*`, `use crate as c`.
pub(crate) fn rooms_named(path: &str, tokens: &[Token]) -> Vec<(String, usize)> {
    let mut rooms = Vec::new();
    let mut inside: Vec<Option<String>> = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let word = |ahead: usize| tokens.get(at + ahead).map(|token| token.text.as_str());
        match token.text.as_str() {
            "mod" if word(2) == Some("{") => {
                inside.push(word(1).map(str::to_owned));
                at += 3;
                continue;
            }
            "{" => inside.push(None),
            "}" => drop(inside.pop()),
            "crate" | "super" | "self" if word(1) == Some("::") => {
                let mut here = module_of(path);
                here.extend(inside.iter().flatten().cloned());
                at = follow(tokens, at, &here, None, &mut rooms);
                continue;
            }
            "crate" if word(1) == Some("as") => rooms.push(("*".into(), token.line)),
            "tidegate" if word(1) == Some("::") => {
                at = follow(tokens, at + 2, &[], Some(Vec::new()), &mut rooms);
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    rooms
}

/// Follows one path, or one tree of a `use`, from its first word; returns its end. `reached` is the module of
/// the words before; `None` before the first word.
fn follow(
    tokens: &[Token],
    mut at: usize,
    here: &[String],
    mut reached: Option<Vec<String>>,
    rooms: &mut Vec<(String, usize)>,
) -> usize {
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    at = follow(tokens, at, here, reached.clone(), rooms);
                    if tokens.get(at).is_some_and(|token| token.text == ",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            "crate" => reached = Some(Vec::new()),
            "self" => reached = Some(reached.unwrap_or_else(|| here.to_vec())),
            "super" => {
                let mut above = reached.unwrap_or_else(|| here.to_vec());
                above.pop();
                reached = Some(above);
            }
            _ if reached.as_ref().is_some_and(Vec::is_empty) => {
                // The first word below the root is a room.
                rooms.push((token.text.clone(), token.line));
                reached = Some(vec![token.text.clone()]);
            }
            name => reached.get_or_insert_default().push(name.to_owned()),
        }
        at += 1;
        match tokens.get(at).map(|token| token.text.as_str()) {
            Some("::") => at += 1,
            ending => {
                if reached.is_some_and(|reached| reached.is_empty()) {
                    // `use crate::{self}`, `use super::super as root`: later names through it are not seen.
                    rooms.push(("*".into(), tokens[at - 1].line));
                }
                // `name as other`: the other name ends the path.
                return if ending == Some("as") { at + 2 } else { at };
            }
        }
    }
    at
}

/// The module that a file is: `engine/table.rs` is `engine::table`, `engine/mod.rs` is `engine`.
fn module_of(path: &str) -> Vec<String> {
    let parts = path.trim_end_matches(".rs").split('/');
    parts.filter(|part| !matches!(*part, "mod" | "lib" | "main")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::{rooms_named, tokens};

    fn words(text: &str) -> Vec<String> {
        tokens(text).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn skips_comments_and_strings() {
        for text in [
            "a // unsafe",
            "a /* unsafe \n \" unsafe */",
            "a \"unsafe \\\" unsafe\"",
            "a r\"unsafe\\\"",
            "a r#\"unsafe \" unsafe\"#",
            "a br##\"unsafe \"# unsafe\"##",
            "a b\"unsafe\"",
            "a '\"' '\\'' b'\"'",
        ] {
            assert_eq!(words(text), ["a"], "{text}");
        }
        assert_eq!(words("r#type x<'a> 'x' bar\"s\""), ["r", "#", "type", "x", "<", ">", "bar"]);
        assert_eq!(tokens("a\n/* \n */ b")[1].line, 3);
    }

    #[test]
    fn finds_every_way_to_name_a_room() {
        type Case = (&'static str, &'static str, &'static [(&'static str, usize)]);
        let table: &[Case] = &[
            ("server/a.rs", "use crate::engine;", &[("engine", 1)]),
            ("server/a.rs", "use crate::engine::Mode as M;", &[("engine", 1)]),
            ("server/a.rs", "use crate::{engine::{A, b::C}, sys::{self}};", &[("engine", 1), ("sys", 1)]),
            (
                "server/a.rs",
                "use crate::{\n    engine::Mode,\n    rules,\n};",
                &[("engine", 2), ("rules", 3)],
            ),
            ("server/a.rs", "fn f() { crate::rules::read() }", &[("rules", 1)]),
            (
                "server/a.rs",
                "fn f(a: &crate::rules::A) -> Vec<crate::limit::B> {}",
                &[("rules", 1), ("limit", 1)],
            ),
            ("server/a.rs", "use super::super::rules;", &[("rules", 1)]),
            ("server/a.rs", "use super::{super::rules, Shared};", &[("rules", 1)]),
            ("server/mod.rs", "use super::rules::Mode;", &[("rules", 1)]),
            ("server/a.rs", "mod tests { use super::super::super::rules; use super::X; }", &[("rules", 1)]),
            ("server/a.rs", "mod tests { fn f() {} }\nuse super::super::rules;", &[("rules", 2)]),
            ("server/a.rs", "use crate::*;", &[("*", 1)]),
            ("server/a.rs", "use crate::{self};", &[("*", 1)]),
            ("server/a.rs", "use crate as c;", &[("*", 1)]),
            ("server/a.rs", "use super::super as root;", &[("*", 1)]),
            ("main.rs", "fn main() { tidegate::cli::run() }", &[("cli", 1)]),
            ("lib.rs", "use self::engine::Engine;", &[("engine", 1)]),
            // A file's own room and other crates.
            ("server/a.rs", "use super::Shared; use self::b::C; use tokio::sync;", &[]),
            ("server/a.rs", "pub(crate) struct A; pub(super) fn b() {}", &[]),
            ("server/a.rs", "// use crate::rules;\nlet a = \"crate::rules\";", &[]),
        ];
        for (path, text, expected) in table {
            let found = rooms_named(path, &tokens(text));
            let found: Vec<_> = found.iter().map(|(room, line)| (room.as_str(), *line)).collect();
            assert_eq!(found, *expected, "{path}: {text}");
        }
    }
}
