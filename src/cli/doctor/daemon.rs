//! Checks the daemon: whether it answers, its status, and its limit on open files.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::admin_client::{AdminClient, AdminFailure};
use super::super::client::Client;
use super::super::running::{self, RunningDaemon};
use super::Finding;
use super::reach::User;
use crate::admin::DaemonStatus;
use crate::daemon::process;
use crate::daemon::settings::Settings;
use crate::engine::Mode;
use crate::protocol::{DescriptorList, RequestFrame, WireReply};
use crate::terms::counted;

/// Runs all checks: of a daemon that does not answer only that, and of one whose admin socket does not, no status.
pub(super) fn all(settings: &Settings, running: Option<&RunningDaemon>) -> Vec<Finding> {
    let socket = &settings.socket.path;
    let answer = answers(socket, running);
    let is_well = answer.as_ref().is_some_and(Finding::is_well);
    let mut findings: Vec<Finding> = answer.into_iter().collect();
    if is_well {
        findings.extend(operators(&AdminClient::of_settings(settings), settings));
        findings.push(open_files(running, settings.connections.max));
    }
    if running.is_none() {
        let others = running::sockets(socket).into_iter();
        let others = others.filter(|(_, other)| other.as_ref() != Some(socket));
        findings.extend(others.map(elsewhere));
    }
    findings
}

/// Asks the daemon; `None` if there is no socket, which the check of the socket reports.
fn answers(socket: &Path, running: Option<&RunningDaemon>) -> Option<Finding> {
    const WHAT: &str = "daemon";
    let answer = Client::connect(socket, PATIENCE).and_then(|mut client| {
        let id = client.next_id();
        client.ask(&RequestFrame::Ping { id }, &DescriptorList::new(), |reply| {
            matches!(reply, WireReply::Done { ok: true, .. })
        })
    });
    let failure = match answer {
        Ok(true) => return Some(Finding::well(WHAT, "it answers")),
        Ok(false) => {
            let help = "find the process that listens there: ss -xlp";
            return Some(Finding::wrong(WHAT, "it answers, but not as tidegate", help));
        }
        Err(failure) => failure,
    };
    Some(match (failure.kind(), running) {
        (Some(ErrorKind::NotFound), _) => return None,
        (Some(ErrorKind::PermissionDenied), _) => {
            Finding::unseen(WHAT, "this user may not ask it", "run this as root or as the daemon's user")
        }
        (Some(ErrorKind::ConnectionRefused), _) => {
            let message = "no process listens at its socket: the daemon that made it has ended";
            Finding::wrong(WHAT, message, start_help(socket))
        }
        (Some(ErrorKind::WouldBlock | ErrorKind::TimedOut), Some(RunningDaemon { pid, .. })) => {
            let message = format!("it does not answer: process {pid} is {}", state(*pid));
            Finding::wrong(WHAT, message, format!("kill -CONT {pid} if it is stopped, else restart it"))
        }
        _ => Finding::wrong(WHAT, format!("it does not answer: {failure}"), "see its log"),
    })
}

fn state(pid: u32) -> &'static str {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match stat.rsplit(") ").next().and_then(|fields| fields.chars().next()) {
        Some('T' | 't') => "stopped (state T)",
        Some('D') => "waiting for a disk (state D)",
        Some('Z') => "dead, and its parent does not notice (state Z)",
        Some('R' | 'S') => "running",
        _ => "in an unknown state",
    }
}

/// Returns the commands that start the daemon on this host.
pub(super) fn start_help(socket: &Path) -> String {
    let by_hand = format!("tidegate serve --socket {}", socket.display());
    match Path::new("/run/systemd/system").exists() {
        true => format!(
            "systemctl start tidegate.socket tidegate, and journalctl -u tidegate; by hand: {by_hand}"
        ),
        false => format!("start it with its rules: {by_hand} --rules DIR"),
    }
}

