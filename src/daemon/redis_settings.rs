//! `redis` in the settings: the Redis of the fleet, and the fleet secret, bytes that only the hosts of a fleet share, so that all
//! derive the same keys for the same callers and no other party can identify a caller by its key. Opens no connection.

use std::fmt;
use std::fs::{Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use serde::Deserialize;

use super::settings_file::PathText;
use crate::fleet::link::{LinkOptions, Url};
use crate::rules::de::{FileNode, Spanned};
use crate::rules::source::about_file;
use crate::rules::values::{PercentText, Text};
use crate::rules::{Domain, Problem, Severity, ValueProblem, shown};

#[derive(Deserialize)]
#[serde(rename = "`redis`")]
pub(super) struct RedisFields<'n> {
    #[serde(borrow)]
    url: Option<Spanned<Text<'n>>>,
    urls: Option<Vec<Spanned<Text<'n>>>>,
    cluster: Option<bool>,
    user: Option<Text<'n>>,
    password_file: Option<PathText<'n>>,
    ca_file: Option<PathText<'n>>,
    fleet_secret_files: Option<Vec<PathText<'n>>>,
    region_weight: Option<PercentText>,
}

/// The servers of the fleet, and the credentials of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// The options of a connection; there is at least one url.
    pub link: LinkOptions,
    /// The file of the fleet secret, from which the keys are derived.
    pub fleet_secret_file: Option<PathBuf>,
    /// The part of every fleet limit that belongs to the hosts of this Redis, in thousandths; `None`: all.
    pub region_weight: Option<u16>,
}

/// Checks the field; paths are relative to `directory`. `None`, after reporting it, without valid urls.
pub(super) fn read(
    fields: &RedisFields<'_>,
    mapping: FileNode<'_>,
    directory: &Path,
) -> Option<RedisSettings> {
    let urls = urls(fields, mapping);
    let fleet_secret_file = secret(fields, mapping, directory);
    let urls = urls?;
    let is_tls = urls.iter().any(Url::is_tls);
    if fields.ca_file.is_some() && !is_tls {
        let message = "`ca_file` is for TLS, and no url begins with rediss://";
        let help = "write rediss:// where Redis speaks TLS, or leave `ca_file` out";
        mapping.warn_at("ca_file", message, help);
    }
    let cluster = fields.cluster.unwrap_or_default();
    let is_unlike = |url: &&Url| url.host().is_none() || url.database > 0 || url.is_tls() != is_tls;
    if cluster && let Some(url) = urls.iter().find(is_unlike) {
        let message =
            format!("the nodes of a cluster are reached alike, by TCP and without a database, unlike {url}");
        let help = "write the urls of some nodes, or leave `cluster` out";
        mapping.error_at("cluster", message, help);
    }
    if fields.user.is_some() && fields.password_file.is_none() {
        let message = "`user` has no password";
        mapping.error_at("user", message, "name its file under `password_file`, or leave `user` out");
    }
    let path = |path: Option<PathText<'_>>| path.map(|path| directory.join(path.0));
    Some(RedisSettings {
        link: LinkOptions {
            urls,
            user: fields.user.map(|user| user.0.to_owned()),
            password_file: path(fields.password_file),
            // Without TLS it is not used, as the warning says.
            ca_file: path(fields.ca_file).filter(|_| is_tls),
            cluster,
        },
        fleet_secret_file,
        region_weight: fields.region_weight.map(|weight| weight.0),
    })
}

/// Reads one url under `url` or several under `urls`.
fn urls(fields: &RedisFields<'_>, mapping: FileNode<'_>) -> Option<Vec<Url>> {
    let texts = match (&fields.url, &fields.urls) {
        (Some(_), Some(_)) => {
            let message = "`url` and `urls`: only one of them can hold";
            mapping.error_at("urls", message, "leave `url` out");
            return None;
        }
        (Some(one), None) => std::slice::from_ref(one),
        (None, Some(several)) => {
            if several.is_empty() || several.len() > URLS_MAX {
                let message = format!("`urls` has {} entries", several.len());
                mapping.error_at("urls", message, format!("write 1 to {URLS_MAX}"));
                return None;
            }
            several
        }
        (None, None) => {
            if !mapping.has("url") && !mapping.has("urls") {
                let help = "write `url: redis://127.0.0.1:6379`, or `urls` for several";
                mapping.error("`redis` needs `url`", help);
            }
            return None;
        }
    };
    let mut urls = Vec::with_capacity(texts.len());
    let errors_before = mapping.report.errors();
    for Spanned { at, value: Text(text) } in texts {
        // The errors of the url parser never repeat the text, which may contain a password.
        let read = text
            .parse::<Url>()
            .map_err(|error| ValueProblem::new(format!("no url of Redis: {error}"), EXAMPLE));
        let Some(url) = mapping.report.settle(*at, read) else { continue };
        if urls.contains(&url) {
            mapping.report.error(*at, format!("{} is written twice", shown(text)), "keep one of the two");
        }
        if url.is_plain_beyond_loopback() {
            let message =
                format!("{url} is plain text beyond this host: others on the way can read and change it");
            mapping.report.warning(*at, message, "write rediss://, for TLS, or reach it by way of a tunnel");
        }
        urls.push(url);
    }
    (mapping.report.errors() == errors_before).then_some(urls)
}

