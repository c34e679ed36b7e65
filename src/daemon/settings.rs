//! The daemon's settings: those of the file over defaults that work without one.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::Access;
use rustix::io::Errno;

use super::redis_settings::RedisSettings;
use super::settings_file;
use crate::adapters::{AdapterProtocol, Endpoint};
use crate::fleet::link::{authorities_of_file, read_password};
use crate::rules::source::{Source, about_file};
use crate::rules::{Domain, Mode, Problem, Scope, Scopes, Severity, ValueProblem};
use crate::server::{ConnectionLimits, PoolLimits};

/// The settings of the daemon. Every value has a default that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The mode of the daemon; the mode of a rule can only be milder.
    pub mode: Mode,
    /// The socket for clients.
    pub socket: Socket,
    /// The path of the rules: a directory, or one file.
    pub rules: PathBuf,
    /// The state directory; `None`: no state survives a restart.
    pub state: Option<PathBuf>,
    /// The number of decision threads.
    pub threads: usize,
    /// The memory limit of the tables, in bytes.
    pub memory_max_bytes: u64,
    /// The limits on connections.
    pub connections: ConnectionLimits,
    /// The domains of the settings, in the order of the file.
    pub domains: Vec<DomainSettings>,
    /// The pools of the settings, in the order of the file.
    pub pools: Vec<PoolLimits>,
    /// The admin socket; `None`: `NAME.admin.sock` beside `NAME.sock`.
    pub admin_socket: Option<PathBuf>,
    /// The TCP address that serves metrics; `None`: the admin socket alone serves them.
    pub metrics: Option<SocketAddr>,
    /// The format and level of the log.
    pub log: Log,
    /// The scope of limits whose rule and domain set none.
    pub scope: Scope,
    /// The Redis of the fleet; `None`: each host limits by itself.
    pub redis: Option<RedisSettings>,
    /// The least number of hosts to share fleet budgets with.
    pub hosts_at_least: u32,
    /// The adapters that are on, each protocol at most once.
    pub adapters: Vec<(AdapterProtocol, Endpoint)>,
}

/// The socket for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its path, at most [`SOCKET_PATH_BYTES_MAX`] bytes.
    pub path: PathBuf,
    /// Its permission bits.
    pub mode: u32,
    /// Its group; `None`: the daemon's own.
    pub group: Option<String>,
}

impl Socket {
    /// Returns the number of its group, if one is named.
    pub(crate) fn group_number(&self) -> Result<Option<u32>, ValueProblem> {
        let Some(name) = &self.group else { return Ok(None) };
        if let Ok(number) = name.parse() {
            return Ok(Some(number));
        }
        // Reads the file only: a group of a directory service may be unknown at boot, when the socket is made.
        let groups = std::fs::read_to_string(GROUPS_FILE).unwrap_or_default();
        let found = groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
        });
        found.map(Some).ok_or_else(|| {
            let message =
                format!("there is no group `{name}` in {GROUPS_FILE}: the daemon does not start here");
            let help = format!("create it (groupadd --system {name}), or correct `socket.group`");
            ValueProblem::new(message, help)
        })
    }
}

/// The settings of one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainSettings {
    /// Its name.
    pub name: Box<str>,
    /// The users (uids) that may use the domain; empty: all that may connect.
    pub uids: Vec<u32>,
    /// The scope of its limits unless its rules set one; `None`: as in the other domains.
    pub scope: Option<Scope>,
    /// Whether a negative charge need not name the request that it refunds.
    pub trusts_refunds: bool,
    /// The problem to report if no rules belong to the domain.
    pub(super) unknown: Problem,
}

/// The settings of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// Text or JSON lines.
    pub format: LogFormat,
    /// The least important level to log.
    pub level: tracing::Level,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The environment that the defaults depend on.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `TIDEGATE_SOCKET`.
    pub socket: Option<OsString>,
    /// `STATE_DIRECTORY`, as systemd sets it.
    pub state_directory: Option<OsString>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_directory: Option<OsString>,
    /// Whether the process runs as root.
    pub is_root: bool,
    /// The cores that this process may use.
    pub cores: usize,
}

impl Settings {
    /// Reads the file, or takes the defaults without one. The problems beside the settings are warnings.
    ///
    /// # Errors
    /// The file cannot be read, or has errors; the problems include warnings.
    pub fn load(path: Option<&Path>) -> Result<(Settings, Vec<Problem>), Vec<Problem>> {
        Settings::load_in(path, &Environment::of_this_process())
    }

    pub(crate) fn load_in(
        path: Option<&Path>,
        environment: &Environment,
    ) -> Result<(Settings, Vec<Problem>), Vec<Problem>> {
        match path.map(Source::read_anywhere).transpose() {
            Ok(source) => Settings::read(source.as_ref(), environment),
            Err(unreadable) => Err(vec![*unreadable.problem]),
        }
    }

