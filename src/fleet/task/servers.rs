//! The Redis servers and their link states. All must be reachable, as each has a part of the keys; of a cluster, those that
//! have a bucket of cells.

use crate::clock::Timestamp;
use crate::fleet::command::{Bucket, OF_ALL, ScriptCommand};
use crate::fleet::link::{FailureClass, LinkError, NodeId, NodeState, NodeStatus, RedisLink};
use crate::fleet::link_state::LinkState;
use crate::fleet::rng::drawn;
use redis::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

pub(super) struct Arrival {
    pub(super) node: NodeId,
    pub(super) command: ScriptCommand,
    /// The bytes of the reply; an error if the command failed or may not have run.
    pub(super) reply: Result<Vec<u8>, LinkError>,
}

pub(super) struct Servers {
    pub(super) link: Arc<RedisLink>,
    is_cluster: bool,
    states: BTreeMap<NodeId, LinkState>,
    arrives: mpsc::Sender<Arrival>,
    /// The replies, in any order of the servers.
    pub(super) arrivals: mpsc::Receiver<Arrival>,
    /// Changes whenever a connection opens or closes.
    changes: watch::Receiver<u64>,
    /// The error by which a connected server refused the last command.
    refusing: HashMap<NodeId, LinkError>,
}

impl Servers {
    pub(super) fn new(link: Arc<RedisLink>, is_cluster: bool, now: Timestamp) -> Servers {
        let (changes, (arrives, arrivals)) = (link.changes(), mpsc::channel(ARRIVALS_MAX));
        let (states, refusing) = (BTreeMap::new(), HashMap::new());
        let mut servers = Servers { link, is_cluster, states, arrives, arrivals, changes, refusing };
        servers.follow_map(false, now);
        servers
    }

    /// Adopts the servers that have keys. A master that takes over slots counts as `is_reachable` until a command to it has
    /// no reply, so that moving slots is no outage.
    fn follow_map(&mut self, is_reachable: bool, now: Timestamp) {
        let ids: BTreeSet<NodeId> = match self.is_cluster {
            true => Bucket::all()
                .map(Bucket::tag)
                .chain([OF_ALL.to_owned()])
                .map(|tag| self.link.node_of(&tag))
                .collect(),
            false => self.link.nodes().iter().map(|node| node.id).collect(),
        };
        self.states.retain(|id, _| ids.contains(id));
        for id in ids {
            self.states.entry(id).or_insert_with(|| {
                let mut state = LinkState::new(u64::from_le_bytes(drawn()), now);
                if is_reachable {
                    state.record_reply(now);
                }
                state
            });
        }
    }

    pub(super) fn are_reachable(&self) -> bool {
        self.states.values().all(LinkState::is_linked)
    }

    /// Updates the link states by connection changes and timeouts.
    pub(super) fn look(&mut self, timeout: Duration, now: Timestamp) {
        if self.changes.has_changed().unwrap_or(false) {
            self.changes.borrow_and_update();
            if self.is_cluster {
                self.follow_map(self.are_reachable(), now);
            }
            for (_, state) in self.states.iter_mut().filter(|(id, _)| self.link.is_up(**id)) {
                state.connected(now);
            }
        }
        for (id, state) in &mut self.states {
            state.detect_outage(self.link.is_up(*id), timeout, now);
        }
    }

    /// Takes the servers to which a heartbeat is due now.
    pub(super) fn due(&mut self, now: Timestamp) -> Vec<NodeId> {
        let due =
            self.states.iter_mut().filter_map(|(id, state)| state.accepts_heartbeat(now).then_some(*id));
        due.collect()
    }

    /// A bucket of a server of a cluster that has not the key of heartbeats: a command about it shows whether the server
    /// answers.
    pub(super) fn bucket_instead_of_heartbeat(&self, server: NodeId) -> Option<Bucket> {
        if !self.is_cluster || self.keeps_pools(server) {
            return None;
        }
        Bucket::all().find(|bucket| self.link.node_of(&bucket.tag()) == server)
    }

    /// Makes a heartbeat with pool reports due now.
    pub(super) fn hasten_reports(&mut self, now: Timestamp) {
        if let Some(state) = self.states.get_mut(&self.link.node_of(OF_ALL)) {
            state.hasten(now);
        }
    }

    /// Whether heartbeats to this server carry the pool reports: all servers count hosts, one has pools.
    pub(super) fn keeps_pools(&self, server: NodeId) -> bool {
        server == self.link.node_of(OF_ALL)
    }

    pub(super) fn record_reply(&mut self, node: NodeId, now: Timestamp) {
        self.refusing.remove(&node);
        if let Some(state) = self.states.get_mut(&node) {
            state.record_reply(now);
        }
    }

    pub(super) fn record_error(&mut self, node: NodeId, error: LinkError) {
        if error.class.is_of_all_commands()
            && let Some(state) = self.states.get_mut(&node)
        {
            state.record_refusal();
        }
        // These are no replies.
        if !matches!(error.class, FailureClass::Down | FailureClass::Timeout) {
            self.refusing.insert(node, error);
        }
    }

    pub(super) fn heartbeat_failed(&mut self, node: NodeId, now: Timestamp) {
        if let Some(state) = self.states.get_mut(&node) {
            state.heartbeat_failed(now);
        }
    }

    /// Sends commands to the servers of their keys, one write for each.
    pub(super) fn send(&mut self, commands: Vec<ScriptCommand>, now: Timestamp) {
        let mut by_server: BTreeMap<NodeId, Vec<ScriptCommand>> = BTreeMap::new();
        for command in commands {
            by_server.entry(self.link.node_of(&command.tag())).or_default().push(command);
        }
        by_server.into_iter().for_each(|(node, commands)| self.send_to(node, commands, now));
    }

    pub(super) fn send_to(&mut self, node: NodeId, commands: Vec<ScriptCommand>, now: Timestamp) {
        if let Some(state) = self.states.get_mut(&node) {
            state.sent(now);
        }
        for command in commands {
            let (link, arrives) = (Arc::clone(&self.link), self.arrives.clone());
            tokio::spawn(async move {
                let reply = link.send(node, &command.encode()).await.map(|value| match value {
                    Value::BulkString(bytes) => bytes,
                    // Our scripts return nothing else; an empty reply is counted as undecodable.
                    _ => Vec::new(),
                });
                // The loop may have ended.
                let _ = arrives.send(Arrival { node, command, reply }).await;
            });
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

    /// Whether a connected server refuses commands.
    pub(super) fn refuse(&self) -> bool {
        self.nodes().iter().any(|node| matches!(node.state, NodeState::Refusing(_)))
    }

    /// Returns why servers are down or refuse commands, each with its class.
    pub(super) fn faults(&self) -> String {
        let why = self
            .nodes()
            .into_iter()
            .filter_map(|node| node.state.fault().map(|fault| (node.url, fault.to_string())));
        why.map(|(url, fault)| format!("{url}: {fault}")).collect::<Vec<_>>().join("; ")
    }
}

/// The queue of replies.
const ARRIVALS_MAX: usize = 1_024;
