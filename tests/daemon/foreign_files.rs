//! Files that another user has put among rules, tables, tests and traces: links that lead out, pipes, files
//! of an untrusted user. Runs each command of the real program that reads such files.

use crate::prelude::*;
use std::os::unix::fs::{chown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

const RULES: &str =
    "domain: api\nlimits:\n- {name: per-user, key: [user], rate: 2/s, overrides_file: partners.csv}\n";
const TABLE: &str = "user,rate\nu1,5/s\n";
/// Two callers.
const TRACE: &str = r#"{"t": 0, "domain": "api", "descriptors": [["user", "u1"]]}
{"t": 0, "domain": "api", "descriptors": [["user", "u2"]]}
{"t": 60, "domain": "api", "descriptors": [["user", "u2"]]}
"#;
const TESTS: &str = "rules: rules\ntests:\n- name: t\n  requests: |\n    0s user=u1 allow\n";

/// Part of each text that outputs must not contain, and of no other.
const CANARY: &str = "canary9c41";

/// A directory with a valid file of each kind.
fn ground() -> tempfile::TempDir {
    let ground = tempfile::tempdir().unwrap();
    fs::create_dir(ground.path().join("rules")).unwrap();
    for (name, text) in [
        ("rules/a.yaml", RULES),
        ("rules/partners.csv", TABLE),
        ("trace.jsonl", TRACE),
        ("tests.yaml", TESTS),
    ] {
        fs::write(ground.path().join(name), text).unwrap();
    }
    ground
}

/// A file in which no line is valid.
fn secret(name: &str) -> String {
    match name {
        "rules/partners.csv" => format!("{CANARY},password\nroot:{CANARY}:0,1\n"),
        "trace.jsonl" => format!("{CANARY}\n"),
        _ => format!("domain: api\n{CANARY}: yes\nlimits: [{{name: {CANARY}, rate: {CANARY}}}]\n"),
    }
}

/// Each kind of file, and the commands that read it.
const READS: &[(&str, &[&str])] = &[
    (
        "rules/a.yaml",
        &[
            "check rules",
            "check rules/a.yaml",
            "check rules --format json",
            "explain api user=u1 --rules rules",
            "test tests.yaml",
            "replay trace.jsonl --rules rules",
            "suggest trace.jsonl --rules rules --key user",
        ],
    ),
    (
        "rules/partners.csv",
        &["check rules", "check rules/a.yaml", "replay trace.jsonl --rules rules", "test tests.yaml"],
    ),
    ("tests.yaml", &["test tests.yaml"]),
    (
        "trace.jsonl",
        &[
            "replay trace.jsonl --rules rules",
            "replay trace.jsonl --rules rules --trace-format combined",
            "replay trace.jsonl --rules rules --trace-format combined --strict",
            "suggest trace.jsonl --key user",
        ],
    ),
];

fn run(ground: &Path, command: &str) -> (Option<i32>, String) {
    let output = Command::new(BINARY).args(command.split(' ')).current_dir(ground).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).unwrap())
}

#[test]
fn commands_refuse_links_out_of_the_directory_and_pipes() {
    for (is_pipe, (name, commands)) in
        [false, true].into_iter().flat_map(|is_pipe| READS.iter().map(move |read| (is_pipe, read)))
    {
        let ground = ground();
        let outside = tempfile::tempdir().unwrap();
        let file = ground.path().join(name);
        fs::remove_file(&file).unwrap();
        if is_pipe {
            make_pipe(&file);
        } else {
            fs::write(outside.path().join("secret"), secret(name)).unwrap();
            symlink(outside.path().join("secret"), &file).unwrap();
        }
        let reason = if is_pipe { "not a regular file" } else { "a link leads out of the directory" };
        for command in *commands {
            // Killed if it blocks.
            let mut started = Command::new("timeout");
            started.args(["60", BINARY]).args(command.split(' ')).current_dir(ground.path());
            let (code, printed, errors) = outcome_of(&started.output().unwrap());
            let printed = printed + &errors;
            assert!(!printed.contains(CANARY), "{command}: {printed}");
            assert!(code == Some(1) && printed.contains(reason), "{command}: {printed}");
        }
    }
}

