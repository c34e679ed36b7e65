//! Tests that the user of `config/redis-acl.conf` may run all scripts in a real Redis, and no more.

use crate::fleet_link::{command, down, is_down_for, one, options, until, up};
use crate::prelude::*;
use crate::redis_server::Redis;
use crate::script_commands::any_command;
use proptest::collection::vec;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use redis::Value;
use tidegate::fleet::link::{FailureClass, LinkError, LinkOptions, NodeState, RedisLink, Script};
use tidegate::fleet::rights::Rights;
use tidegate::fleet::scripts;

const PASSWORD: &str = "correct-horse-battery";

#[tokio::test]
async fn example_acl_grants_exactly_needed_rights() {
    let example = fs::canonicalize("config/redis-acl.conf").unwrap();
    let redis = Redis::start(&["--include", example.to_str().unwrap()]);
    // The example gives the user no password, so no client can log in as it.
    let link = link(&redis);
    until("refused", || is_down_for(&link, FailureClass::Auth)).await;
    redis.order(&format!("ACL SETUSER tidegate >{PASSWORD}"));
    run_all(&redis).await.expect("these rights are enough");
    let text = fs::read_to_string(&example).unwrap();
    let lines = text.lines().filter(|line| line.starts_with("user "));
    let rights: Vec<_> = lines.flat_map(|line| line.split(" +").skip(1)).collect();
    assert!(rights.len() > 10, "{rights:?}");
    for right in rights {
        redis.order(&format!("ACL SETUSER tidegate -{right}"));
        let error = run_all(&redis).await.expect_err(right);
        assert_eq!(error.class, FailureClass::NoPerm, "{right}: {error}");
        redis.order(&format!("ACL SETUSER tidegate +{right}"));
    }
    run_all(&redis).await.expect("all are back");
    redis.order("ACL SETUSER tidegate resetkeys ~other:*");
    assert_eq!(run_all(&redis).await.expect_err("other keys").class, FailureClass::NoPerm);
}

#[tokio::test]
async fn detects_missing_rights_without_changes() {
    let redis =
        Redis::start(&["--include", fs::canonicalize("config/redis-acl.conf").unwrap().to_str().unwrap()]);
    redis.order(&format!("ACL SETUSER tidegate >{PASSWORD} -set -zrem"));
    let asked = rights_of(&redis).await;
    assert_eq!(asked.refused, ["SET", "ZREM"]);
    assert_eq!((asked.hosts, asked.policy), (Some(0), None), "INFO is not for this user");
    redis.order("ACL SETUSER tidegate +set +zrem +info");
    let asked = rights_of(&redis).await;
    assert_eq!((asked.refused.len(), asked.policy.as_deref()), (0, Some("noeviction")));
    assert_eq!(asked.memory_bytes_max, Some(0));
    redis.order("ACL SETUSER tidegate -time -zcard");
    let asked = rights_of(&redis).await;
    assert_eq!((asked.now_us, asked.hosts), (None, None), "what it may not ask, it does not");
    assert_eq!(redis.say("DBSIZE"), ":0\r\n", "it changes nothing");
}

async fn rights_of(redis: &Redis) -> Rights {
    let link = link(redis);
    up(&link).await;
    Rights::ask(&link, one(&link).id).await.unwrap()
}

fn link(redis: &Redis) -> RedisLink {
    let file = redis.directory.path().join("password");
    fs::write(&file, PASSWORD).unwrap();
    let options =
        LinkOptions { user: Some("tidegate".into()), password_file: Some(file), ..options(&redis.url()) };
    let of_ours = scripts::all().map(Script::clone);
    RedisLink::start(options, of_ours.into_iter().chain([Rights::script()]).collect())
}

/// Runs every script with commands that together take all of their branches.
async fn run_all(redis: &Redis) -> Result<(), LinkError> {
    redis.order("FLUSHALL");
    // A host that exited, and rules with more edits than the history keeps.
    redis.order("ZADD tg:{tm}:hosts 1 gone");
    for edit in 0..65 {
        for rule in 0..2 {
            redis.order(&format!("HSET tg:{{tm}}:v:0{rule}{} edit{edit} {edit}", "0".repeat(30)));
        }
    }
    let link = link(redis);
    until("settled", || one(&link).state != NodeState::Starting).await;
    if let Some(error) = down(&link) {
        return Err(error);
    }
    let commands = vec(any_command(), 100).new_tree(&mut TestRunner::deterministic()).unwrap();
    for command in commands.current() {
        link.send(link.nodes()[0].id, &command.encode()).await?;
    }
    // The stamp of no value, and a value to write.
    let args = ["da39a3ee5e6b4b0d3255bfef95601890afd80709", "x"];
    let write = command(&scripts::OVERRIDES, &["tg:{tm}:overrides"], &args);
    assert_eq!(link.send(link.nodes()[0].id, &write).await?, Value::Int(1));
    Ok(())
}
