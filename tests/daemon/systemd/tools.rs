//! Other programs, if installed.

use crate::prelude::*;
use std::process::Output;

/// The path of a program; prints if it is missing.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&paths).map(|directory| directory.join(name)).find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: there is no {name} here (Debian has it in the package systemd)");
    }
    found
}

pub(crate) fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

/// Standard output and standard error.
pub(crate) fn output_text(output: &Output) -> String {
    [&*output.stdout, &*output.stderr].map(String::from_utf8_lossy).concat()
}

pub(crate) fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
