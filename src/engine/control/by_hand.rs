//! Keys that an operator blocks, frees or has counted afresh. Leases stay as they are.

use std::collections::HashMap;
use std::sync::Arc;

use super::switch::By;
use super::{Control, RuleName};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::digest::Digest;
use crate::engine::ruling::Terms;
use crate::engine::shards::Shard;
use crate::rules::{Domain, Kind, NotItsKey, Rule};

/// A key that is refused until a moment because somebody said so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The rule that refuses it.
    pub rule: RuleName,
    /// What tells the key from others: a keyed digest.
    pub key: [u64; 2],
    /// The values that the rule says may be shown.
    pub text: Option<Box<str>>,
    /// When it is free again.
    pub until: Timestamp,
    /// Who said so.
    pub by: By,
}

/// Why nothing is done to a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It has no keys: lists and shedders, and rules that are gone.
    #[error("{0} is no rule in force that counts by a key")]
    NoRule(RuleName),
    /// All its requests are one key.
    #[error(
        "{0} counts all requests together and has no key to block: switch it, or write a rule with a key"
    )]
    OneKey(RuleName),
    /// The attributes name no key of it.
    #[error("{0}: {1}")]
    Key(RuleName, NotItsKey),
    /// No other host knows its keys.
    #[error(
        "{0}: this host shares nothing with others: name a Redis and a fleet secret in `redis` of the settings"
    )]
    Alone(RuleName),
    /// There are too many blocks.
    #[error("{BLOCKS_MAX} keys are blocked by hand, and no more can be: write an entry of `deny`")]
    TooMany,
}

/// By rule, the keys that are blocked by hand, each with the end of it.
pub(in crate::engine) type BlockedKeys = HashMap<[u64; 2], Timestamp>;

/// The same of all rules.
pub(in crate::engine) fn blocked_keys(blocks: &[Blocked]) -> HashMap<RuleName, Arc<BlockedKeys>> {
    let mut by_rule: HashMap<RuleName, BlockedKeys> = HashMap::new();
    for block in blocks {
        by_rule.entry(block.rule.clone()).or_default().insert(block.key, block.until);
    }
    by_rule.into_iter().map(|(rule, keys)| (rule, Arc::new(keys))).collect()
}

impl Blocked {
    /// The digest as people see it: 32 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> String {
        let [low, high] = self.key;
        format!("{high:016x}{low:016x}")
    }
}

impl Engine {
    /// Refuses one key of a rule until a moment, instead of whatever end was said before. The rule's mode holds for it.
    ///
    /// # Errors
    /// The attributes name no key of the rule, or there is no room.
    pub fn block(
        &self,
        rule: &RuleName,
        attributes: &[(&str, &str)],
        until: Timestamp,
        by: By,
    ) -> Result<Blocked, KeyError> {
        let mut control = self.control.lock();
        let found = Found::of(self, &control, rule, attributes)?;
        if found.values.is_empty() {
            return Err(KeyError::OneKey(rule.clone()));
        }
        let key = pair(&found.key);
        let is_known = |block: &Blocked| block.rule == *rule && block.key == key;
        if control.blocks.len() >= BLOCKS_MAX && !control.blocks.iter().any(is_known) {
            return Err(KeyError::TooMany);
        }
        control.blocks.retain(|block| !is_known(block));
        let block = Blocked { rule: rule.clone(), key, text: found.text(attributes), until, by };
        control.blocks.push(block.clone());
        self.enact(&mut control);
        Ok(block)
    }

    /// Frees one key of a rule: of what was said by hand, and of the rule's own `block`. Whether it was blocked.
    ///
    /// # Errors
    /// The attributes name no key of the rule.
    pub fn unblock(&self, rule: &RuleName, attributes: &[(&str, &str)]) -> Result<bool, KeyError> {
        let mut control = self.control.lock();
        let found = Found::of(self, &control, rule, attributes)?;
        let memory = self.shards.memory();
        let mut some = false;
        found.each_state(self, |shard, digest| {
            some |= shard.blocks.find(digest).is_some();
            shard.blocks.remove(digest, memory);
        });
        Ok(self.free(&mut control, rule, &found) || some)
    }

