//! The settings file, read by the same strict reader as the rules.

use std::net::SocketAddr;
use std::path::Path;

use super::redis_settings;
use super::settings::{Connections, DomainSettings, LogFormat, PoolSettings, Settings, check_socket_path};
use crate::rules::fields::{Field, Fields, choice, list, text};
use crate::rules::source::{Report, Source, Span};
use crate::rules::yaml::{self, Value, YamlNode};
use crate::rules::{MODES, Problem, SCOPES, Severity, ValueProblem, amount, check_name, shown};

/// Reads a file over the defaults. Wrong fields keep their default and are reported.
pub(super) fn read(source: &Source, mut settings: Settings) -> (Settings, Vec<Problem>) {
    let root = match yaml::read(source) {
        Ok(root) => root,
        Err(problem) => return (settings, vec![*problem]),
    };
    let mut report = Report::new(source);
    // A file whose lines are all comments sets the defaults.
    if root.value != Value::Null
        && let Some(fields) = Fields::read(&root, "the settings", SETTINGS, &mut report)
    {
        let directory = Path::new(&**source.file()).parent().unwrap_or(Path::new(""));
        for (name, _, node) in fields.iter() {
            field(name, node, directory, &mut settings, &mut report);
        }
        if let Some(node) = fields.get("admin").filter(|_| settings.admin_socket() == settings.socket.path) {
            let message = "`admin.socket` is the path of `socket`, where applications ask";
            report.error(node.at, message, "write another path, or leave `admin` out");
        }
    }
    (settings, report.into_problems())
}

/// Whether a file holds settings rather than rules.
pub(crate) fn holds_settings(source: &Source) -> bool {
    let Ok(YamlNode { value: Value::Map(pairs), .. }) = yaml::read(source) else { return false };
    let has = |name: &str| pairs.iter().any(|(key, _)| key.as_scalar() == Some(name));
    !has("domain") && !has("limits") && SETTINGS.iter().any(|field| has(field.name))
}

fn field(name: &str, node: &YamlNode, directory: &Path, settings: &mut Settings, report: &mut Report<'_>) {
    match name {
        "mode" => set(&mut settings.mode, choice(node, "mode", MODES, report)),
        "socket" => socket(node, directory, settings, report),
        "rules" => set(&mut settings.rules, path(node, "rules", report).map(|path| directory.join(path))),
        "state" => {
            set(&mut settings.state, path(node, "state", report).map(|path| Some(directory.join(path))));
        }
        "threads" => {
            set(&mut settings.threads, number(node, "threads", THREADS_MAX, report).map(|n| n as usize));
        }
        "memory" => memory(node, settings, report),
        "connections" => connections(node, settings, report),
        "domains" => domains(node, settings, report),
        "pools" => pools(node, settings, report),
        "admin" => admin(node, directory, settings, report),
        "metrics" => metrics(node, settings, report),
        "log" => log(node, settings, report),
        "scope" => set(&mut settings.scope, choice(node, "scope", SCOPES, report)),
        "redis" => settings.redis = redis_settings::read(node, directory, report),
        _ => {}
    }
}

fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

fn socket(node: &YamlNode, directory: &Path, settings: &mut Settings, report: &mut Report<'_>) {
    let Some(fields) = Fields::read(node, "`socket`", SOCKET, report) else { return };
    let socket = &mut settings.socket;
    if let Some(node) = fields.get("path")
        && let Some(path) = path(node, "path", report).map(|path| directory.join(path))
        && report.settle(node.at, check_socket_path(&path)).is_some()
    {
        socket.path = path;
    }
    if let Some(node) = fields.get("mode")
        && let Some(mode) = text(node, "mode", report)
        && let Some(mode) = report.settle(node.at, permissions(mode))
    {
        socket.mode = mode;
        if mode & 0o002 != 0 {
            let message = format!("every user of this host may ask with mode {mode:04o}");
            report.warning(node.at, message, "write \"0660\", and a `group` that the applications are in");
        }
    }
    if let Some(node) = fields.get("group") {
        socket.group = text(node, "group", report).map(str::to_owned);
    }
}

fn memory(node: &YamlNode, settings: &mut Settings, report: &mut Report<'_>) {
    let Some(fields) = Fields::read(node, "`memory`", MEMORY, report) else { return };
    if let Some(node) = fields.get("max")
        && let Some(max) = text(node, "max", report)
    {
        set(&mut settings.memory_max_bytes, report.settle(node.at, bytes(max)));
    }
}

