//! A redis-server for this benchmark, on a Unix socket in a temporary directory.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::client::Client;
use crate::machine::Machine;
use crate::process::{Address, Process, waited_nanos};

/// The server, on a CPU of its own. Killed when dropped.
pub(crate) struct Server {
    process: Process,
    directory: TempDir,
}

impl Server {
    /// Starts it without persistence.
    pub(crate) fn start(machine: &Machine) -> io::Result<Server> {
        let directory = tempfile::Builder::new().prefix("tidegate-fleet-").tempdir()?;
        let socket = directory.path().join("redis.sock");
        let mut redis = Command::new("redis-server");
        redis.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
        redis.arg("--unixsocket").arg(&socket).arg("--dir").arg(directory.path());
        machine.pin(machine.server_cpu())?;
        let process = Process::start(&redis);
        machine.unpin()?;
        let mut process = process?;
        process.wait_for(&Address::Unix(socket))?;
        Ok(Server { process, directory })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    pub(crate) fn cpu_nanos(&self) -> io::Result<u64> {
        self.process.cpu_nanos()
    }

    /// Nanoseconds in which it was runnable without a CPU, which other processes had.
    pub(crate) fn waited_nanos(&self) -> io::Result<u64> {
        waited_nanos(&self.process.schedstat_of("redis-server")?)
    }

    /// `used_memory` from `INFO memory`.
    pub(crate) fn used_memory(&self) -> io::Result<u64> {
        let mut client = Client::connect(&self.socket())?;
        let info = client.ask(&redis::cmd("INFO").arg("memory").get_packed_command())?;
        let text = String::from_utf8_lossy(&info).into_owned();
        let used = text.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok());
        used.ok_or_else(|| io::Error::other("INFO memory is not as expected"))
    }
}
