//! Builds the daemon to measure, as it is released.

use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Builds the daemon and returns its path.
pub(crate) fn daemon() -> io::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    // The environment of a benchmark: build scripts that look at it would run again at each change of the caller.
    let own = std::env::vars_os().map(|(name, _)| name);
    for name in own.filter(|name| is_of_package(&name.to_string_lossy())) {
        build.env_remove(name);
    }
    let built = build
        .args([
            "build",
            "--release",
            "--locked",
            "--bin",
            "tidegate",
            "--message-format=json-render-diagnostics",
        ])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stderr(Stdio::inherit())
        .output()?;
    let messages = String::from_utf8_lossy(&built.stdout);
    let mut paths = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    let path = paths.next_back().filter(|_| built.status.success());
    path.ok_or_else(|| io::Error::other("the daemon does not build"))
}

/// Whether cargo sets a variable for the package that it runs.
fn is_of_package(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}
