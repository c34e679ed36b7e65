//! `redis` in the settings: the Redis of the fleet. Opens no connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fleet::link::{self, Url};
use crate::rules::fields::{Field, Fields, boolean, list, text};
use crate::rules::source::Report;
use crate::rules::yaml::YamlNode;
use crate::rules::{Domain, Problem, Severity, ValueProblem, percent, shown};

/// The servers of the fleet, and the credentials of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// One server, several independent ones, or some nodes of a cluster; never empty.
    pub urls: Vec<Url>,
    /// Whether they belong to one cluster.
    pub cluster: bool,
    /// The user of the Redis access control list; `None`: `default`.
    pub user: Option<String>,
    /// The file of the password; read again for each connection.
    pub password_file: Option<PathBuf>,
    /// The certificate authorities to trust; `None`: those of this host.
    pub ca_file: Option<PathBuf>,
    /// The file of the fleet secret, from which the keys are derived.
    pub fleet_secret_file: Option<PathBuf>,
    /// The part of every fleet limit that belongs to the hosts of this Redis, in thousandths; `None`: all.
    pub region_weight: Option<u16>,
}

impl RedisSettings {
    /// Returns the options of a connection.
    #[must_use]
    pub fn link_options(&self) -> link::LinkOptions {
        link::LinkOptions {
            urls: self.urls.clone(),
            user: self.user.clone(),
            password_file: self.password_file.clone(),
            // Not used without TLS; the reader of the settings has warned about it.
            ca_file: self.ca_file.clone().filter(|_| self.urls.iter().any(Url::is_tls)),
            cluster: self.cluster,
        }
    }
}

/// Reads the field; paths are relative to `directory`. `None`, after reporting it, without valid urls.
pub(super) fn read(node: &YamlNode, directory: &Path, report: &mut Report<'_>) -> Option<RedisSettings> {
    let fields = Fields::read(node, "`redis`", REDIS, report)?;
    let urls = urls(&fields, report);
    let path = |name: &str, report: &mut Report<'_>| {
        let path = fields.get(name).and_then(|node| super::settings_file::path(node, name, report));
        path.map(|path| directory.join(path))
    };
    let (password_file, ca_file) = (path("password_file", report), path("ca_file", report));
    let user = fields.get("user").and_then(|node| text(node, "user", report)).map(str::to_owned);
    let cluster = fields.get("cluster").and_then(|node| boolean(node, "cluster", report)).unwrap_or_default();
    let weight = fields.get("region_weight");
    let region_weight = weight
        .and_then(|node| report.settle(node.at, percent::read(node, "region_weight", percent::WHOLE_SHARE)));
    let fleet_secret_file = secret(&fields, directory, report);
    let urls = urls?;
    let is_tls = |url: &Url| url.to_string().starts_with("rediss:");
    if let Some(node) = fields.get("ca_file").filter(|_| !urls.iter().any(is_tls)) {
        let message = "`ca_file` is for TLS, and no url begins with rediss://";
        report.warning(node.at, message, "write rediss:// where Redis speaks TLS, or leave `ca_file` out");
    }
    if let Some(node) = fields.get("cluster").filter(|_| cluster)
        && let Some(url) = urls.iter().find(|url| url.to_string().starts_with("unix:"))
    {
        let message = format!("the nodes of a cluster are reached by TCP, and {url} is a socket");
        report.error(node.at, message, "write the urls of some nodes, or leave `cluster` out");
    }
    let settings =
        RedisSettings { urls, cluster, user, password_file, ca_file, fleet_secret_file, region_weight };
    Some(settings)
}

/// Reads one url under `url` or several under `urls`.
fn urls(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Vec<Url>> {
    let nodes: Vec<&YamlNode> = match (fields.get("url"), fields.get("urls")) {
        (Some(_), Some(several)) => {
            report.error(several.at, "`url` and `urls`: only one of them can hold", "leave `url` out");
            return None;
        }
        (Some(one), None) => vec![one],
        (None, Some(several)) => {
            let mend = "write a list: [redis://10.0.0.1, redis://10.0.0.2]";
            let items = list(several, "urls", mend, report)?;
            if items.is_empty() || items.len() > URLS_MAX {
                let message = format!("`urls` has {} entries", items.len());
                report.error(several.at, message, format!("write 1 to {URLS_MAX}"));
                return None;
            }
            items.iter().collect()
        }
        (None, None) => {
            let mend = "write `url: redis://127.0.0.1:6379`, or `urls` for several";
            report.error(fields.at(), "`redis` needs `url`", mend);
            return None;
        }
    };
    let mut urls = Vec::with_capacity(nodes.len());
    let errors_before = report.errors();
    for node in nodes {
        let Some(text) = text(node, "url", report) else { continue };
        // The errors of the url parser never repeat the text, which may contain a password.
        let read = text
            .parse::<Url>()
            .map_err(|error| ValueProblem::new(format!("no url of Redis: {error}"), EXAMPLE));
        let Some(url) = report.settle(node.at, read) else { continue };
        if urls.contains(&url) {
            report.error(node.at, format!("{} is written twice", shown(text)), "keep one of the two");
        }
        if url.is_plain_beyond_loopback() {
            let message =
                format!("{url} is plain text beyond this host: whoever is on the way can read and change it");
            report.warning(node.at, message, "write rediss://, for TLS, or reach it by way of a tunnel");
        }
        urls.push(url);
    }
    (report.errors() == errors_before).then_some(urls)
}

fn secret(fields: &Fields<'_>, directory: &Path, report: &mut Report<'_>) -> Option<PathBuf> {
    let Some(node) = fields.get("fleet_secret_files") else {
        let message = "`redis` without `fleet_secret_files`: each host limits by itself";
        report.warning(
            fields.at(),
            message,
            format!("{}, the same on every host", how_to_make("/etc/tidegate/fleet-secret")),
        );
        return None;
    };
    let mend = "write a list of paths: [/etc/tidegate/fleet-secret]";
    let items = list(node, "fleet_secret_files", mend, report).unwrap_or_default();
    let [item] = items else {
        let message = format!("`fleet_secret_files` has {} entries, and takes one", items.len());
        let mend = "write the file that all hosts use; to replace the secret, name the new file on each host and restart it";
        report.error(node.at, message, mend);
        return None;
    };
    let path = super::settings_file::path(item, "fleet_secret_files", report)?;
    Some(directory.join(path))
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
    let mend = "write `redis: {url: …}` in the settings, or `scope: host` in the rules".to_owned();
    Some(Problem { severity: Severity::Warning, position, message, mend: Some(mend), line_text: None })
}

/// Returns the help that shows how to make a file of a fleet secret.
pub(super) fn how_to_make(path: &str) -> String {
    format!("make one: (umask 077; head -c 32 /dev/urandom > {path})")
}

const REDIS: &[Field] = &[
    Field::built("url"),
    Field::built("urls"),
    Field::built("cluster"),
    Field::built("user"),
    Field::built("password_file"),
    Field::built("ca_file"),
    Field::built("fleet_secret_files"),
    Field::built("region_weight"),
];

const EXAMPLE: &str = "write redis://HOST:6379, rediss://HOST:6379 for TLS, or unix:///run/redis/redis.sock";

/// More servers than a fleet needs; a longer list is a mistake.
const URLS_MAX: usize = 64;
