//! The link to Redis beside real servers: what it connects to, what it does when they fail, and what it believes.

use crate::{certificates, liar, redis_cluster, redis_server};
mod calls;
mod cluster;
mod faults;
mod hostile;
mod rights;
mod spread;
mod storm;
mod throttled;
mod tls;

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use redis::Value;
use tidegate::clock::read_boot_nanos;
use tidegate::fleet::link::{
    FailureClass, LinkError, LinkOptions, NodeState, NodeStatus, RedisCommand, RedisLink, Script,
};

/// Adds to a number and gives back what it was told.
pub(crate) fn count() -> Script {
    Script::new("count", "return {redis.call('INCRBY', KEYS[1], 1), ARGV[1]}")
}

/// Gives back what it was told and touches nothing.
pub(crate) fn echo() -> Script {
    Script::new("echo", "return ARGV[1]")
}

/// Has `text` given back.
pub(crate) fn echoed<'a>(script: &'a Script, text: &str) -> RedisCommand<'a> {
    RedisCommand { script, keys: Vec::new(), args: vec![text.into()] }
}

pub(crate) fn options(url: &str) -> LinkOptions {
    LinkOptions { urls: vec![url.parse().unwrap()], ..LinkOptions::default() }
}

/// A link to one server.
pub(crate) fn link(url: &str) -> RedisLink {
    RedisLink::start(options(url), vec![count(), echo()]).unwrap()
}

pub(crate) fn one(link: &RedisLink) -> NodeStatus {
    link.nodes().remove(0)
}

/// Why there is no connection.
pub(crate) fn down(link: &RedisLink) -> Option<LinkError> {
    match one(link).state {
        NodeState::Down(error) => Some(error),
        NodeState::Starting | NodeState::Up => None,
    }
}

pub(crate) fn is_up(link: &RedisLink) -> bool {
    link.nodes().iter().all(|node| node.state == NodeState::Up)
}

pub(crate) fn is_down_for(link: &RedisLink, class: FailureClass) -> bool {
    down(link).is_some_and(|error| error.class == class)
}

/// Waits until something is so, for ten seconds at most.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = read_boot_nanos() + 10_000_000_000;
    while !is_so() {
        assert!(read_boot_nanos() < end, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) async fn up(link: &RedisLink) {
    until("connected", || is_up(link)).await;
}

/// Has `text` said back.
pub(crate) async fn said_back(link: &RedisLink, text: &str) -> Result<(), LinkError> {
    let reply = link.call(one(link).id, &echo(), &[b"k"], &[text.as_bytes()]).await?;
    assert_eq!(reply, Value::BulkString(text.as_bytes().to_vec()));
    Ok(())
}

/// Counts up, and says what came to.
pub(crate) async fn counted(link: &RedisLink, key: &str) -> Result<i64, LinkError> {
    let reply = link.call(one(link).id, &count(), &[key.as_bytes()], &[b"x"]).await?;
    match reply {
        Value::Array(parts) => match parts[0] {
            Value::Int(count) => Ok(count),
            _ => panic!("{parts:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Passes the time that is waited after a refusal of rights, which nobody waits for in a test.
pub(crate) async fn half_a_minute_passes() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
}

pub(crate) fn failures(link: &RedisLink, class: &str) -> u64 {
    link.failures().iter().find(|(name, _)| *name == class).unwrap().1
}

/// What the log says while this lives.
pub(crate) struct Log {
    path: tempfile::TempPath,
    _guard: tracing::subscriber::DefaultGuard,
}

impl Log {
    pub(crate) fn listen() -> Log {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (file, path) = file.into_parts();
        // A log statement is off for good where a thread without a subscriber meets it first and only one exists.
        static ANOTHER: OnceLock<tracing::Dispatch> = OnceLock::new();
        ANOTHER.get_or_init(|| tracing_subscriber::fmt().with_writer(std::io::sink).into());
        let format = tracing_subscriber::fmt().with_ansi(false).with_writer(std::sync::Mutex::new(file));
        Log { path, _guard: tracing::subscriber::set_default(format.finish()) }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(PathBuf::from(&*self.path)).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}
