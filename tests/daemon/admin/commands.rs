//! Operators' commands, run as in a shell.

use super::completions::bash_completes;
use crate::prelude::*;

#[test]
fn shells_complete_domains_and_rules_of_the_running_daemon() {
    let rules = "domain: mail\nlimits:\n  - {name: per-sender, key: [from], rate: 1/s}\n  - {name: all, key: [], rate: 9/s}\n";
    let special =
        "domain: 'mail$(x)'\nlimits: [{name: a, key: [], rate: 1/s}, {name: 'b;x', key: [], rate: 1/s}]\n";
    let other = special.replace("mail$(x)", "other");
    let daemon =
        Plan::new().rules("mail.yaml", rules).rules("x.yaml", special).rules("y.yaml", &other).start();
    let socket = daemon.socket();
    let completed = |line: &str| bash_completes(line, &socket);
    assert_eq!(completed("tidegate hit m"), ["mail"]);
    assert_eq!(completed("tidegate record --for 1m --domain m"), ["mail"]);
    assert_eq!(completed("tidegate block mail/"), ["mail/per-sender", "mail/all"]);
    // A shell would run the commands in other names.
    assert_eq!(completed("tidegate block o"), ["other/a"]);
    assert_eq!(completed("tidegate unblock per-s"), ["per-sender"], "a name may stand without its domain");
    assert_eq!(completed("tidegate switch api/per-user sh"), ["shadow"]);
    assert_eq!(completed("tidegate fleet show a"), ["api/per-user"]);
    // The daemon that the line names.
    let named = |line: &str| bash_completes(&format!("tidegate {line}"), "/nonexistent.sock");
    assert_eq!(named(&format!("why --socket {} ap", socket.display())), ["api"]);
    assert_eq!(named(&format!("block --admin {} api/", admin_socket(&daemon).display())), ["api/per-user"]);
    assert_eq!(named("why ap"), [""; 0]);
    // A daemon that does not answer.
    daemon.process.signal(libc::SIGSTOP);
    assert_eq!(completed("tidegate hit m"), [""; 0]);
    daemon.process.signal(libc::SIGCONT);
}

#[test]
fn top_measures_rates_over_one_second() {
    let daemon = daemon();
    let top = daemon.json("top --once");
    assert!(top["seconds"].as_f64().unwrap() >= 1.0, "{top}");
    assert_eq!(top["rules"], json!([]), "nothing was asked meanwhile");
    has(&daemon.run("top --once"), &["0 allowed"]);
    let filtered =
        |options: &str| daemon.json(&format!("top --once {options}"))["rules"].as_array().unwrap().len();
    assert_eq!(filtered("--filter PER-user --sort refused"), 1, "a filter shows that its rules are idle");
    assert_eq!(filtered("--filter nothing"), 0);
    has(&daemon.fail("top", 2), &["--once"]);
}

#[test]
fn top_restores_the_terminal_at_sigterm() {
    let daemon = daemon();
    needs!(Command::new("script").arg("--version").output().is_ok());
    let top =
        format!("timeout --foreground 1 {BINARY} top --admin {}; stty -a", admin_socket(&daemon).display());
    let shown =
        Command::new("script").args(["-qec", &top, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout);
    // The main screen, with a cursor, and echo.
    has(&shown, &["\u{1b}[?1049h", "\u{1b}[?1049l", "\u{1b}[?25h", " echo "]);
}

#[test]
fn reload_and_healthcheck_exit_with_the_result() {
    let daemon = daemon();
    has(&daemon.run("reload"), &["nothing has changed"]);
    assert_eq!(daemon.run("healthcheck"), "ready\n");
    assert_eq!(daemon.json("reload")["changes"], json!([]));
    assert_eq!(daemon.json("healthcheck"), json!({"healthy": true, "lines": ["ready"]}));
    assert_eq!(daemon.json("switch")["switches"], json!([]));
    assert_eq!(daemon.json("bench -t 10ms")["connections"], 1);
    fs::write(daemon.plan.path("rules/api.yaml"), "domain: api\nlimits: [{name: a, rate: 5/fortnight}]\n")
        .unwrap();
    has(&daemon.fail("reload", 1), &["5/fortnight", "api.yaml:2"]);
    has(&daemon.run("healthcheck"), &["note: the rules have errors"]);
    assert_eq!(daemon.outcome("healthcheck --live").0, Some(0));
}

#[test]
fn every_command_prints_help_without_daemon() {
    let daemon = Plan::new().start();
    let admin = admin_socket(&daemon);
    let admin = admin.to_str().unwrap();
    let socket = daemon.socket();
    let socket = socket.to_str().unwrap();
    assert_eq!(daemon.outcome(&format!("status --admin {admin}")).0, Some(0));
    // Like the commands for clients.
    let elsewhere = |arguments: &[&str]| outcome_of(&Command::new(BINARY).args(arguments).output().unwrap());
    assert_eq!(elsewhere(&["status", "--socket", socket]).0, Some(0));
    assert_eq!(elsewhere(&["status", "--socket", socket, "--admin", admin]).0, Some(2));
    // An existing socket that is not the admin socket.
    has(&daemon.fail(&format!("status --admin {socket}"), 1), &["is this its admin socket?"]);
    let plan = daemon.plan;
    drop(daemon.process);
    // A killed daemon leaves its socket.
    for command in ["status", "top --once", "reload", "healthcheck", "healthcheck --live", "fleet"] {
        let run = |option: &str, path: &str| {
            elsewhere(&[&command.split(' ').collect::<Vec<_>>(), &[option, path][..]].concat())
        };
        let (code, out, err) = run("--admin", admin);
        assert!(code == Some(1) && out.is_empty() && err.contains("start the daemon"), "{command}: {err}");
        for (option, words) in [("--admin", "admin.sock"), ("--socket", "nowhere.sock")] {
            let (code, out, err) = run(option, plan.path("nowhere.sock").to_str().unwrap());
            assert!(code == Some(1) && out.is_empty() && err.contains(words), "{command} {option}: {err}");
        }
    }
}
