//! Errors and warnings of rules files, settings and traces as users read them, the meaning of rules in
//! `meanings.txt`, of several files in `files.txt`, and the differences of two versions in `changes.txt`. The files in `diagnostics/` have
//! inputs and all output for each; `UPDATE_DOCS=1 cargo test --test pure diagnostics` rewrites them.
//!
//! `#` begins a section, `|` has the lines of its template, in which `…` stands for an input. `>` has the
//! lines of an input, `=` its problems: line, column, `warning:` unless it is an error, the message, and the
//! help in brackets.

use tidegate::cli::replay::play;
use tidegate::daemon::settings::{Environment, Settings};
use tidegate::rules::source::Source;
use tidegate::rules::{Problem, changes, read_text};

use crate::docs::keep_each;
use crate::problems::folder;

const FILE: &str = "rules.yaml";

fn read_rules(text: &str) -> Vec<String> {
    let loaded = read_text(FILE, text);
    assert_eq!(loaded.domains.is_empty(), loaded.has_errors(), "a domain with errors is absent:\n{text}");
    loaded.problems.iter().map(|problem| shown(problem, text)).collect()
}

/// The problems, then each rule with its compiled fields.
fn read_meanings(text: &str) -> Vec<String> {
    let domains = read_text(FILE, text).domains;
    let rules = domains.iter().flat_map(|domain| domain.rules()).map(|rule| {
        let fields: Vec<_> = rule.fields().iter().map(|(field, value)| format!("{field} {value}")).collect();
        format!("{}: {}", rule.name, fields.join(", "))
    });
    read_rules(text).into_iter().chain(rules).collect()
}

fn read_settings(text: &str) -> Vec<String> {
    let environment = Environment { cores: 2, ..Environment::default() };
    let read = Settings::read(Some(&Source::new(FILE, text.to_owned())), &environment);
    let has_settings = read.is_ok();
    let (Ok((_, problems)) | Err(problems)) = read;
    assert_ne!(has_settings, problems.iter().any(Problem::is_error), "with errors they are absent:\n{text}");
    problems.iter().map(|problem| shown(problem, text)).collect()
}

/// The first line has the fields of a rule, the others are its table of overrides.
fn read_rows(text: &str) -> Vec<String> {
    let (fields, table) = text.split_once('\n').unwrap();
    let rules = format!("domain: api\nlimits:\n- {{name: a, overrides_file: t.csv, {fields}}}\n");
    let loaded = tidegate::rules::read(folder(&[(FILE, &*rules), ("t.csv", table)]).path());
    assert_eq!(loaded.domains.is_empty(), loaded.has_errors(), "a domain with errors is absent:\n{text}");
    loaded.problems.iter().map(|problem| shown(problem, table)).collect()
}

/// `@` names a file, the lines behind it are its text. Their problems, then the domains with their rules, and those
/// without.
fn read_files(text: &str) -> Vec<String> {
    let files = text.split("@ ").skip(1).map(|file| file.split_once('\n').unwrap());
    let directory = folder(&files.collect::<Vec<_>>());
    let loaded = tidegate::rules::read(directory.path());
    let directory = directory.path().display().to_string();
    let problems = loaded.problems.iter().map(|problem| problem.to_string().replace(&directory, "."));
    let domains = crate::rules::shown(&loaded.domains);
    let without = loaded.failed.iter().map(|name| format!("without {name}"));
    let all = problems.chain((!domains.is_empty()).then_some(domains)).chain(without);
    all.map(|line| line.trim_end().to_owned()).collect()
}

/// The third line of a trace.
fn read_trace(line: &str) -> Vec<String> {
    let good = r#"{"t": 1, "domain": "api", "descriptors": [["user", "u1"]], "id": 1}"#;
    let trace = format!("{good}\n\n{line}{good}\n").into_bytes();
    let rules = read_text(FILE, "domain: api\nlimits: [{name: a, key: [user], rate: 2/s}]\n").domains;
    play(trace, rules, None, false).err().into_iter().collect()
}

fn read_access_line(line: &str) -> Vec<String> {
    let rules = read_text(FILE, "domain: api\n").domains;
    play(line.trim_end().into(), rules, Some("api"), true).err().into_iter().collect()
}

/// The changes from the rules before the arrow to those after it.
fn read_changes(text: &str) -> Vec<String> {
    let (before, after) = text.split_once("→\n").unwrap();
    let [before, after] = [before, after].map(|text| {
        let loaded = read_text(FILE, text);
        assert!(!loaded.has_errors(), "{text}\n{:#?}", loaded.problems);
        loaded.domains
    });
    changes(&before, &after)
}

/// A problem in one line. Its full form shows the span and the source line.
fn shown(problem: &Problem, text: &str) -> String {
    let (line, column) = (problem.position.line, problem.position.column);
    let place = problem.position.to_string();
    assert!(problem.render(false).contains(&place), "{}", problem.render(false));
    if let Some(excerpt) = &problem.line_text {
        let written = text.lines().nth(line as usize - 1).unwrap_or_default();
        let is_part = written.len() > 100 && written.contains(&*excerpt.text);
        assert!(*excerpt.text == *written || is_part, "{:?}\n{problem}", excerpt.text);
    }
    let problem = problem.to_string();
    let rest = problem.strip_prefix(&format!("{place}: ")).unwrap_or_else(|| panic!("{problem}"));
    format!("{line}:{column} {}", rest.strip_prefix("error: ").unwrap_or(rest))
}

/// Reads each input again. Returns the file with the current problems, and the inputs whose problems differ.
fn read_again(file: &str, read: fn(&str) -> Vec<String>) -> (String, String) {
    let (mut renewed, mut differing) = (String::new(), String::new());
    let (mut template, mut input) = (String::new(), String::new());
    let mut lines = file.lines().peekable();
    while let Some(line) = lines.next() {
        renewed += &format!("{line}\n");
        let rest = line.get(2..).unwrap_or_default();
        match line.get(..1) {
            Some("#") => template.clear(),
            Some("|") => template += &format!("{rest}\n"),
            Some(">") => input += &format!("{rest}\n"),
            _ => {}
        }
        if input.is_empty() || lines.peek().is_some_and(|next| next.starts_with('>')) {
            continue;
        }
        let mut expected = Vec::new();
        while let Some(problem) = lines.next_if(|next| next.starts_with('=')) {
            expected.push(problem.get(2..).unwrap_or_default().to_owned());
        }
        let text = match template.as_str() {
            "" => input.clone(),
            _ => {
                let parts = input.split("→\n").map(|part| template.replace('…', part.trim_end_matches('\n')));
                parts.collect::<Vec<_>>().join("→\n")
            }
        };
        let mut found = read(&text);
        if found.is_empty() {
            found.push("none".to_owned());
        }
        if found != expected {
            differing += &format!("{text}expected {expected:#?}\nfound {found:#?}\n\n");
        }
        renewed.extend(found.iter().map(|problem| format!("= {problem}\n")));
        input.clear();
    }
    (renewed, differing)
}

#[test]
fn reports_recorded_errors_and_warnings() {
    keep_each("tests/pure/diagnostics", |name, file| {
        let read = match name {
            "settings.txt" => read_settings,
            "changes.txt" => read_changes,
            "meanings.txt" => read_meanings,
            "files.txt" => read_files,
            "access_lines.txt" => read_access_line,
            "rows.txt" => read_rows,
            "traces.txt" => read_trace,
            _ => read_rules,
        };
        read_again(file, read)
    });
}
