//! Tests the link with real servers: its connections, its reaction to failures, and its checks of replies.

use crate::prelude::*;
use crate::redis_server::Redis;
use crate::{certificates, liar, redis_cluster, redis_server};
mod calls;
mod cluster;
mod faults;
mod hostile;
mod rights;
mod spread;
mod throttled;
mod tls;

use futures_util::future::join_all;
use redis::Value;
use std::sync::OnceLock;
use tidegate::fleet::link::{
    FailureClass, LinkError, LinkOptions, NodeId, NodeState, NodeStatus, RedisCommand, RedisLink, Script,
};

/// Increments a number; returns it with the argument.
pub(crate) fn count() -> Script {
    Script::new("count", "return {redis.call('INCRBY', KEYS[1], 1), ARGV[1]}")
}

/// Returns the argument and touches no key.
pub(crate) fn echo() -> Script {
    Script::new("echo", "return ARGV[1]")
}

/// Sends commands together and returns their results in order.
pub(crate) async fn all(
    link: &RedisLink,
    node: NodeId,
    commands: &[RedisCommand<'_>],
) -> Vec<Result<Value, LinkError>> {
    // A task that reaches its budget is resumed in another order.
    tokio::task::unconstrained(join_all(commands.iter().map(|command| link.send(node, command)))).await
}

pub(crate) fn command<'a>(script: &'a Script, keys: &[&str], args: &[&str]) -> RedisCommand<'a> {
    let [keys, args] = [keys, args].map(|parts| parts.iter().map(|part| part.as_bytes().to_vec()).collect());
    RedisCommand { script, keys, args }
}

pub(crate) fn options(url: &str) -> LinkOptions {
    LinkOptions { urls: vec![url.parse().unwrap()], ..LinkOptions::default() }
}

pub(crate) fn link(url: &str) -> RedisLink {
    RedisLink::start(options(url), vec![count(), echo()])
}

/// A server with these options, and a link that is connected to it.
pub(crate) async fn linked(options: &[&str]) -> (Redis, RedisLink) {
    let redis = Redis::start(options);
    let link = link(&redis.url());
    up(&link).await;
    (redis, link)
}

/// The class of a failure, and whether Redis may have run the command.
pub(crate) fn failure<T: std::fmt::Debug>(result: Result<T, LinkError>) -> (FailureClass, bool) {
    let error = result.unwrap_err();
    (error.class, error.may_have_run)
}

pub(crate) fn one(link: &RedisLink) -> NodeStatus {
    link.nodes().remove(0)
}

/// Returns the error if there is no connection.
pub(crate) fn down(link: &RedisLink) -> Option<LinkError> {
    one(link).state.fault().cloned()
}

pub(crate) fn is_up(link: &RedisLink) -> bool {
    link.nodes().iter().all(|node| node.state == NodeState::Up)
}

pub(crate) fn is_down_for(link: &RedisLink, class: FailureClass) -> bool {
    down(link).is_some_and(|error| error.class == class)
}

/// Waits until a condition holds, for at most a minute.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = read_boot_nanos() + 60_000_000_000;
    while !is_so() {
        assert!(read_boot_nanos() < end, "it never came to this: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) async fn up(link: &RedisLink) {
    until("connected", || is_up(link)).await;
}

pub(crate) async fn said_back(link: &RedisLink, text: &str) -> Result<(), LinkError> {
    let reply = link.send(one(link).id, &command(&echo(), &["k"], &[text])).await?;
    assert_eq!(reply, Value::BulkString(text.as_bytes().to_vec()));
    Ok(())
}

pub(crate) async fn counted(link: &RedisLink, key: &str) -> Result<i64, LinkError> {
    let reply = link.send(one(link).id, &command(&count(), &[key], &["x"])).await?;
    let Value::Array(parts) = reply else { panic!("{reply:?}") };
    let Value::Int(count) = parts[0] else { panic!("{parts:?}") };
    Ok(count)
}

/// Advances the clock past the retry delay after a permission error.
pub(crate) async fn half_a_minute_passes() {
    // The link first learns that its connection has ended.
    tokio::task::yield_now().await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
}

pub(crate) fn failures(link: &RedisLink, class: &str) -> u64 {
    link.failures().iter().find(|(name, _)| *name == class).unwrap().1
}

pub(crate) struct Log {
    path: tempfile::TempPath,
    _guard: tracing::subscriber::DefaultGuard,
}

impl Log {
    pub(crate) fn listen() -> Log {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (file, path) = file.into_parts();
        // A log statement stays disabled if a thread without a subscriber reaches it first while only one
        // exists.
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
