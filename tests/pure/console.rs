//! Runs of the program on small files, and what they print, as the files in `console/` have them.
//! `UPDATE_DOCS=1 cargo test --test pure console` writes the output anew.
//!
//! `#` begins a scenario in a directory of its own, with the files that stand before the first scenario. `@` names a
//! file, `|` has its lines; `20x |` is twenty lines, in which `#n` is the number of the line, from 0. `$` runs the
//! program: `< FILE` is its standard input, and `[a b.c]` shows only these members of its JSON. `>` has
//! standard output, with equal lines once, `!` standard error, and `=` an exit code other than 0. `//` is a comment.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::docs::keep_each;

struct Console {
    directory: TempDir,
    file: PathBuf,
}

impl Console {
    fn new(files: &[&str]) -> Console {
        let mut console = Console { directory: tempfile::tempdir().unwrap(), file: PathBuf::new() };
        files.iter().for_each(|line| console.write(line));
        console
    }

    /// Begins a file, or adds to it.
    fn write(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("@ ") {
            self.file = self.directory.path().join(name);
            fs::create_dir_all(self.file.parent().unwrap()).unwrap();
            fs::write(&self.file, "").unwrap();
            return;
        }
        let (times, text) = line.split_once('|').unwrap();
        let times: u32 = times.trim().strip_suffix('x').map_or(1, |times| times.parse().unwrap());
        let text = text.strip_prefix(' ').unwrap_or(text).to_owned() + "\n";
        let lines: String = (0..times).map(|number| text.replace("#n", &number.to_string())).collect();
        OpenOptions::new().append(true).open(&self.file).unwrap().write_all(lines.as_bytes()).unwrap();
    }

    fn run(&self, line: &str) -> Vec<String> {
        let (line, members) =
            line.strip_suffix(']').map_or((line, ""), |line| line.split_once(" [").unwrap());
        let (line, input) = line.split_once(" < ").unwrap_or((line, ""));
        let input = match input {
            "" => Stdio::null(),
            name => File::open(self.directory.path().join(name)).unwrap().into(),
        };
        let arguments = line.strip_prefix("$ tidegate ").unwrap().split(' ');
        let mut program = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let program = program.args(arguments).current_dir(self.directory.path()).stdin(input);
        let output = program.output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let values = serde_json::Deserializer::from_str(&printed).into_iter();
        let mut shown = match members {
            "" => lines(">", printed.lines().map(str::to_owned)),
            _ => lines(">", values.map(|value| picked(&value.unwrap(), members))),
        };
        let said = String::from_utf8(output.stderr).unwrap();
        shown.extend(lines("!", said.lines().map(str::to_owned)));
        shown.extend(output.status.code().filter(|code| *code != 0).map(|code| format!("= {code}")));
        shown
    }
}

/// The members of a value, as `a 1, b.c "text"`.
fn picked(value: &Value, members: &str) -> String {
    let member = |name: &str| {
        format!("{name} {}", value.pointer(&format!("/{}", name.replace('.', "/"))).unwrap_or(&Value::Null))
    };
    members.split(' ').map(member).collect::<Vec<_>>().join(", ")
}

/// Lines behind a sign, equal ones once behind their number.
fn lines(sign: &str, all: impl Iterator<Item = String>) -> Vec<String> {
    let all: Vec<_> = all.collect();
    let line = |equal: &[String]| match equal.len() {
        1 => format!("{sign} {}", equal[0]),
        times => format!("{sign} {times}x {}", equal[0]),
    };
    all.chunk_by(|one, other| one == other).map(|equal| line(equal).trim_end().to_owned()).collect()
}

/// A file with the current output, and the runs that differ.
fn play(file: &str) -> (String, String) {
    let (mut renewed, mut differing) = (String::new(), String::new());
    let files: Vec<&str> = file.lines().take_while(|line| !line.starts_with('#')).collect();
    let files: Vec<&str> =
        files.into_iter().filter(|line| line.starts_with('@') || line.contains('|')).collect();
    let (mut console, mut scenario) = (Console::new(&[]), "");
    let mut lines = file.lines().peekable();
    while let Some(line) = lines.next() {
        renewed += &format!("{line}\n");
        match line.get(..1) {
            None | Some("/") => {}
            Some("#") => (console, scenario) = (Console::new(&files), line),
            Some("$") => {
                let is_output = |line: &&str| line.starts_with(['>', '!', '=']);
                let expected: Vec<_> = std::iter::from_fn(|| lines.next_if(is_output)).collect();
                let found = console.run(line);
                if found != expected {
                    differing += &format!("{scenario}\n{line}\nexpected {expected:#?}\nfound {found:#?}\n");
                }
                renewed.extend(found.into_iter().map(|line| line + "\n"));
            }
            _ => console.write(line),
        }
    }
    (renewed, differing)
}

#[test]
fn prints_as_each_scenario_has_it() {
    keep_each("tests/pure/console", |_, file| play(file));
}
