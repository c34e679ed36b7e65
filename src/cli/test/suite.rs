//! Reads a file of tests: each test with its rules and lines. It evaluates nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use super::line::{LineTime, TestLine};
use crate::rules::de::{Deferred, FileNode};
use crate::rules::source::{Report, Source, Span};
use crate::rules::values::Text;
use crate::rules::yaml::{self, Value};
use crate::rules::{Domain, Problem, Severity, ValueProblem, shown};

#[derive(Debug)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) file: Arc<str>,
    /// Base of its relative paths.
    pub(super) directory: PathBuf,
    /// The position for problems with the domain: its name, else the start of the test.
    wrong_domain: Problem,
    pub(super) rules: TestRules,
    domain: Option<String>,
    /// In file order.
    pub(super) lines: Vec<TestLine>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TestRules {
    Path(PathBuf),
    /// A text in the test file, padded so that its line numbers are those of the file.
    Text(Arc<str>),
}

/// Reads a file of tests: a list, or a mapping with `tests`. `rules` replaces the rules named there.
pub(super) fn read(source: &Source, rules: Option<&Path>) -> Result<Vec<Test>, Vec<Problem>> {
    let root = yaml::read(source).map_err(|problem| vec![*problem])?;
    let report = Report::new(source);
    match suite(FileNode::new(&root, &report), rules) {
        Some(tests) if report.errors() == 0 => Ok(tests),
        _ => Err(report.into_problems()),
    }
}

impl Test {
    /// Returns all occurrences of lines in order of time; simultaneous ones in file order.
    pub(super) fn moments(&self) -> Vec<LineTime> {
        let of_line = |(number, line): (usize, &'_ TestLine)| line.moments(number).collect::<Vec<_>>();
        let mut moments: Vec<LineTime> = self.lines.iter().enumerate().flat_map(of_line).collect();
        moments.sort_by_key(|moment| moment.at);
        moments
    }

    /// Returns the domain of its requests: the one it names, else the only one of its rules.
    pub(super) fn domain(&self, domains: &[Arc<Domain>]) -> Result<String, Vec<Problem>> {
        let known: Vec<_> = domains.iter().map(|domain| shown(domain.name())).collect();
        let wrong = match (&self.domain, domains) {
            (Some(name), _) if domains.iter().any(|domain| domain.name() == name) => return Ok(name.clone()),
            (None, [only]) => return Ok(only.name().to_owned()),
            (_, []) => ValueProblem::new("no domain in the rules: nothing is limited", "name other `rules`"),
            (Some(name), _) => ValueProblem::new(
                format!("no domain {} in the rules", shown(name)),
                format!("there is {}", known.join(", ")),
            ),
            (None, _) => {
                let help = format!("say which by `domain`: {}", known.join(", "));
                ValueProblem::new("several domains in the rules", help)
            }
        };
        Err(vec![Problem { message: wrong.message, help: wrong.help, ..self.wrong_domain.clone() }])
    }
}

#[derive(Deserialize)]
#[serde(rename = "a file of tests")]
struct SuiteFields<'n> {
    #[serde(borrow)]
    rules: Option<Text<'n>>,
    domain: Option<Text<'n>>,
    #[expect(dead_code, reason = "read one by one")]
    tests: Vec<Deferred<TestFields<'n>>>,
}

#[derive(Deserialize)]
#[serde(rename = "a test")]
#[expect(dead_code, reason = "`source` and `differs` are for readers, and `requests` is read line by line")]
struct TestFields<'n> {
    #[serde(borrow)]
    name: Text<'n>,
    source: Option<Text<'n>>,
    differs: Option<Text<'n>>,
    rules: Option<Text<'n>>,
    domain: Option<Text<'n>>,
    requests: Deferred<Text<'n>>,
}

struct Defaults {
    rules: Option<TestRules>,
    domain: Option<String>,
}

fn suite(root: FileNode<'_>, given: Option<&Path>) -> Option<Vec<Test>> {
    let given = given.map(|path| TestRules::Path(path.to_owned()));
    if let Value::List(_) = root.value {
        let defaults = Defaults { rules: given, domain: None };
        return Some(root.each().filter_map(|node| test(node, &defaults)).collect());
    }
    let fields: SuiteFields<'_> = root.read()?;
    let named = fields.rules.zip(root.get("rules")).map(|(text, node)| rules_of(node, text.0));
    let defaults = Defaults { rules: given.or(named), domain: fields.domain.map(|text| text.0.to_owned()) };
    Some(root.items("tests").filter_map(|node| test(node, &defaults)).collect())
}

