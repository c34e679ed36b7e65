//! The servers and the mapping of hash tags to them: by rendezvous hashing among independent servers, by slot
//! in a cluster, whose map is read at the start and after each sign of a change. And the protocol of Redis Cluster:
//! the slot map, and redirections.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use redis::Value;
use siphasher::sip::SipHasher13;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::Shared;
use super::node::Node;
use super::url::Url;
use crate::fleet::command::{Bucket, OF_ALL};

/// The id of a server, valid while the server is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

#[derive(Debug)]
pub(super) struct Nodes {
    shared: Arc<Shared>,
    /// The server of each tag, without a cluster.
    places: HashMap<String, NodeId>,
    known: RwLock<KnownNodes>,
}

#[derive(Debug, Default)]
struct KnownNodes {
    /// Each with the task that keeps its connection.
    nodes: BTreeMap<NodeId, (Arc<Node>, AbortOnDropHandle<()>)>,
    next: u32,
    /// The server of each slot; empty until the map is known.
    slots: Vec<Option<NodeId>>,
}

impl KnownNodes {
    fn all(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values().map(|(node, _)| node)
    }

    fn find(&self, url: &Url) -> Option<&Arc<Node>> {
        self.all().find(|node| node.url == *url)
    }

    /// The server of this URL, started if new; `None` if there are too many.
    fn add(&mut self, url: &Url, shared: &Arc<Shared>) -> Option<Arc<Node>> {
        if let Some(node) = self.find(url) {
            return Some(Arc::clone(node));
        }
        if self.nodes.len() >= NODES_MAX {
            return None;
        }
        let id = NodeId(self.next);
        self.next = self.next.wrapping_add(1);
        let (node, keeper) = Node::start(id, url.clone(), Arc::clone(shared));
        self.nodes.insert(id, (Arc::clone(&node), keeper));
        Some(node)
    }
}

impl Nodes {
    pub(super) fn start(shared: Arc<Shared>) -> Nodes {
        let mut known = KnownNodes::default();
        for url in &shared.options.urls {
            known.add(url, &shared);
        }
        let places = spread(&shared.options.urls);
        Nodes { shared, places, known: RwLock::new(known) }
    }

    pub(super) fn get(&self, id: NodeId) -> Option<Arc<Node>> {
        self.known.read().nodes.get(&id).map(|(node, _)| Arc::clone(node))
    }

    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.known.read().all().cloned().collect()
    }

    pub(super) fn has_map(&self) -> bool {
        !self.known.read().slots.is_empty()
    }

    /// The server of a tag. Before the cluster map is known any server that is up, which redirects the command.
    pub(super) fn of_tag(&self, tag: &str) -> NodeId {
        if !self.shared.options.cluster {
            return self.places.get(tag).copied().unwrap_or(NodeId(0));
        }
        let known = self.known.read();
        let of_slot = known.slots.get(usize::from(slot_of(tag))).copied().flatten();
        let any = || known.all().find(|node| node.is_up()).map(|node| node.id);
        of_slot.or_else(any).unwrap_or(NodeId(0))
    }

    pub(super) fn sent_to(&self, url: &Url) -> Option<Arc<Node>> {
        self.known.write().add(url, &self.shared)
    }

    pub(super) fn moved(&self, slot: u16, url: &Url) {
        let mut known = self.known.write();
        let id = known.find(url).map(|node| node.id);
        if let Some(place) = known.slots.get_mut(usize::from(slot)) {
            *place = id;
        }
        self.shared.changed();
    }

    pub(super) async fn keep_map(self: Arc<Nodes>) {
        let mut changes = self.shared.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let wait = if self.renew().await { LOOK_AGAIN } else { LOOK_AGAIN_SOON };
            tokio::select! {
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
        for (range, master) in ranges {
            let id = known.add(master, &self.shared).map(|node| node.id);
            let places = slots.get_mut(usize::from(*range.start())..=usize::from(*range.end()));
            places.unwrap_or_default().fill(id);
        }
        let is_whole = slots.iter().all(Option::is_some);
        if is_whole {
            // A complete map proves that a server without slots is not needed; a partial one does not.
            known.nodes.retain(|_, (node, _)| ranges.iter().any(|(_, master)| *master == node.url));
        }
        if known.slots != slots {
            known.slots = slots;
            self.shared.changed();
        }
        is_whole && known.all().all(|node| node.is_up())
    }
}

async fn ask(node: &Node) -> Option<Vec<Range>> {
    let reply = node.send(redis::pipe().cmd("CLUSTER").arg("SLOTS")).await.ok()?.pop()?;
    read_slots(&reply, &node.url).filter(|ranges| !ranges.is_empty())
}

/// The server of each tag among independent servers: rendezvous hashing with a bound on each server's share. All hosts
/// of the fleet must agree, so the map depends only on the URLs' texts, not on their order. Shares are even.
/// A fourth server moves 27 % of the buckets on average; one set of names in 100 moves more than 30 %.
fn spread(urls: &[Url]) -> HashMap<String, NodeId> {
    let texts: Vec<String> = urls.iter().map(ToString::to_string).collect();
    let servers = || (0..).map(NodeId).zip(&texts);
    let tags: Vec<String> = Bucket::all().map(Bucket::tag).collect();
    let wishes = tags
        .iter()
        .flat_map(|tag| servers().map(move |(id, text)| (Reverse(weight(tag, text)), tag, text, id)));
    let mut wishes: Vec<_> = wishes.collect();
    wishes.sort_unstable();
    let share = tags.len().div_ceil(texts.len().max(1));
    let (mut places, mut taken) = (HashMap::new(), HashMap::new());
    // Assign in order of weight, while the server has capacity.
    for (_, tag, _, id) in wishes {
        let taken: &mut usize = taken.entry(id).or_default();
        if *taken < share && !places.contains_key(tag) {
            places.insert(tag.clone(), id);
            *taken += 1;
        }
    }
    let strongest = servers().max_by_key(|(_, text)| (weight(OF_ALL, text), *text));
    places.extend(strongest.map(|(id, _)| (OF_ALL.to_owned(), id)));
    places
}

