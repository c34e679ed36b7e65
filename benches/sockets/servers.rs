//! The compared servers and how to start them.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::dialect::{Dialect, Fill, Frames, Script, command, hex};
use crate::load::{Connection, Until, in_flight};
use crate::process::Process;
use crate::workload::{self, USERS, Users};

/// A running server and its protocol.
pub(crate) struct Server {
    pub(crate) process: Process,
    socket: PathBuf,
    speaks: Speaks,
}

enum Speaks {
    Tidegate,
    Echo,
    Redis { sha: String },
}

impl Server {
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Connects with requests of callers drawn with this seed.
    pub(crate) fn connect(&self, seed: u64) -> io::Result<Connection> {
        self.connect_for(Users::uniform(seed))
    }

    pub(crate) fn connect_for(&self, users: Users) -> io::Result<Connection> {
        let dialect: Box<dyn Dialect> = match &self.speaks {
            Speaks::Tidegate => Box::new(Frames::to_daemon(users)),
            Speaks::Echo => Box::new(Frames::to_echo(users)),
            Speaks::Redis { sha } => Box::new(Script::new(sha, users)),
        };
        Connection::open(&self.socket, dialect)
    }
}

/// The daemon: its binary and files.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    binary: PathBuf,
    directory: PathBuf,
    rules: PathBuf,
    config: PathBuf,
}

impl Daemon {
    /// Writes the daemon's files into `directory`.
    pub(crate) fn prepare(binary: &Path, directory: &Path) -> io::Result<Daemon> {
        Daemon::prepare_with(binary, directory, "")
    }

    /// Like `prepare`, with more settings.
    pub(crate) fn prepare_with(binary: &Path, directory: &Path, more: &str) -> io::Result<Daemon> {
        let daemon = Daemon {
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            rules: directory.join("rules.yaml"),
            config: directory.join("tidegate.yaml"),
        };
        fs::write(&daemon.rules, workload::rules())?;
        fs::write(&daemon.config, format!("{SETTINGS}{more}"))?;
        Ok(daemon)
    }

    /// The command that serves on a socket of this name with one decision thread, like compared servers.
    pub(crate) fn command(&self, name: &str) -> (Command, PathBuf) {
        self.command_with(name, &self.rules)
    }

    /// Like `command`, with other rules.
    pub(crate) fn command_with(&self, name: &str, rules: &Path) -> (Command, PathBuf) {
        let socket = self.directory.join(name);
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--config").arg(&self.config).arg("--rules").arg(rules);
        command.arg("--socket").arg(&socket).args(["--threads", "1"]);
        (command, socket)
    }

    /// Starts it on the CPUs of the calling thread, with `more` arguments.
    pub(crate) fn start(&self, more: &[&str]) -> io::Result<Server> {
        let (mut command, socket) = self.command("tidegate.sock");
        command.args(more);
        let mut process = Process::start(&command)?;
        process.wait_for(&socket)?;
        Ok(Server { process, socket, speaks: Speaks::Tidegate })
    }

    /// Starts it with a service manager's socket and watchdog interval.
    pub(crate) fn start_watched(&self, manager: &Path, watchdog_micros: u64) -> io::Result<Server> {
        let (mut command, socket) = self.command("watched.sock");
        command.env("NOTIFY_SOCKET", manager).env("WATCHDOG_USEC", watchdog_micros.to_string());
        let mut process = Process::start_directly(&mut command)?;
        process.wait_for(&socket)?;
        Ok(Server { process, socket, speaks: Speaks::Tidegate })
    }

    /// Whether `serve` accepts an option with this value, shown in its help or not.
    pub(crate) fn takes(&self, option: &str, value: &str) -> io::Result<bool> {
        let help = Command::new(&self.binary).args(["serve", option, value, "--help"]).output()?;
        Ok(help.status.success())
    }
}

/// Sends one request per caller, so that every key is in the table.
pub(crate) fn fill(server: &Server, keys: u64) -> io::Result<()> {
    let mut connections = [server.connect_for(Users::InOrder(0))?];
    in_flight(&mut connections, FILL_DEPTH, Until::Requests(keys))?;
    Ok(())
}

/// Starts the echo server, which answers requests of the size of `request` with `reply`.
pub(crate) fn start_echo(directory: &Path, request: &[u8], reply: &[u8]) -> io::Result<Server> {
    let socket = directory.join("echo.sock");
    remove(&socket)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("echo").arg(&socket).arg(request.len().to_string()).arg(hex(reply));
    let mut process = Process::start(&command)?;
    process.wait_for(&socket)?;
    Ok(Server { process, socket, speaks: Speaks::Echo })
}

/// Starts Redis without persistence, loads the script and writes every caller's state.
pub(crate) fn start_redis(directory: &Path) -> io::Result<Server> {
    let socket = directory.join("redis.sock");
    remove(&socket)?;
    let mut redis = Command::new("redis-server");
    redis.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
    redis.arg("--unixsocket").arg(&socket).arg("--dir").arg(directory);
    let mut process = Process::start(&redis)?;
    process.wait_for(&socket)?;
    let sha = load_script(&socket)?;
    #[allow(clippy::disallowed_methods, reason = "the script's state is in Unix time")]
    let unix_us = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?.as_micros() as u64;
    let mut connections = [Connection::open(&socket, Box::new(Fill::new(unix_us)))?];
    in_flight(&mut connections, FILL_DEPTH, Until::Requests(u64::from(USERS)))?;
    Ok(Server { process, socket, speaks: Speaks::Redis { sha } })
}

fn load_script(socket: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    let mut request = Vec::new();
    command(&mut request, &["SCRIPT", "LOAD", GCRA]);
    stream.write_all(&request)?;
    let mut stream = BufReader::new(stream);
    let mut header = String::new();
    stream.read_line(&mut header)?;
    if header != "$40\r\n" {
        return Err(io::Error::other(format!("Redis did not take the script: {header}")));
    }
    let mut sha = [0; 40];
    stream.read_exact(&mut sha)?;
    Ok(String::from_utf8_lossy(&sha).into_owned())
}

/// Removes the socket of a killed server, which would prevent the next bind.
fn remove(socket: &Path) -> io::Result<()> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Room for a million keys (the default would evict), and no log entry at every start.
const SETTINGS: &str = "memory: {max: 1GiB}\nlog: {level: warn}\n";

const GCRA: &str = include_str!("gcra.lua");

const FILL_DEPTH: u64 = 64;
