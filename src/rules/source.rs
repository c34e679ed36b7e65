//! A file in memory: name, text, and the problems found in it.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Position;
use super::open::{self, OpenError, Opened};
use super::problem::{Excerpt, Problem, Severity, ValueProblem, shown};
use crate::terms::is_deceptive;

/// The text of one file.
#[derive(Debug)]
pub struct Source {
    file: Arc<str>,
    text: String,
    table_lookup: TableLookup,
    /// Whether problems may quote the text.
    quotable: bool,
}

pub(super) type NamedTable = (String, String);

/// Where tables that the file names are looked up.
#[derive(Debug)]
enum TableLookup {
    Nothing,
    Directory(PathBuf),
    /// Tables saved together with the file.
    Kept(Arc<[NamedTable]>),
}

/// A file that is not a readable text.
#[derive(Debug)]
pub struct UnreadableFile {
    /// The error.
    pub problem: Box<Problem>,
    /// The part of the text that could be decoded.
    pub(crate) text: String,
}

impl UnreadableFile {
    fn new(path: &Path, wrong: ValueProblem, text: String) -> UnreadableFile {
        UnreadableFile { problem: Box::new(about_file(path, wrong)), text }
    }
}

/// A span in a text. Lines and columns count from 1, columns in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
pub struct Span {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
    /// Length in characters.
    pub(crate) width: u32,
    /// Byte offset in the text.
    pub(crate) byte: u32,
}

impl Span {
    /// The start of a text.
    pub const START: Span = Span { line: 1, column: 1, width: 1, byte: 0 };
}

impl Source {
    /// Makes a source of a text from elsewhere.
    pub fn new(file: &str, text: String) -> Source {
        Source { file: file.into(), text, table_lookup: TableLookup::Nothing, quotable: true }
    }

    pub(super) fn kept(file: &str, text: String, tables: Arc<[NamedTable]>) -> Source {
        Source { file: file.into(), text, table_lookup: TableLookup::Kept(tables), quotable: true }
    }

    /// Reads a file whose links stay beneath its directory. Problems quote it if its owner is root, the owner
    /// of the directory, or the user of this process.
    ///
    /// # Errors
    /// The file is missing, not readable, not regular, larger than [`FILE_BYTES_MAX`] or not UTF-8, or a link
    /// leads out of its directory.
    pub fn read(path: &Path) -> Result<Source, UnreadableFile> {
        Source::of(path, read_bytes(path))
    }

    /// Reads a file with links to anywhere: the settings, whose path the user of the command gives.
    ///
    /// # Errors
    /// As [`Source::read`], except for links.
    pub(crate) fn read_anywhere(path: &Path) -> Result<Source, UnreadableFile> {
        Source::of(path, bytes_of(open::anywhere(path)))
    }

    fn of(path: &Path, read: Result<(Vec<u8>, bool), ValueProblem>) -> Result<Source, UnreadableFile> {
        let name = shown_path(path);
        let (bytes, quotable) = match read {
            Ok(read) => read,
            Err(wrong) => return Err(UnreadableFile::new(path, wrong, String::new())),
        };
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let message = format!("the file is larger than {} MiB", FILE_BYTES_MAX >> 20);
            let wrong = ValueProblem::new(message, "split it: several files may add to one domain");
            return Err(UnreadableFile::new(path, wrong, String::from_utf8_lossy(&bytes).into_owned()));
        }
        match String::from_utf8(bytes) {
            // A byte order mark, which YAML allows and some editors write, is not part of the text.
            Ok(text) => {
                let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
                let directory = path.parent().map(Path::to_owned);
                let table_lookup = directory.map_or(TableLookup::Nothing, TableLookup::Directory);
                Ok(Source { table_lookup, quotable, ..Source::new(&name, text) })
            }
            Err(error) => Err(not_utf8(&name, error.as_bytes(), error.utf8_error().valid_up_to(), quotable)),
        }
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the directory of the file; `None` for a text from elsewhere.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.table_lookup {
            TableLookup::Directory(directory) => Some(directory),
            TableLookup::Nothing | TableLookup::Kept(_) => None,
        }
    }

    /// Reads a file beside this one; `None` for a text from elsewhere.
    pub(super) fn read_table(&self, name: &str) -> Option<Result<Source, UnreadableFile>> {
        match &self.table_lookup {
            TableLookup::Nothing => None,
            TableLookup::Directory(directory) => Some(Source::read(&directory.join(name))),
            TableLookup::Kept(tables) => {
                let path = Path::new(&*self.file).with_file_name(name);
                let text = tables.iter().find(|(table, _)| table == name).map(|(_, text)| text.clone());
                let wrong = || ValueProblem::new("it was not kept", "read the rules from their files");
                let missing = || UnreadableFile::new(&path, wrong(), String::new());
                Some(text.map(|text| Source::new(&path.to_string_lossy(), text)).ok_or_else(missing))
            }
        }
    }

    pub(crate) fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// Returns the byte offset of a line and column. Linear in the text: for one error per file only.
    pub(super) fn byte_of(&self, line: u32, column: u32) -> u32 {
        let lines = self.text.split_inclusive('\n').take((line as usize).saturating_sub(1));
        let start: usize = lines.map(str::len).sum();
        let rest = self.text.get(start..).unwrap_or_default();
        let before =
            rest.chars().take((column as usize).saturating_sub(1)).map(char::len_utf8).sum::<usize>();
        u32::try_from(start + before).unwrap_or(u32::MAX)
    }

    pub(crate) fn position(&self, at: Span) -> Position {
        Position { file: Arc::clone(&self.file), span: at }
    }

    /// Makes a problem at a span. If the file may not be quoted, the message is withheld too, as messages
    /// contain text of the file.
    pub(crate) fn problem(&self, severity: Severity, at: Span, message: String, help: String) -> Problem {
        let position = self.position(at);
        if !self.quotable {
            let (message, help) = (WITHHELD.to_owned(), WITHHELD_HELP.to_owned());
            return Problem { severity, position, message, help, line_text: None };
        }
        let excerpt = Excerpt::around(&self.text, at);
        Problem { severity, position, message, help, line_text: Some(excerpt) }
    }
}

