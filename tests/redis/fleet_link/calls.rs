//! Tests successful commands: every kind of URL, large batches, and scripts missing from the server.

use super::{all, command, count, counted, echo, failure, failures, link, linked, one, said_back, up};
use crate::prelude::*;
use redis::Value;
use tidegate::fleet::link::{FailureClass, Script};
use tokio::time::timeout;

#[tokio::test]
async fn connects_by_every_kind_of_url() {
    let redis = Redis::start_on_port(&[]);
    let socket = redis.socket().display().to_string();
    let port = redis.port;
    // Each URL of one database reaches the same counter.
    for (url, expected) in [
        (format!("redis://127.0.0.1:{port}"), 1),
        (format!("redis://localhost:{port}/0"), 2),
        (format!("unix://{socket}"), 3),
        (format!("redis://127.0.0.1:{port}/3"), 1),
        (format!("redis+unix://{socket}?db=3"), 2),
    ] {
        let link = link(&url);
        up(&link).await;
        assert_eq!(counted(&link, "n").await.unwrap(), expected, "{url}");
    }
}

#[tokio::test]
async fn pipelines_commands_and_orders_replies() {
    let began = read_boot_nanos();
    let (_redis, link) = linked(&[]).await;
    let (count, echo) = (count(), echo());
    let texts: Vec<String> = (0..500).map(|index| format!("{index} {}", "x".repeat(index))).collect();
    // Every third is a script, so that replies also differ in kind.
    let script = |index: usize| if index.is_multiple_of(3) { &count } else { &echo };
    let calls = texts.iter().enumerate().map(|(index, text)| command(script(index), &["n"], &[text]));
    let replies = all(&link, one(&link).id, &calls.collect::<Vec<_>>()).await;
    assert_eq!(replies.len(), texts.len());
    for (index, (text, reply)) in texts.iter().zip(replies).enumerate() {
        let text = Value::BulkString(text.clone().into_bytes());
        let expected = match index.is_multiple_of(3) {
            true => Value::Array(vec![Value::Int(i64::try_from(index / 3 + 1).unwrap()), text]),
            false => text,
        };
        assert_eq!(reply.unwrap(), expected, "{index}");
    }
    let most = (read_boot_nanos() - began) / 1_000;
    assert!(one(&link).round_trip_us.is_some_and(|micros| micros < most));
}

#[tokio::test]
async fn reloads_and_retries_forgotten_script() {
    let (redis, link) = linked(&[]).await;
    assert_eq!(counted(&link, "n").await.unwrap(), 1, "it was loaded with the connection");
    assert!(!redis.say("INFO commandstats").contains("cmdstat_evalsha:calls=1,failed_calls=1"));
    redis.order("SCRIPT FLUSH");
    assert_eq!(counted(&link, "n").await.unwrap(), 2);
    assert_eq!(counted(&link, "n").await.unwrap(), 3);
    assert_eq!(failures(&link, "noscript"), 0, "nobody need know");
    // A whole batch receives NOSCRIPT.
    redis.order("SCRIPT FLUSH");
    let script = count();
    let replies = all(&link, one(&link).id, &vec![command(&script, &["n"], &["x"]); 20]).await;
    assert!(replies.iter().all(Result::is_ok));
    assert_eq!(counted(&link, "n").await.unwrap(), 24, "each ran once");
    // A wrong digest: the link tries once.
    let wrong = Script { sha: "0".repeat(40), ..count() };
    let reply = link.send(one(&link).id, &command(&wrong, &["n"], &["x"])).await;
    assert_eq!(failure(reply), (FailureClass::NoScript, false));
    assert_eq!(failures(&link, "noscript"), 1);
    assert_eq!(one(&link).connections, 1);
}

#[tokio::test]
async fn abandoned_call_keeps_connection() {
    let (redis, link) = linked(&[]).await;
    let _sleeping = redis.say_and_go("DEBUG SLEEP 0.1");
    // The server may read the two in either order: repeat until some commands meet the sleep.
    let mut late = 0;
    for round in 0..10_000 {
        let reply = timeout(Duration::from_millis(5), said_back(&link, &format!("early {round}"))).await;
        late += u32::from(reply.is_err());
        if late > 3 {
            break;
        }
    }
    assert!(late > 3, "the server slept");
    for index in 0..20 {
        said_back(&link, &format!("{index}")).await.unwrap();
    }
    assert_eq!(one(&link).connections, 1, "and the late replies went to nobody");
}
