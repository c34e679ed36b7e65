//! The URL of a Redis: `redis://host:port/db`, `rediss://…` with TLS, `unix:///path?db=1`. It holds no
//! credentials, so it may be shown anywhere.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    pub(super) place: ServerAddress,
    pub database: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ServerAddress {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl Url {
    /// Whether the connection can be read and changed on the network: without TLS, and beyond loopback.
    pub fn is_plain_beyond_loopback(&self) -> bool {
        let ServerAddress::Tcp { host, tls: false, .. } = &self.place else { return false };
        match host.parse::<IpAddr>() {
            Ok(address) => !address.to_canonical().is_loopback(),
            Err(_) => !host.eq_ignore_ascii_case("localhost"),
        }
    }

    /// The URL of another server with the same scheme and database; `None` if its address is none.
    pub(super) fn beside(&self, host: &str, port: u16) -> Option<Url> {
        let (host, tls) = (checked_host(host).filter(|_| port > 0)?, self.is_tls());
        Some(Url { place: ServerAddress::Tcp { host, port, tls }, database: self.database })
    }

    pub fn host(&self) -> Option<&str> {
        match &self.place {
            ServerAddress::Tcp { host, .. } => Some(host),
            ServerAddress::Unix(_) => None,
        }
    }

    pub fn is_tls(&self) -> bool {
        matches!(self.place, ServerAddress::Tcp { tls: true, .. })
    }
}

impl FromStr for Url {
    /// Why the text is no URL. The errors omit the text, which may hold a password.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Url, &'static str> {
        let (scheme, rest) = text.split_once("://").ok_or(NO_SCHEME)?;
        match scheme {
            "redis" => tcp(rest, false),
            "rediss" => tcp(rest, true),
            "unix" | "redis+unix" => unix(rest),
            _ => Err(NO_SCHEME),
        }
    }
}

fn tcp(rest: &str, tls: bool) -> Result<Url, &'static str> {
    if rest.contains('@') {
        return Err(CREDENTIALS);
    }
    if rest.contains(['?', '#']) {
        return Err(OPTIONS);
    }
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = bare.map_or(!host.contains(':'), |bare| bare.parse::<Ipv6Addr>().is_ok());
    let host = checked_host(bare.unwrap_or(host)).filter(|_| is_host).ok_or(NO_HOST)?;
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(NO_PORT)?,
        None => PORT,
    };
    Ok(Url { place: ServerAddress::Tcp { host, port, tls }, database: number_of_database(database)? })
}

/// Returns a name or address in lower case: names ignore case, and all hosts must map tags alike.
fn checked_host(host: &str) -> Option<String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    let is_host = (1..=HOST_BYTES_MAX).contains(&host.len()) && host.bytes().all(is_word);
    is_host.then(|| host.to_ascii_lowercase())
}

fn unix(rest: &str) -> Result<Url, &'static str> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if rest.contains('@') && !path.starts_with('/') {
        return Err(CREDENTIALS);
    }
    if !path.starts_with('/') || path.len() < 2 {
        return Err(NO_PATH);
    }
    let database = match options {
        "" => 0,
        options => number_of_database(options.strip_prefix("db=").ok_or(OPTIONS)?)?,
    };
    Ok(Url { place: ServerAddress::Unix(Path::new(path).to_owned()), database })
}

fn number_of_database(text: &str) -> Result<u32, &'static str> {
    if text.is_empty() {
        return Ok(0);
    }
    let is_number = text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or(NO_DATABASE)
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before_database = match &self.place {
            ServerAddress::Tcp { host, port, tls } => {
                let scheme = if *tls { "rediss" } else { "redis" };
                let host = if host.contains(':') { &*format!("[{host}]") } else { host };
                write!(f, "{scheme}://{host}:{port}")?;
                "/"
            }
            ServerAddress::Unix(path) => {
                write!(f, "unix://{}", path.display())?;
                "?db="
            }
        };
        if self.database > 0 { write!(f, "{before_database}{}", self.database) } else { Ok(()) }
    }
}

const PORT: u16 = 6379;

/// The longest DNS name.
const HOST_BYTES_MAX: usize = 253;

const NO_SCHEME: &str = "a URL of Redis begins with redis://, rediss://, unix:// or redis+unix://";
const CREDENTIALS: &str = "a URL holds neither user nor password: name them under `user` and `password_file`";
const NO_HOST: &str = "the host is a name, an IPv4 address or an IPv6 address in brackets";
const NO_PORT: &str = "the port is a number from 1 to 65535";
const NO_PATH: &str = "the path of a socket begins with a slash: unix:///run/redis/redis.sock";
const NO_DATABASE: &str = "the database is a number from 0 to 9999: redis://host:6379/1, unix:///path?db=1";
const OPTIONS: &str = "a URL has no options but the database";
