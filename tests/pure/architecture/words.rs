//! The words of comments in src/, as CONTRIBUTING.md asks: standard terms and plain sentences. And its type names: each
//! is defined in one file, so that a search finds one thing.

use std::collections::BTreeMap;

use super::product;
use super::source::tokens;

/// Words that hide the subject of a sentence.
const BANNED: &[&str] = &["nobody", "somebody", "whoever", "heard"];

/// "What" and "who" are for questions: at most this many per 1 000 words of a room.
const QUESTIONS_MAX: usize = 2;

/// Texts for users stand in doc comments there: `clap` prints them.
const HELP_TEXTS: &[&str] = &["cli", "trace"];

/// The text of the comment at the end of a line; a `//` inside a string counts too, and has no such words.
fn comment(line: &str) -> Option<&str> {
    line.split_once("//").map(|(_, comment)| comment.trim_start_matches(['/', '!']))
}

/// The words of a comment, without those of code in it.
fn words(comment: &str) -> impl Iterator<Item = String> + '_ {
    let prose = comment.split('`').step_by(2);
    let words = prose.flat_map(|part| part.split(|character: char| !character.is_alphanumeric()));
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

/// The faults of these files, by their paths below src/, with their texts.
fn faults(files: &[(String, String)]) -> Vec<String> {
    let (mut faults, mut rooms) = (Vec::new(), BTreeMap::<&str, [usize; 2]>::new());
    for (path, text) in files {
        let room = path.split('/').next().unwrap();
        let [all, questions] = rooms.entry(room).or_default();
        for (number, line) in text.lines().enumerate() {
            for word in comment(line).into_iter().flat_map(words) {
                *all += 1;
                *questions += usize::from(word == "what" || word == "who");
                if BANNED.contains(&word.as_str()) && !HELP_TEXTS.contains(&room) {
                    faults.push(format!("src/{path}:{}: \"{word}\": name the subject", number + 1));
                }
            }
        }
    }
    for (room, [all, questions]) in rooms.iter().filter(|(room, _)| !HELP_TEXTS.contains(room)) {
        // A small room may have a few.
        if *questions > 2 + all * QUESTIONS_MAX / 1_000 {
            faults.push(format!("src/{room}: {questions} \"what\" and \"who\" in {all} words of comments"));
        }
    }
    faults
}

#[test]
fn comments_name_their_subjects() {
    let faults = faults(&product());
    assert!(faults.is_empty(), "see \"Words\" in CONTRIBUTING.md:\n{}", faults.join("\n"));
}

#[test]
fn finds_banned_words_only_in_comments() {
    let file = |text: &str| [("server/a.rs".to_owned(), text.to_owned())];
    assert_eq!(faults(&file("let nobody = \"whoever\"; // The host returns tokens.\n")), [""; 0]);
    let banned = faults(&file("fn a() {}\n/// Whoever asks waits.\n"));
    assert_eq!(banned, ["src/server/a.rs:2: \"whoever\": name the subject"]);
    let questions = faults(&file(&"// What waits?\n".repeat(3)));
    assert_eq!(faults(&file("/// Returns `heard`.\n")), [""; 0]);
    assert_eq!(questions, ["src/server: 3 \"what\" and \"who\" in 6 words of comments"]);
}

/// Names with one meaning everywhere: the options of a command.
const GENERIC: &[&str] = &["Args", "Config", "Error", "State"];

/// The types that a file defines at its top level, without those of its tests.
fn types(text: &str) -> Vec<String> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let tokens = tokens(product);
    let mut depth = 0;
    let mut types = Vec::new();
    for pair in tokens.windows(2) {
        match pair[0].text.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "struct" | "enum" | "trait" | "type" if depth == 0 => types.push(pair[1].text.clone()),
            _ => {}
        }
    }
    types
}

#[test]
fn type_names_are_unique() {
    let files = product();
    let mut places = BTreeMap::<String, Vec<&str>>::new();
    for (path, text) in &files {
        types(text).into_iter().for_each(|name| places.entry(name).or_default().push(path));
    }
    assert!(places.len() > 500, "the types were found: {}", places.len());
    places.retain(|name, places| places.len() > 1 && !GENERIC.contains(&name.as_str()));
    assert!(places.is_empty(), "give each a name of its own: {places:#?}");
}

#[test]
fn finds_types_outside_of_impls_and_tests() {
    let text = "pub struct One;\nimpl Two for One {\n    type Inner = u8;\n}\n#[cfg(test)]\nmod tests {\n    struct Three;\n}\n";
    assert_eq!(types(text), ["One"]);
}
