//! What this host's user may do in a Redis, and what of that Redis matters to those who share budgets in it. Asked by a
//! script that changes nothing; for those who look for what is wrong, not for the daemon.

use redis::Value;

use super::link::{Link, LinkError, NodeId, Script};

/// What came of asking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Commands that our scripts call and that are refused, as their names.
    pub refused: Vec<String>,
    /// The clock of that Redis, in microseconds of Unix time.
    pub now_us: Option<u64>,
    /// Hosts that beat there, where it is this one that they beat in.
    pub hosts: Option<u64>,
    /// What it does when its memory is full.
    pub policy: Option<String>,
    /// How many bytes it may have; zero: no bound but the machine's.
    pub memory_bytes_max: Option<u64>,
}

impl Rights {
    /// The script that asks: for [`Link::start`].
    #[must_use]
    pub fn script() -> Script {
        Script::new("rights", TEXT)
    }

    /// Asks one server.
    ///
    /// # Errors
    /// It cannot be reached, or does not let the script run.
    pub async fn ask(link: &Link, node: NodeId) -> Result<Rights, LinkError> {
        let is_home = link.node_of(HOSTS_TAG) == node;
        let keys: &[&[u8]] = if is_home { &[HOSTS] } else { &[] };
        let reply = link.call(node, &Rights::script(), keys, &[], None).await?;
        Ok(Rights::of(&reply))
    }

    /// What is not as it should be is as good as not said.
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
        }
    }
}

/// A word as it may be shown, whoever wrote it.
fn word(text: &str) -> String {
    let is_letter = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-';
    text.chars().filter(is_letter).take(WORD_LETTERS_MAX).collect()
}

const TEXT: &str = include_str!("scripts/rights.lua");

/// Where hosts beat.
const HOSTS: &[u8] = b"tg:{tm}:hosts";

const HOSTS_TAG: &str = "tm";

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
            let calls = text.split("redis.call('").skip(1);
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
        let reply = ["GET \u{1b}[31mSET", "1", "2", "volatile-ttl\n", "3"].map(text);
        let rights = Rights::of(&Value::Array(reply.to_vec()));
        assert_eq!(rights.refused, ["GET", "31mSET"], "nothing moves the cursor");
        assert_eq!(
            (rights.now_us, rights.hosts, rights.policy.as_deref(), rights.memory_bytes_max),
            (Some(1), Some(2), Some("volatile-ttl"), Some(3))
        );
    }
}
