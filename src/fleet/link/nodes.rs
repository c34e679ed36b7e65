//! The servers and the mapping of hash tags to them: by rendezvous hashing among independent servers, by slot
//! in a cluster, whose map is read at the start and after each sign of a change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::cluster::{Range, SLOTS, read_slots, slot_of};
use super::node::NodeHandle;
use super::rendezvous::BucketSpread;
use super::url::Url;
use crate::fleet::round_trip::TIMEOUT_MAX;

/// The id of a server, valid while the server is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

#[derive(Debug)]
pub(super) struct Nodes {
    shared: Arc<Shared>,
    spread: BucketSpread,
    known: RwLock<KnownNodes>,
    stale: Notify,
}

#[derive(Debug, Default)]
struct KnownNodes {
    nodes: BTreeMap<NodeId, Arc<NodeHandle>>,
    next: u32,
    /// The server of each slot; empty until the map is known.
    slots: Vec<Option<NodeId>>,
}

impl KnownNodes {
    fn find(&self, url: &Url) -> Option<&Arc<NodeHandle>> {
        self.nodes.values().find(|node| node.url == *url)
    }

    /// The server of this URL, started if new; `None` if there are too many.
    fn add(&mut self, url: &Url, shared: &Arc<Shared>) -> Option<Arc<NodeHandle>> {
        if let Some(node) = self.find(url) {
            return Some(Arc::clone(node));
        }
        if self.nodes.len() >= NODES_MAX {
            return None;
        }
        let id = NodeId(self.next);
        self.next = self.next.wrapping_add(1);
        let node = Arc::new(NodeHandle::start(id, url.clone(), Arc::clone(shared)));
        self.nodes.insert(id, Arc::clone(&node));
        Some(node)
    }
}

impl Nodes {
    pub(super) fn start(shared: Arc<Shared>) -> Nodes {
        let mut known = KnownNodes::default();
        for url in &shared.options.urls {
            known.add(url, &shared);
        }
        let spread = BucketSpread::over(&shared.options.urls);
        Nodes { shared, spread, known: RwLock::new(known), stale: Notify::new() }
    }

    pub(super) fn get(&self, id: NodeId) -> Option<Arc<NodeHandle>> {
        self.known.read().nodes.get(&id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<NodeHandle>> {
        self.known.read().nodes.values().cloned().collect()
    }

    pub(super) fn has_map(&self) -> bool {
        !self.known.read().slots.is_empty()
    }

    /// The server of a tag. Before the cluster map is known any server that is up, which redirects the command.
    pub(super) fn of_tag(&self, tag: &str) -> NodeId {
        if !self.shared.options.cluster {
            return NodeId(u32::try_from(self.spread.place_of(tag)).unwrap_or_default());
        }
        let known = self.known.read();
        let of_slot = known.slots.get(usize::from(slot_of(tag))).copied().flatten();
        let any = || known.nodes.values().find(|node| node.is_up()).map(|node| node.id);
        of_slot.or_else(any).unwrap_or(NodeId(0))
    }

    pub(super) fn sent_to(&self, url: &Url) -> Option<Arc<NodeHandle>> {
        self.known.write().add(url, &self.shared)
    }

    pub(super) fn moved(&self, slot: u16, url: &Url) {
        let mut known = self.known.write();
        let id = known.find(url).map(|node| node.id);
        if let Some(place) = known.slots.get_mut(usize::from(slot)) {
            *place = id;
        }
        self.stale.notify_one();
    }

    pub(super) async fn keep_map(self: Arc<Nodes>) {
        let mut changes = self.shared.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let wait = if self.renew().await { LOOK_AGAIN } else { LOOK_AGAIN_SOON };
            tokio::select! {
                () = self.stale.notified() => {}
                _ = changes.changed() => {}
                () = sleep(wait) => {}
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads the map from the first server that sends it. Returns whether it is complete with all
    /// servers up.
    async fn renew(&self) -> bool {
        let up: Vec<_> = self.all().into_iter().filter(|node| node.is_up()).collect();
        for node in &up {
            if let Some(ranges) = ask(node).await {
                return self.learn(&ranges);
            }
        }
        if up.is_empty() {
            // No server of the last map is up: start again with the configured ones.
            let mut known = self.known.write();
            for url in &self.shared.options.urls {
                known.add(url, &self.shared);
            }
        }
        false
    }

    /// Adopts a map. Returns whether every slot has a server and every server is up.
    fn learn(&self, ranges: &[Range]) -> bool {
        let mut known = self.known.write();
        let mut slots = vec![None; usize::from(SLOTS)];
        for range in ranges {
            let id = known.add(&range.master, &self.shared).map(|node| node.id);
            let places = slots.get_mut(usize::from(range.first)..=usize::from(range.last));
            places.unwrap_or_default().fill(id);
        }
        let is_whole = slots.iter().all(Option::is_some);
        if is_whole {
            // A complete map proves that a server without slots is not needed; a partial one does not.
            known.nodes.retain(|_, node| ranges.iter().any(|range| range.master == node.url));
        }
        if known.slots != slots {
            known.slots = slots;
            self.shared.changes.send_modify(|changes| *changes += 1);
        }
        is_whole && known.nodes.values().all(|node| node.is_up())
    }
}

async fn ask(node: &NodeHandle) -> Option<Vec<Range>> {
    let command = redis::cmd("CLUSTER").arg("SLOTS").get_packed_command();
    let reply = node.send(command, 1).ok()?.pop()?;
    let reply = timeout(TIMEOUT_MAX, reply).await.ok()?.ok()?.ok()?;
    read_slots(&reply, &node.url).filter(|ranges| !ranges.is_empty())
}

/// The most servers in use: more than there are hash tags.
const NODES_MAX: usize = 512;

/// Interval of map reads while nothing seems to have moved.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Interval of map reads while a part is missing.
const LOOK_AGAIN_SOON: Duration = Duration::from_secs(1);

/// Bounds the reads during many changes; meanwhile each command follows its own redirection.
const PAUSE: Duration = Duration::from_millis(100);
