//! A real redis-server for one test, on a Unix socket in a temporary directory, optionally on a port.
#![allow(
    clippy::print_stdout,
    clippy::cast_possible_wrap,
    reason = "a test that is skipped says so; replies are short"
)]
#![allow(dead_code, unreachable_pub, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tidegate::clock::read_boot_nanos;

/// The server, killed when dropped.
pub struct Redis {
    child: Child,
    pub directory: TempDir,
    pub port: u16,
    options: Vec<String>,
}

/// Whether redis-server is installed; prints that the test is skipped otherwise.
pub fn is_installed() -> bool {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    let is_installed = found.is_ok_and(|status| status.success());
    if !is_installed {
        println!("skipped: there is no redis-server here");
    }
    is_installed
}

/// A port for a server that binds it itself. A closed connection keeps it from all others for a minute.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _caller = TcpStream::connect(address).unwrap();
    drop(listener.accept().unwrap());
    address.port()
}

impl Redis {
    /// On a Unix socket only.
    pub fn start(options: &[&str]) -> Redis {
        Redis::start_at(0, options)
    }

    /// Also on a free port of the loopback interface.
    pub fn start_on_port(options: &[&str]) -> Redis {
        Redis::start_at(free_port(), options)
    }

    /// Also on this port, unless it is 0.
    pub fn start_at(port: u16, options: &[&str]) -> Redis {
        Redis::start_in(tempfile::Builder::new().prefix("tidegate-redis-").tempdir().unwrap(), port, options)
    }

    /// Like [`Redis::start_at`], in a directory that may hold certificates.
    pub fn start_in(directory: TempDir, port: u16, options: &[&str]) -> Redis {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let child = spawn(directory.path(), port, &options);
        let redis = Redis { child, directory, port, options };
        redis.await_socket();
        redis
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(self.socket());
    }

    /// Starts it again at the same socket and port, with other options if given.
    pub fn restart(&mut self, options: Option<&[&str]>) {
        if let Some(options) = options {
            self.options = options.iter().map(|&option| option.to_owned()).collect();
        }
        self.child = spawn(self.directory.path(), self.port, &self.options);
        self.await_socket();
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Sends a command on a new connection and returns its reply verbatim. Arguments have no spaces.
    pub fn say(&self, command: &str) -> String {
        let mut stream = self.say_and_go(command);
        let mut reply = Vec::new();
        let mut bytes = [0; 4096];
        while !is_whole(&reply) {
            let read = stream.read(&mut bytes).unwrap();
            assert!(read > 0, "{command}: {}", String::from_utf8_lossy(&reply));
            reply.extend_from_slice(&bytes[..read]);
        }
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// Sends a command without waiting for its reply.
    pub fn say_and_go(&self, command: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&packed(&command.split(' ').collect::<Vec<_>>())).unwrap();
        stream
    }

    /// Sends a command that must succeed.
    pub fn order(&self, command: &str) {
        let reply = self.say(command);
        assert!(!reply.starts_with('-'), "{command}: {reply}");
    }

    fn await_socket(&self) {
        let until = read_boot_nanos() + 10_000_000_000;
        while UnixStream::connect(self.socket()).is_err() {
            let log = || std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            assert!(read_boot_nanos() < until, "redis-server did not start: {}", log());
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(directory: &Path, port: u16, options: &[String]) -> Child {
    let log = File::create(directory.join("log")).unwrap();
    let mut command = Command::new("redis-server");
    let of_tls = options.iter().any(|option| option == "--tls-port");
    let port = if of_tls { 0 } else { port };
    command.args([
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--unixsocket",
        "redis.sock",
        "--save",
        "",
    ]);
    command.args(["--enable-debug-command", "yes", "--dir"]).arg(directory).args(options);
    command.current_dir(directory).stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
    command.spawn().expect("redis-server starts")
}

pub fn packed(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len());
    for word in words {
        bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    bytes.into_bytes()
}

/// Whether a reply is complete; for arrays, whether their first line is.
fn is_whole(reply: &[u8]) -> bool {
    let text = String::from_utf8_lossy(reply);
    let Some((line, rest)) = text.split_once("\r\n") else { return false };
    match line.strip_prefix('$').map(|length| length.parse::<i64>().unwrap()) {
        Some(length) if length >= 0 => rest.len() as i64 >= length + 2,
        _ => true,
    }
}