fn connections(node: &YamlNode, settings: &mut Settings, report: &mut Report<'_>) {
    let Some(fields) = Fields::read(node, "`connections`", CONNECTIONS, report) else { return };
    let mut read = |name| fields.get(name).and_then(|node| number(node, name, CONNECTIONS_MAX, report));
    let (max, per_user) = (read("max"), read("per_user"));
    let max = max.unwrap_or(settings.connections.max);
    if let Some(node) = fields.get("per_user").filter(|_| per_user > Some(max)) {
        let message = format!("`per_user` is above `max`, which is {max}");
        report.warning(node.at, message, "one user can take all connections: write less");
    }
    let per_user = per_user.unwrap_or(settings.connections.per_user).min(max);
    settings.connections = Connections { max, per_user };
}

fn admin(node: &YamlNode, directory: &Path, settings: &mut Settings, report: &mut Report<'_>) {
    let Some(fields) = Fields::read(node, "`admin`", ADMIN, report) else { return };
    if let Some(node) = fields.get("socket")
        && let Some(path) = path(node, "socket", report).map(|path| directory.join(path))
        && report.settle(node.at, check_socket_path(&path)).is_some()
    {
        settings.admin_socket = Some(path);
    }
}

fn metrics(node: &YamlNode, settings: &mut Settings, report: &mut Report<'_>) {
    let Some(fields) = Fields::read(node, "`metrics`", METRICS, report) else { return };
    if let Some(node) = fields.get("listen")
        && let Some(address) = text(node, "listen", report)
    {
        settings.metrics = report.settle(node.at, socket_address(address)).or(settings.metrics);
    }
}

/// Reads an address and a port. A host name would need a lookup before the daemon can start.
fn socket_address(text: &str) -> Result<SocketAddr, ValueProblem> {
    text.parse().map_err(|_| {
        let mend = "write an address and a port: \"127.0.0.1:9631\", or \"[::1]:9631\"";
        ValueProblem::new(format!("{} is not where metrics can be served", shown(text)), mend)
    })
}

fn log(node: &YamlNode, settings: &mut Settings, report: &mut Report<'_>) {
    let Some(fields) = Fields::read(node, "`log`", LOG, report) else { return };
    if let Some(node) = fields.get("format") {
        set(&mut settings.log.format, choice(node, "format", FORMATS, report));
    }
    if let Some(node) = fields.get("level") {
        set(&mut settings.log.level, choice(node, "level", LEVELS, report));
    }
}

fn domains(node: &YamlNode, settings: &mut Settings, report: &mut Report<'_>) {
    let what = "a domain of the settings";
    let mut found = Vec::new();
    named(node, "domains", what, DOMAIN, report, |name, at, fields, report| {
        let uids = fields.get("uids").map(|node| uids(node, report)).unwrap_or_default();
        let scope = fields.get("scope").and_then(|node| choice(node, "scope", SCOPES, report));
        let refunds = fields.get("refunds").and_then(|node| choice(node, "refunds", REFUNDS, report));
        let message = format!("no rules belong to the domain {}", shown(name));
        let mend = Some("write it as the `domain` of a rules file, or leave it out".to_owned());
        let unknown = report.source().problem(Severity::Warning, at, message, mend);
        found.push(DomainSettings {
            name: name.into(),
            uids,
            scope,
            trusts_refunds: refunds.unwrap_or_default(),
            unknown,
        });
    });
    settings.domains = found;
}

fn pools(node: &YamlNode, settings: &mut Settings, report: &mut Report<'_>) {
    let mut found = Vec::new();
    named(node, "pools", "a pool of the settings", POOL, report, |name, _, fields, report| {
        let uids = fields.get("uids").map(|node| uids(node, report)).unwrap_or_default();
        let slots_max = fields.get("slots_max");
        let slots_max = slots_max.and_then(|node| report.settle(node.at, amount::read(node, "slots_max")));
        found.push(PoolSettings { name: name.into(), uids, slots_max });
    });
    settings.pools = found;
}

