//! Connections to Redis, one per server: commands that are sent together go out in one write, replies come back singly.
//! Connects again forever, adapts timeouts, follows a cluster, and trusts no length that a server sends.
//!
//! A failed command may be resent with the same bytes; [`LinkError::may_have_run`] reports an unknown outcome. Commands
//! follow redirections of a cluster and load unknown scripts, each time with the same bytes.

mod connect;
mod connection;
mod failure;
mod node;
mod nodes;
mod url;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

pub(crate) use connect::{authorities_of_file, read_password};
pub(super) use failure::FailureCounts;
pub use failure::{FailureClass, LinkError};
pub use node::{NodeState, NodeStatus};
pub use nodes::NodeId;
pub use url::Url;

use super::round_trip::TIMEOUT_MAX;
use node::Node;
use nodes::{Nodes, Redirect, redirect};

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
    pub cluster: bool,
}

/// A Lua script, called by its digest; the text is sent only to servers that do not know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    pub name: &'static str,
    pub text: &'static str,
    /// The SHA-1 of the text, in hex.
    pub sha: String,
}

impl Script {
    pub fn new(name: &'static str, text: &'static str) -> Script {
        Script { name, text, sha: redis::Script::new(text).get_hash().to_owned() }
    }

    fn load(&self, commands: &mut Pipeline) {
        commands.cmd("SCRIPT").arg("LOAD").arg(self.text);
    }
}

/// One script invocation, whose keys share one hash tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisCommand<'a> {
    pub script: &'a Script,
    /// `KEYS`: all keys that the script touches.
    pub keys: Vec<Vec<u8>>,
    pub args: Vec<Vec<u8>>,
}

impl RedisCommand<'_> {
    fn encode(&self) -> redis::Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.script.sha).arg(self.keys.len()).arg(&self.keys).arg(&self.args);
        command
    }
}

#[derive(Debug)]
struct Shared {
    options: LinkOptions,
    scripts: Vec<Script>,
    counts: FailureCounts,
    changes: watch::Sender<u64>,
}

impl Shared {
    /// Notes a change of a server's state or of the map of a cluster.
    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }
}

/// Connections to all servers, closed when dropped.
#[derive(Debug)]
pub struct RedisLink {
    shared: Arc<Shared>,
    nodes: Arc<Nodes>,
    /// Keeps the map of a cluster; ends when dropped.
    _map_keeper: Option<AbortOnDropHandle<()>>,
}

impl RedisLink {
    /// Starts to connect by [checked](LinkOptions::check) options, on the current runtime. Each connection loads the
    /// scripts.
    pub fn start(options: LinkOptions, scripts: Vec<Script>) -> RedisLink {
        let changes = watch::Sender::new(0);
        let shared = Arc::new(Shared { options, scripts, counts: FailureCounts::default(), changes });
        let nodes = Arc::new(Nodes::start(Arc::clone(&shared)));
        let keep_map = || AbortOnDropHandle::new(tokio::spawn(Arc::clone(&nodes).keep_map()));
        let map_keeper = shared.options.cluster.then(keep_map);
        RedisLink { shared, nodes, _map_keeper: map_keeper }
    }

    /// The server of a hash tag. In a cluster it changes as slots move.
    pub fn node_of(&self, tag: &str) -> NodeId {
        self.nodes.of_tag(tag)
    }

    /// Sends a command and waits for the reply. Commands that are sent together go out in one write.
    ///
    /// # Errors
    /// The failure; [`LinkError::may_have_run`] reports whether the script may have run.
    pub async fn send(&self, node: NodeId, command: &RedisCommand<'_>) -> Result<Value, LinkError> {
        let node = self.nodes.get(node);
        // Before the first attempt to connect has ended, nothing has failed.
        let is_counted = node.as_ref().is_none_or(|node| !node.is_starting());
        let sent = async {
            let gone =
                || LinkError::new(FailureClass::Down, "the server is not one of the cluster's any more");
            let too_long = |_| {
                let error = LinkError::new(FailureClass::Timeout, "sent on and on");
                Err(LinkError { may_have_run: true, ..error })
            };
            let followed = self.follow(node.ok_or_else(gone)?, command);
            timeout(TIMEOUT_MAX * 2, followed).await.unwrap_or_else(too_long)
        };
        let result = sent.await;
        if let (Err(error), true) = (&result, is_counted) {
            self.shared.counts.count(error.class);
        }
        result
    }

    /// Sends a command, again after redirections and a script load, until a server accepts it.
    async fn follow(&self, mut node: Arc<Node>, command: &RedisCommand<'_>) -> Result<Value, LinkError> {
        let (mut is_loaded, mut sends_asking, mut hops) = (false, false, 0);
        let mut value = run(&node, redis::pipe(), command).await?;
        while let Value::ServerError(error) = &value {
            let mut before = redis::pipe();
            let redirect = redirect(error, &node.url).filter(|_| self.shared.options.cluster);
            match redirect {
                Some(Redirect::Later) => sleep(LATER).await,
                Some(Redirect::Moved(slot, url)) => {
                    (node, sends_asking) = (self.arrive(&url).await?, false);
                    self.nodes.moved(slot, &url);
                    hops += 1;
                }
                Some(Redirect::Ask(url)) => {
                    (node, sends_asking) = (self.arrive(&url).await?, true);
                    hops += 1;
                }
                None if error.code() == "NOSCRIPT" && !is_loaded => {
                    is_loaded = true;
                    command.script.load(&mut before);
                }
                None => return understood(value),
            }
            if hops > HOPS_MAX {
                let why = "the servers of the cluster send a command in circles";
                return Err(LinkError::new(FailureClass::ClusterDown, why));
            }
            if sends_asking {
                before.cmd("ASKING");
            }
            value = run(&node, before, command).await?;
        }
        Ok(value)
    }

    /// The server of a redirection, once it accepts commands.
    async fn arrive(&self, url: &Url) -> Result<Arc<Node>, LinkError> {
        let too_many = || LinkError::new(FailureClass::Protocol, "a cluster of too many servers");
        let node = self.nodes.sent_to(url).ok_or_else(too_many)?;
        let unreached = |_| {
            let why = "the server that has the slot now cannot be reached";
            LinkError::new(FailureClass::ClusterDown, why)
        };
        timeout(TIMEOUT_MAX / 2, node.up()).await.map_err(unreached)?;
        Ok(node)
    }

    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.nodes.all().iter().map(|node| node.status()).collect()
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.is_up())
    }

    /// Whether the servers of the slots of a cluster are known.
    pub fn has_map(&self) -> bool {
        self.nodes.has_map()
    }

    /// A number that changes with each change of a server's state.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Failures of commands, connection attempts and connections, by class.
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        self.shared.counts.read()
    }
}

/// Sends the preceding commands and this one in one write. Returns the reply to this one.
async fn run(node: &Node, mut commands: Pipeline, command: &RedisCommand<'_>) -> Result<Value, LinkError> {
    commands.add_command(command.encode());
    let mut last = Value::Nil;
    for reply in node.send(&commands).await? {
        understood(std::mem::replace(&mut last, reply))?;
    }
    Ok(last)
}

fn understood(value: Value) -> Result<Value, LinkError> {
    match value {
        Value::ServerError(error) => Err(LinkError::of_reply(&error)),
        value => Ok(value),
    }
}

/// Enough for a move to the new master and further moves meanwhile.
const HOPS_MAX: u32 = 5;

/// A slot move transfers a few thousand keys per second.
const LATER: Duration = Duration::from_millis(20);
