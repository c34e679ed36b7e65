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
    let characters: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < characters.len() {
        let end = match skipped(&characters, at) {
            Some(end) => end,
            None => {
                let end = end_of_token(&characters, at);
                tokens.push(Token { text: characters[at..end].iter().collect(), line });
                end
            }
        };
        line += characters[at..end].iter().filter(|character| **character == '\n').count();
        at = end;
    }
    tokens
}

fn end_of_token(characters: &[char], at: usize) -> usize {
    if is_word(characters[at]) {
        return at + characters[at..].iter().take_while(|character| is_word(**character)).count();
    }
    at + if characters[at..].starts_with(&[':', ':']) { 2 } else { 1 }
}

/// Where white space, a comment, a string, a character or a lifetime that begins here ends.
fn skipped(characters: &[char], at: usize) -> Option<usize> {
    let rest = &characters[at..];
    let to = |found: Option<usize>| Some(found.map_or(characters.len(), |length| at + length));
    match rest {
        [space, ..] if space.is_whitespace() => Some(at + 1),
        ['/', '/', ..] => to(rest.iter().position(|character| *character == '\n')),
        ['/', '*', ..] => to(end_of_comment(rest)),
        ['"', ..] => to(end_of_quoted(rest, '"')),
        ['b' | 'c', '"', ..] if !follows_word(characters, at) => {
            to(end_of_quoted(&rest[1..], '"').map(|length| length + 1))
        }
        ['r', '"' | '#', ..] | ['b' | 'c', 'r', '"' | '#', ..] if !follows_word(characters, at) => {
            end_of_raw(rest).map(|length| at + length)
        }
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => to(end_of_quoted(rest, '\'')),
        ['\'', ..] => Some(at + 1 + rest[1..].iter().take_while(|character| is_word(**character)).count()),
        _ => None,
    }
}

fn end_of_comment(rest: &[char]) -> Option<usize> {
    let mut depth = 0;
    let mut at = 0;
    loop {
        match rest.get(at..)? {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            [_, ..] => at += 1,
            [] => return None,
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

fn end_of_quoted(rest: &[char], quote: char) -> Option<usize> {
    let mut at = 1;
    loop {
        match *rest.get(at)? {
            '\\' => at += 2,
            character if character == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// The end of `r"…"`, `br#"…"#` and the like; `None` for a raw word such as `r#type`.
fn end_of_raw(rest: &[char]) -> Option<usize> {
    let start = rest.iter().position(|character| *character == 'r')? + 1;
    let marks = rest[start..].iter().take_while(|character| **character == '#').count();
    if rest.get(start + marks) != Some(&'"') {
        return None;
    }
    let body = start + marks + 1;
    (body..rest.len()).find_map(|at| {
        let ends = rest[at] == '"' && rest[at + 1..].iter().take(marks).all(|character| *character == '#');
        (ends && rest.len() > at + marks).then_some(at + 1 + marks)
    })
}

fn is_word(character: char) -> bool {
    character == '_' || character.is_alphanumeric()
}

fn follows_word(characters: &[char], at: usize) -> bool {
    at > 0 && is_word(characters[at - 1])
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
            "a /* unsafe /* unsafe */ unsafe */",
            "a \"unsafe \\\" unsafe\"",
            "a r\"unsafe\\\"",
            "a r#\"unsafe \" unsafe\"#",
            "a br##\"unsafe \"# unsafe\"##",
            "a b\"unsafe\"",
            "a '\"' '\\'' b'\"'",
        ] {
            let words: Vec<_> = words(text).into_iter().filter(|word| word != "b").collect();
            assert_eq!(words, ["a"], "{text}");
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
            (
                "server/a.rs",
                "use crate::{engine::{A, b::C}, rules, sys::{self}};",
                &[("engine", 1), ("rules", 1), ("sys", 1)],
            ),
            (
                "server/a.rs",
                "use crate::{\n    engine::Mode,\n    rules,\n};",
                &[("engine", 2), ("rules", 3)],
            ),
            ("server/a.rs", "fn f() { crate::rules::read() }", &[("rules", 1)]),
            (
                "server/a.rs",
                "fn f(a: &crate::rules::Mode) -> Vec<crate::limit::Rate> {}",
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
