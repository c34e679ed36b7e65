//! Tests that the user of `config/redis-acl.conf` may run all scripts in a real Redis, and no more.

use crate::fleet_link::{command, down, is_down_for, one, options, until, up};
use crate::redis_server;
use crate::script_commands::{ask_of, cost_of, payment_of, sync_of};

use crate::prelude::*;
use redis::Value;
use redis_server::Redis;
use tidegate::clock::Timestamp;
use tidegate::engine::PoolLoad;
use tidegate::fleet::cell::{CellQuota, CellRate, CellRequest};
use tidegate::fleet::command::{Bucket, CommandHead, ScriptCommand};
use tidegate::fleet::heartbeat::{Heartbeat, PoolReport};
use tidegate::fleet::link::{FailureClass, LinkError, LinkOptions, NodeState, RedisLink, Script};
use tidegate::fleet::permits::{PermitCommand, PermitRequest};
use tidegate::fleet::rights::Rights;
use tidegate::fleet::scripts;
use tidegate::fleet::secrets::SecretDigest;
use tidegate::fleet::version::VersionCommand;

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
    let rights: Vec<String> = fs::read_to_string(&example)
        .unwrap()
        .lines()
        .filter(|line| line.starts_with("user "))
        .flat_map(|line| line.split(' ').filter_map(|word| word.strip_prefix('+')))
        .map(str::to_owned)
        .collect();
    assert!(rights.len() > 10, "{rights:?}");
    for right in &rights {
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

/// Runs every script on a Redis where each takes all of its branches.
async fn run_all(redis: &Redis) -> Result<(), LinkError> {
    redis.order("FLUSHALL");
    // A host that exited, and a rule with more edits than the history keeps.
    redis.order("ZADD tg:{tm}:hosts 1 gone");
    for edit in 0..65 {
        redis.order(&format!("HSET tg:{{tm}}:v:07000000000000000000000000000000 {edit} {edit}"));
    }
    let link = link(redis);
    until("settled", || one(&link).state != NodeState::Starting).await;
    if let Some(error) = down(&link) {
        return Err(error);
    }
    for command in commands() {
        link.send(link.nodes()[0].id, &command.encode()).await?;
    }
    // The stamp of no value, and a value to write.
    let args = ["da39a3ee5e6b4b0d3255bfef95601890afd80709", "x"];
    let write = command(&scripts::OVERRIDES, &["tg:{tm}:overrides"], &args);
    assert_eq!(link.send(link.nodes()[0].id, &write).await?, Value::Int(1));
    Ok(())
}

fn commands() -> [ScriptCommand; 5] {
    let cell_quota = CellQuota { version: 1, rate: CellRate::new(10, 1).unwrap(), burst: 20_000_000 };
    let head = CommandHead { bucket: Bucket(0), born_us: 0, sent_at: Timestamp::ORIGIN };
    let ask = CellRequest { want: 1_000_000, demand: 1_000, ..ask_of([0; 16], cell_quota) };
    let costs = vec![cost_of([0; 16], cell_quota, 1_000_000)];
    let permits = PermitRequest {
        key: [1; 16],
        max: 2,
        wanted: vec![1],
        kept: vec![2],
        dropped: vec![3],
        is_whole: true,
    };
    let load = PoolLoad { slots: 4, critical: 1, noncritical: 1 };
    let pools = vec![PoolReport { pool: "web".into(), load }];
    let before = Some(("before".to_owned(), 1));
    [
        sync_of(head, vec![ask]),
        payment_of(head, costs),
        ScriptCommand::Permits(PermitCommand { head, host: [1; 16], requests: vec![permits] }),
        ScriptCommand::Heartbeat(Heartbeat {
            host: [1; 16],
            epoch: 1,
            seq: 1,
            pools,
            secret: SecretDigest::default(),
        }),
        ScriptCommand::Version(VersionCommand { rule: 7, numbers: "now".to_owned(), before }),
    ]
}
