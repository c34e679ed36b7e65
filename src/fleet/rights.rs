//! A diagnosis of one Redis server: the permissions of this host's Redis user, and settings that matter to
//! shared budgets. The script changes nothing. For diagnosis commands, not for the daemon.

use redis::Value;

use super::command::OF_ALL;
use super::link::{LinkError, NodeId, RedisCommand, RedisLink, Script};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Names of the commands that our scripts call and that the server refuses.
    pub refused: Vec<String>,
    /// The server's clock, in microseconds of Unix time.
    pub now_us: Option<u64>,
    /// Hosts with heartbeats there, if heartbeats go to this server.
    pub hosts: Option<u64>,
    pub policy: Option<String>,
    /// Its memory limit in bytes; zero: none.
    pub memory_bytes_max: Option<u64>,
    /// Whether it is a replica, which refuses writes.
    pub is_replica: bool,
}

impl Rights {
    pub fn script() -> Script {
        Script::new("rights", include_str!("scripts/rights.lua"))
    }

    /// Diagnoses one server.
    ///
    /// # Errors
    /// The server is unreachable or refuses the script.
    pub async fn ask(link: &RedisLink, node: NodeId) -> Result<Rights, LinkError> {
        let is_home = link.node_of(OF_ALL) == node;
        let keys = if is_home { vec![HOSTS.to_vec()] } else { Vec::new() };
        let command = RedisCommand { script: &Rights::script(), keys, args: Vec::new() };
        let reply = link.send(node, &command).await?;
        Ok(Rights::of(&reply))
    }

    /// Parses the reply. Malformed values are ignored.
    pub fn of(reply: &Value) -> Rights {
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

/// The key of the heartbeats.
const HOSTS: &[u8] = b"tg:{tm}:hosts";

const WORD_LETTERS_MAX: usize = 32;
