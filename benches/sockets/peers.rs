//! The servers beside which the daemon is measured, each as its own pages start it, without persistence.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::dialect::{self, Frames, command, hex};
use crate::grpc;
use crate::process::{Address, Process};
use crate::servers::{Daemon, Server, fill};
use crate::workload::{BURST, DOMAIN, USERS};

/// A server beside the daemon.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// Starts it with its files in a directory.
    pub(crate) start: fn(&Path) -> io::Result<Server>,
}

/// All but the echo server, which needs a reply of the daemon.
pub(crate) const PEERS: [Peer; 7] = [
    Peer { name: REDIS_GCRA, start: redis_gcra },
    Peer { name: REDIS_INCR, start: redis_incr },
    Peer { name: "memcached incr", start: memcached },
    Peer { name: "throttlecrab", start: throttlecrab },
    Peer { name: RATE_LIMIT_SERVICE, start: rate_limit_service },
    Peer { name: "gubernator", start: gubernator },
    Peer { name: "limitador", start: limitador },
];

pub(crate) const REDIS_GCRA: &str = "Redis GCRA";
pub(crate) const REDIS_INCR: &str = "Redis INCR";
pub(crate) const RATE_LIMIT_SERVICE: &str = "envoyproxy/ratelimit";

/// Starts the echo server, which answers requests of the size of `request` with `reply`.
pub(crate) fn echo(directory: &Path, request: &[u8], reply: &[u8]) -> io::Result<Server> {
    let socket = free_socket(directory, "echo.sock")?;
    let mut command = Command::new(env::current_exe()?);
    command.arg("echo").arg(&socket).arg(request.len().to_string()).arg(hex(reply));
    Server::new(Process::start(&command)?, Address::Unix(socket), Frames::to_echo)
}

/// The daemon's adapter for Envoy: over TCP, as the service that it replaces.
pub(crate) fn envoy_adapter(daemon: &Daemon, directory: &Path) -> io::Result<Server> {
    let (port, token) = (free_port()?, directory.join("token"));
    fs::write(&token, grpc::TOKEN)?;
    let token = token.display();
    let settings = format!("envoy: {{listen: \"{port}\", token_file: {token}, domains: [{DOMAIN}]}}");
    adapter(daemon, "envoy", &settings)?.at(Address::Tcp(port), grpc::envoy_adapter)
}

/// The daemon's adapter for clients of Redis: on a Unix socket, as Redis.
pub(crate) fn resp_adapter(daemon: &Daemon, directory: &Path) -> io::Result<Server> {
    let socket = free_socket(directory, "resp.sock")?;
    let settings = format!("resp: {{socket: {}}}", socket.display());
    adapter(daemon, "resp", &settings)?.at(Address::Unix(socket), dialect::hit)
}

/// With every caller's state in the table.
fn adapter(daemon: &Daemon, name: &str, settings: &str) -> io::Result<Server> {
    let daemon = daemon.with(name, &format!("adapters: {{{settings}}}\n"))?;
    let server = daemon.start_by_default()?;
    fill(&server, u64::from(USERS))?;
    Ok(server)
}

/// With the script loaded, and every caller's state written.
fn redis_gcra(directory: &Path) -> io::Result<Server> {
    let (process, socket) = redis(directory, "gcra.sock")?;
    let sha = load_script(&socket)?;
    let server = Server::new(process, Address::Unix(socket), move |users| dialect::script(&sha, users))?;
    #[allow(clippy::disallowed_methods, reason = "the script's state is in Unix time")]
    let unix_us = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?.as_micros() as u64;
    server.fill(u64::from(USERS), dialect::script_states(unix_us))?;
    Ok(server)
}

fn redis_incr(directory: &Path) -> io::Result<Server> {
    let (process, socket) = redis(directory, "incr.sock")?;
    let server = Server::new(process, Address::Unix(socket), dialect::increment)?;
    server.fill(u64::from(USERS), dialect::increment(crate::workload::Users::InOrder(0)))?;
    Ok(server)
}

/// Starts Redis and waits until it accepts connections.
fn redis(directory: &Path, name: &str) -> io::Result<(Process, PathBuf)> {
    let socket = free_socket(directory, name)?;
    let mut redis = Command::new(program("redis-server")?);
    redis.args(["--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no"]);
    redis.arg("--unixsocket").arg(&socket).arg("--dir").arg(directory);
    let mut process = Process::start(&redis)?;
    process.wait_for(&Address::Unix(socket.clone()))?;
    Ok((process, socket))
}