    /// Reads a text instead of a file; paths in it are relative to the directory of the file that it names.
    pub fn read(
        source: Option<&Source>,
        environment: &Environment,
    ) -> Result<(Settings, Vec<Problem>), Vec<Problem>> {
        let defaults = Settings::defaults(environment);
        let (settings, mut problems) = match source {
            Some(source) => settings_file::read(source, defaults.clone()),
            None => (defaults.clone(), Vec::new()),
        };
        if settings.socket.path == defaults.socket.path {
            problems.extend(environment.check_socket(&settings.socket.path));
        }
        if problems.iter().any(Problem::is_error) { Err(problems) } else { Ok((settings, problems)) }
    }

    /// Sets another path to listen at. The admin socket moves with it, unless the settings file was named on
    /// the command line: the admin socket of the installed settings belongs to another daemon.
    pub(crate) fn listen_at(&mut self, path: &Path, settings_are_named: bool) {
        if !settings_are_named && self.socket.path != path {
            self.admin_socket = None;
        }
        path.clone_into(&mut self.socket.path);
    }

    /// The path of the admin socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.admin_socket.clone().unwrap_or_else(|| default_admin_socket(&self.socket.path))
    }

    /// Returns a warning for each domain of the settings without rules: a misspelt name, or missing rules. That of CL.THROTTLE
    /// needs none.
    pub(crate) fn domains_without_rules<'s>(
        &'s self,
        known: &'s [Arc<Domain>],
    ) -> impl Iterator<Item = &'s Problem> {
        let has_resp = self.adapters.iter().any(|(protocol, _)| *protocol == AdapterProtocol::Resp);
        let is_known =
            move |name: &str| has_resp && name == "resp" || known.iter().any(|domain| domain.name() == name);
        self.domains.iter().filter(move |domain| !is_known(&domain.name)).map(|domain| &domain.unknown)
    }

    /// Returns warnings of files and directories that the settings name and that are missing or unusable. A file that this
    /// user may not read may be the daemon's, and has none.
    pub(crate) fn unusable_files(&self) -> Vec<Problem> {
        type Check = fn(&Path) -> Result<(), String>;
        let password: Check = |path| read_password(path).map(drop);
        let authorities: Check = |path| authorities_of_file(path).map(drop);
        let directory: Check = |path| path.metadata().map(drop).map_err(|error| error.to_string());
        let link = self.redis.as_ref().map(|redis| &redis.link);
        let password_file = link.and_then(|link| link.password_file.as_deref());
        let ca_file = link.and_then(|link| link.ca_file.as_deref());
        let tokens = self.adapters.iter().filter(|(_, endpoint)| endpoint.listen.is_some());
        let tokens = tokens.map(|(_, endpoint)| {
            let help = "without the token there is no TCP: (umask 077; openssl rand -hex 32 > FILE)";
            (Some(&*endpoint.token_file), Endpoint::check_token_file as Check, help)
        });
        let named = [
            (password_file, password, "without the password Redis refuses this host: write it there"),
            (ca_file, authorities, "without the authorities there is no TLS to Redis: write them there"),
            (
                self.state.as_deref(),
                directory,
                "without it a restart forgets every count: make it, for the daemon's user alone",
            ),
        ];
        let unusable = named.into_iter().chain(tokens).filter_map(|(path, check, help)| {
            let path = path.filter(|path| !is_hidden(path))?;
            let problem = about_file(path, ValueProblem::new(check(path).err()?, help));
            Some(Problem { severity: Severity::Warning, ..problem })
        });
        unusable.collect()
    }

    /// Returns the scopes of limits whose rules set none.
    pub fn scopes(&self) -> Scopes {
        let domains = self.domains.iter().filter_map(|domain| Some((domain.name.clone(), domain.scope?)));
        let weight = self.redis.as_ref().and_then(|redis| redis.region_weight);
        Scopes { all: self.scope, domains: domains.collect(), weight }
    }

    pub(crate) fn by_default() -> Settings {
        Settings::defaults(&Environment::of_this_process())
    }

    fn defaults(environment: &Environment) -> Settings {
        Settings {
            mode: Mode::Enforce,
            socket: Socket { path: environment.default_socket(), mode: SOCKET_MODE, group: None },
            rules: PathBuf::from("/etc/tidegate/rules"),
            state: environment.default_state(),
            threads: environment.cores.clamp(1, THREADS_BY_DEFAULT),
            memory_max_bytes: MEMORY_BYTES,
            connections: ConnectionLimits { max: CONNECTIONS, per_user: CONNECTIONS_PER_USER },
            domains: Vec::new(),
            pools: Vec::new(),
            admin_socket: None,
            metrics: None,
            log: Log { format: LogFormat::Text, level: tracing::Level::INFO },
            scope: Scope::Host,
            redis: None,
            hosts_at_least: 1,
            adapters: Vec::new(),
        }
    }
}