fn secret(fields: &RedisFields<'_>, mapping: FileNode<'_>, directory: &Path) -> Option<PathBuf> {
    match fields.fleet_secret_files.as_deref() {
        None => {
            if !mapping.has("fleet_secret_files") {
                let message = "`redis` without `fleet_secret_files`: each host limits by itself";
                let help = format!("{}, the same on every host", how_to_make("/etc/tidegate/fleet-secret"));
                mapping.warn(message, help);
            }
            None
        }
        Some([path]) => Some(directory.join(path.0)),
        Some(paths) => {
            let message = format!("`fleet_secret_files` has {} entries, and takes one", paths.len());
            let help = "write the file that all hosts use; to replace the secret, name the new file on each host and restart it";
            mapping.error_at("fleet_secret_files", message, help);
            None
        }
    }
}

/// Returns the warning for rules with `scope: fleet` where the settings name no Redis.
pub(crate) fn fleet_alone(domains: &[Arc<Domain>]) -> Option<Problem> {
    let mut of_fleet = domains.iter().flat_map(|domain| domain.rules()).filter(|rule| rule.fleet.is_some());
    let first = of_fleet.next()?;
    let (name, position) = (shown(&first.name), first.position.clone());
    let others = match of_fleet.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!("{name}{others} with `scope: fleet`, and no `redis`: each host limits by itself");
    let help = "write `redis: {url: …}` in the settings, or `scope: host` in the rules".to_owned();
    Some(Problem { severity: Severity::Warning, position, message, help, line_text: None })
}

/// Returns the help that shows how to make a file of a fleet secret.
fn how_to_make(path: &str) -> String {
    format!("make one: (umask 077; head -c 32 /dev/urandom > {path})")
}

const EXAMPLE: &str = "write redis://HOST:6379, rediss://HOST:6379 for TLS, or unix:///run/redis/redis.sock";

/// More servers than a fleet needs; a longer list is a mistake.
const URLS_MAX: usize = 64;

/// The bytes of one file. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetSecret(Box<[u8]>);

impl FleetSecret {
    /// Returns the bytes to derive keys from, at least 32.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for FleetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FleetSecret(…)")
    }
}

/// Reads the file. A daemon without the secret starts all the same and limits on its own host.
pub fn fleet_secret(path: &Path) -> (Option<FleetSecret>, Option<Problem>) {
    match read_secret(path) {
        Ok((secret, doubt)) => {
            let warning = |wrong| Problem { severity: Severity::Warning, ..about_file(path, wrong) };
            (Some(secret), doubt.map(warning))
        }
        Err(wrong) => (None, Some(about_file(path, wrong))),
    }
}

fn read_secret(path: &Path) -> Result<(FleetSecret, Option<ValueProblem>), ValueProblem> {
    let unreadable = |error: std::io::Error| {
        let help = match error.kind() {
            std::io::ErrorKind::NotFound => {
                format!("{}, the same on every host", how_to_make(&path.to_string_lossy()))
            }
            _ => "let the daemon's user read it".to_owned(),
        };
        ValueProblem::new(format!("cannot read the fleet secret: {error}"), help)
    };
    // Opening a named pipe does not wait; it reads as empty.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let mut bytes = Vec::new();
    // A device never ends.
    file.by_ref().take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let make = || format!("{}, the same on every host", how_to_make(&path.to_string_lossy()));
    match bytes.len() as u64 {
        few @ 0..BYTES_MIN => Err(ValueProblem::new(
            format!("a fleet secret of {few} bytes can be guessed: at least {BYTES_MIN}"),
            make(),
        )),
        many if many > BYTES_MAX => {
            Err(ValueProblem::new(format!("a fleet secret of more than {BYTES_MAX} bytes"), make()))
        }
        _ => Ok((FleetSecret(bytes.into()), open_to_others(path, &metadata))),
    }
}

/// Warns of a file that others can read or its group can write: the group may be the daemon's own.
fn open_to_others(path: &Path, metadata: &Metadata) -> Option<ValueProblem> {
    let mode = metadata.mode() & 0o7777;
    let message = format!("the fleet secret has mode {mode:04o}: others can read or change it");
    (mode & 0o027 != 0).then(|| ValueProblem::new(message, format!("chmod 0600 {}", path.display())))
}

/// Twice the bits of the digest.
const BYTES_MIN: u64 = 32;

/// A page; anything larger is a wrong file.
const BYTES_MAX: u64 = 4_096;
