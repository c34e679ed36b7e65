//! Each row of a table in `docs/failure-modes.md` names existing tests that guard it, in a comment at its
//! end: `<!-- server::caps::one_user_at_his_maximum, tests/python/test_restarts.py::test_kills -->`.

use std::fs;
use std::path::Path;

/// Tables that are no list of faults, by the heading above them or the first words of their head.
const NO_FAULTS: &[&str] = &["## Measured", "| file |"];

/// Every file that may hold a test, by its path, with its text.
fn test_files(root: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for room in ["src", "tests", "clients"] {
        collect(root, &root.join(room), &mut files);
    }
    files
}

fn collect(root: &Path, directory: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let extension = path.extension().unwrap_or_default().to_str().unwrap().to_owned();
        if path.is_dir() && !path.is_symlink() && !path.ends_with("node_modules") {
            collect(root, &path, files);
        } else if ["rs", "py", "rb", "go"].contains(&&*extension) {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.extend(fs::read_to_string(&path).map(|text| (name, text)));
        }
    }
}

/// Whether one of the files has such a test. `server::caps::name` is the function `name` of a Rust file that
/// ends in `server/caps.rs`; `test_restarts.py::name` is the function in a file of another language.
fn exists(guard: &str, files: &[(String, String)]) -> bool {
    let Some((place, name)) = guard.rsplit_once("::") else { return false };
    let end = if place.contains('.') { place.to_owned() } else { format!("{}.rs", place.replace("::", "/")) };
    let begins = ["fn ", "def ", "func "].map(|word| format!("{word}{name}"));
    let is_named = |text: &str| {
        begins.iter().any(|begin| {
            text.match_indices(begin.as_str()).any(|(at, _)| {
                let next = text[at + begin.len()..].chars().next();
                next.is_none_or(|next| !next.is_alphanumeric() && next != '_')
            })
        })
    };
    let is_there =
        |path: &str| path.strip_suffix(&end).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'));
    files.iter().any(|(path, text)| is_there(path) && is_named(text))
}

/// Rows of the tables of faults: the number of the line, and the row.
fn rows(page: &str) -> Vec<(usize, &str)> {
    let (mut heading, mut head) = ("", "");
    let mut is_head = true;
    let mut rows = Vec::new();
    for (number, line) in page.lines().enumerate() {
        if line.starts_with("## ") {
            heading = line;
        }
        if !line.starts_with('|') {
            is_head = true;
        } else if line.starts_with("|---") {
            is_head = false;
        } else if is_head {
            head = line;
        } else if !NO_FAULTS.iter().any(|begin| heading.starts_with(begin) || head.starts_with(begin)) {
            rows.push((number + 1, line));
        }
    }
    rows
}

/// The names in the comment of a row; empty without a comment.
fn guards(row: &str) -> Vec<&str> {
    let comment = row.rsplit_once("<!--").and_then(|(_, rest)| rest.split_once("-->"));
    let names = comment.map_or("", |(names, _)| names).split(',').map(str::trim);
    names.filter(|name| !name.is_empty()).collect()
}

/// The faults of a page.
fn faults(page: &str, files: &[(String, String)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (line, row) in rows(page) {
        let guards = guards(row);
        if guards.is_empty() {
            faults
                .push(format!("line {line}: no test guards this row: end it in `<!-- room::file::test -->`"));
        }
        let missing = guards.into_iter().filter(|guard| !exists(guard, files));
        faults.extend(missing.map(|guard| format!("line {line}: there is no test `{guard}`")));
    }
    faults
}

#[test]
fn every_failure_mode_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/failure-modes.md")).unwrap();
    assert!(rows(&page).len() > 60, "the tables were found: {}", rows(&page).len());
    let faults = faults(&page, &test_files(root));
    assert!(faults.is_empty(), "docs/failure-modes.md:\n{}", faults.join("\n"));
}

#[test]
fn finds_missing_guards() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        file("tests/daemon/server/caps.rs", "fn keeps_places() {}"),
        file("clients/ruby/test/test_wire.rb", "def test_wire\n"),
        file("clients/go/breaker_test.go", "func TestBreaker(t *testing.T) {"),
    ];
    let page = |row: &str| format!("## A\n\n| what | does |\n|---|---|\n{row}\n");
    let found = |row: &str| faults(&page(row), &files);
    for good in ["server::caps::keeps_places", "test_wire.rb::test_wire", "breaker_test.go::TestBreaker"] {
        assert_eq!(found(&format!("| a | b | <!-- {good} -->")), Vec::<String>::new(), "{good}");
    }
    for bad in [
        "server::caps::keeps",
        "rver::caps::keeps_places",
        "caps::other",
        "keeps_places",
        "wire.rb::test_wire",
    ] {
        let expected = [format!("line 5: there is no test `{bad}`")];
        assert_eq!(found(&format!("| a | b | <!-- server::caps::keeps_places, {bad} -->")), expected);
    }
    assert!(found("| a | b |")[0].contains("line 5: no test guards this row"));
}