/// Reads a mapping of names to their settings.
fn named<'n>(
    node: &'n YamlNode,
    field: &str,
    what: &'static str,
    known: &[Field],
    report: &mut Report<'_>,
    mut entry: impl FnMut(&'n str, Span, &Fields<'n>, &mut Report<'_>),
) {
    let Value::Map(entries) = &node.value else {
        let message = format!("`{field}` is a mapping, not {}", node.kind());
        report.error(node.at, message, "write names and what holds for each");
        return;
    };
    let mut seen: Vec<&str> = Vec::new();
    for (key, node) in entries {
        let Some(name) = text(key, field, report) else { continue };
        report.settle(key.at, check_name(name, what));
        if seen.contains(&name) {
            report.error(
                key.at,
                format!("{} is written twice in `{field}`", shown(name)),
                "keep one of the two",
            );
        }
        seen.push(name);
        if let Some(fields) = Fields::read(node, what, known, report) {
            entry(name, key.at, &fields, report);
        }
    }
}

/// Reads uids. Names are not accepted, as the kernel reports a peer by number.
fn uids(node: &YamlNode, report: &mut Report<'_>) -> Vec<u32> {
    let uids = list(node, "uids", "write user numbers: [1000, 1001]", report).unwrap_or_default();
    let mut read = |uid: &YamlNode| {
        let number = text(uid, "uids", report).map(uid_of);
        number.and_then(|number| report.settle(uid.at, number))
    };
    uids.iter().filter_map(&mut read).collect()
}

fn uid_of(text: &str) -> Result<u32, ValueProblem> {
    let is_name = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    if is_name && !text.contains(char::is_whitespace) {
        let mend = format!("write its number, which `id -u {}` says", shown(text).trim_matches('`'));
        return Err(ValueProblem::new(format!("{} is the name of a user, not a number", shown(text)), mend));
    }
    amount::parse(text)
}

pub(super) fn path<'n>(node: &'n YamlNode, field: &str, report: &mut Report<'_>) -> Option<&'n str> {
    let path = text(node, field, report)?;
    if path.is_empty() || path.contains('\0') {
        report.error(
            node.at,
            format!("`{field}` is a path, not {}", shown(path)),
            "write a path, or leave it out",
        );
        return None;
    }
    Some(path)
}

fn number(node: &YamlNode, field: &str, max: u32, report: &mut Report<'_>) -> Option<u32> {
    let number = report.settle(node.at, amount::read(node, field))?;
    if number > max {
        report.error(node.at, format!("`{field}` is {number}"), format!("write at most {max}"));
        return None;
    }
    Some(number)
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
    Ok(size)
}

const SETTINGS: &[Field] = &[
    Field::built("mode"),
    Field::built("socket"),
    Field::built("rules"),
    Field::built("state"),
    Field::built("memory"),
    Field::built("threads"),
    Field::built("metrics"),
    Field::built("admin"),
    Field::built("redis"),
    Field::built("scope"),
    Field::built("domains"),
    Field::built("pools"),
    Field::built("connections"),
    Field::built("log"),
];

const SOCKET: &[Field] = &[Field::built("path"), Field::built("mode"), Field::built("group")];
const MEMORY: &[Field] = &[Field::built("max")];
const CONNECTIONS: &[Field] = &[Field::built("max"), Field::built("per_user")];
const LOG: &[Field] = &[Field::built("format"), Field::built("level")];
const METRICS: &[Field] = &[Field::built("listen")];
const ADMIN: &[Field] = &[Field::built("socket")];
const DOMAIN: &[Field] = &[Field::built("uids"), Field::built("scope"), Field::built("refunds")];
const POOL: &[Field] = &[Field::built("uids"), Field::built("slots_max")];

/// Whether a negative charge need not name the request that it refunds.
const REFUNDS: &[(Field, bool)] = &[(Field::built("named"), false), (Field::built("trusted"), true)];

const FORMATS: &[(Field, LogFormat)] =
    &[(Field::built("text"), LogFormat::Text), (Field::built("json"), LogFormat::Json)];

const LEVELS: &[(Field, tracing::Level)] = &[
    (Field::built("error"), tracing::Level::ERROR),
    (Field::built("warn"), tracing::Level::WARN),
    (Field::built("info"), tracing::Level::INFO),
    (Field::built("debug"), tracing::Level::DEBUG),
    (Field::built("trace"), tracing::Level::TRACE),
];

const UNITS: [(&str, u64); 3] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// The tables of a few rules need at least this.
const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// More threads than cores would only wait for each other.
const THREADS_MAX: u32 = 1_024;

/// The kernel's default limit of open files per process (`fs.nr_open`).
const CONNECTIONS_MAX: u32 = 1 << 20;
