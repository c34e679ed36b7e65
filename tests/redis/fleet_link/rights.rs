//! Tests passwords and permissions: required, wrong, repaired, and never shown.

use super::{
    Log, count, counted, down, echo, failure, failures, half_a_minute_passes, is_down_for, one, options,
    said_back, until, up,
};
use crate::prelude::*;
use tidegate::fleet::link::{FailureClass, LinkOptions, RedisLink};

const PASSWORD: &str = "correct-horse-battery";

/// Starts a link that authenticates with a password from a file in the server's directory.
fn link_as(redis: &Redis, user: Option<&str>, password: &str) -> RedisLink {
    let file = redis.directory.path().join("password");
    fs::write(&file, password).unwrap();
    let options =
        LinkOptions { user: user.map(str::to_owned), password_file: Some(file), ..options(&redis.url()) };
    RedisLink::start(options, vec![count(), echo()])
}

#[tokio::test]
async fn retries_wrong_password_after_delay() {
    let log = Log::listen();
    let redis = Redis::start(&["--requirepass", PASSWORD]);
    let link = link_as(&redis, None, "wrong-horse\n");
    until("refused", || is_down_for(&link, FailureClass::Auth)).await;
    assert_eq!(failure(said_back(&link, "x").await), (FailureClass::Auth, false));
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(failures(&link, "auth"), 2, "one attempt and one call: no attempt was made meanwhile");
    fs::write(redis.directory.path().join("password"), format!("{PASSWORD}\r\n")).unwrap();
    half_a_minute_passes().await;
    up(&link).await;
    said_back(&link, "welcome").await.unwrap();
    // The next password is in the file before the server requires it.
    fs::write(redis.directory.path().join("password"), "another-horse").unwrap();
    redis.signal(rustix::process::Signal::STOP);
    said_back(&link, "x").await.unwrap_err();
    redis.signal(rustix::process::Signal::CONT);
    until("read anew", || is_down_for(&link, FailureClass::Auth)).await;
    let shown = format!("{link:?} {:?} {} {}", link.nodes(), down(&link).unwrap(), log.lines().join("\n"));
    assert!(!shown.contains("horse"), "{shown}");
    assert!(shown.contains("the user or the password"), "{shown}");
}

#[tokio::test]
async fn reports_password_faults() {
    let redis = Redis::start(&["--requirepass", PASSWORD]);
    let missing = LinkOptions { password_file: Some("/nowhere/password".into()), ..options(&redis.url()) };
    let open = Redis::start(&[]);
    for (link, why) in [
        (link_as(&redis, None, "\n"), "password: it is empty"),
        (RedisLink::start(options(&redis.url()), vec![echo()]), ""),
        (RedisLink::start(missing, vec![echo()]), "/nowhere/password: No such file"),
        (link_as(&open, None, PASSWORD), ""),
    ] {
        until("refused", || is_down_for(&link, FailureClass::Auth)).await;
        let error = down(&link).unwrap().to_string();
        assert!(error.contains(why) && !error.contains("horse"), "{error}");
    }
}

#[tokio::test]
async fn retries_when_missing_rights_are_granted() {
    let redis = Redis::start(&[]);
    redis.order("ACL SETUSER tide on >correct-horse-battery ~tg:* +script|load +evalsha +incrby");
    let link = link_as(&redis, Some("tide"), PASSWORD);
    up(&link).await;
    assert_eq!(counted(&link, "tg:n").await.unwrap(), 1, "these are enough");
    // A key outside its pattern.
    let error = counted(&link, "other").await.unwrap_err();
    assert_eq!(error.class, FailureClass::NoPerm, "{error}");
    assert!(!error.to_string().contains("tg:"), "{error}");
    assert!(is_down_for(&link, FailureClass::NoPerm));
    assert_eq!(counted(&link, "tg:n").await.unwrap_err().class, FailureClass::NoPerm);
    half_a_minute_passes().await;
    up(&link).await;
    // A command that the script needs.
    redis.order("ACL SETUSER tide -incrby");
    let error = counted(&link, "tg:n").await.unwrap_err();
    assert_eq!(error.class, FailureClass::NoPerm, "{error}");
    redis.order("ACL SETUSER tide +incrby -script|load");
    half_a_minute_passes().await;
    until("it may not even load", || is_down_for(&link, FailureClass::NoPerm)).await;
    redis.order("ACL SETUSER tide +script|load");
    half_a_minute_passes().await;
    up(&link).await;
    assert_eq!(counted(&link, "tg:n").await.unwrap(), 2);
    assert_eq!(one(&link).connections, 3);
}
