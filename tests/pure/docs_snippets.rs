//! The rules in the documentation are free of errors, as users copy them; its explanations are those of the program, and
//! its tests and those beside the code pass.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use tidegate::rules::read_text;

use crate::problems::folder;

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

#[test]
fn docs_show_printed_explanation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = pages()["docs/testing-rules.md"].clone() + &pages()["docs/rules.md"];
    let shown = page.match_indices("```console\n").map(|(at, fence)| (at, &page[at + fence.len()..]));
    let mut compared = 0;
    for (at, (command, output)) in shown.filter_map(|(at, block)| Some((at, block.split_once('\n')?))) {
        let output = output.split("```").next().unwrap();
        // Truncated output, or output for other rules, is left to other tests.
        let whole = output.strip_suffix("…\n");
        let Some(arguments) = command.strip_prefix("$ tidegate ").filter(|line| !line.contains("stricter"))
        else {
            continue;
        };
        // `api.yaml` has the rules above.
        let above = snippets(&page[..at]).pop().map(|snippet| snippet.text).unwrap_or_default();
        let above = folder(&[("api.yaml", above)]);
        let directory = if arguments.ends_with(" api.yaml") { above.path() } else { root };
        let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let printed = program.args(arguments.split(' ')).current_dir(directory).output().unwrap().stdout;
        let printed = String::from_utf8(printed).unwrap();
        match whole {
            Some(start) => assert!(printed.starts_with(start), "{printed}"),
            None => assert_eq!(printed, output),
        }
        compared += 1;
    }
    assert_eq!(compared, 5);
}

/// `tidegate test` in a directory: standard output, and everything.
fn test(directory: &Path, file: &str) -> (String, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = program.args(["test", file]).current_dir(directory).output().unwrap();
    (String::from_utf8(output.stdout.clone()).unwrap(), format!("{output:?}"))
}

#[test]
fn test_of_the_docs_passes() {
    let page = include_str!("../../docs/testing-rules.md");
    let example = page.split("```yaml\n").find(|block| block.starts_with("  - name: two exports at a time"));
    let example = example.unwrap().split("```").next().unwrap();
    let directory = folder(&[("tests.yaml", format!("tests:\n{example}"))]);
    let (out, all) = test(directory.path(), "tests.yaml");
    assert_eq!(out, "1 test, 9 requests: all as expected\n", "{all}");
}

#[test]
fn examples_of_tests_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The worked examples of the literature explain their format.
    let files =
        ["config/tests/api.yaml", "tests/pure/replay/leases.yaml", "tests/pure/literature/examples.yaml"];
    for (file, tests_min) in files.into_iter().zip([1, 3, 21]) {
        let tests = fs::read_to_string(root.join(file)).unwrap().matches("- name: ").count();
        let (out, all) = test(root, file);
        assert!(out.ends_with(": all as expected\n"), "{all}");
        let first = format!("{tests} test{}, ", if tests == 1 { "" } else { "s" });
        assert!(tests >= tests_min && out.starts_with(&first), "{file}: {out}");
    }
}
