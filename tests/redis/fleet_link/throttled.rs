//! Tests slow lines to Redis: 1 Mbit/s with a round trip of 50 ms, and a round trip of a second.

use super::{all, command, echo, failures, link, one, up};
use crate::fleet_real::proxy::RedisProxy;
use crate::prelude::*;
use redis::Value;

#[tokio::test]
async fn waits_for_replies_over_a_slow_line() {
    let redis = Redis::start(&[]);
    // 3 125 bytes in 25 ms: 1 Mbit/s each way.
    let line = RedisProxy::over_line(&redis.socket(), 3_125, Duration::from_millis(25));
    let link = link(&line.url());
    up(&link).await;
    let script = echo();
    let text = "x".repeat(1_000);
    // A second's worth each way: far more than the reply timeout of a fast line.
    let calls = vec![command(&script, &[], &[&text]); 120];
    let begin = read_boot_nanos();
    for reply in all(&link, one(&link).id, &calls).await {
        assert_eq!(reply.unwrap(), Value::BulkString(text.clone().into_bytes()));
    }
    assert!(read_boot_nanos() - begin > 900_000_000, "the line was slow");
    assert_eq!((failures(&link, "timeout"), one(&link).connections), (0, 1));
}

#[tokio::test]
async fn connects_to_server_a_second_away() {
    let redis = Redis::start(&[]);
    // Two round trips are longer than any step of a connection may take.
    let line = RedisProxy::over_line(&redis.socket(), 1 << 20, Duration::from_millis(520));
    let link = link(&line.url());
    up(&link).await;
    assert_eq!(failures(&link, "timeout"), 0);
}
