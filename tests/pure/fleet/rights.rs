//! The diagnosis of a Redis server: the commands asked about, and replies that are not trusted.

use std::collections::BTreeSet;

use redis::Value;

use tidegate::fleet::rights::Rights;
use tidegate::fleet::scripts;

#[test]
fn every_command_that_a_script_calls_is_asked_about() {
    let called = |text: &str| -> BTreeSet<String> {
        let calls = text.split("redis.call('").skip(1).chain(text.split("redis.pcall('").skip(1));
        calls.filter_map(|rest| rest.split('\'').next()).map(str::to_owned).collect()
    };
    let all: BTreeSet<String> = scripts::all().iter().flat_map(|script| called(script.text)).collect();
    let asked =
        Rights::script().text.lines().filter_map(|line| line.strip_prefix("  { '")?.split('\'').next());
    assert_eq!(asked.map(str::to_owned).collect::<BTreeSet<_>>(), all);
}

#[test]
fn what_is_no_such_reply_says_nothing() {
    let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
    let nothing = Rights::default();
    for reply in [
        Value::Nil,
        Value::Array(Vec::new()),
        Value::Array(vec![Value::Nil, Value::Int(1)]),
        Value::Array(vec![text(""), text("-1"), text("x")]),
    ] {
        assert_eq!(Rights::of(&reply), nothing, "{reply:?}");
    }
    let reply = ["GET \u{1b}[31mSET", "1", "2", "volatile-ttl\n", "3", "slave"].map(text);
    let rights = Rights::of(&Value::Array(reply.to_vec()));
    assert_eq!(rights.refused, ["GET", "31mSET"], "nothing moves the cursor");
    assert_eq!(
        (rights.now_us, rights.hosts, rights.policy.as_deref(), rights.memory_bytes_max),
        (Some(1), Some(2), Some("volatile-ttl"), Some(3))
    );
    assert!(rights.is_replica);
}
