//! The servers, and how this host stands with each. Where several share the keys, all must be heard: of a key whose server is
//! silent nothing is known.

use crate::clock::Timestamp;
use crate::fleet::call::{Call, OF_ALL};
use crate::fleet::link::{self, Link, NodeId, NodeStatus, OptionsError, Script, State};
use crate::fleet::link_state::LinkState;
use crate::fleet::scripts;
use redis::Value;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tracing::error;

/// What came of a call.
pub(super) struct Arrival {
    /// Of which server.
    pub(super) at: Option<NodeId>,
    pub(super) call: Call,
    /// The bytes of a reply; `None`: whether it was heard is not known, or it was not.
    pub(super) reply: Option<Vec<u8>>,
}

/// The connections, once there is something to share.
pub(super) struct Servers {
    link: Arc<Link>,
    /// One for each independent server; one for all of a cluster, which looks after its own.
    states: BTreeMap<Option<NodeId>, LinkState>,
    arrivals: mpsc::Sender<Arrival>,
    /// Connections come and go.
    changes: watch::Receiver<u64>,
    /// Those that there is a connection to.
    up: HashSet<NodeId>,
}

impl Servers {
    /// Begins to connect.
    pub(super) fn connect(
        options: &link::Options,
        arrivals: mpsc::Sender<Arrival>,
        seed: u64,
        now: Timestamp,
    ) -> Result<Servers, OptionsError> {
        let link = Link::start(options.clone(), scripts::all().map(Script::clone).into())?;
        let ids: Vec<Option<NodeId>> = match options.cluster {
            true => vec![None],
            false => link.nodes().iter().map(|node| Some(node.id)).collect(),
        };
        let seeds = (1..).map(|number: u64| seed.wrapping_mul(number | 1));
        let states = ids.into_iter().zip(seeds).map(|(id, seed)| (id, LinkState::new(seed, now))).collect();
        let changes = link.changes();
        Ok(Servers { link: Arc::new(link), states, arrivals, changes, up: HashSet::new() })
    }

    /// Whether all are heard.
    pub(super) fn are_heard(&self) -> bool {
        self.states.values().all(LinkState::is_linked)
    }

    /// Looks whether one has been silent for too long, or has come back.
    pub(super) fn look(&mut self, timeout: Duration, now: Timestamp) {
        if self.changes.has_changed().unwrap_or(false) {
            self.changes.borrow_and_update();
            let nodes = self.link.nodes().into_iter();
            self.up = nodes.filter(|node| node.state == State::Up).map(|node| node.id).collect();
            for (at, state) in &mut self.states {
                if at.is_none_or(|node| self.up.contains(&node)) {
                    state.connected(now);
                }
            }
        }
        for (at, state) in &mut self.states {
            // Of a cluster any node may say where another one's keys are.
            let is_connected = at.map_or(!self.up.is_empty(), |node| self.up.contains(&node));
            state.is_cut_off(is_connected, timeout, now);
        }
    }

    /// Those to which a beat is due now, each told once.
    pub(super) fn due(&mut self, now: Timestamp) -> Vec<Option<NodeId>> {
        let due = self.states.iter_mut().filter_map(|(id, state)| state.takes_beat(now).then_some(*id));
        due.collect()
    }

    /// Whether it has what is said of pools: each server hears that a host is alive, one of them what it has.
    pub(super) fn keeps_pools(&self, at: Option<NodeId>) -> bool {
        at.is_none_or(|node| node == self.link.node_of(OF_ALL))
    }

    /// One has answered.
    pub(super) fn heard(&mut self, at: Option<NodeId>, now: Timestamp) {
        if let Some(state) = self.states.get_mut(&at) {
            state.heard(now);
        }
    }

    /// A beat was not answered.
    pub(super) fn beat_failed(&mut self, at: Option<NodeId>, now: Timestamp) {
        if let Some(state) = self.states.get_mut(&at) {
            state.beat_failed(now);
        }
    }

    /// Sends calls, all of one server in one write. Beats go to the server that is named with them, all else to the one that
    /// has its keys. What comes of each arrives later.
    pub(super) fn send(&mut self, calls: Vec<(Option<NodeId>, Call)>, now: Timestamp) {
        let mut by_server: BTreeMap<NodeId, Vec<(Option<NodeId>, Call)>> = BTreeMap::new();
        for (named, call) in calls {
            let node = named.unwrap_or_else(|| self.link.node_of(&call.tag()));
            let at = if self.states.contains_key(&None) { None } else { Some(node) };
            // Whether the servers are heard is told by what is said of budgets.
            if let Some(state) = self.states.get_mut(&at).filter(|_| !matches!(call, Call::Overrides(_))) {
                state.sent(now);
            }
            by_server.entry(node).or_default().push((at, call));
        }
        for (node, calls) in by_server {
            tokio::spawn(converse(Arc::clone(&self.link), node, calls, self.arrivals.clone()));
        }
    }

    pub(super) fn nodes(&self) -> Vec<NodeStatus> {
        self.link.nodes()
    }

    pub(super) fn errors(&self) -> Vec<(&'static str, u64)> {
        self.link.failures().to_vec()
    }
}

/// Sends calls to one server and passes on what comes.
async fn converse(
    link: Arc<Link>,
    node: NodeId,
    calls: Vec<(Option<NodeId>, Call)>,
    arrivals: mpsc::Sender<Arrival>,
) {
    let mut sent = Vec::with_capacity(calls.len());
    let mut encoded = Vec::with_capacity(calls.len());
    for (at, call) in calls {
        match call.encode() {
            Ok(bytes) => {
                sent.push((at, call));
                encoded.push(bytes);
            }
            // It is of no use a second time either; it is given up like one that nobody hears.
            Err(fault) => error!(%fault, "a call to Redis could not be made: please report this"),
        }
    }
    let parts: Vec<_> = encoded.iter().map(|bytes| (slices(&bytes.keys), slices(&bytes.args))).collect();
    let calls = encoded.iter().zip(&parts);
    let calls: Vec<_> =
        calls.map(|(bytes, (keys, args))| link::Call { script: bytes.script, keys, args }).collect();
    let mut replies = link.send(node, &calls, None);
    for (at, call) in sent {
        let reply = match replies.next().await {
            Some(Ok(Value::BulkString(bytes))) => Some(bytes),
            // No script of ours says anything else: as bytes it is no reply either, and counted as such.
            Some(Ok(_)) => Some(Vec::new()),
            Some(Err(_)) | None => None,
        };
        if arrivals.send(Arrival { at, call, reply }).await.is_err() {
            return;
        }
    }
}

fn slices(parts: &[Vec<u8>]) -> Vec<&[u8]> {
    parts.iter().map(Vec::as_slice).collect()
}
