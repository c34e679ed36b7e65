//! `redis` in the settings: where hosts meet that share a budget. It opens no connection.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fleet::link::{self, Url};
use crate::rules::fields::{Field, Fields, boolean, list, text};
use crate::rules::source::Report;
use crate::rules::yaml::Node;
use crate::rules::{Domain, Problem, Severity, Wrong, percent, shown};

/// Where hosts meet that share a budget, and how this one is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// One server, several that know nothing of each other, or some of a cluster; never empty.
    pub urls: Vec<Url>,
    /// Whether they are of one cluster.
    pub cluster: bool,
    /// The user of its access control list; none: `default`.
    pub user: Option<String>,
    /// Holds the password; read anew for each connection.
    pub password_file: Option<PathBuf>,
    /// The authorities that a certificate may be from; none: those of this host.
    pub ca_file: Option<PathBuf>,
    /// What makes keys that only this fleet knows: the one that is used, and the one before it or after it.
    pub fleet_secret_file: Option<PathBuf>,
    /// The part of every fleet limit that belongs to the hosts of this Redis, in thousandths; none: all of it.
    pub region_weight: Option<u16>,
}

impl RedisSettings {
    /// What a connection is made by.
    #[must_use]
    pub fn link_options(&self) -> link::Options {
        link::Options {
            urls: self.urls.clone(),
            user: self.user.clone(),
            password_file: self.password_file.clone(),
            // What has no TLS has no use for it; the settings were told so.
            ca_file: self.ca_file.clone().filter(|_| self.urls.iter().any(Url::is_tls)),
            cluster: self.cluster,
        }
    }
}

/// Reads it; paths are relative to a directory. `None`: something that it cannot do without is wrong, and noted.
pub(super) fn read(node: &Node, directory: &Path, report: &mut Report<'_>) -> Option<RedisSettings> {
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

/// One under `url` or several under `urls`.
fn urls(fields: &Fields<'_>, report: &mut Report<'_>) -> Option<Vec<Url>> {
    let nodes: Vec<&Node> = match (fields.get("url"), fields.get("urls")) {
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
        // What the reader of urls says never repeats the text, which may hold a password.
        let read =
            text.parse::<Url>().map_err(|error| Wrong::new(format!("no url of Redis: {error}"), EXAMPLE));
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

/// What is to be said of rules of the fleet where the settings name no Redis.
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

/// How a file of a fleet secret is made.
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

/// More Redis than any fleet of ours needs; past that it is a list of something else.
const URLS_MAX: usize = 64;
