//! The settings file, read by the same strict reader as the rules.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;

use serde::Deserialize;

use super::adapter_settings::{self, AdaptersFields};
use super::redis_settings::{self, RedisFields};
use super::settings::{DomainSettings, LogFormat, Settings, Socket, check_socket_path};
use crate::engine::FleetStatus;
use crate::rules::de::{self, DeferredMap, FieldText, FileNode, Scalar};
use crate::rules::source::{Report, Source};
use crate::rules::values::{Name, Text, read_from};
use crate::rules::yaml::{self, Value};
use crate::rules::{Mode, Problem, Scope, Severity, ValueProblem, amount, shown};
use crate::server::{ConnectionLimits, PoolLimits};

#[derive(Deserialize)]
#[serde(rename = "the settings")]
struct SettingsFields<'n> {
    mode: Option<Mode>,
    #[serde(borrow)]
    socket: Option<SocketFields<'n>>,
    rules: Option<PathText<'n>>,
    state: Option<PathText<'n>>,
    memory: Option<MemoryFields>,
    threads: Option<AtMost<THREADS_MAX>>,
    metrics: Option<MetricsFields>,
    admin: Option<AdminFields<'n>>,
    redis: Option<RedisFields<'n>>,
    fleet: Option<FleetHostsFields>,
    scope: Option<Scope>,
    #[expect(dead_code, reason = "looked up by name")]
    domains: Option<DeferredMap<DomainFields>>,
    #[expect(dead_code, reason = "looked up by name")]
    pools: Option<DeferredMap<PoolFields>>,
    connections: Option<ConnectionsFields>,
    log: Option<LogFields>,
    adapters: Option<AdaptersFields<'n>>,
}

#[derive(Deserialize)]
#[serde(rename = "`socket`")]
struct SocketFields<'n> {
    #[serde(borrow)]
    path: Option<PathText<'n>>,
    mode: Option<Permissions>,
    group: Option<Text<'n>>,
}

#[derive(Deserialize)]
#[serde(rename = "`memory`")]
struct MemoryFields {
    max: Option<MemorySize>,
}

#[derive(Deserialize)]
#[serde(rename = "`metrics`")]
struct MetricsFields {
    listen: Option<MetricsAddress>,
}

#[derive(Deserialize)]
#[serde(rename = "`admin`")]
struct AdminFields<'n> {
    #[serde(borrow)]
    socket: Option<PathText<'n>>,
}

#[derive(Deserialize)]
#[serde(rename = "`fleet`")]
struct FleetHostsFields {
    hosts_at_least: Option<AtMost<{ FleetStatus::HOSTS_MAX }>>,
}

#[derive(Deserialize)]
#[serde(rename = "`connections`")]
struct ConnectionsFields {
    max: Option<AtMost<CONNECTIONS_MAX>>,
    per_user: Option<AtMost<CONNECTIONS_MAX>>,
}

#[derive(Deserialize)]
#[serde(rename = "`log`")]
struct LogFields {
    format: Option<LogFormat>,
    level: Option<LogLevel>,
}

#[derive(Deserialize)]
#[serde(rename = "a domain of the settings")]
struct DomainFields {
    uids: Option<Vec<Uid>>,
    scope: Option<Scope>,
    refunds: Option<Refunds>,
}

/// Whether a negative charge must name the request that it refunds.
#[derive(PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Refunds {
    Named,
    Trusted,
}

#[derive(Deserialize)]
#[serde(rename = "a pool of the settings")]
struct PoolFields {
    uids: Option<Vec<Uid>>,
    slots_max: Option<NonZeroU32>,
}

/// A path that is not empty.
#[derive(Clone, Copy)]
pub(super) struct PathText<'n>(pub(super) &'n str);

/// A whole number from 1 to `MOST`.
#[derive(Clone, Copy)]
struct AtMost<const MOST: u32>(u32);

/// A user by number. Names are not accepted, as the kernel reports a peer by number.
struct Uid(u32);

struct Permissions(u32);

struct LogLevel(tracing::Level);

struct MemorySize(u64);

struct MetricsAddress(SocketAddr);

