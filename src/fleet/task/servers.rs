//! The Redis servers and their link states. All must be reachable, as each has a part of the keys.

use crate::clock::Timestamp;
use crate::fleet::command::{OF_ALL, ScriptCommand};
use crate::fleet::link::{FailureClass, LinkError, NodeId, NodeState, NodeStatus, RedisLink};
use crate::fleet::link_state::LinkState;
use redis::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tracing::error;

pub(super) struct Arrival {
    /// The server, or `None` for a cluster.
    pub(super) at: Option<NodeId>,
    pub(super) node: NodeId,
    pub(super) command: ScriptCommand,
    /// The bytes of the reply; an error if the command failed or may not have run, `None` if it was not sent.
    pub(super) reply: Result<Vec<u8>, Option<LinkError>>,
}

/// The connections, while there is something to share.
pub(super) struct Servers {
    link: Arc<RedisLink>,
    /// The state of each independent server, or one for a whole cluster, which tracks its own nodes.
    states: BTreeMap<Option<NodeId>, LinkState>,
    arrives: mpsc::Sender<Arrival>,
    /// The replies, in any order of the servers.
    pub(super) arrivals: mpsc::Receiver<Arrival>,
    /// Changes whenever a connection opens or closes.
    changes: watch::Receiver<u64>,
    up: HashSet<NodeId>,
    /// The error by which a connected server refused the last command.
    refusing: HashMap<NodeId, LinkError>,
}

impl Servers {
    pub(super) fn new(link: Arc<RedisLink>, is_cluster: bool, seed: u64, now: Timestamp) -> Servers {
        let ids: Vec<Option<NodeId>> = match is_cluster {
            true => vec![None],
            false => link.nodes().iter().map(|node| Some(node.id)).collect(),
        };
        let seeds = (1..).map(|number: u64| seed.wrapping_mul(number | 1));
        let states = ids.into_iter().zip(seeds).map(|(id, seed)| (id, LinkState::new(seed, now))).collect();
        let (changes, (arrives, arrivals)) = (link.changes(), mpsc::channel(ARRIVALS_MAX));
        let (up, refusing) = (HashSet::new(), HashMap::new());
        Servers { link, states, arrives, arrivals, changes, up, refusing }
    }

    /// Whether all servers are reachable.
    pub(super) fn are_reachable(&self) -> bool {
        self.states.values().all(LinkState::is_linked)
    }

    /// Updates the link states by connection changes and timeouts.
    pub(super) fn look(&mut self, timeout: Duration, now: Timestamp) {
        if self.changes.has_changed().unwrap_or(false) {
            self.changes.borrow_and_update();
            let nodes = self.link.nodes().into_iter();
            self.up = nodes.filter(|node| node.state == NodeState::Up).map(|node| node.id).collect();
            for (at, state) in &mut self.states {
                if at.is_none_or(|node| self.up.contains(&node)) {
                    state.connected(now);
                }
            }
        }
        for (at, state) in &mut self.states {
            // Any node of a cluster may redirect to the others.
            let is_connected = at.map_or(!self.up.is_empty(), |node| self.up.contains(&node));
            state.detect_outage(is_connected, timeout, now);
        }
    }

    /// Takes the servers to which a heartbeat is due now.
    pub(super) fn due(&mut self, now: Timestamp) -> Vec<Option<NodeId>> {
        let due =
            self.states.iter_mut().filter_map(|(id, state)| state.accepts_heartbeat(now).then_some(*id));
        due.collect()
    }

    /// Makes a heartbeat with pool reports due now.
    pub(super) fn hasten_reports(&mut self, now: Timestamp) {
        let at = self.server_of(self.link.node_of(OF_ALL));
        if let Some(state) = self.states.get_mut(&at) {
            state.hasten(now);
        }
    }

    /// Whether heartbeats to this server carry the pool reports: all servers count hosts, one has pools.
    pub(super) fn keeps_pools(&self, at: Option<NodeId>) -> bool {
        at == self.server_of(self.link.node_of(OF_ALL))
    }

