//! Other programs, where they are there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The path of a program; `None`, with a word, where it is missing.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&paths).map(|directory| directory.join(name)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no {name} here (Debian has it in the package systemd)");
    }
    found
}

/// Runs a program to its end.
pub(crate) fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

/// What it said, on both of its outputs.
pub(crate) fn said(output: &Output) -> String {
    [&*output.stdout, &*output.stderr].map(String::from_utf8_lossy).concat()
}

/// A file of the project.
pub(crate) fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
