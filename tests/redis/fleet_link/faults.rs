//! Tests servers that stop, stall, lose scripts, fill up or change roles, and recover.

use redis::Value;
use rustix::process::Signal;
use tidegate::fleet::link::{FailureClass, LinkError, Script};

use super::redis_server::Redis;
use super::{
    Log, all, command, counted, down, echo, failure, failures, is_down_for, link, linked, one, said_back,
    until, up,
};

#[tokio::test]
async fn reconnects_to_restarted_server() {
    let log = Log::listen();
    let mut redis = Redis::start(&[]);
    let link = link(&redis.url());
    assert_eq!(failure(said_back(&link, "early").await), (FailureClass::Down, false));
    up(&link).await;
    redis.kill();
    until("the loss is seen", || down(&link).is_some()).await;
    for _ in 0..20 {
        assert_eq!(failure(said_back(&link, "lost").await), (FailureClass::Down, false));
    }
    // Some attempts fail.
    until("attempts are counted", || failures(&link, "down") > 23).await;
    redis.restart(None);
    up(&link).await;
    said_back(&link, "found").await.unwrap();
    assert_eq!(one(&link).connections, 2);
    // One line for each change: up, closed, refused, up.
    let lines = log.lines();
    assert!((3..=4).contains(&lines.len()), "{lines:#?}");
    assert!(lines.iter().all(|line| line.contains("redis.sock")), "{lines:#?}");
}

#[tokio::test]
async fn times_out_stopped_server_and_drops_late_replies() {
    let redis = Redis::start_on_port(&[]);
    let link = link(&format!("redis://127.0.0.1:{}", redis.port));
    up(&link).await;
    assert_eq!(counted(&link, "n").await.unwrap(), 1);
    redis.signal(Signal::STOP);
    let error = counted(&link, "n").await.unwrap_err();
    assert_eq!((error.class, error.may_have_run), (FailureClass::Timeout, true));
    assert_eq!(failure(counted(&link, "n").await), (FailureClass::Down, false), "this one was not sent");
    redis.signal(Signal::CONT);
    up(&link).await;
    // Commands sent before the stop ran once: their outcome was unknown.
    assert_eq!(counted(&link, "n").await.unwrap(), 3);
    for index in 0..20 {
        said_back(&link, &format!("{index}")).await.unwrap();
    }
    assert!(failures(&link, "timeout") >= 1);
}

#[tokio::test]
async fn takes_replies_that_arrive_together() {
    let redis = Redis::start_on_port(&[]);
    let link = link(&format!("redis://127.0.0.1:{}", redis.port));
    up(&link).await;
    // Together they exceed the bound of unread bytes.
    let (script, text) = (echo(), "x".repeat(10_000));
    let commands = vec![command(&script, &[], &[&text]); 200];
    let stopped = async {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        std::thread::sleep(std::time::Duration::from_millis(150));
    };
    let (replies, ()) = tokio::join!(all(&link, one(&link).id, &commands), stopped);
    // A busy machine may need longer than the timeout.
    let is_taken = |reply: &Result<_, LinkError>| {
        reply.as_ref().err().is_none_or(|error| error.class == FailureClass::Timeout)
    };
    assert!(replies.iter().all(is_taken), "{replies:?}");
}

#[tokio::test]
async fn extends_timeout_for_slow_server() {
    let (redis, link) = linked(&[]).await;
    said_back(&link, "quick").await.unwrap();
    // The first timeout is a quarter of a second: this stall exceeds it.
    redis.say_and_go("DEBUG SLEEP 0.7");
    let script = echo();
    let (node, call) = (one(&link).id, command(&script, &[], &["x"]));
    // The link notices a stall only with a command in flight.
    while !is_down_for(&link, FailureClass::Timeout) {
        let _ = link.send(node, &call).await;
    }
    up(&link).await;
    // The timeout is now half a second: this stall is shorter.
    let connections = one(&link).connections;
    redis.signal(Signal::STOP);
    let resumed = async {
        tokio::time::sleep(std::time::Duration::from_millis(320)).await;
        redis.signal(Signal::CONT);
    };
    let (reply, ()) = tokio::join!(link.send(node, &call), resumed);
    assert_eq!(reply.unwrap(), Value::BulkString(b"x".to_vec()));
    assert_eq!(one(&link).connections, connections);
}

#[tokio::test]
async fn names_why_a_server_refuses_commands_and_keeps_its_connection() {
    let (redis, link) = linked(&["--replica-serve-stale-data", "no", "--busy-reply-threshold", "20"]).await;
    for (breaks, class, why, repairs) in [
        ("REPLICAOF 127.0.0.1 1", FailureClass::MasterDown, "MASTERDOWN", "REPLICAOF NO ONE"),
        ("CONFIG SET maxmemory 1", FailureClass::Oom, "raise maxmemory", "CONFIG SET maxmemory 0"),
        ("EVAL while(true)do\tend 0", FailureClass::Busy, "BUSY", "SCRIPT KILL"),
    ] {
        let _running = redis.say_and_go(breaks);
        let error = loop {
            if let Err(error) = counted(&link, "n").await {
                break error;
            }
        };
        assert_eq!((error.class, error.may_have_run), (class, false), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        redis.order(repairs);
        while counted(&link, "n").await.is_err() {}
        assert!(failures(&link, class.name()) >= 1);
    }
    assert_eq!(one(&link).connections, 1);
}

#[tokio::test]
async fn waits_for_loading_server() {
    let mut redis = Redis::start(&[]);
    redis.order("DEBUG POPULATE 2000");
    redis.order("SAVE");
    redis.kill();
    let slow: &[&str] = &["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    redis.restart(Some(slow));
    let link = link(&redis.url());
    until("it is reading", || is_down_for(&link, FailureClass::Loading)).await;
    assert_eq!(failure(said_back(&link, "early").await), (FailureClass::Loading, false));
    up(&link).await;
    said_back(&link, "now").await.unwrap();
}

#[tokio::test]
async fn script_error_is_reported_without_values() {
    let (_redis, link) = linked(&[]).await;
    let script = Script::new("fails", "local x = 1\nerror(KEYS[1] .. ARGV[1])");
    let error =
        link.send(one(&link).id, &command(&script, &["key-of-somebody"], &["secret"])).await.unwrap_err();
    assert_eq!((error.class, error.may_have_run), (FailureClass::Other, true));
    assert_eq!(error.to_string(), "other: the server says ERR");
    assert_eq!(one(&link).connections, 1);
}