    /// The server of a node: all nodes of a cluster are one.
    fn server_of(&self, node: NodeId) -> Option<NodeId> {
        (!self.states.contains_key(&None)).then_some(node)
    }

    pub(super) fn record_reply(&mut self, (at, node): (Option<NodeId>, NodeId), now: Timestamp) {
        self.refusing.remove(&node);
        if let Some(state) = self.states.get_mut(&at) {
            state.record_reply(now);
        }
    }

    pub(super) fn record_error(&mut self, node: NodeId, error: LinkError) {
        // These are no replies.
        if !matches!(error.class, FailureClass::Down | FailureClass::Timeout) {
            self.refusing.insert(node, error);
        }
    }

    pub(super) fn heartbeat_failed(&mut self, at: Option<NodeId>, now: Timestamp) {
        if let Some(state) = self.states.get_mut(&at) {
            state.heartbeat_failed(now);
        }
    }

    /// Sends commands to the servers of their keys.
    pub(super) fn send_by_keys(&mut self, commands: Vec<ScriptCommand>, now: Timestamp) {
        self.send(commands.into_iter().map(|command| (None, command)).collect(), now);
    }

    /// Sends commands, one write per server: heartbeats to the named one, others to that of their keys.
    pub(super) fn send(&mut self, commands: Vec<(Option<NodeId>, ScriptCommand)>, now: Timestamp) {
        let mut by_server: BTreeMap<NodeId, Vec<(Option<NodeId>, ScriptCommand)>> = BTreeMap::new();
        for (named, command) in commands {
            let node = named.unwrap_or_else(|| self.link.node_of(&command.tag()));
            let at = self.server_of(node);
            if let Some(state) = self.states.get_mut(&at) {
                state.sent(now);
            }
            by_server.entry(node).or_default().push((at, command));
        }
        for (node, commands) in by_server {
            tokio::spawn(converse(Arc::clone(&self.link), node, commands, self.arrives.clone()));
        }
    }

    pub(super) fn nodes(&self) -> Vec<NodeStatus> {
        let mut nodes = self.link.nodes();
        for node in nodes.iter_mut().filter(|node| node.state == NodeState::Up) {
            if let Some(error) = self.refusing.get(&node.id) {
                node.state = NodeState::Refusing(error.clone());
            }
        }
        nodes
    }

    /// Returns why servers are down or refuse commands, each with its class.
    pub(super) fn faults(&self) -> String {
        let why = self
            .nodes()
            .into_iter()
            .filter_map(|node| node.state.fault().map(|fault| (node.url, fault.to_string())));
        why.map(|(url, fault)| format!("{url}: {fault}")).collect::<Vec<_>>().join("; ")
    }

    pub(super) fn errors(&self) -> Vec<(&'static str, u64)> {
        self.link.failures()
    }
}

async fn converse(
    link: Arc<RedisLink>,
    node: NodeId,
    commands: Vec<(Option<NodeId>, ScriptCommand)>,
    arrivals: mpsc::Sender<Arrival>,
) {
    let mut sent = Vec::with_capacity(commands.len());
    let mut encoded = Vec::with_capacity(commands.len());
    for (at, command) in commands {
        match command.encode() {
            Ok(made) => {
                sent.push((at, command));
                encoded.push(made);
            }
            Err(fault) => {
                error!(%fault, "a command to Redis could not be made: please report this");
                if arrivals.send(Arrival { at, node, command, reply: Err(None) }).await.is_err() {
                    return;
                }
            }
        }
    }
    for ((at, command), reply) in sent.into_iter().zip(link.send(node, encoded)) {
        let reply = match reply.await {
            Ok(Value::BulkString(bytes)) => Ok(bytes),
            // Our scripts return nothing else; an empty reply is counted as undecodable.
            Ok(_) => Ok(Vec::new()),
            Err(error) => Err(Some(error)),
        };
        if arrivals.send(Arrival { at, node, command, reply }).await.is_err() {
            return;
        }
    }
}

/// The queue of replies.
const ARRIVALS_MAX: usize = 1_024;
