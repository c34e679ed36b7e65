//! Tests the link with a cluster of three real servers, moving a slot during commands.

use super::redis_cluster::Three;
use super::{all, command, failure, is_up, options, until};
use crate::prelude::*;
use redis::Value;
use std::cell::Cell;
use std::rc::Rc;
use tidegate::fleet::link::{FailureClass, LinkError, LinkOptions, RedisCommand, RedisLink, Script};

async fn linked() -> (Three, RedisLink) {
    let three = Three::start();
    let options = options(&format!("redis://127.0.0.1:{}", three.0[0].port));
    let link = RedisLink::start(LinkOptions { cluster: true, ..options }, vec![twice()]);
    until("the map is known", || link.nodes().len() == 3 && is_up(&link)).await;
    (three, link)
}

/// Counts two keys of one tag.
fn twice() -> Script {
    Script::new("twice", "return {redis.call('INCR', KEYS[1]), redis.call('INCR', KEYS[2])}")
}

async fn counted(link: &RedisLink, tag: &str) -> Result<(i64, i64), LinkError> {
    let (twice, keys) = (twice(), [format!("tg:{{{tag}}}:a"), format!("tg:{{{tag}}}:b")]);
    let command = command(&twice, &keys.each_ref().map(|key| &**key), &[]);
    let reply = link.send(link.node_of(tag), &command).await?;
    let Value::Array(counts) = &reply else { panic!("{reply:?}") };
    let [Value::Int(first), Value::Int(second)] = counts[..] else { panic!("{reply:?}") };
    Ok((first, second))
}

#[tokio::test]
async fn sends_each_tag_to_node_of_its_slot() {
    let (three, link) = linked().await;
    let tags: Vec<_> = (0..64).map(|bucket| format!("t{bucket:02x}")).collect();
    let mut used = std::collections::BTreeSet::new();
    for tag in &tags {
        assert_eq!(counted(&link, tag).await.unwrap(), (1, 1));
        used.insert(link.node_of(tag));
    }
    assert_eq!(used.len(), 3);
    // No redirects: each server received only its own tags.
    for server in &three.0 {
        assert!(!server.say("INFO errorstats").contains("MOVED"));
    }
    // Sends all to one server in one write: it redirects those for other servers.
    let script = twice();
    let keys = |tag: &String| vec![format!("tg:{{{tag}}}:a").into(), format!("tg:{{{tag}}}:b").into()];
    let calls = tags.iter().map(|tag| RedisCommand { script: &script, keys: keys(tag), args: Vec::new() });
    for reply in all(&link, link.node_of(&tags[0]), &calls.collect::<Vec<_>>()).await {
        assert_eq!(reply.unwrap(), Value::Array(vec![Value::Int(2), Value::Int(2)]));
    }
}

#[tokio::test]
async fn runs_each_command_once_while_slot_moves() {
    let (three, link) = linked().await;
    let link = Rc::new(link);
    let slot = three.slot("t07");
    let from = three.home("t07");
    let to = (from + 1) % 3;
    let (calls, is_over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let local = tokio::task::LocalSet::new();
    let worker = local.spawn_local({
        let (link, calls, is_over) = (Rc::clone(&link), Rc::clone(&calls), Rc::clone(&is_over));
        async move {
            while !is_over.get() {
                // Each command runs exactly once on both keys, on any server.
                calls.set(calls.get() + 1);
                assert_eq!(counted(&link, "t07").await.unwrap(), (calls.get(), calls.get()));
            }
        }
    });
    let more = |by: i64| {
        let (calls, until_calls) = (Rc::clone(&calls), calls.get() + by);
        async move { until("calls go on", || calls.get() >= until_calls).await }
    };
    local
        .run_until(async {
            more(50).await;
            let (source, target) = (&three.0[from], &three.0[to]);
            three.begin_move(&slot, from, to);
            more(50).await;
            // The two keys are on different servers: no server can run the script.
            source.order(&format!("MIGRATE 127.0.0.1 {} tg:{{t07}}:a 0 5000", target.port));
            tokio::time::sleep(Duration::from_millis(100)).await;
            // Both keys have moved, but not the slot: ASK.
            source.order(&format!("MIGRATE 127.0.0.1 {} tg:{{t07}}:b 0 5000", target.port));
            more(50).await;
            three.end_move(&slot, from, to);
            more(50).await;
            is_over.set(true);
            worker.await.unwrap();
        })
        .await;
    let errors = three.0[from].say("INFO errorstats");
    for kind in ["ASK", "TRYAGAIN", "MOVED"] {
        assert!(errors.contains(kind), "{kind} was met: {errors}");
    }
    assert_eq!(link.failures().iter().map(|(_, count)| count).sum::<u64>(), 0, "nobody heard of it");
    let at = link.nodes().into_iter().find(|node| node.id == link.node_of("t07")).unwrap().url.to_string();
    assert_eq!(at, format!("redis://127.0.0.1:{}", three.0[to].port), "and the map is right again");
}

/// The others notice and serve no commands until it is back: the default setup of a cluster.
#[tokio::test]
async fn reports_cluster_without_a_node_as_down() {
    let (mut three, link) = linked().await;
    let [lost, other] = [2, 0].map(|home| {
        let mut tags = (0..256).map(|bucket| format!("t{bucket:02x}"));
        tags.find(|tag| three.home(tag) == home).unwrap()
    });
    three.0[2].kill();
    until("it is missed", || !is_up(&link)).await;
    assert_eq!(failure(counted(&link, &lost).await), (FailureClass::Down, false));
    let notices = |server: &Redis| server.say("CLUSTER INFO").contains("cluster_state:fail");
    until("the others notice", || three.0[..2].iter().all(notices)).await;
    assert_eq!(failure(counted(&link, &other).await), (FailureClass::ClusterDown, false));
    three.0[2].restart(None);
    until("the cluster is whole", || three.is_whole() && is_up(&link)).await;
    assert_eq!(counted(&link, &other).await.unwrap(), (1, 1));
}
