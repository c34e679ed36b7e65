//! The rules in the documentation are free of errors, as users copy them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use tidegate::rules::read_text;

/// A block of rules, and the line of the page above it.
struct Snippet {
    line: usize,
    text: String,
}

/// The blocks of YAML that begin with `domain:`. Parts of a file are skipped.
fn snippets(page: &str) -> Vec<Snippet> {
    let mut snippets = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((line, fence)) = lines.next() {
        if fence.trim_end() != "```yaml" {
            continue;
        }
        let block = lines.by_ref().map(|(_, text)| text).take_while(|text| text.trim_end() != "```");
        let text: String = block.flat_map(|text| [text, "\n"]).collect();
        let first = text.lines().find(|text| !text.trim().is_empty() && !text.starts_with('#'));
        if first.is_some_and(|text| text.starts_with("domain:")) {
            snippets.push(Snippet { line: line + 1, text });
        }
    }
    snippets
}

/// The README and every page of docs/ and docs/migrate/, by name.
fn pages() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let listed = ["docs", "docs/migrate"].into_iter().flat_map(|room| fs::read_dir(root.join(room)).unwrap());
    let markdown = listed
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let paths = markdown.chain([root.join("README.md")]);
    let name = |path: &Path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
    paths.map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect()
}

/// Every error in the snippets of a page, with the line of the page.
fn errors(name: &str, page: &str) -> String {
    let mut errors = String::new();
    for snippet in snippets(page) {
        for problem in read_text(name, &snippet.text).problems.iter().filter(|problem| problem.is_error()) {
            let line = snippet.line + usize::try_from(problem.position.line).unwrap();
            writeln!(errors, "{name}:{line}: {}", problem.message).unwrap();
        }
    }
    errors
}

#[test]
fn parses_every_snippet_of_the_docs() {
    let faults: String = pages().iter().map(|(name, page)| errors(name, page)).collect();
    assert!(faults.is_empty(), "{faults}");
}

#[test]
fn finds_snippets() {
    let page = "x\n```yaml\n# a\n\ndomain: a\n```\n```yaml\n- part\n```\n```sh\ndomain: b\n```\n```yaml\ndomain: c\n```\n";
    let found: Vec<_> = snippets(page).into_iter().map(|snippet| (snippet.line, snippet.text)).collect();
    assert_eq!(found, [(2, "# a\n\ndomain: a\n".to_owned()), (13, "domain: c\n".to_owned())]);
    // The two pages that a newcomer reads first show rules.
    assert!(["README.md", "docs/rules.md"].iter().all(|name| !snippets(&pages()[*name]).is_empty()));
    let wrong = "text\n```yaml\ndomain: a\nlimits:\n  - {name: b, key: [], rate: 1/sec}\n```\n";
    assert!(errors("p.md", wrong).starts_with("p.md:5: unknown unit `sec`"), "{}", errors("p.md", wrong));
}
