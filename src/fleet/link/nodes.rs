//! The servers and the mapping of hash tags to them: by rendezvous hashing among independent servers, by slot
//! in a cluster, whose map is read at the start and after each sign of a change.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use redis::Value;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::cluster::{Range, SLOTS, read_slots, slot_of};
use super::failure::LinkError;
use super::node::NodeHandle;
use super::rendezvous::BucketSpread;
use super::url::Url;

/// The id of a server, valid while the server is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

#[derive(Debug)]
pub(super) struct Nodes {
    shared: Arc<Shared>,
    spread: BucketSpread,
    known: RwLock<NodeEntry>,
    stale: Notify,
}

#[derive(Debug, Default)]
struct NodeEntry {
    /// An entry stays empty after its server was removed, until a new server takes it.
    nodes: Vec<Option<Arc<NodeHandle>>>,
    /// The server of each slot; empty until the map is known.
    slots: Vec<Option<NodeId>>,
}

impl NodeEntry {
    fn find(&self, url: &Url) -> Option<NodeId> {
        let found = self.nodes.iter().position(|node| node.as_ref().is_some_and(|node| node.url == *url));
        found.and_then(|index| u32::try_from(index).ok()).map(NodeId)
    }

    fn get(&self, id: NodeId) -> Option<&Arc<NodeHandle>> {
        self.nodes.get(usize::try_from(id.0).ok()?)?.as_ref()
    }

    /// The server of this URL, started if new; `None` if there are too many.
    fn add(&mut self, url: &Url, shared: &Arc<Shared>) -> Option<NodeId> {
        if let Some(id) = self.find(url) {
            return Some(id);
        }
        let index = self.nodes.iter().position(Option::is_none).unwrap_or(self.nodes.len());
        if index >= NODES_MAX {
            return None;
        }
        let node = Some(Arc::new(NodeHandle::start(url.clone(), Arc::clone(shared))));
        match self.nodes.get_mut(index) {
            Some(place) => *place = node,
            None => self.nodes.push(node),
        }
        u32::try_from(index).ok().map(NodeId)
    }
}

impl Nodes {
    pub(super) fn start(shared: Arc<Shared>) -> Nodes {
        let mut known = NodeEntry::default();
        for url in &shared.options.urls {
            let node = NodeHandle::start(url.clone(), Arc::clone(&shared));
            known.nodes.push(Some(Arc::new(node)));
        }
        Nodes {
            spread: BucketSpread::over(&shared.options.urls),
            shared,
            known: RwLock::new(known),
            stale: Notify::new(),
        }
    }

    pub(super) fn get(&self, id: NodeId) -> Option<Arc<NodeHandle>> {
        self.known.read().get(id).cloned()
    }

    pub(super) fn all(&self) -> Vec<(NodeId, Arc<NodeHandle>)> {
        let known = self.known.read();
        let ids = (0..).map(NodeId);
        ids.zip(&known.nodes).filter_map(|(id, node)| Some((id, Arc::clone(node.as_ref()?)))).collect()
    }

    /// The server of a tag. Before the cluster map is known any server that is up, which redirects the command.
    pub(super) fn of_tag(&self, tag: &str) -> NodeId {
        if !self.shared.options.cluster {
            return NodeId(u32::try_from(self.spread.place_of(tag)).unwrap_or_default());
        }
        let known = self.known.read();
        let of_slot = known.slots.get(usize::from(slot_of(tag))).copied().flatten();
        let any = || known.nodes.iter().position(|node| node.as_ref().is_some_and(|node| node.is_up()));
        of_slot
            .unwrap_or_else(|| NodeId(any().and_then(|index| u32::try_from(index).ok()).unwrap_or_default()))
    }

    pub(super) fn sent_to(&self, url: &Url) -> Option<Arc<NodeHandle>> {
        let mut known = self.known.write();
        let id = known.add(url, &self.shared)?;
        known.get(id).cloned()
    }

    pub(super) fn moved(&self, slot: u16, url: &Url) {
        let mut known = self.known.write();
        let id = known.find(url);
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
        let up: Vec<_> = self.all().into_iter().map(|(_, node)| node).filter(|node| node.is_up()).collect();
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
            let id = known.add(&range.master, &self.shared);
            let places = slots.get_mut(usize::from(range.first)..=usize::from(range.last));
            places.unwrap_or_default().fill(id);
        }
        let is_whole = slots.iter().all(Option::is_some);
        if is_whole {
            // A complete map proves that a server without slots is not needed; a partial one does not.
            for place in &mut known.nodes {
                let has_slots = |node: &Arc<NodeHandle>| ranges.iter().any(|range| range.master == node.url);
                if !place.as_ref().is_some_and(has_slots) {
                    *place = None;
                }
            }
        }
        known.slots = slots;
        is_whole && known.nodes.iter().flatten().all(|node| node.is_up())
    }
}

async fn ask(node: &NodeHandle) -> Option<Vec<Range>> {
    let command = redis::cmd("CLUSTER").arg("SLOTS").get_packed_command();
    let reply = one(node, command).await.ok()?;
    read_slots(&reply, &node.url).filter(|ranges| !ranges.is_empty())
}

async fn one(node: &NodeHandle, command: Vec<u8>) -> Result<Value, LinkError> {
    let gone = || LinkError::new(super::FailureClass::Down, "the connection ended").of_sent();
    let reply = node.send(Arc::new(command), 1)?.pop().ok_or_else(gone)?;
    timeout(super::reply_timeout::TIMEOUT_MAX, reply).await.map_err(|_| gone())?.map_err(|_| gone())?
}

/// The most servers in use: more than there are hash tags.
const NODES_MAX: usize = 512;

/// Interval of map reads while nothing seems to have moved.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Interval of map reads while a part is missing.
const LOOK_AGAIN_SOON: Duration = Duration::from_secs(1);

/// Bounds the reads during many changes; meanwhile each command follows its own redirection.
const PAUSE: Duration = Duration::from_millis(100);