fn load_script(socket: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    let mut request = Vec::new();
    command(&mut request, &["SCRIPT", "LOAD", include_str!("gcra.lua")]);
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

/// With room for a counter of every caller, which `incr` does not make.
fn memcached(directory: &Path) -> io::Result<Server> {
    let socket = free_socket(directory, "memcached.sock")?;
    let mut memcached = Command::new(program("memcached")?);
    memcached.args(["-u", "root", "-m", "1024", "-s"]).arg(&socket);
    let server = Server::new(Process::start(&memcached)?, Address::Unix(socket), dialect::memcached)?;
    server.fill(u64::from(USERS), dialect::memcached_counters())?;
    Ok(server)
}

/// Over TCP, as it has no Unix socket.
fn throttlecrab(_: &Path) -> io::Result<Server> {
    let port = free_port()?;
    let mut throttlecrab = Command::new(program("throttlecrab-server")?);
    throttlecrab.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port.port().to_string()]);
    throttlecrab.args(["--store-capacity", &(2 * USERS).to_string(), "--log-level", "error"]);
    Server::new(Process::start(&throttlecrab)?, Address::Tcp(port), dialect::throttle)
}

/// Over TCP, with a Redis of its own behind a Unix socket.
fn rate_limit_service(directory: &Path) -> io::Result<Server> {
    let (redis, socket) = redis(directory, "ratelimit.sock")?;
    let store = Server::new(redis, Address::Unix(socket.clone()), dialect::increment)?;
    let limits = directory.join("ratelimit/config");
    fs::create_dir_all(&limits)?;
    let limit = format!("{{unit: hour, requests_per_unit: {BURST}}}");
    let yaml = format!("domain: {DOMAIN}\ndescriptors:\n  - key: user\n    rate_limit: {limit}\n");
    fs::write(limits.join("config.yaml"), yaml)?;
    let (grpc, http, debug) = (free_port()?, free_port()?, free_port()?);
    let mut service = Command::new(program("service_cmd")?);
    service.env("RUNTIME_ROOT", directory).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    service
        .env("RUNTIME_WATCH_ROOT", "false")
        .env("USE_STATSD", "false")
        .env("LOG_LEVEL", "error")
        .env("DISABLE_STATS", "true");
    service.env("REDIS_SOCKET_TYPE", "unix").env("REDIS_URL", &socket);
    for (name, port) in [("GRPC_PORT", grpc), ("PORT", http), ("DEBUG_PORT", debug)] {
        service.env(name, port.port().to_string());
    }
    let server = Server::new(Process::start(&service)?, Address::Tcp(grpc), grpc::rate_limit_service)?;
    Ok(server.with_store(store))
}

/// Over TCP, as the only peer of its cluster.
fn gubernator(_: &Path) -> io::Result<Server> {
    let (grpc, http, members) = (free_port()?, free_port()?, free_port()?);
    let mut gubernator = Command::new(program("gubernator")?);
    gubernator.env("GUBER_GRPC_ADDRESS", grpc.to_string()).env("GUBER_HTTP_ADDRESS", http.to_string());
    for name in ["ADDRESS", "BIND_ADDRESS", "KNOWN_NODES"] {
        gubernator.env(format!("GUBER_MEMBERLIST_{name}"), members.to_string());
    }
    gubernator.env("GUBER_CACHE_SIZE", (2 * USERS).to_string()).env("GUBER_LOG_LEVEL", "error");
    gubernator.env("OTEL_TRACES_EXPORTER", "none");
    let server = Server::new(Process::start(&gubernator)?, Address::Tcp(grpc), grpc::gubernator)?;
    // It accepts connections before it is a member of its own cluster.
    for _ in 0..JOIN_TRIES {
        if server.connect(0)?.sample().is_ok() {
            return Ok(server);
        }
        sleep(JOIN_PAUSE);
    }
    Err(io::Error::other("not a member of its cluster after ten seconds"))
}

fn limitador(_: &Path) -> io::Result<Server> {
    Err(io::Error::other("its server is not a crate of crates.io, only its library"))
}

/// A program of `PATH`, or one that `scripts/setup race` built; an error says why it was not.
fn program(name: &str) -> io::Result<PathBuf> {
    let built = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/race"));
    let built = env::var_os("CARGO_TARGET_DIR").map_or(built, |target| PathBuf::from(target).join("race"));
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).chain([built.clone()]).map(|place| place.join(name));
    { found }.find(|path| path.is_file()).ok_or_else(|| {
        let reason = fs::read_to_string(built.join(format!("{name}.missing")));
        let reason = reason.unwrap_or_else(|_| format!("{name} is missing; help: scripts/setup race"));
        io::Error::other(reason.trim().to_owned())
    })
}

/// A path in the directory, without the socket of a killed server, which would prevent the next bind.
fn free_socket(directory: &Path, name: &str) -> io::Result<PathBuf> {
    let socket = directory.join(name);
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(socket),
    }
}

fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

const JOIN_TRIES: usize = 100;
const JOIN_PAUSE: Duration = Duration::from_millis(100);