#[test]
fn logs_no_content_of_links_out_of_the_directory() {
    let plan = Plan::new().rules("api.yaml", RULES);
    for (name, text) in [("partners.csv", "rules/partners.csv"), ("b.yaml", "rules/a.yaml")] {
        fs::write(plan.path(name), secret(text)).unwrap();
        symlink(plan.path(name), plan.path("rules").join(name)).unwrap();
    }
    let daemon = plan.start();
    daemon.await_log(&["b.yaml", "a link leads out"]);
    daemon.await_log(&["partners.csv", "a link leads out"]);
    // Replaced while it runs: the last good rules stay.
    for name in ["b.yaml", "partners.csv"] {
        fs::remove_file(daemon.plan.path("rules").join(name)).unwrap();
    }
    fs::write(daemon.plan.path("rules/partners.csv"), TABLE).unwrap();
    daemon.await_log(&["the rules were read again and are in force"]);
    fs::remove_file(daemon.plan.path("rules/partners.csv")).unwrap();
    symlink("../partners.csv", daemon.plan.path("rules/partners.csv")).unwrap();
    daemon.await_log(&["it keeps its last good rules"]);
    assert!(!daemon.log().contains(CANARY), "{}", daemon.log());
    daemon.greeted().assert_served();
}

#[test]
fn reads_mounted_config_map_with_its_tables() {
    let ground = ground();
    let rules = ground.path().join("rules");
    for version in ["..1", "..2"] {
        fs::create_dir(rules.join(version)).unwrap();
    }
    for (name, text) in [("a.yaml", RULES), ("partners.csv", TABLE)] {
        fs::remove_file(rules.join(name)).unwrap();
        fs::write(rules.join("..1").join(name), text).unwrap();
        fs::write(rules.join("..2").join(name), text.replace("2/s", "3/s")).unwrap();
        symlink(format!("..data/{name}"), rules.join(name)).unwrap();
    }
    for (version, rate) in [("..1", "2/s"), ("..2", "3/s")] {
        symlink(version, rules.join("..next")).unwrap();
        fs::rename(rules.join("..next"), rules.join("..data")).unwrap();
        for path in ["rules", "rules/a.yaml", "rules/..data", "rules/..data/a.yaml"] {
            let (code, printed) = run(ground.path(), &format!("check {path}"));
            assert!(
                code == Some(0) && printed.contains(rate) && printed.contains("1 row"),
                "{path}: {printed}"
            );
        }
    }
}

#[test]
fn quotes_no_file_of_a_user_who_is_not_trusted() {
    needs!(is_root());
    for (name, commands) in READS {
        let ground = ground();
        let file = ground.path().join(name);
        fs::write(&file, secret(name)).unwrap();
        chown(&file, Some(4711), Some(4711)).unwrap();
        for command in *commands {
            let (code, printed) = run(ground.path(), command);
            assert!(!printed.contains(CANARY), "{command}: {printed}");
            let is_passed_over = command.ends_with("combined");
            assert!(code == Some(i32::from(!is_passed_over)), "{command}: {printed}");
            assert!(printed.contains("its text is not shown"), "{command}: {printed}");
            let reasons = ["a.yaml:2:1", "partners.csv:1:1", "tests.yaml:1:1", "line 1: ", "\"line\": 2,"];
            assert!(reasons.iter().any(|reasons| printed.contains(reasons)), "{command}: {printed}");
        }
        // The file's owner is that of its directory, root, or the user of the command.
        chown(file.parent().unwrap(), Some(4711), Some(4711)).unwrap();
        assert_quoted(commands.iter().map(|command| run(ground.path(), command).1));
        chown(file.parent().unwrap(), Some(0), Some(0)).unwrap();
        chown(&file, Some(0), Some(0)).unwrap();
        assert_quoted(commands.iter().map(|command| run(ground.path(), command).1));
    }
}

#[track_caller]
fn assert_quoted(outputs: impl Iterator<Item = String>) {
    let outputs: Vec<_> = outputs.collect();
    assert!(outputs.iter().any(|printed| printed.contains(CANARY)), "{outputs:?}");
    assert!(!outputs.iter().any(|printed| printed.contains("its text is not shown")), "{outputs:?}");
}

#[test]
fn never_blocks_on_file_swapped_for_pipe() {
    let ground = ground();
    let path = |name: &str| ground.path().join(name);
    let pipe = || {
        make_pipe(&path("pipe"));
        fs::rename(path("pipe"), path("rules/a.yaml")).unwrap();
    };
    let file = || {
        fs::write(path("file"), RULES).unwrap();
        fs::rename(path("file"), path("rules/a.yaml")).unwrap();
    };
    let done = AtomicBool::new(false);
    let (read, ends) = mpsc::channel();
    let rules = path("rules");
    // Not joined, since it would never return.
    thread::spawn(move || {
        let mut seen = [0_u32; 2];
        while seen.iter().any(|count| *count < 200) {
            let was_read = tidegate::rules::read(&rules).problems.is_empty();
            seen[usize::from(was_read)] += 1;
        }
        read.send(seen).unwrap();
    });
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                pipe();
                file();
            }
        });
        let seen = ends.recv_timeout(Duration::from_secs(120));
        done.store(true, Ordering::Relaxed);
        seen.expect("every reading ends, whatever it finds");
    });
}