read_from! {
    ['de: 'n, 'n] PathText<'n>, FieldText => |FieldText(field, path)| {
        if path.is_empty() || path.contains('\0') {
            let message = format!("`{field}` is a path, not {}", shown(path));
            return Err(ValueProblem::new(message, "write a path, or leave it out"));
        }
        Ok(PathText(path))
    };
    ['de, const MOST: u32] AtMost<MOST>, Scalar => |scalar| match amount::read_from(scalar, 1)? {
        number if number > MOST => {
            let message = format!("`{}` is {number}", scalar.0);
            Err(ValueProblem::new(message, format!("write at most {MOST}")))
        }
        number => Ok(AtMost(number)),
    };
    ['de] LogLevel, FieldText => |FieldText(field, text)| {
        // The parser accepts capital letters and numbers as well.
        let level = text.parse().ok().filter(|_| LEVELS.contains(&text)).map(LogLevel);
        level.ok_or_else(|| {
            ValueProblem::new(format!("unknown {field} {}", shown(text)), de::suggest(text, &LEVELS))
        })
    };
    ['de] Uid, FieldText => |FieldText(_, text)| uid_of(text).map(Uid);
    ['de] Permissions, FieldText => |FieldText(_, text)| permissions(text).map(Permissions);
    ['de] MemorySize, FieldText => |FieldText(_, text)| bytes(text).map(MemorySize);
    ['de] MetricsAddress, FieldText => |FieldText(_, text)| socket_address(text).map(MetricsAddress);
}

/// Reads a file over the defaults. Wrong fields keep their default and are reported.
pub(super) fn read(source: &Source, mut settings: Settings) -> (Settings, Vec<Problem>) {
    let root = match yaml::read(source) {
        Ok(root) => root,
        Err(problem) => return (settings, vec![*problem]),
    };
    let report = Report::new(source);
    let file = FileNode::new(&root, &report);
    // A file whose lines are all comments sets the defaults.
    if root.value != Value::Null
        && let Some(fields) = file.read()
    {
        let directory = Path::new(&**source.file()).parent().unwrap_or(Path::new(""));
        set_fields(fields, file, directory, &mut settings);
    }
    (settings, report.into_problems())
}

/// Whether a file holds settings rather than rules.
pub(crate) fn holds_settings(source: &Source) -> bool {
    let Ok(root) = yaml::read(source) else { return false };
    let report = Report::new(source);
    let file = FileNode::new(&root, &report);
    !file.has("domain") && !file.has("limits") && file.has_field_of::<SettingsFields<'_>>()
}

fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

const OPEN_METRICS: &str = "`metrics.listen` is every address of this host: the names of rules and their counts are open \
                            to all that reach it";
const OPEN_METRICS_HELP: &str =
    "write the address of a network that only your monitoring reaches, or 127.0.0.1";

fn set_fields(fields: SettingsFields<'_>, mapping: FileNode<'_>, directory: &Path, settings: &mut Settings) {
    set(&mut settings.mode, fields.mode);
    set(&mut settings.scope, fields.scope);
    set(&mut settings.rules, fields.rules.map(|path| directory.join(path.0)));
    set(&mut settings.state, fields.state.map(|path| Some(directory.join(path.0))));
    set(&mut settings.threads, fields.threads.map(|threads| threads.0 as usize));
    set(&mut settings.memory_max_bytes, fields.memory.and_then(|memory| memory.max).map(|max| max.0));
    set(&mut settings.metrics, fields.metrics.and_then(|own| own.listen).map(|listen| Some(listen.0)));
    if settings.metrics.is_some_and(|listen| listen.ip().is_unspecified()) {
        mapping.field("metrics").warn_at("listen", OPEN_METRICS, OPEN_METRICS_HELP);
    }
    if let Some(own) = fields.socket {
        set_socket(&own, mapping.field("socket"), directory, &mut settings.socket);
    }
    if let Some(own) = fields.connections {
        let max = own.max.map_or(settings.connections.max, |max| max.0);
        if own.per_user.is_some_and(|per_user| per_user.0 > max) {
            let message = format!("`per_user` is above `max`, which is {max}");
            let help = "one user can take all connections: write less";
            mapping.field("connections").warn_at("per_user", message, help);
        }
        let per_user = own.per_user.map_or(settings.connections.per_user, |per_user| per_user.0).min(max);
        settings.connections = ConnectionLimits { max, per_user };
    }
    if let Some(own) = fields.admin {
        let path = socket_path(own.socket, directory, mapping.field("admin").field("socket"));
        set(&mut settings.admin_socket, path.map(Some));
        if settings.admin_socket() == settings.socket.path {
            let message = "`admin.socket` is the path of `socket`, where applications ask";
            mapping.error_at("admin", message, "write another path, or leave `admin` out");
        }
    }
    if let Some(own) = fields.log {
        set(&mut settings.log.format, own.format);
        set(&mut settings.log.level, own.level.map(|level| level.0));
    }
    if let Some(own) = fields.adapters {
        settings.adapters = adapter_settings::read(own, mapping.field("adapters"), directory);
        check_adapter_paths(settings, mapping.field("adapters"));
    }
    settings.redis =
        fields.redis.and_then(|own| redis_settings::read(&own, mapping.field("redis"), directory));
    set(&mut settings.hosts_at_least, fields.fleet.and_then(|own| own.hosts_at_least).map(|hosts| hosts.0));
    settings.domains = named(mapping, "domains", |key, name, own: DomainFields| {
        let message = format!("no rules belong to the domain {}", shown(name));
        let help = "write it as the `domain` of a rules file, or leave it out".to_owned();
        DomainSettings {
            name: name.into(),
            uids: numbers(own.uids),
            scope: own.scope,
            trusts_refunds: own.refunds == Some(Refunds::Trusted),
            unknown: key.report.source().problem(Severity::Warning, key.at, message, help),
        }
    });
    settings.pools = named(mapping, "pools", |_, name, own: PoolFields| PoolLimits {
        name: name.into(),
        uids: numbers(own.uids),
        slots_max: own.slots_max.map(u32::from),
    });
}

fn set_socket(fields: &SocketFields<'_>, mapping: FileNode<'_>, directory: &Path, socket: &mut Socket) {
    set(&mut socket.path, socket_path(fields.path, directory, mapping.field("path")));
    if let Some(Permissions(mode)) = fields.mode {
        socket.mode = mode;
        let whose = match (mode & 0o222, mode & 0o002) {
            (0, _) => Some("no user but root"),
            (_, 0) => None,
            _ => Some("every user of this host"),
        };
        if let Some(whose) = whose {
            let message = format!("{whose} may ask with mode {mode:04o}");
            let help = "write \"0660\", and a `group` that the applications are in";
            mapping.warn_at("mode", message, help);
        }
    }
    socket.group = fields.group.as_ref().map(|group| group.0.to_owned());
}

/// Reports adapters on the path of another socket.
fn check_adapter_paths(settings: &Settings, mapping: FileNode<'_>) {
    let admin = settings.admin_socket();
    let mut taken = vec![("socket", &*settings.socket.path), ("admin.socket", &*admin)];
    for (protocol, endpoint) in &settings.adapters {
        let Some(path) = endpoint.socket.as_deref() else { continue };
        let (_, name) = protocol.names();
        if let Some((other, _)) = taken.iter().find(|(_, other)| *other == path) {
            let message = format!("the socket of `{name}` has the path of `{other}`");
            mapping.error_at(name, message, "write a path of its own");
        }
        taken.push((name, path));
    }
}

fn numbers(uids: Option<Vec<Uid>>) -> Vec<u32> {
    uids.unwrap_or_default().into_iter().map(|uid| uid.0).collect()
}

fn socket_path(path: Option<PathText<'_>>, directory: &Path, at: FileNode<'_>) -> Option<std::path::PathBuf> {
    let path = directory.join(path?.0);
    at.settle(check_socket_path(&path))?;
    Some(path)
}

/// Reads a mapping of names to their settings.
fn named<'n, F: Deserialize<'n>, T>(
    mapping: FileNode<'n>,
    field: &'n str,
    make: impl Fn(FileNode<'n>, &str, F) -> T,
) -> Vec<T> {
    let mut made = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (key, node) in mapping.get(field).into_iter().flat_map(FileNode::pairs) {
        let name: Option<Name<'_>> = key.value(field);
        let fields = node.read();
        let Some(Name(name)) = name else { continue };
        mapping.report.is_new(key.at, name, seen.iter().copied(), field);
        seen.push(name);
        made.extend(fields.map(|fields| make(key, name, fields)));
    }
    made
}

/// Reads an address and a port. A host name would need a lookup before the daemon can start.
fn socket_address(text: &str) -> Result<SocketAddr, ValueProblem> {
    text.parse().map_err(|_| {
        let help = "write an address and a port: \"127.0.0.1:9631\", or \"[::1]:9631\"";
        ValueProblem::new(format!("{} is not where metrics can be served", shown(text)), help)
    })
}

fn uid_of(text: &str) -> Result<u32, ValueProblem> {
    let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    if is_name && !text.contains(char::is_whitespace) {
        let help = format!("write its number, which `id -u {}` prints", shown(text).trim_matches('`'));
        return Err(ValueProblem::new(format!("{} is the name of a user, not a number", shown(text)), help));
    }
    amount::parse(text)
}

/// Reads permission bits such as `0660`.
fn permissions(text: &str) -> Result<u32, ValueProblem> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let octal = matches!(digits.len(), 3 | 4) && digits.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| octal && *mode <= 0o777);
    mode.ok_or_else(|| {
        ValueProblem::new(format!("{} is no socket mode", shown(text)), "write four octal digits: \"0660\"")
    })
}

/// Reads a size such as `64MiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, ValueProblem> {
    let digits = text.trim_end_matches(|character: char| !character.is_ascii_digit());
    let unit = text.get(digits.len()..).unwrap_or_default();
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        let letter = unit.trim().chars().next().map_or('M', |letter| letter.to_ascii_uppercase());
        let right = UNITS.iter().find(|(name, _)| name.starts_with(letter)).map_or("MiB", |(name, _)| name);
        let message = format!("{} is no size: its unit is KiB, MiB or GiB", shown(text));
        return Err(ValueProblem::new(message, format!("write {}{right}", digits.trim())));
    };
    let size = u64::from(amount::parse(digits)?) * factor;
    if size < MEMORY_BYTES_MIN {
        return Err(ValueProblem::new(format!("{} is too small", shown(text)), "write at least 1MiB"));
    }
    if size > MEMORY_BYTES_MAX {
        return Err(ValueProblem::new(format!("{} is too large", shown(text)), "write at most 1024GiB"));
    }
    Ok(size)
}

const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

const UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// The tables of a few rules need at least this.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// More than the tables of any host; a larger number is a mistake.
const MEMORY_BYTES_MAX: u64 = 1 << 40;

/// More threads than cores would only wait for each other.
const THREADS_MAX: u32 = 1_024;

/// The kernel's default limit of open files per process (`fs.nr_open`).
const CONNECTIONS_MAX: u32 = 1 << 20;