    /// Has one key of a rule counted afresh: its states, its block, its soft time. Leases stay. Whether
    /// anything was counted.
    ///
    /// # Errors
    /// The attributes name no key of the rule.
    pub fn reset(&self, rule: &RuleName, attributes: &[(&str, &str)]) -> Result<bool, KeyError> {
        let mut control = self.control.lock();
        let found = Found::of(self, &control, rule, attributes)?;
        let memory = self.shards.memory();
        let mut some = false;
        found.each_state(self, |shard, digest| {
            some |= shard.buckets.find(digest).is_some()
                || shard.windows.find(digest).is_some()
                || shard.sliding_windows.find(digest).is_some()
                || shard.logs.find(digest).is_some()
                || shard.blocks.find(digest).is_some();
            shard.buckets.remove(digest, memory);
            shard.windows.remove(digest, memory);
            shard.sliding_windows.remove(digest, memory);
            shard.logs.remove(digest, memory);
            shard.blocks.remove(digest, memory);
            shard.softs.remove(digest, memory);
        });
        Ok(self.free(&mut control, rule, &found) || some)
    }

    /// What tells a key of a rule from all others.
    pub(in crate::engine) fn key_of(
        &self,
        rule: &RuleName,
        attributes: &[(&str, &str)],
    ) -> Result<Digest, KeyError> {
        Ok(Found::of(self, &self.control.lock(), rule, attributes)?.key)
    }

    /// All keys that are blocked by hand, in the order in which they were.
    #[must_use]
    pub fn blocks(&self) -> Vec<Blocked> {
        self.control.lock().blocks.clone()
    }

    fn free(&self, control: &mut Control, rule: &RuleName, found: &Found) -> bool {
        let before = control.blocks.len();
        let key = pair(&found.key);
        control.blocks.retain(|block| block.rule != *rule || block.key != key);
        let some = control.blocks.len() < before;
        if some {
            self.enact(control);
        }
        some
    }
}

/// One key of one rule.
pub(super) struct Found {
    domain: Arc<Domain>,
    pub(super) number: u32,
    pub(super) values: Vec<String>,
    key: Digest,
    /// Under what each of its states lies.
    states: Vec<Digest>,
}

impl Found {
    pub(super) fn of(
        engine: &Engine,
        control: &Control,
        name: &RuleName,
        attributes: &[(&str, &str)],
    ) -> Result<Found, KeyError> {
        let no_rule = || KeyError::NoRule(name.clone());
        let domain =
            control.written.iter().find(|domain| *domain.name() == *name.domain).ok_or_else(no_rule)?;
        let mut named = domain.named().filter(|named| *named.name == *name.rule);
        let number = named.find_map(|named| match named.kind {
            Kind::Rule(number) => Some(number),
            Kind::Listed(_) | Kind::Shedder => None,
        });
        let number = number.ok_or_else(no_rule)?;
        let values = domain.key_named(number, attributes);
        let values = values.map_err(|error| KeyError::Key(name.clone(), error))?;
        // The numbers of the rules in force are those of the files.
        let ruling = engine.ruling.load();
        let (_, terms) = ruling.find(&name.domain).ok_or_else(no_rule)?;
        let terms = terms.rules.get(number as usize).ok_or_else(no_rule)?;
        let key = terms.key_hash.digest(values.iter().map(String::as_str));
        let states = states(terms, &key);
        Ok(Found { domain: Arc::clone(domain), number, values, key, states })
    }

    /// Looks at each state under its lock.
    fn each_state(&self, engine: &Engine, mut visit: impl FnMut(&mut Shard, &Digest)) {
        for digest in &self.states {
            visit(&mut engine.shards.lock(engine.shards.of(digest)), digest);
        }
    }

    /// The values that may be shown.
    fn text(&self, attributes: &[(&str, &str)]) -> Option<Box<str>> {
        let rule: &Rule = self.domain.rules().get(self.number as usize)?;
        let is_shown = |name: &str| rule.show_keys.iter().any(|shown| **shown == *name);
        let shown = attributes.iter().filter(|(name, _)| is_shown(name));
        let shown: Vec<String> = shown.map(|(name, value)| format!("{name}={value}")).collect();
        (!shown.is_empty()).then(|| shown.join(" ").into())
    }
}

/// The digests of a key's states: under each allowance its own and the elastic one.
fn states(terms: &Terms, key: &Digest) -> Vec<Digest> {
    let all = terms.states.each().flat_map(|(tag, salt)| [(tag, salt), (tag.elastic(), salt)]);
    let mut states: Vec<Digest> = all.map(|(tag, salt)| key.of(tag, salt)).collect();
    states.dedup();
    states
}

pub(super) fn pair(key: &Digest) -> [u64; 2] {
    [key.hash(), key.high()]
}

/// More than anybody types; what blocks by the thousand is an entry of `deny`, which costs less.
pub(super) const BLOCKS_MAX: usize = 4_096;
