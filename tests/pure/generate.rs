//! `tidegate gen`: a page for every command that `--help` shows, and completions that their shells accept.
//! Shells and `mandoc` run where they are installed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::completions::bash_completes;

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");

fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn said(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands in `--help` of one command, with their subcommands, each with its prefix.
fn commands(above: &[&str]) -> Vec<Vec<String>> {
    let help = said(&[above, &["--help"]].concat());
    // The program's own help has its commands in groups, up to its options.
    let listed = help.lines().skip_while(|line| !["Commands:", "Run:"].contains(line));
    let listed = listed.take_while(|line| !line.starts_with("Options:") && !line.starts_with("Arguments:"));
    let names = listed.filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')));
    let names = names.filter(|line| !line.starts_with("help "));
    let mut all = vec![above.iter().map(ToString::to_string).collect::<Vec<_>>()];
    for name in names.filter_map(|line| line.split(' ').next()) {
        all.extend(commands(&[above, &[name]].concat()));
    }
    all
}

fn pages(directory: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn man_pages_match_help_of_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let into = directory.path().join("share/man1");
    said(&["gen", "man", into.to_str().unwrap()]);
    let commands = commands(&[]);
    assert!(commands.len() > 20, "{commands:?}");
    let name =
        |command: &Vec<String>| format!("{}.1", [&["tidegate".to_owned()][..], command].concat().join("-"));
    assert_eq!(pages(&into), commands.iter().map(name).collect(), "no more and no less");
    for command in &commands {
        let words: Vec<&str> = command.iter().map(|word| &**word).collect();
        let help = said(&[&words[..], &["--help"]].concat());
        let page = fs::read_to_string(into.join(name(command))).unwrap();
        let page = page.replace("\\*(Aq", "'").replace('\\', "");
        // Help wraps lines as a terminal does.
        let what: Vec<&str> = help.lines().take_while(|line| !line.is_empty()).collect();
        assert!(page.contains(&what.join(" ")), "{command:?}: {what:?}");
        assert!(page.contains(&format!(" 1 \"\" \"tidegate {}\"", env!("CARGO_PKG_VERSION"))), "{command:?}");
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{command:?}");
        let options = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
        for option in options.filter_map(|option| option.split([' ', ',']).next()) {
            assert!(page.contains(&format!("--{option}")), "{command:?}: --{option}");
        }
        let examples = ["Example:", "Examples:", "Begin with:"];
        // The program's own commands have the exit codes.
        let has_codes = help.contains("Exit codes:") || command.is_empty();
        assert!(has_codes && help.lines().any(|line| examples.contains(&line)), "{command:?}: {help}");
        assert!(page.contains(".SH EXAMPLES"), "{command:?}");
        assert_eq!(help.contains("Exit codes:"), page.contains(".SH \"EXIT STATUS\""), "{command:?}");
        assert!(!page.contains("write-state-every"), "what is for tests is not shown");
        if let Some((last, above)) = command.split_last() {
            assert!(page.contains(".SH \"SEE ALSO\""), "{last} of {above:?}");
        }
    }
    lint(&into);
}

/// Checks pages with `mandoc` where it is installed.
fn lint(directory: &Path) {
    for page in pages(directory) {
        let path = directory.join(&page);
        let Ok(linted) = Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).arg(&path).output()
        else {
            eprintln!("mandoc is not here: nobody lints {page}");
            continue;
        };
        let found = String::from_utf8(linted.stdout).unwrap();
        // A date would change the page in each build; the library decides how to break lines before a list.
        let known = ["missing date", "br before sp", "br after sp"];
        let found = found.lines().filter(|line| !known.iter().any(|known| line.contains(known)));
        let found: Vec<&str> = found.collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

#[test]
fn reports_unwritable_page() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let failed = run(&["gen", "man", file.path().join("man").to_str().unwrap()]);
    let why = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(1), "{why}");
    assert!(why.contains(file.path().to_str().unwrap()) && why.contains("name a directory"), "{why}");
}

#[test]
fn shells_accept_their_completions() {
    for shell in ["bash", "zsh", "fish"] {
        match read_by(&[shell, "-n"], &said(&["gen", "completions", shell])) {
            Some(read) => assert!(read.status.success() && read.stderr.is_empty(), "{shell}: {read:?}"),
            None => eprintln!("{shell} is not here: nobody reads its completions"),
        }
    }
    assert_eq!(run(&["gen", "completions", "csh"]).status.code(), Some(2));
}

/// The completions of bash, which is always installed, without a daemon.
#[test]
fn bash_completes_commands_options_and_values() {
    let completed = |words: &str| bash_completes(words, "/nonexistent.sock");
    let commands = commands(&[]);
    for above in commands
        .iter()
        .filter_map(|command| command.split_last().map(|(_, above)| above))
        .collect::<BTreeSet<_>>()
    {
        let candidates = completed(&format!("tidegate {} ''", above.join(" ")));
        let below = commands.iter().filter(|command| command.split_last().is_some_and(|(_, of)| of == above));
        for name in below.filter_map(|command| command.last()) {
            assert!(candidates.contains(name), "{above:?}: {name}: {candidates:?}");
        }
    }
    assert_eq!(completed("tidegate hit api --on-failure r"), ["refuse"]);
    assert_eq!(completed("tidegate fleet show --ad"), ["--admin"]);
    assert!(completed("tidegate block ''").iter().all(|word| word.starts_with("--")), "no daemon, no rules");
    // Only the scripts' own variable changes what the program does.
    let version = Command::new(BINARY).arg("--version").env("COMPLETE", "bash").output().unwrap();
    assert!(version.stdout.starts_with(b"tidegate "), "{version:?}");
}

fn read_by(shell: &[&str], text: &str) -> Option<Output> {
    let (program, arguments) = shell.split_first()?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    child.stdin.take()?.write_all(text.as_bytes()).ok()?;
    child.wait_with_output().ok()
}