/// Whether this user lacks the permission to read the file.
pub(crate) fn is_hidden(path: &Path) -> bool {
    rustix::fs::access(path, Access::READ_OK) == Err(Errno::ACCESS)
}

impl Environment {
    /// Reads the environment of this process.
    pub fn of_this_process() -> Environment {
        Environment::of(|name| std::env::var_os(name), rustix::process::geteuid().is_root())
    }

    /// Reads the environment of another process, which its user and root may see.
    pub(crate) fn of_process(pid: u32) -> Option<Environment> {
        let file = format!("/proc/{pid}/environ");
        let is_root = std::fs::metadata(&file).ok()?.uid() == 0;
        let bytes = std::fs::read(file).ok()?;
        let value = |entry: &[u8], name: &str| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(OsStr::from_bytes(value).to_owned())
        };
        let variable = |name: &str| bytes.split(|byte| *byte == 0).find_map(|entry| value(entry, name));
        Some(Environment::of(variable, is_root))
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>, is_root: bool) -> Environment {
        Environment {
            socket: variable(SOCKET_VARIABLE),
            state_directory: variable("STATE_DIRECTORY"),
            runtime_directory: variable("XDG_RUNTIME_DIR"),
            is_root,
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }

    /// Returns the socket path for when neither arguments nor settings name one.
    fn default_socket(&self) -> PathBuf {
        if let Some(socket) = self.socket.as_ref().filter(|socket| !socket.is_empty()) {
            return PathBuf::from(socket);
        }
        // The XDG specification says to ignore relative paths.
        let runtime = self.runtime_directory.as_ref().map(Path::new).filter(|path| path.is_absolute());
        let directory = runtime.filter(|_| !self.is_root).unwrap_or(Path::new("/run"));
        directory.join("tidegate").join("tidegate.sock")
    }

    /// Returns the first state directory that the service manager made, if any.
    pub(crate) fn default_state(&self) -> Option<PathBuf> {
        let directories = self.state_directory.as_ref()?.as_bytes();
        let first = directories.split(|byte| *byte == b':').next().filter(|first| !first.is_empty())?;
        Some(PathBuf::from(OsStr::from_bytes(first)))
    }

    fn check_socket(&self, path: &Path) -> Option<Problem> {
        let wrong = check_socket_path(path).err()?;
        let from = if self.socket.is_some() { SOCKET_VARIABLE } else { "XDG_RUNTIME_DIR" };
        Some(about_file(Path::new(from), wrong))
    }
}

/// Returns the default path of the admin socket: `NAME.admin.sock` for `NAME.sock`, and for `NAME`.
pub(crate) fn default_admin_socket(socket: &Path) -> PathBuf {
    let name = socket.file_name().unwrap_or_default().as_bytes();
    let name = name.strip_suffix(b".sock").unwrap_or(name);
    socket.with_file_name(OsStr::from_bytes(&[name, ADMIN_SUFFIX].concat()))
}

/// Checks that a socket can be bound to this path.
pub(super) fn check_socket_path(path: &Path) -> Result<(), ValueProblem> {
    let bytes = path.as_os_str().as_bytes().len();
    if bytes == 0 {
        return Err(ValueProblem::new("the path of the socket is empty", "write a path, or leave it out"));
    }
    if bytes > SOCKET_PATH_BYTES_MAX {
        let message = format!("the path of the socket has {bytes} bytes: {}", path.display());
        return Err(ValueProblem::new(
            message,
            format!("write at most {SOCKET_PATH_BYTES_MAX}: the kernel takes no more"),
        ));
    }
    Ok(())
}

/// The bytes of a Unix socket address without its final zero byte.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Returns the settings file that is named, else the installed one, if there is one.
pub(crate) fn file_or_installed(named: Option<&Path>) -> Option<&Path> {
    let installed = Path::new(SETTINGS_FILE);
    named.or_else(|| installed.exists().then_some(installed))
}

/// The default path of the settings.
pub const SETTINGS_FILE: &str = "/etc/tidegate/tidegate.yaml";

const ADMIN_SUFFIX: &[u8] = b".admin.sock";

/// Members of the group may connect.
const SOCKET_MODE: u32 = 0o660;

/// One core decides some hundred thousand requests a second: more threads need a measurement.
const THREADS_BY_DEFAULT: usize = 4;

/// About two million callers of one rule.
pub(crate) const MEMORY_BYTES: u64 = 64 << 20;

/// About a hundred processes with a few dozen threads each.
const CONNECTIONS: u32 = 4_096;

/// A leak of one user leaves room for three others.
const CONNECTIONS_PER_USER: u32 = 1_024;

const GROUPS_FILE: &str = "/etc/group";

const SOCKET_VARIABLE: &str = "TIDEGATE_SOCKET";
