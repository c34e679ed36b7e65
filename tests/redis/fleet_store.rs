//! Tests that scripts do in a real Redis what they do in the Redis of simulations.

use std::cell::RefCell;
use std::collections::HashMap;

use proptest::collection::vec;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use redis::Connection;
use tidegate::fleet::command::ScriptCommand;
use tidegate::fleet::scripts;
use virtual_redis::{Value, VirtualRedis};

use crate::redis_server::Redis;
use crate::script_commands::{START_US, any_command, head, sync_of};

#[test]
fn scripts_do_the_same_in_redis_and_in_virtual_time() {
    let server = Redis::start(&[]);
    let redis = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let twins = RefCell::new(Twins { redis, shas: HashMap::new(), in_virtual_time: VirtualRedis::default() });
    let cases = std::env::var("PROPTEST_CASES").map_or(100, |cases| cases.parse().unwrap());
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    // A failure prints the minimal failing commands. No key expires, as time does not pass in the real Redis.
    let run = TestRunner::new(config).run(&vec((0_u64..9_000_000, any_command()), 1..30), |commands| {
        let mut twins = twins.borrow_mut();
        twins.flush();
        let first = (0, sync_of(head(0), Vec::new()));
        let mut commands = [first].into_iter().chain(commands);
        commands.try_for_each(|(us, command)| twins.run(&command, START_US + us).map_err(TestCaseError::fail))
    });
    run.unwrap_or_else(|why| panic!("{why}"));
}

/// A Redis, and one in virtual time.
struct Twins {
    redis: Connection,
    /// The digests of the scripts that read the clock of this test, by name.
    shas: HashMap<&'static str, String>,
    in_virtual_time: VirtualRedis,
}

impl Twins {
    fn flush(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.redis).unwrap();
        self.in_virtual_time = VirtualRedis::default();
        self.shas =
            scripts::all().map(|script| (script.name, load_with_clock(&mut self.redis, script.text))).into();
    }

    fn run(&mut self, command: &ScriptCommand, now_us: u64) -> Result<(), String> {
        let encoded = command.encode();
        let (keys, arguments) = (&encoded.keys, &encoded.args);
        let clock = [("s", now_us / 1_000_000), ("us", now_us % 1_000_000)];
        redis::cmd("HSET").arg("clock").arg(&clock).exec(&mut self.redis).unwrap();
        let mut evalsha = redis::cmd("EVALSHA");
        evalsha.arg(&self.shas[encoded.script.name]).arg(keys.len()).arg(keys).arg(arguments);
        let found: Vec<u8> =
            evalsha.query(&mut self.redis).map_err(|error| format!("{command:?}: {error}"))?;
        let expected = self.in_virtual_time.run(encoded.script.text, keys, arguments, now_us);
        if found != expected {
            return Err(format!("{found:?} in Redis, {expected:?} in virtual time to {command:?}"));
        }
        keys.iter()
            .try_for_each(|name| self.compare(name, now_us))
            .map_err(|why| format!("{why} after {command:?}"))
    }

    /// Compares a key that a command has just used, and its expiry.
    fn compare(&mut self, name: &[u8], now_us: u64) -> Result<(), String> {
        let read = |command, arguments: &[&str]| redis::cmd(command).arg(name).arg(arguments).clone();
        let redis = &mut self.redis;
        let kind: String = read("TYPE", &[]).query(redis).unwrap();
        let found = match kind.as_str() {
            "string" => Some(Value::Text(read("GET", &[]).query(redis).unwrap())),
            "hash" => Some(Value::Hash(read("HGETALL", &[]).query(redis).unwrap())),
            "zset" => Some(Value::Scores(read("ZRANGE", &["0", "-1", "WITHSCORES"]).query(redis).unwrap())),
            _ => None,
        };
        let ttl_ms: i64 = read("PTTL", &[]).query(redis).unwrap();
        let expected = self.in_virtual_time.keys.get(name);
        let kept_ms = expected.map_or(-2, |entry| (entry.until_ms.unwrap() - now_us / 1_000).cast_signed());
        if found.as_ref() != expected.map(|entry| &entry.value)
            || !(kept_ms - 5_000..=kept_ms).contains(&ttl_ms)
        {
            let name = String::from_utf8_lossy(name);
            return Err(format!("{name} is {found:?} for {ttl_ms} ms, not {expected:?} for {kept_ms} ms"));
        }
        Ok(())
    }
}

/// Loads a script that reads its time from the hash `clock`: as `TIME`, seconds and microseconds.
fn load_with_clock(redis: &mut Connection, text: &str) -> String {
    let text = text.replace("redis.call('TIME')", "redis.call('HMGET', 'clock', 's', 'us')");
    redis::cmd("SCRIPT").arg("LOAD").arg(text).query(redis).unwrap()
}
