//! Connections to Redis, one per server: commands go out in batches of one write, replies come back singly.
//! Connects again forever, adapts timeouts, follows a cluster, and trusts no length that a server sends.
//!
//! A failed command may be resent with the same bytes; [`LinkError::may_have_run`] reports an unknown outcome.

mod cluster;
mod connect;
mod connection;
mod failure;
mod node;
mod nodes;
mod rendezvous;
mod replies;
mod reply_parser;
mod url;

use std::path::PathBuf;
use std::sync::Arc;

use redis::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) use connect::{authorities_of_file, read_password};
pub(super) use failure::FailureCounts;
pub use failure::{FailureClass, LinkError};
pub use node::{NodeState, NodeStatus};
pub use nodes::NodeId;
pub use reply_parser::ReplyParser;
pub use url::{Url, UrlError};

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
#[allow(missing_docs, reason = "the messages say it")]
pub enum OptionsError {
    #[error("no server is named: give a `url`")]
    NoUrl,
    #[error("a `user` needs a `password_file`")]
    UserWithoutPassword,
    #[error("a `ca_file` is for rediss:// URLs: none is one")]
    CaWithoutTls,
    #[error("a cluster is named by redis:// or rediss:// URLs, all alike, without a database")]
    ClusterUrl,
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

/// A Lua script, called by its digest; the text is sent only to servers that do not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The name in this code.
    pub name: &'static str,
    /// The Lua text.
    pub text: &'static str,
    /// The SHA-1 of the text, in hex.
    pub sha: String,
}

impl Script {
    /// Makes a script and computes its digest.
    #[must_use]
    pub fn new(name: &'static str, text: &'static str) -> Script {
        Script { name, text, sha: redis::Script::new(text).get_hash().to_owned() }
    }

    fn load(&self, commands: &mut redis::Pipeline) {
        commands.cmd("SCRIPT").arg("LOAD").arg(self.text);
    }
}

/// One script invocation, whose keys share one hash tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisCommand<'a> {
    /// The script.
    pub script: &'a Script,
    /// `KEYS`: all keys that the script touches.
    pub keys: Vec<Vec<u8>>,
    /// `ARGV`.
    pub args: Vec<Vec<u8>>,
}

impl RedisCommand<'_> {
    fn write_to(&self, bytes: &mut Vec<u8>) {
        let parts = self.keys.iter().chain(&self.args);
        let length = parts.clone().map(|part| part.len() + PART_BYTES).sum();
        let mut command = redis::Cmd::with_capacity(3 + self.keys.len() + self.args.len(), length);
        command.arg("EVALSHA").arg(&self.script.sha).arg(self.keys.len());
        for part in parts {
            command.arg(part.as_slice());
        }
        command.write_packed_command(bytes);
    }
}

/// Framing bytes per argument: its length and two line ends.
const PART_BYTES: usize = 12;

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
    /// Keeps the map of a cluster; ends when dropped.
    _map_keeper: JoinSet<()>,
}

impl RedisLink {
    /// Starts to connect by [checked](LinkOptions::check) options, on the current runtime. Each connection loads the
    /// scripts.
    #[must_use]
    pub fn start(options: LinkOptions, scripts: Vec<Script>) -> RedisLink {
        let changes = watch::Sender::new(0);
        let shared = Arc::new(Shared { options, scripts, counts: FailureCounts::default(), changes });
        let nodes = Arc::new(Nodes::start(Arc::clone(&shared)));
        let mut map_keeper = JoinSet::new();
        if shared.options.cluster {
            map_keeper.spawn(Arc::clone(&nodes).keep_map());
        }
        RedisLink { shared, nodes, _map_keeper: map_keeper }
    }

    /// The server of a hash tag. In a cluster it changes as slots move.
    #[must_use]
    pub fn node_of(&self, tag: &str) -> NodeId {
        self.nodes.of_tag(tag)
    }

    /// Calls a script and waits for the reply.
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
    ) -> Result<Value, LinkError> {
        let [keys, args] = [keys, args].map(|parts| parts.iter().map(|part| part.to_vec()).collect());
        match self.send(node, vec![RedisCommand { script, keys, args }]).pop() {
            Some(reply) => reply.await,
            None => Err(LinkError::new(FailureClass::Other, "nothing was sent")),
        }
    }

    /// The status of each server.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.nodes.all().iter().map(|node| node.status()).collect()
    }

    /// Whether the servers of the slots of a cluster are known.
    #[must_use]
    pub fn has_map(&self) -> bool {
        self.nodes.has_map()
    }

    /// A number that changes with each change of a server's state.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Failures of commands, connection attempts and connections, by class.
    #[must_use]
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        self.shared.counts.read()
    }
}