/// An unkeyed hash, equal on every host: safe, as clients cannot choose tags.
fn weight(tag: &str, url: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(tag.as_bytes());
    hasher.write_u8(0);
    hasher.write(url.as_bytes());
    hasher.finish()
}

/// The slot of a hash tag, the text between a key's braces: its CRC16 (XMODEM) modulo 16 384.
fn slot_of(tag: &str) -> u16 {
    let mut crc: u16 = 0;
    for byte in tag.bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS
}

/// A range of slots, and its server.
type Range = (RangeInclusive<u16>, Url);

/// Reads the reply of `asked` to CLUSTER SLOTS; `None` if malformed.
fn read_slots(reply: &Value, asked: &Url) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else { return None };
    ranges.iter().map(|range| read_range(range, asked)).collect()
}

fn read_range(range: &Value, asked: &Url) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else { return None };
    let slot = |value: &Value| match value {
        Value::Int(slot) => u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        // The server does not know its own address: use the one that reached it.
        Value::Nil => "",
        _ => return None,
    };
    let slots = slot(first)?..=slot(last)?;
    (!slots.is_empty()).then_some((slots, place(host, u16::try_from(*port).ok()?, asked)?))
}

/// A redirection, sent instead of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    Moved(u16, Url),
    /// The slot is being moved to another server, which has these keys already.
    Ask(Url),
    /// The slot is being moved, and its servers have some of the keys each.
    Later,
}

/// Reads a redirection of a command sent to `asked`; `None` if the error is none.
pub(super) fn redirect(error: &redis::ServerError, asked: &Url) -> Option<Redirect> {
    let code = error.code();
    if code == "TRYAGAIN" {
        return Some(Redirect::Later);
    }
    let mut words = error.details()?.split(' ');
    let slot = words.next()?.parse().ok().filter(|slot| *slot < SLOTS)?;
    let (host, port) = words.next()?.rsplit_once(':')?;
    let there = place(host, port.parse().ok()?, asked)?;
    match code {
        "MOVED" => Some(Redirect::Moved(slot, there)),
        "ASK" => Some(Redirect::Ask(there)),
        _ => None,
    }
}

/// A server beside the asked one, which stands for the host of a server that does not know its own.
fn place(host: &str, port: u16, asked: &Url) -> Option<Url> {
    let host = if host.is_empty() { asked.host()? } else { host };
    asked.beside(host.trim_start_matches('[').trim_end_matches(']'), port)
}

/// The most servers in use: more than there are hash tags.
const NODES_MAX: usize = 512;

/// Interval of map reads while nothing seems to have moved.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Interval of map reads while a part is missing.
const LOOK_AGAIN_SOON: Duration = Duration::from_secs(1);

/// Bounds the reads during many changes; meanwhile each command follows its own redirection.
const PAUSE: Duration = Duration::from_millis(100);

const SLOTS: u16 = 16_384;

#[cfg(test)]
mod tests {
    use super::{Redirect, Url, Value, read_slots, redirect};

    fn error(text: &str) -> redis::ServerError {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn redirections_are_read_strictly() {
        let asked: Url = "rediss://here:1".parse().unwrap();
        let to = |text: &str| redirect(&error(text), &asked);
        let there: Url = "rediss://10.0.0.7:7001".parse().unwrap();
        assert_eq!(to("MOVED 5 10.0.0.7:7001"), Some(Redirect::Moved(5, there.clone())));
        assert_eq!(to("ASK 5 10.0.0.7:7001"), Some(Redirect::Ask(there)));
        assert_eq!(to("MOVED 5 :7001"), Some(Redirect::Moved(5, "rediss://here:7001".parse().unwrap())));
        assert_eq!(to("MOVED 5 ::1:7001"), Some(Redirect::Moved(5, "rediss://[::1]:7001".parse().unwrap())));
        assert_eq!(to("TRYAGAIN Multiple keys request during rehashing of slot"), Some(Redirect::Later));
        for nonsense in [
            "MOVED",
            "MOVED 5",
            "MOVED 16384 a:1",
            "MOVED 5 a:0",
            "MOVED 5 a:99999",
            "MOVED 5 ?:1",
            "MOVED 5 a b:1",
            "MOVED x a:1",
            "ERR 5 a:1",
            "ASK 5 a\u{7f}:1",
        ] {
            assert_eq!(to(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_map_is_read_whole_or_not_at_all() {
        let asked: Url = "redis://seed:1".parse().unwrap();
        let read = |text: &str| read_slots(&redis::parse_redis_value(text.as_bytes()).unwrap(), &asked);
        let one = "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\na\r\n:7\r\n$2\r\nid\r\n*0\r\n";
        let server =
            |text: &str, url: &str| assert_eq!(read(text), Some(vec![(0..=16383, url.parse().unwrap())]));
        server(one, "redis://a:7");
        server(&one.replace("$1\r\na\r\n", "$-1\r\n"), "redis://seed:7");
        for (from, to) in [
            (":16383", ":16384"),
            (":0", ":-1"),
            (":7", ":0"),
            (":7", ":70000"),
            ("$1\r\na", ":1"),
            ("*3", "*0"),
        ] {
            assert_eq!(read(&one.replacen(from, to, 1)), None, "{to}");
        }
        assert_eq!(read("*0\r\n"), Some(vec![]));
        assert_eq!(read("+OK\r\n"), None);
    }
}
