//! Connections to Redis, one per server: commands go out in batches of one write, replies come back singly.
//! Connects again forever, adapts timeouts, follows a cluster, and trusts no length that a server sends.
//!
//! A failed command may be resent with the same bytes; [`LinkError::may_have_run`] reports an unknown outcome.

mod backoff;
mod cluster;
mod connect;
mod connection;
mod failure;
pub mod frame;
mod log;
mod node;
mod nodes;
mod rendezvous;
mod replies;
mod reply_timeout;
mod script;
mod url;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;

pub use failure::{FailureClass, LinkError, TlsFault};
pub use node::NodeState;
pub use nodes::NodeId;
pub use replies::Replies;
pub use script::Script;
pub use url::{Url, UrlError};

use failure::FailureCounts;
use nodes::Nodes;

/// The servers and credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkOptions {
    /// Independent servers, or some servers of a cluster.
    pub urls: Vec<Url>,
    /// The ACL user; without it the default user.
    pub user: Option<String>,
    /// The password file, read at each connection.
    pub password_file: Option<PathBuf>,
    /// The authorities for the servers' certificates, read at each connection; without it those of the
    /// system.
    pub ca_file: Option<PathBuf>,
    /// Whether the URLs are servers of a Redis Cluster.
    pub cluster: bool,
}

/// Contradictory options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// No URL is given.
    #[error("no server is named: give a `url`")]
    NoUrl,
    /// A user without a password.
    #[error("a `user` needs a `password_file`")]
    UserWithoutPassword,
    /// A `ca_file` without TLS.
    #[error("a `ca_file` is for rediss:// URLs: none is one")]
    CaWithoutTls,
    /// A cluster has database 0 only and no Unix socket.
    #[error("a cluster is named by redis:// or rediss:// URLs, all alike, without a database")]
    ClusterUrl,
    /// A server is listed twice.
    #[error("a server is named twice")]
    Twice,
}

impl LinkOptions {
    /// Checks the options for contradictions.
    ///
    /// # Errors
    ///
    /// See [`OptionsError`].
    pub fn check(&self) -> Result<(), OptionsError> {
        let first = self.urls.first().ok_or(OptionsError::NoUrl)?;
        let unlike = |url: &Url| url.host().is_none() || url.database > 0 || url.is_tls() != first.is_tls();
        let mut texts: Vec<_> = self.urls.iter().map(ToString::to_string).collect();
        texts.sort_unstable();
        texts.dedup();
        if self.user.is_some() && self.password_file.is_none() {
            Err(OptionsError::UserWithoutPassword)
        } else if self.ca_file.is_some() && !self.urls.iter().any(Url::is_tls) {
            Err(OptionsError::CaWithoutTls)
        } else if self.cluster && self.urls.iter().any(unlike) {
            Err(OptionsError::ClusterUrl)
        } else if texts.len() < self.urls.len() {
            Err(OptionsError::Twice)
        } else {
            Ok(())
        }
    }
}

/// One script invocation, whose keys share one hash tag.
#[derive(Clone, Copy, Debug)]
pub struct RedisCommand<'a> {
    /// The script.
    pub script: &'a Script,
    /// All keys that the script touches.
    pub keys: &'a [&'a [u8]],
    /// Its other arguments.
    pub args: &'a [&'a [u8]],
}

/// The status of one server.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// The server.
    pub id: NodeId,
    /// Its URL.
    pub url: Url,
    /// Whether it accepts commands.
    pub state: NodeState,
    /// The smoothed round trip, µs, once known.
    pub round_trip_us: Option<u64>,
    /// Connections made so far.
    pub connections: u64,
}

#[derive(Debug)]
struct Shared {
    options: LinkOptions,
    scripts: Vec<Script>,
    counts: FailureCounts,
    changes: watch::Sender<u64>,
}

/// Connections to all servers, closed when dropped.
#[derive(Debug)]
pub struct RedisLink {
    shared: Arc<Shared>,
    nodes: Arc<Nodes>,
    map_keeper: Option<AbortHandle>,
}

impl RedisLink {
    /// Starts to connect, on the current runtime. Each connection loads the scripts.
    ///
    /// # Errors
    ///
    /// See [`OptionsError`].
    pub fn start(options: LinkOptions, scripts: Vec<Script>) -> Result<RedisLink, OptionsError> {
        options.check()?;
        let is_cluster = options.cluster;
        let changes = watch::Sender::new(0);
        let shared = Arc::new(Shared { options, scripts, counts: FailureCounts::default(), changes });
        let nodes = Arc::new(Nodes::start(Arc::clone(&shared)));
        let map_keeper = is_cluster.then(|| tokio::spawn(Arc::clone(&nodes).keep_map()).abort_handle());
        Ok(RedisLink { shared, nodes, map_keeper })
    }

    /// The server of a hash tag. In a cluster it changes as slots move.
    #[must_use]
    pub fn node_of(&self, tag: &str) -> NodeId {
        self.nodes.of_tag(tag)
    }

    /// Calls a script. With a `limit` it returns by then and a later reply is dropped; without one the
    /// connection times out by itself.
    ///
    /// # Errors
    ///
    /// The failure; [`LinkError::may_have_run`] reports whether the script may have run.
    pub async fn call(
        &self,
        node: NodeId,
        script: &Script,
        keys: &[&[u8]],
        args: &[&[u8]],
        limit: Option<Duration>,
    ) -> Result<Value, LinkError> {
        let commands = [RedisCommand { script, keys, args }];
        let mut replies = self.send(node, &commands, limit);
        let nothing = || Err(LinkError::new(FailureClass::Other, "nothing was sent"));
        replies.next().await.unwrap_or_else(nothing)
    }

    /// Sends commands in one write. The replies may be awaited later, or dropped.
    #[must_use]
    pub fn send<'a>(
        &'a self,
        node: NodeId,
        commands: &[RedisCommand<'a>],
        limit: Option<Duration>,
    ) -> Replies<'a> {
        Replies::send(self, node, commands, limit)
    }

    /// The status of each server.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        let all = self.nodes.all().into_iter();
        all.map(|(id, node)| NodeStatus {
            id,
            url: node.url.clone(),
            state: node.state(),
            round_trip_us: node.round_trip_us(),
            connections: node.connections(),
        })
        .collect()
    }

    /// A number that changes with each change of a server's state.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Failures of commands, connection attempts and connections, by class.
    #[must_use]
    pub fn failures(&self) -> [(&'static str, u64); FailureClass::NAMES.len()] {
        self.shared.counts.read()
    }
}

impl Drop for RedisLink {
    fn drop(&mut self) {
        if let Some(keeper) = &self.map_keeper {
            keeper.abort();
        }
    }
}
