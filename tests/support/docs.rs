//! Files that are written from the sources: the tests compare them, and with `UPDATE_DOCS=1` write them.

use std::fs;
use std::path::PathBuf;

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Compares a file with its expected text.
pub(crate) fn keep(name: &str, expected: &str, test: &str) {
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path(name), expected).unwrap();
    }
    let found = fs::read_to_string(path(name)).unwrap_or_default();
    assert!(found == expected, "{name} is out of date: UPDATE_DOCS=1 cargo test --test {test} rewrites it");
}

/// The same with the generated part of a page, between its marks.
pub(crate) fn keep_part(name: &str, part: &str, test: &str) {
    let page = fs::read_to_string(path(name)).unwrap();
    let mark = format!("<!-- generated: UPDATE_DOCS=1 cargo test --test {test} -->\n");
    let (before, rest) = page.split_once(&mark).unwrap_or_else(|| panic!("{name} has no {mark}"));
    let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{name} has no {END}"));
    keep(name, &format!("{before}{mark}{part}{END}{after}"), test);
}

/// Plays each text in a directory again. `play` returns the text with the current answers, and what differs.
pub(crate) fn keep_each(directory: &str, play: impl Fn(&str, &str) -> (String, String)) {
    let mut differing = String::new();
    for entry in fs::read_dir(path(directory)).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let (renewed, differs) = play(name, &fs::read_to_string(&path).unwrap());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, renewed).unwrap();
        } else if !differs.is_empty() {
            differing += &format!("{}:\n{differs}", path.display());
        }
    }
    assert!(differing.is_empty(), "{differing}");
}

const END: &str = "<!-- end -->\n";
