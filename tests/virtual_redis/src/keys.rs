//! The keys of one Redis, and the commands that scripts call.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::str;

use foldhash::HashMap;

/// Keys by name.
pub(crate) type Keys = HashMap<Vec<u8>, Entry>;

/// A key's value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The value.
    pub value: Value,
    /// When it expires, ms; `None`: never.
    pub until_ms: Option<u64>,
}

/// The value of a key, of the types that scripts use.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A string.
    Text(Vec<u8>),
    /// The fields of a hash with their values.
    Hash(BTreeMap<Vec<u8>, Vec<u8>>),
    /// A sorted set: its members with their scores.
    Scores(BTreeMap<Vec<u8>, f64>),
}

#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Nil,
    Number(usize),
    Text(Vec<u8>),
    List(Vec<Reply>),
}

/// Executes one command. Panics at commands that no script calls, and at values of another type.
pub(crate) fn call(all: &mut Keys, words: &[&[u8]], now_us: u64) -> Reply {
    let now_ms = now_us / 1_000;
    match *words {
        [b"TIME"] => {
            let parts = [now_us / 1_000_000, now_us % 1_000_000];
            Reply::List(parts.map(|part| Reply::Text(part.to_string().into_bytes())).into())
        }
        [b"MGET", ref keys @ ..] => {
            let values = keys.iter().map(|key| match find(all, key, now_ms).map(|entry| &entry.value) {
                Some(Value::Text(text)) => Reply::Text(text.clone()),
                _ => Reply::Nil,
            });
            Reply::List(values.collect())
        }
        [b"SET", key, value, b"PX", ms] => {
            let until_ms = Some(now_ms + number(ms));
            all.insert(key.to_vec(), Entry { value: Value::Text(value.to_vec()), until_ms });
            Reply::Nil
        }
        [b"PEXPIRE", key, ms] => {
            let found = find(all, key, now_ms);
            Reply::Number(found.map_or(0, |entry| {
                entry.until_ms = Some(now_ms + number(ms));
                1
            }))
        }
        [command, key, ref arguments @ ..] => {
            find(all, key, now_ms);
            let value = if command[0] == b'H' {
                Value::Hash(BTreeMap::new())
            } else {
                Value::Scores(BTreeMap::new())
            };
            let entry = all.entry(key.to_vec()).or_insert(Entry { value, until_ms: None });
            let (reply, is_empty) = match &mut entry.value {
                Value::Hash(fields) => (hash(fields, command, arguments), fields.is_empty()),
                Value::Scores(scores) => (sorted_set(scores, command, arguments), scores.is_empty()),
                Value::Text(_) => panic!("{command:?} of a text"),
            };
            if is_empty {
                all.remove(key);
            }
            reply
        }
        _ => panic!("no script calls {words:?}"),
    }
}

/// Returns a key, unless it has expired.
fn find<'a>(all: &'a mut Keys, key: &[u8], now_ms: u64) -> Option<&'a mut Entry> {
    if all.get(key)?.until_ms.is_some_and(|until_ms| now_ms > until_ms) {
        all.remove(key);
    }
    all.get_mut(key)
}

fn hash(fields: &mut BTreeMap<Vec<u8>, Vec<u8>>, command: &[u8], arguments: &[&[u8]]) -> Reply {
    let text = |text: &Vec<u8>| Reply::Text(text.clone());
    match (command, arguments) {
        (b"HGETALL", []) => {
            Reply::List(fields.iter().flat_map(|(field, value)| [text(field), text(value)]).collect())
        }
        (b"HMGET", names) => {
            Reply::List(names.iter().map(|name| fields.get(*name).map_or(Reply::Nil, text)).collect())
        }
        (b"HSET", pairs) => {
            let before = fields.len();
            fields.extend(pairs.as_chunks().0.iter().map(|[field, value]| (field.to_vec(), value.to_vec())));
            Reply::Number(fields.len() - before)
        }
        (b"HDEL", [field]) => Reply::Number(usize::from(fields.remove(*field).is_some())),
        (b"HLEN", []) => Reply::Number(fields.len()),
        _ => panic!("no script calls {command:?} with {arguments:?}"),
    }
}

fn sorted_set(scores: &mut BTreeMap<Vec<u8>, f64>, command: &[u8], arguments: &[&[u8]]) -> Reply {
    match (command, arguments) {
        (b"ZADD", [score, member]) => {
            Reply::Number(usize::from(scores.insert(member.to_vec(), score_of(score)).is_none()))
        }
        (b"ZRANGEBYSCORE", [lowest, highest, options @ ..]) => {
            let range = (bound(lowest), bound(highest));
            let found = scores.iter().filter(|(_, score)| range.contains(score));
            let mut found: Vec<_> = found.map(|(member, score)| (*score, member.clone())).collect();
            found.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then_with(|| one.1.cmp(&other.1)));
            if let [b"LIMIT", b"0", most] = options {
                found.truncate(number(most) as usize);
            }
            let score = |score: f64| {
                (*options == [b"WITHSCORES"]).then(|| Reply::Text(score.to_string().into_bytes()))
            };
            let replies = found.into_iter().map(|(at, member)| [Some(Reply::Text(member)), score(at)]);
            Reply::List(replies.flatten().flatten().collect())
        }
        (b"ZREM", [member]) => Reply::Number(usize::from(scores.remove(*member).is_some())),
        (b"ZCARD", []) => Reply::Number(scores.len()),
        _ => panic!("no script calls {command:?} with {arguments:?}"),
    }
}

fn bound(text: &[u8]) -> Bound<f64> {
    match text {
        b"-inf" | b"+inf" => Bound::Unbounded,
        [b'(', text @ ..] => Bound::Excluded(score_of(text)),
        text => Bound::Included(score_of(text)),
    }
}

fn score_of(text: &[u8]) -> f64 {
    str::from_utf8(text).unwrap().parse().unwrap()
}

fn number(text: &[u8]) -> u64 {
    str::from_utf8(text).unwrap().parse().unwrap()
}