/// Reports a daemon that serves another socket.
fn elsewhere((pid, socket): (u32, Option<PathBuf>)) -> Finding {
    let Some(socket) = &socket else {
        let message = format!("process {pid} is a daemon, and this user may not see which socket it serves");
        return Finding::unseen("daemon", message, "run this as root or as the daemon's user");
    };
    let socket = socket.display();
    let help =
        format!("tidegate doctor --socket {socket}; for clients and commands: TIDEGATE_SOCKET={socket}");
    Finding::warning("daemon", format!("process {pid} is a daemon that serves {socket}"), help)
}

fn operators(admin: &AdminClient, settings: &Settings) -> Vec<Finding> {
    const WHAT: &str = "admin socket";
    let ready = match admin.get("/readyz") {
        Ok(ready) => ready,
        Err(failure) => {
            let message = failure.to_string();
            let root = rustix::process::geteuid().is_root();
            return vec![match failure {
                AdminFailure::Misdirected { .. } | AdminFailure::NoSocket { .. } => {
                    let (message, help) = message.split_once("\nhelp: ").unwrap_or((&message, ""));
                    Finding::wrong(WHAT, message, help)
                }
                AdminFailure::Io { source, .. } if !root && source.kind() != ErrorKind::NotFound => {
                    Finding::unseen(WHAT, message, "run this as root or as the daemon's user")
                }
                _ => {
                    let help = "let the daemon's user make files beside its socket (systemd/tmpfiles.d), then restart it";
                    Finding::warning(WHAT, message, help)
                }
            }];
        }
    };
    let mut findings = vec![Finding::well(WHAT, "it answers")];
    let status = admin.get_json::<DaemonStatus>("/status").ok();
    let mut reasons: Vec<&str> =
        if ready.status == READY { Vec::new() } else { ready.body.lines().collect() };
    // While good rules of before hold, the daemon is ready all the same.
    let errors = status.as_ref().and_then(DaemonStatus::errors_in_rules);
    reasons.extend(errors.as_deref().filter(|_| reasons.is_empty()));
    for reason in &reasons {
        let help = if errors.as_deref() == Some(*reason) {
            format!("tidegate check {} shows the errors; then: tidegate reload", settings.rules.display())
        } else {
            "fix that, and it is ready: tidegate status".to_owned()
        };
        findings.push(Finding::wrong("readiness", *reason, help));
    }
    if let Some(status) = status {
        let missed_many = status.decided_alone().filter(|_| status.misses_many());
        findings.extend(missed_many.map(|missed| self::missed(&missed.client, &missed.reason, missed.count)));
        findings.extend(of_status(&status, &reasons));
        findings.extend(shared_domains(&status, settings));
    }
    findings
}

/// Reports decisions that clients made without the daemon, by their reason.
pub fn missed(client: &str, reason: &str, count: u64) -> Finding {
    let decisions = counted(count, "decision");
    let message = format!("clients of {client} made {decisions} without it: {reason}");
    let help = match reason {
        "unreachable" => {
            "see by its log that it ran all the time, and that their user can connect: tidegate doctor --as USER"
        }
        "breaker" => {
            "a client's breaker opens after several failures and then asks nothing for a while: correct the other reasons"
        }
        "timeout" => {
            "see whether it was slow or the host busy: tidegate top; tidegate bench; or give the clients a longer timeout"
        }
        _ => "see the log of the clients and of the daemon: are the versions those of one release?",
    };
    Finding::warning("clients", message, help)
}

