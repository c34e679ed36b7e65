//! Connections to Redis. One to each server, which speaks scripts: calls go out together in one write, their replies come back one
//! by one. Connects again for ever, knows how long to wait, follows a cluster, and believes nothing that a server says of lengths.
//!
//! A call that fails may be repeated as the same bytes; [`LinkError::may_have_run`] says whether its outcome is unknown.

mod backoff;
mod class;
mod cluster;
mod conversation;
pub mod frame;
mod node;
mod nodes;
mod open;
mod patience;
mod replies;
mod script;
mod spread;
mod url;
mod voice;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;

pub use class::{Class, LinkError, TlsFault};
pub use node::State;
pub use nodes::NodeId;
pub use replies::Replies;
pub use script::Script;
pub use url::{Url, UrlError};

use class::Counts;
use nodes::Nodes;

/// Which servers, and as whom.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Independent servers, or some of a cluster's.
    pub urls: Vec<Url>,
    /// The user of the ACL; without it the default one.
    pub user: Option<String>,
    /// Holds the password; read whenever a connection is made.
    pub password_file: Option<PathBuf>,
    /// Who signs the servers' certificates; without it the system's authorities. Read whenever a connection is made.
    pub ca_file: Option<PathBuf>,
    /// Whether the URLs are servers of a Redis Cluster.
    pub cluster: bool,
}

/// Options that contradict themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// No URL.
    #[error("no server is named: give a `url`")]
    NoUrl,
    /// A user alone.
    #[error("a `user` needs a `password_file`")]
    UserWithoutPassword,
    /// Where nothing is encrypted.
    #[error("a `ca_file` is for rediss:// URLs: none is one")]
    CaWithoutTls,
    /// A cluster has the database 0 alone, and is not reached by a Unix socket.
    #[error("a cluster is named by redis:// or rediss:// URLs, all alike, without a database")]
    ClusterUrl,
    /// One server twice.
    #[error("a server is named twice")]
    Twice,
}

impl Options {
    /// Whether these can be meant.
    ///
    /// # Errors
    ///
    /// What contradicts itself.
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

/// One call of a script. All its keys bear the same tag.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// What is called.
    pub script: &'a Script,
    /// All keys that it touches.
    pub keys: &'a [&'a [u8]],
    /// What it is told besides.
    pub args: &'a [&'a [u8]],
}

/// How it stands with one server.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Which one.
    pub id: NodeId,
    /// Where it is.
    pub url: Url,
    /// Whether calls are taken.
    pub state: State,
    /// The smoothed round trip in microseconds, once there was one.
    pub round_trip_us: Option<u64>,
    /// How many connections have been made to it.
    pub connections: u64,
}

/// What all servers' connections have in common.
#[derive(Debug)]
struct Shared {
    options: Options,
    scripts: Vec<Script>,
    counts: Counts,
    changes: watch::Sender<u64>,
}

/// Connections to all servers. Dropped, it ends them.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    nodes: Arc<Nodes>,
    map_keeper: Option<AbortHandle>,
}

impl Link {
    /// Begins to connect, on the runtime that this is called in. The scripts are loaded by each connection.
    ///
    /// # Errors
    ///
    /// Options that contradict themselves.
    pub fn start(options: Options, scripts: Vec<Script>) -> Result<Link, OptionsError> {
        options.check()?;
        let is_cluster = options.cluster;
        let changes = watch::Sender::new(0);
        let shared = Arc::new(Shared { options, scripts, counts: Counts::default(), changes });
        let nodes = Arc::new(Nodes::start(Arc::clone(&shared)));
        let map_keeper = is_cluster.then(|| tokio::spawn(Arc::clone(&nodes).keep_map()).abort_handle());
        Ok(Link { shared, nodes, map_keeper })
    }

    /// Which server has the keys of a tag (what stands between their braces). In a cluster that changes as slots move.
    #[must_use]
    pub fn node_of(&self, tag: &str) -> NodeId {
        self.nodes.of_tag(tag)
    }

    /// Calls a script. With a `limit` the caller hears by then, and a reply that comes later is passed over; without one the
    /// connection decides, and ends itself when no reply comes.
    ///
    /// # Errors
    ///
    /// What went wrong, and whether the script may have run all the same.
    pub async fn call(
        &self,
        node: NodeId,
        script: &Script,
        keys: &[&[u8]],
        args: &[&[u8]],
        limit: Option<Duration>,
    ) -> Result<Value, LinkError> {
        let calls = [Call { script, keys, args }];
        let mut replies = self.send(node, &calls, limit);
        let nothing = || Err(LinkError::new(Class::Other, "nothing was sent"));
        replies.next().await.unwrap_or_else(nothing)
    }

    /// Sends many calls in one write. The replies need not be waited for at once, or at all.
    #[must_use]
    pub fn send<'a>(&'a self, node: NodeId, calls: &[Call<'a>], limit: Option<Duration>) -> Replies<'a> {
        Replies::send(self, node, calls, limit)
    }

    /// How it stands with each server.
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

    /// A number that changes whenever the state of a server does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// How often each class of failure has been met: by calls, by attempts to connect, and by connections that broke.
    #[must_use]
    pub fn failures(&self) -> [(&'static str, u64); Class::NAMES.len()] {
        self.shared.counts.read()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(keeper) = &self.map_keeper {
            keeper.abort();
        }
    }
}
