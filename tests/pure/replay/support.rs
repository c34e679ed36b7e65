//! Replayed files, and runs of the program on them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const RULES: &str = "\
domain: api
limits:
  - {name: per-user, key: [user], rate: 2/s, burst: 3}
  - {name: per-address, key: [ip], rate: 1/min, mode: shadow}
";

/// A directory of files, removed on drop.
pub(crate) struct Files(TempDir);

impl Files {
    pub(crate) fn new(files: &[(&str, &str)]) -> Files {
        let directory = Files(tempfile::tempdir().unwrap());
        for (name, text) in files {
            let path = directory.path(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        directory
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.0.path()
    }

    /// Runs any command in the directory.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments).current_dir(self.directory()).output().unwrap()
    }

    /// Runs `replay` in the directory of the files.
    pub(crate) fn replay(&self, arguments: &[&str]) -> Output {
        self.replay_input("", arguments)
    }

    /// Runs `replay` with this standard input.
    pub(crate) fn replay_input(&self, input: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("replay").args(arguments).current_dir(self.directory());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The program may exit without reading, when its rules have errors.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }
}

/// Replays a trace under rules.
pub(crate) fn replay(rules: &str, trace: &str, arguments: &[&str]) -> Output {
    let files = Files::new(&[("api.yaml", rules), ("trace.jsonl", trace)]);
    files.replay(&[&["trace.jsonl", "--rules", "api.yaml"], arguments].concat())
}

/// Standard error as text.
pub(crate) fn output_text(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The decisions of a trace's requests.
pub(crate) fn decisions(rules: &str, trace: &str) -> Vec<Value> {
    decisions_of(&replay(rules, trace, &["--decisions", "-"]))
}

pub(crate) fn decisions_of(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", output_text(output));
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A hit by a user.
pub(crate) fn hit(t: &str, user: &str) -> String {
    format!(r#"{{"t": {t}, "domain": "api", "descriptors": [["user", "{user}"]]}}"#) + "\n"
}