fn test(node: FileNode<'_>, defaults: &Defaults) -> Option<Test> {
    let errors_before = node.report.errors();
    let fields: Option<TestFields<'_>> = node.read();
    let rules = fields.as_ref().and_then(|fields| fields.rules).zip(node.get("rules"));
    let rules = rules.map(|(text, node)| rules_of(node, text.0)).or_else(|| defaults.rules.clone());
    if rules.is_none() && !node.has("rules") && matches!(node.value, Value::Map(_)) {
        let help = "write `rules: PATH` above `tests`, or give --rules PATH";
        node.error("a test without rules", help);
    }
    let lines = node.get("requests").and_then(lines);
    let fields = fields.filter(|_| node.report.errors() == errors_before)?;
    let domain_at = node.at("domain");
    Some(Test {
        name: fields.name.0.to_owned(),
        file: Arc::clone(node.report.source().file()),
        directory: node.report.source().directory().unwrap_or(Path::new("")).to_owned(),
        wrong_domain: node.report.source().problem(Severity::Error, domain_at, String::new(), String::new()),
        rules: rules?,
        domain: fields.domain.map(|text| text.0.to_owned()).or_else(|| defaults.domain.clone()),
        lines: lines?,
    })
}

/// Reads a path relative to the file, or a text of several lines.
fn rules_of(node: FileNode<'_>, written: &str) -> TestRules {
    if !written.trim_end().contains('\n') {
        let directory = node.report.source().directory().unwrap_or(Path::new(""));
        return TestRules::Path(directory.join(written.trim_end()));
    }
    let block = Block::of(node, written);
    let above = "\n".repeat(block.first_line.saturating_sub(1) as usize);
    let indent = " ".repeat(block.indent);
    let indented =
        |line: &str| if line.trim().is_empty() { "\n".to_owned() } else { format!("{indent}{line}\n") };
    TestRules::Text(format!("{above}{}", written.lines().map(indented).collect::<String>()).into())
}

/// Reads the lines of a test, from a text or a list of texts.
fn lines(node: FileNode<'_>) -> Option<Vec<TestLine>> {
    let mut lines = Vec::new();
    match node.value {
        Value::List(_) => {
            for item in node.each() {
                let Text(written) = item.value("requests")?;
                lines.extend(item.settle(TestLine::read(written, item.at.line)));
            }
        }
        _ => {
            let Text(written) = node.value("requests")?;
            let block = Block::of(node, written);
            for (number, line) in (0..).zip(written.lines()) {
                let words = line.trim();
                if words.is_empty() || words.starts_with('#') {
                    continue;
                }
                let at = block.span_of_line(number, line);
                lines.extend(node.report.settle(at, TestLine::read(words, at.line)));
            }
        }
    }
    if lines.is_empty() && node.report.errors() == 0 {
        node.error("a test without requests", REQUESTS_HELP);
    }
    let requests: u64 = lines.iter().map(|line| u64::from(line.times)).sum();
    if requests > REQUESTS_MAX {
        let message = format!("{requests} requests in a test");
        node.error(message, format!("write at most {REQUESTS_MAX}: `tidegate replay` is for long traces"));
        return None;
    }
    Some(lines)
}

/// Maps lines of a text to positions in its file.
struct Block<'s> {
    source: &'s Source,
    at: Span,
    first_line: u32,
    indent: usize,
    /// Whether each line of the text is a line of the file.
    is_literal: bool,
}

impl<'s> Block<'s> {
    fn of(node: FileNode<'s>, text: &str) -> Block<'s> {
        let source = node.report.source();
        let mut block = Block { source, at: node.at, first_line: node.at.line, indent: 0, is_literal: false };
        let Some((before, first)) = text.lines().enumerate().find(|(_, line)| !line.trim().is_empty()) else {
            return block;
        };
        // The node is at the block indicator (`|`) or at the text itself.
        let from = (node.at.line as usize).saturating_sub(1);
        let found = source.text().lines().enumerate().skip(from).take(LINES_TO_TEXT_MAX + before);
        let same = |(_, line): &(usize, &str)| line.trim() == first.trim();
        if let Some((number, line)) = { found }.find(same) {
            block.is_literal = true;
            block.first_line = u32::try_from(number + 1 - before.min(number)).unwrap_or(u32::MAX);
            block.indent = leading_spaces(line).saturating_sub(leading_spaces(first));
        }
        block
    }

    /// Returns the position of a line of the text, by its number from 0.
    fn span_of_line(&self, number: u32, text: &str) -> Span {
        if !self.is_literal {
            return self.at;
        }
        let line = self.first_line.saturating_add(number);
        let column = self.indent + leading_spaces(text);
        let above = self.source.text().split_inclusive('\n').take((line as usize).saturating_sub(1));
        let byte = above.map(str::len).sum::<usize>() + column;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let width = count(text.trim().chars().count());
        Span { line, column: count(column).saturating_add(1), width, byte: count(byte) }
    }
}

fn leading_spaces(line: &str) -> usize {
    line.bytes().take_while(|byte| *byte == b' ').count()
}

const REQUESTS_HELP: &str = "write `requests: |` and below it lines such as `0:00 x5  user=u1  allow`";

/// Each takes 32 bytes until it is played; `replay` is for longer traces.
const REQUESTS_MAX: u64 = 1_000_000;

/// Only the rest of its line stands between a block indicator and the first line of the text.
const LINES_TO_TEXT_MAX: usize = 3;
