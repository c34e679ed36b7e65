//! The commands and their options, as `--help` shows them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex::Regex;

fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).arg("--help").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The commands of the groups, each with its options.
fn commands() -> BTreeMap<String, Vec<String>> {
    let (all, option) = (help(&[]), Regex::new(r"(?m)^ +(?:-[a-z], )?--([a-z-]+)").unwrap());
    let groups = all.lines().skip_while(|line| *line != "Run:").take_while(|line| *line != "Options:");
    let names: Vec<_> = groups.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    let options = |name: &str| option.captures_iter(&help(&[name])).map(|one| one[1].to_owned()).collect();
    let commands: BTreeMap<_, _> = names.iter().map(|name| ((*name).to_owned(), options(name))).collect();
    assert_eq!(commands.len(), names.len(), "each command is in one group: {names:?}");
    commands
}

#[test]
fn every_command_with_an_answer_prints_json() {
    let without = ["serve", "acquire", "record", "dashboard", "gen"];
    for (name, options) in commands() {
        let has = |option: &str| options.iter().any(|known| known == option);
        assert_eq!([has("format"), has("json")], [!without.contains(&&*name); 2], "{name}");
    }
}

/// Messages and examples name commands with their options, as in `tidegate check {path}`.
#[test]
fn commands_that_texts_name_exist_with_their_options() {
    let commands = commands();
    let named = Regex::new(r"(^|[`:;(] ?|  )tidegate ([a-z]+)([^`;:\n(]*)").unwrap();
    let option = Regex::new(r" --([a-z-]+)").unwrap();
    let is_known = |verb: &str, rest: &str| {
        // Titles of a file of rules, of its schema and of the manual.
        if ["rules", "manual"].contains(&verb) {
            return true;
        }
        let Some(known) = commands.get(verb) else { return false };
        // The words after `--` are another command.
        let own = rest.split(" -- ").next().unwrap_or_default();
        option.captures_iter(own).all(|option| known.iter().any(|known| *known == option[1]))
    };
    assert!(is_known("acquire", " jobs -- make --always-make") && !is_known("check", " --rule x"));
    let (mut found, mut unknown) = (0, Vec::new());
    for file in rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        let is_code = |line: &&str| !line.trim_start().starts_with("//");
        for line in text.lines().filter(is_code).flat_map(|line| line.split('"')) {
            for text in named.captures_iter(line) {
                found += 1;
                if !is_known(&text[2], &text[3]) {
                    unknown.push(format!("{}: {}", file.display(), &text[0]));
                }
            }
        }
    }
    assert!(found > 100 && unknown.is_empty(), "{found} found, unknown: {unknown:#?}");
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() { rust_files(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}
