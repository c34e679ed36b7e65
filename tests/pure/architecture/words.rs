//! The words of comments in src/: standard terms and plain sentences, as CONTRIBUTING.md asks.

use std::collections::BTreeMap;

use super::product;

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