/// The problems of a file found so far.
#[derive(Debug)]
pub struct Report<'s> {
    source: &'s Source,
    problems: RefCell<Vec<Problem>>,
    errors: Cell<usize>,
}

impl<'s> Report<'s> {
    pub(crate) fn new(source: &'s Source) -> Report<'s> {
        Report { source, problems: RefCell::default(), errors: Cell::default() }
    }

    pub(crate) fn source(&self) -> &'s Source {
        self.source
    }

    pub(crate) fn error(&self, at: Span, message: impl Into<String>, help: impl Into<String>) {
        self.note(Severity::Error, at, message.into(), help.into());
    }

    pub(crate) fn warning(&self, at: Span, message: impl Into<String>, help: impl Into<String>) {
        self.note(Severity::Warning, at, message.into(), help.into());
    }

    /// Returns a valid value, or reports its error.
    pub(crate) fn settle<T>(&self, at: Span, value: Result<T, ValueProblem>) -> Option<T> {
        match value {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.note(Severity::Error, at, wrong.message, wrong.help);
                None
            }
        }
    }

    /// Returns whether a name is not among the known ones of a field, or reports it.
    pub(crate) fn is_new<'k>(
        &self,
        at: Span,
        name: &str,
        mut known: impl Iterator<Item = &'k str>,
        field: &str,
    ) -> bool {
        let is_new = known.all(|known| known != name);
        if !is_new {
            self.error(at, format!("{} is written twice in `{field}`", shown(name)), "keep one of the two");
        }
        is_new
    }

    /// Adds the problems of a file that belongs to this one.
    pub(super) fn absorb(&self, problems: Vec<Problem>) {
        self.errors.update(|errors| errors + problems.iter().filter(|problem| problem.is_error()).count());
        self.problems.borrow_mut().extend(problems);
    }

    pub(crate) fn errors(&self) -> usize {
        self.errors.get()
    }

    /// Returns all problems in file order.
    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| (problem.position.line, problem.position.column));
        problems
    }

    fn note(&self, severity: Severity, at: Span, message: String, help: String) {
        self.errors.update(|errors| errors + usize::from(severity == Severity::Error));
        let mut problems = self.problems.borrow_mut();
        if problems.len() < PROBLEMS_MAX {
            problems.push(self.source.problem(severity, at, message, help));
        }
    }
}

/// A path as problems name it: on one line, whatever characters its name has.
fn shown_path(path: &Path) -> String {
    path.to_string_lossy().replace(is_deceptive, "\u{fffd}")
}

/// Makes a problem of a file or directory as a whole.
pub(crate) fn about_file(path: &Path, wrong: ValueProblem) -> Problem {
    Problem {
        severity: Severity::Error,
        position: Position { file: shown_path(path).into(), span: Span::default() },
        message: wrong.message,
        help: wrong.help,
        line_text: None,
    }
}

/// Returns the bytes of a regular file, at most [`FILE_BYTES_MAX`] + 1, and whether problems may quote it.
pub(super) fn read_bytes(path: &Path) -> Result<(Vec<u8>, bool), ValueProblem> {
    bytes_of(open::beneath(path))
}

fn bytes_of(opened: Result<Opened, OpenError>) -> Result<(Vec<u8>, bool), ValueProblem> {
    let read = opened.and_then(|opened| Ok((open::read(&opened, FILE_BYTES_MAX + 1)?, opened.quotable)));
    read.map_err(|error| ValueProblem::new(error.to_string(), error.help()))
}

fn not_utf8(name: &str, bytes: &[u8], valid_up_to: usize, quotable: bool) -> UnreadableFile {
    let help = match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "it looks like UTF-16: save it as UTF-8",
        _ => "save it as UTF-8",
    };
    let byte = bytes.get(valid_up_to).copied().unwrap_or_default();
    let before = String::from_utf8_lossy(bytes.get(..valid_up_to).unwrap_or_default());
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let count = |from_0: usize| u32::try_from(from_0).unwrap_or(u32::MAX).saturating_add(1);
    let at = Span { line: count(line), column: count(column), width: 1, byte: count(valid_up_to) - 1 };
    let source = Source { quotable, ..Source::new(name, String::from_utf8_lossy(bytes).into_owned()) };
    let message = format!("not UTF-8: the byte 0x{byte:02x} starts no character");
    let problem = source.problem(Severity::Error, at, message, help.to_owned());
    UnreadableFile { problem: Box::new(problem), text: source.text }
}

/// The message for a file that may not be quoted.
const WITHHELD: &str = "something is wrong here, and its text is not shown: another user owns the file";
const WITHHELD_HELP: &str =
    "run `tidegate check` as the owner of the file, or give it to root or to the owner of its directory";

/// More than 100 000 rules of ordinary length. The YAML tree takes about ten times the size of the file.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// A file with more problems is no rules file. Each problem takes about 500 bytes.
const PROBLEMS_MAX: usize = 100_000;