/// Returns findings from the status: the mode, and the warnings that no other finding says.
fn of_status(status: &DaemonStatus, reasons: &[&str]) -> Vec<Finding> {
    let mode = match &*status.mode {
        "" => None,
        "enforce" => Some(Finding::well("mode", "enforce: refusals are refusals")),
        mode => {
            let help = "when that was not meant: `mode: enforce` in the settings, then restart the daemon";
            Some(Finding::warning("mode", format!("{mode}: no request is refused"), help))
        }
    };
    let missed = status.missed_warning();
    let off = off(status);
    // What limits nothing, or refuses most callers, is wrong.
    let is_said = |warning: &str| off.iter().any(|found| found.message == warning);
    let is_new = |warning: &&String| {
        !reasons.contains(&&***warning) && Some(*warning) != missed.as_ref() && !is_said(warning)
    };
    let warnings = status.warnings.iter().filter(is_new).map(|warning| {
        let finding =
            if status.switches.warnings.contains(warning) { Finding::wrong } else { Finding::warning };
        Finding { help: None, ..finding("daemon says", warning.clone(), String::new()) }
    });
    let mode = mode.filter(|_| off.is_empty());
    mode.into_iter().chain(off.iter().cloned()).chain(warnings).collect()
}

/// Returns findings on what switches everything off, each with the command that ends it.
fn off(status: &DaemonStatus) -> Vec<Finding> {
    let path = status.switches.off_by.as_deref().unwrap_or("the file `disable`");
    let file = status.switches.off_line().map(|line| Finding::wrong("mode", line, format!("rm {path}")));
    let switches = status.switches.held.switches.iter();
    let switches = switches
        .filter(|switch| {
            switch.rule.is_none() && switch.mode != Mode::Enforce.name() && switch.is_last != Some(false)
        })
        .map(|switch| {
            let (hosts, option) =
                if switch.fleet { ("on all hosts", " --fleet") } else { ("on this host", "") };
            let message = format!("everything is switched to {} {hosts}: no request is refused", switch.mode);
            Finding::wrong("mode", message, format!("tidegate switch --all --clear{option}"))
        });
    file.into_iter().chain(switches).collect()
}

pub(super) fn closed_domains(settings: &Settings, user: &User) -> Option<Finding> {
    let closed =
        settings.domains.iter().filter(|domain| !domain.uids.is_empty() && !domain.uids.contains(&user.uid));
    let closed: Vec<String> = closed.map(|domain| format!("`{}`", domain.name)).collect();
    (!closed.is_empty()).then(|| {
        Finding::warning(
            "domains",
            format!("closed to {}: {}; requests about them are refused", user.name, closed.join(", ")),
            format!("if {} should ask, add {} to `domains.NAME.uids` in the settings", user.name, user.uid),
        )
    })
}

/// Reports domains that are open to every user and used by several: each user can exhaust the limits of the others.
fn shared_domains(status: &DaemonStatus, settings: &Settings) -> Vec<Finding> {
    let is_closed =
        |name: &str| settings.domains.iter().any(|domain| *domain.name == *name && !domain.uids.is_empty());
    let open = status.shared_domains.iter().filter(|(name, _)| !is_closed(name));
    let warning = |(name, users): (&String, &Vec<u32>)| {
        let users = users.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        Finding::warning(
            "domains",
            format!("`{name}` is open to every user, and several ask about it: {users}"),
            format!("name the users that may: `domains: {{{name}: {{uids: [{users}]}}}}` in the settings"),
        )
    };
    open.map(warning).collect()
}

fn open_files(running: Option<&RunningDaemon>, connections: u32) -> Finding {
    const WHAT: &str = "open files";
    let Some(RunningDaemon { pid, .. }) = running else {
        let message = "the daemon's process cannot be found from here";
        return Finding::unseen(WHAT, message, "run this on the host, as root");
    };
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let Some(allowed) = open_files_in(&limits) else {
        return Finding::unseen(WHAT, format!("/proc/{pid}/limits cannot be read"), "run this as root");
    };
    let needed = process::open_files_needed(connections);
    if allowed < needed {
        let message =
            format!("the daemon may open {allowed} files, and {connections} connections take {needed}");
        let help = format!("LimitNOFILE={needed} in the unit, or a smaller connections.max");
        return Finding::warning(WHAT, message, help);
    }
    Finding::well(WHAT, format!("the daemon may open {allowed}, and needs {needed} at most"))
}

pub fn open_files_in(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

const READY: u16 = 200;

/// A healthy daemon answers in microseconds.
const PATIENCE: Duration = Duration::from_secs(1);
