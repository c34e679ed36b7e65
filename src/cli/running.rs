//! The daemon that runs, as its process shows it: its settings and rules, by its command line, and its user.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;

use super::client::connect;
use super::doctor::reach::User;
use super::{Arguments, Command};
use crate::daemon::serve;
use crate::daemon::settings::{Environment, SETTINGS_FILE, Settings};
use crate::sys;

#[derive(Debug)]
pub(in crate::cli) struct RunningDaemon {
    pub(super) pid: u32,
    /// The settings file of its command line, else the installed one.
    pub(in crate::cli) config: Option<PathBuf>,
    /// The rules of its command line.
    pub(super) rules: Option<PathBuf>,
}

impl RunningDaemon {
    /// Finds the daemon that serves a socket. Its paths are empty if this user may not see them.
    pub(in crate::cli) fn find(socket: &Path) -> Option<RunningDaemon> {
        let pid = daemon_pid(socket)?;
        // It may have another version.
        let (config, rules) = arguments(pid).map_or((None, None), |args| (args.config, args.rules));
        Some(RunningDaemon { pid, config, rules })
    }

    pub(super) fn user(&self) -> Option<User> {
        User::of_process(&std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?)
    }
}

/// Returns the sockets of all daemons of this host, each with its process; the nearest to a path first. `None`: this user
/// may not see which one it is.
pub(super) fn sockets(near: &Path) -> Vec<(u32, Option<PathBuf>)> {
    let socket = |pid| {
        let args = arguments(pid)?;
        let path = args.socket.clone().or_else(|| {
            // The settings file may name no socket, and the environment another one.
            let environment = Environment::of_process(pid)?;
            Some(Settings::load_in(args.config.as_deref(), &environment).ok()?.0.socket.path)
        });
        Some((pid, path.and_then(|path| absolute(pid, path))))
    };
    let near = std::path::absolute(near).unwrap_or_default();
    let alike = |path: &Path| near.components().zip(path.components()).take_while(|(a, b)| a == b).count();
    let mut sockets: Vec<_> = daemons().filter_map(socket).collect();
    sockets.sort_by_key(|(_, path)| Reverse(path.as_deref().map(alike)));
    sockets
}

/// Makes a path of a process absolute. A relative one needs its directory, which only its user and root may see.
fn absolute(pid: u32, path: PathBuf) -> Option<PathBuf> {
    if path.is_absolute() {
        return Some(path);
    }
    Some(std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?.join(path))
}

fn arguments(pid: u32) -> Option<serve::Args> {
    match Arguments::try_parse_from(command_line(pid)).ok()?.command {
        Command::Serve(mut args) => {
            for path in [&mut args.config, &mut args.rules, &mut args.socket] {
                *path = path.take().and_then(|path| absolute(pid, path));
            }
            let installed = Path::new(SETTINGS_FILE);
            args.config = args.config.or_else(|| installed.exists().then(|| installed.to_owned()));
            Some(args)
        }
        _ => None,
    }
}

/// Finds the daemon's process by its socket or, if systemd made the socket, by its name, if unique.
fn daemon_pid(socket: &Path) -> Option<u32> {
    // Nothing listens there: no other daemon is meant.
    let peer = connect(socket, PATIENCE).ok().and_then(|stream| sys::peer_pid(&stream).ok().flatten())?;
    // The program may have another name; a service manager has other arguments.
    if is_daemon(&peer) || arguments(peer).is_some() {
        return Some(peer);
    }
    let mut found = daemons();
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

fn daemons() -> impl Iterator<Item = u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).filter(is_daemon)
}

fn is_daemon(pid: &u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end() == "tidegate" && command_line(*pid).iter().any(|argument| argument == "serve")
}

fn command_line(pid: u32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    words.filter(|word| !word.is_empty()).collect()
}

/// A healthy daemon answers in microseconds.
const PATIENCE: Duration = Duration::from_secs(1);
