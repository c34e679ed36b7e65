//! A running server and its protocol, and how to start the daemon.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dialect::{Dialect, Frames};
use crate::load::{Connection, Until, in_flight};
use crate::process::{Address, Process};
use crate::workload::{self, Users};

/// A running server and its protocol.
pub(crate) struct Server {
    pub(crate) process: Process,
    /// Another server that it asks, if any.
    store: Option<Process>,
    address: Address,
    speaks: Speaks,
}

/// Makes the requests of one connection.
type Speaks = Box<dyn Fn(Users) -> Box<dyn Dialect + Send>>;

impl Server {
    /// A started process with `address`, whose requests `speaks` makes; waits until it accepts connections.
    pub(crate) fn new<D: Dialect + Send + 'static>(
        mut process: Process,
        address: Address,
        speaks: impl Fn(Users) -> D + 'static,
    ) -> io::Result<Server> {
        process.wait_for(&address)?;
        let speaks: Speaks = Box::new(move |users| Box::new(speaks(users)));
        Ok(Server { process, store: None, address, speaks })
    }

    pub(crate) fn with_store(self, store: Server) -> Server {
        Server { store: Some(store.process), ..self }
    }

    /// The same process by another address; waits until it accepts connections there.
    pub(crate) fn at<D: Dialect + Send + 'static>(
        mut self,
        address: Address,
        speaks: impl Fn(Users) -> D + 'static,
    ) -> io::Result<Server> {
        self.process.wait_for(&address)?;
        Ok(Server { address, speaks: Box::new(move |users| Box::new(speaks(users))), ..self })
    }

    /// The path of its Unix socket.
    pub(crate) fn socket(&self) -> &Path {
        match &self.address {
            Address::Unix(path) => path,
            Address::Tcp(_) => Path::new(""),
        }
    }

    /// CPU of its live threads, with those of its store.
    pub(crate) fn cpu_nanos(&self) -> io::Result<u64> {
        Ok(self.process.cpu_nanos()? + self.store.as_ref().map_or(Ok(0), Process::cpu_nanos)?)
    }

    /// The ids of its threads, with those of its store.
    pub(crate) fn threads(&self) -> io::Result<Vec<i32>> {
        let mut threads = self.process.threads()?;
        threads.extend(self.store.as_ref().map_or(Ok(Vec::new()), Process::threads)?);
        Ok(threads)
    }

    /// Connects with requests of callers drawn with this seed.
    pub(crate) fn connect(&self, seed: u64) -> io::Result<Connection> {
        self.connect_for(Users::uniform(seed))
    }

    pub(crate) fn connect_for(&self, users: Users) -> io::Result<Connection> {
        Connection::open(&self.address, (self.speaks)(users))
    }

    /// Sends these requests one after the other, as one of each of the first `keys` callers.
    pub(crate) fn fill(&self, keys: u64, requests: impl Dialect + Send + 'static) -> io::Result<()> {
        let mut connections = [Connection::open(&self.address, Box::new(requests))?];
        in_flight(&mut connections, FILL_DEPTH, Until::Requests(keys)).map(drop)
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

    /// The same binary with files in a directory of this name, and with more settings.
    pub(crate) fn with(&self, name: &str, more: &str) -> io::Result<Daemon> {
        let place = self.directory.join(name);
        fs::create_dir_all(&place)?;
        Daemon::prepare_with(&self.binary, &place, more)
    }

    /// The command that serves on a socket of this name with one decision thread.
    pub(crate) fn command(&self, name: &str) -> (Command, PathBuf) {
        self.command_with(name, &self.rules)
    }

    /// Like `command`, with other rules.
    pub(crate) fn command_with(&self, name: &str, rules: &Path) -> (Command, PathBuf) {
        let (mut command, socket) = self.by_default(name, rules);
        command.args(["--threads", "1"]);
        (command, socket)
    }

    /// With its own number of decision threads.
    fn by_default(&self, name: &str, rules: &Path) -> (Command, PathBuf) {
        let socket = self.directory.join(name);
        let mut command = Command::new(&self.binary);
        command.arg("serve").arg("--config").arg(&self.config).arg("--rules").arg(rules);
        command.arg("--socket").arg(&socket);
        (command, socket)
    }

    /// Starts it on the CPUs of the calling thread, with `more` arguments.
    pub(crate) fn start(&self, more: &[&str]) -> io::Result<Server> {
        let (mut command, socket) = self.command("tidegate.sock");
        command.args(more);
        Server::new(Process::start(&command)?, Address::Unix(socket), Frames::to_daemon)
    }

    /// Starts it with its own number of decision threads.
    pub(crate) fn start_by_default(&self) -> io::Result<Server> {
        let (command, socket) = self.by_default("default.sock", &self.rules);
        Server::new(Process::start(&command)?, Address::Unix(socket), Frames::to_daemon)
    }

    /// Starts it with a service manager's socket and watchdog interval.
    pub(crate) fn start_watched(&self, manager: &Path, watchdog_micros: u64) -> io::Result<Server> {
        let (mut command, socket) = self.command("watched.sock");
        command.env("NOTIFY_SOCKET", manager).env("WATCHDOG_USEC", watchdog_micros.to_string());
        Server::new(Process::start_directly(&mut command)?, Address::Unix(socket), Frames::to_daemon)
    }

    /// Whether `serve` accepts an option with this value, shown in its help or not.
    pub(crate) fn takes(&self, option: &str, value: &str) -> io::Result<bool> {
        let help = Command::new(&self.binary).args(["serve", option, value, "--help"]).output()?;
        Ok(help.status.success())
    }
}

/// Sends one request per caller, so that every key is in the table.
pub(crate) fn fill(server: &Server, keys: u64) -> io::Result<()> {
    server.fill(keys, Frames::to_daemon(Users::InOrder(0)))
}

/// Room for a million keys (the default would evict), and no log entry at every start.
const SETTINGS: &str = "memory: {max: 1GiB}\nlog: {level: warn}\n";

/// Why a suite cannot be measured with a daemon whose `serve` lacks the options for tests.
pub(crate) const NEEDS_HOOKS: &str =
    "needs --daemon with a daemon of cargo build --release --features test-hooks";

const FILL_DEPTH: u64 = 64;
