//! A diagnosis of one Redis server: the permissions of this host's Redis user, and settings that matter to
//! shared budgets. The script changes nothing. For diagnosis commands, not for the daemon.

use redis::Value;

use super::command::OF_ALL;
use super::link::{LinkError, NodeId, RedisLink, Script};

/// The result for one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Names of the commands that our scripts call and that the server refuses.
    pub refused: Vec<String>,
    /// The server's clock, in microseconds of Unix time.
    pub now_us: Option<u64>,
    /// Hosts with heartbeats there, if heartbeats go to this server.
    pub hosts: Option<u64>,
    /// Its eviction policy.
    pub policy: Option<String>,
    /// Its memory limit in bytes; zero: none.
    pub memory_bytes_max: Option<u64>,
    /// Whether it is a replica, which refuses writes.
    pub is_replica: bool,
}

impl Rights {
    /// The diagnosis script, for [`RedisLink::start`].
    #[must_use]
    pub fn script() -> Script {
        Script::new("rights", TEXT)
    }

    /// Diagnoses one server.
    ///
    /// # Errors
    /// The server is unreachable or refuses the script.
    pub async fn ask(link: &RedisLink, node: NodeId) -> Result<Rights, LinkError> {
        let is_home = link.node_of(OF_ALL) == node;
        let keys: &[&[u8]] = if is_home { &[HOSTS] } else { &[] };
        let reply = link.call(node, &Rights::script(), keys, &[]).await?;
        Ok(Rights::of(&reply))
    }

    /// Parses the reply. Malformed values are ignored.
    fn of(reply: &Value) -> Rights {
        let Value::Array(parts) = reply else { return Rights::default() };
        let mut texts = parts.iter().map(|part| match part {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            _ => "",
        });
        let mut next = || texts.next().filter(|text| !text.is_empty());
        Rights {
            refused: next().unwrap_or_default().split_whitespace().map(word).collect(),
            now_us: next().and_then(|text| text.parse().ok()),
            hosts: next().and_then(|text| text.parse().ok()),
            policy: next().map(word),
            memory_bytes_max: next().and_then(|text| text.parse().ok()),
            is_replica: next() == Some("slave"),
        }
    }
}

/// Keeps the letters, digits and hyphens of a word, as the server is not trusted.
fn word(text: &str) -> String {
    let is_letter = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-';
    text.chars().filter(is_letter).take(WORD_LETTERS_MAX).collect()
}

const TEXT: &str = include_str!("scripts/rights.lua");

/// The key of the heartbeats.
const HOSTS: &[u8] = b"tg:{tm}:hosts";

const WORD_LETTERS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use redis::Value;

    use super::{Rights, TEXT};
    use crate::fleet::scripts;

    #[test]
    fn every_command_that_a_script_calls_is_asked_about() {
        let called = |text: &str| -> BTreeSet<String> {
            let calls = text.split("redis.call('").skip(1).chain(text.split("redis.pcall('").skip(1));
            calls.filter_map(|rest| rest.split('\'').next()).map(str::to_owned).collect()
        };
        let all: BTreeSet<String> = scripts::all().iter().flat_map(|script| called(script.text)).collect();
        let asked = TEXT.lines().filter_map(|line| line.strip_prefix("  { '")?.split('\'').next());
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
}
