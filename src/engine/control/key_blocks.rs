//! Keys that an operator blocks, unblocks or resets. Leases are unaffected.

use std::collections::HashMap;
use std::sync::Arc;

use super::switch::SwitchOrigin;
use super::{OperatorControl, RuleName};
use crate::clock::{Now, Timestamp};
use crate::engine::Engine;
use crate::engine::digest::{Digest, ShownDigest};
use crate::engine::rule_set::{CompiledRule, is_shared};
use crate::engine::shards::Shard;
use crate::engine::table::AnyTable;
use crate::rules::{Domain, NamedKind, Rule};

/// A key that an operator blocked until a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    /// The rule that refuses it.
    pub rule: RuleName,
    /// Its keyed digest.
    pub key: [u64; 2],
    /// The values of attributes in `show_keys`.
    pub text: Option<Box<str>>,
    /// The end of the block.
    pub until: Timestamp,
    /// The origin of the block.
    pub by: SwitchOrigin,
}

/// A key of a rule, as an operator names it.
#[derive(Clone, Copy, Debug)]
pub enum NamedKey<'a> {
    /// Every attribute that the rule counts by, with its value.
    Attributes(&'a [(&'a str, &'a str)]),
    /// Its keyed digest.
    Digest(ShownDigest),
}

impl<'a, A: AsRef<[(&'a str, &'a str)]> + ?Sized> From<&'a A> for NamedKey<'a> {
    fn from(attributes: &'a A) -> NamedKey<'a> {
        NamedKey::Attributes(attributes.as_ref())
    }
}

/// Why a key command fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum KeyError {
    #[error("{0} is no rule in force that counts by a key")]
    NoRule(RuleName),
    #[error(
        "{0} counts all requests together and has no key to block: switch it, or write a rule with a key"
    )]
    SingleKey(RuleName),
    #[error("{0}: {1}")]
    Key(RuleName, String),
    #[error("{0} has no key with this digest: {other}", other = other_rule(.1))]
    OtherRule(RuleName, Option<RuleName>),
    #[error(
        "{0} counts on all hosts together, and no host alone starts a key fresh; help: for one caller, write an entry of \
         `exempt`, or of the rule's `overrides`"
    )]
    FleetState(RuleName),
    #[error(
        "{0}: this host shares nothing with others: name a Redis and a fleet secret in `redis` of the settings, or see `tidegate status` if they are there"
    )]
    NoFleet(RuleName),
    #[error("{BLOCKS_MAX} keys are blocked by hand, and no more can be: write an entry of `deny`")]
    TooMany,
}

fn other_rule(rule: &Option<RuleName>) -> String {
    match rule {
        Some(rule) => format!("it is of {rule}"),
        None => "it is of no rule in force, or has a wrong digit".to_owned(),
    }
}

/// The blocked keys of one rule, each with the end of its block.
pub(in crate::engine) type BlockedKeys = HashMap<[u64; 2], Timestamp>;

pub(in crate::engine) fn blocked_keys(blocks: &[BlockedKey]) -> HashMap<RuleName, Arc<BlockedKeys>> {
    let mut by_rule: HashMap<RuleName, BlockedKeys> = HashMap::new();
    for block in blocks {
        by_rule.entry(block.rule.clone()).or_default().insert(block.key, block.until);
    }
    by_rule.into_iter().map(|(rule, keys)| (rule, Arc::new(keys))).collect()
}

impl BlockedKey {
    /// Formats the digest as 32 hexadecimal digits.
    pub fn format_digest(&self) -> String {
        let RuleName { domain, rule } = &self.rule;
        ShownDigest::new(&Digest::from_words(self.key), domain, rule).to_hex().to_string()
    }
}

impl Engine {
    /// Blocks one key of a rule until a time, replacing an earlier block. The mode of the rule applies.
    ///
    /// # Errors
    /// The attributes do not form a key of the rule, or there is no room.
    pub fn block_key<'k>(
        &self,
        rule: &RuleName,
        key: impl Into<NamedKey<'k>>,
        until: Timestamp,
        by: SwitchOrigin,
    ) -> Result<BlockedKey, KeyError> {
        let mut control = self.control.lock();
        let named = key.into();
        let found = FoundKeys::find(self, &control, rule, named)?;
        if found.is_single {
            return Err(KeyError::SingleKey(rule.clone()));
        }
        let key = digest_words(&found.key);
        let is_known = |block: &BlockedKey| block.rule == *rule && block.key == key;
        if control.own.blocks.len() >= BLOCKS_MAX && !control.own.blocks.iter().any(is_known) {
            return Err(KeyError::TooMany);
        }
        control.own.blocks.retain(|block| !is_known(block));
        let block = BlockedKey { rule: rule.clone(), key, text: found.text(named), until, by };
        control.own.blocks.push(block.clone());
        self.recompile_rules(&mut control);
        Ok(block)
    }

    /// Unblocks one key of a rule: removes the operator's block and that of the rule's own `block`. Returns
    /// whether it was blocked.
    ///
    /// # Errors
    /// The attributes do not form a key of the rule.
    pub fn unblock_key<'k>(&self, rule: &RuleName, key: impl Into<NamedKey<'k>>) -> Result<bool, KeyError> {
        let mut control = self.control.lock();
        let found = FoundKeys::find(self, &control, rule, key.into())?;
        let memory = self.shards.memory();
        let mut some = false;
        found.each_state(self, |shard, digest| some |= shard.blocks.remove(digest, memory));
        Ok(self.remove_block(&mut control, rule, &found) || some)
    }

    /// Resets one key of a rule: its states, block and soft-limit time, not its leases. Returns whether any
    /// state existed.
    ///
    /// # Errors
    /// The attributes do not form a key of the rule, or the rule counts on all hosts together.
    pub fn reset_key<'k>(&self, rule: &RuleName, key: impl Into<NamedKey<'k>>) -> Result<bool, KeyError> {
        let mut control = self.control.lock();
        let found = FoundKeys::find(self, &control, rule, key.into())?;
        if is_shared(found.rule()) {
            return Err(KeyError::FleetState(rule.clone()));
        }
        let memory = self.shards.memory();
        let mut some = false;
        found.each_state(self, |shard, digest| {
            some |= shard.buckets.remove(digest, memory)
                | shard.windows.remove(digest, memory)
                | shard.sliding_windows.remove(digest, memory)
                | shard.logs.remove(digest, memory)
                | shard.blocks.remove(digest, memory);
            shard.soft_states.remove(digest, memory);
        });
        Ok(self.remove_block(&mut control, rule, &found) || some)
    }

    /// Whether a rule would refuse the next request of a key, if this host alone counts it.
    pub fn is_over_own_limit<'k>(&self, rule: &RuleName, key: impl Into<NamedKey<'k>>, now: Now) -> bool {
        self.shown_digest(rule, key).is_ok_and(|key| {
            self.inspect_key(&rule.domain, key, now, |checks| {
                checks.iter().any(|check| check.refuses && !is_shared(check.rule))
            })
        })
    }

    /// The digest of a key, as refusals show it.
    ///
    /// # Errors
    /// The attributes or the digest name no key of the rule.
    pub fn shown_digest<'k>(
        &self,
        rule: &RuleName,
        key: impl Into<NamedKey<'k>>,
    ) -> Result<ShownDigest, KeyError> {
        Ok(ShownDigest::new(&self.find_key(rule, key.into())?, &rule.domain, &rule.rule))
    }

    pub(in crate::engine) fn find_key(&self, rule: &RuleName, key: NamedKey<'_>) -> Result<Digest, KeyError> {
        Ok(FoundKeys::find(self, &self.control.lock(), rule, key)?.key)
    }

    /// All keys blocked on this host, oldest block first.
    pub fn blocked_keys(&self) -> Vec<BlockedKey> {
        self.control.lock().own.blocks.clone()
    }

    fn remove_block(&self, control: &mut OperatorControl, rule: &RuleName, found: &FoundKeys) -> bool {
        let before = control.own.blocks.len();
        let key = digest_words(&found.key);
        control.own.blocks.retain(|block| block.rule != *rule || block.key != key);
        let some = control.own.blocks.len() < before;
        if some {
            self.recompile_rules(control);
        }
        some
    }
}

pub(super) struct FoundKeys {
    domain: Arc<Domain>,
    pub(super) number: u32,
    pub(super) values: Vec<String>,
    is_single: bool,
    key: Digest,
    states: Vec<Digest>,
}

impl FoundKeys {
    pub(super) fn find(
        engine: &Engine,
        control: &OperatorControl,
        name: &RuleName,
        key: NamedKey<'_>,
    ) -> Result<FoundKeys, KeyError> {
        let no_rule = || KeyError::NoRule(name.clone());
        let domain = control
            .configured_domains
            .iter()
            .find(|domain| *domain.name() == *name.domain)
            .ok_or_else(no_rule)?;
        let mut named = domain.named().filter(|named| *named.name == *name.rule);
        let number = named.find_map(|named| match named.kind {
            NamedKind::Rule(number, _) => Some(number),
            NamedKind::Listed(_) | NamedKind::Shedder => None,
        });
        let number = number.ok_or_else(no_rule)?;
        let values = match key {
            NamedKey::Attributes(attributes) => domain.key_named(number, attributes),
            NamedKey::Digest(_) => Ok(Vec::new()),
        };
        let is_single = domain.key_named(number, &[]).is_ok();
        let values = values.map_err(|error| KeyError::Key(name.clone(), error))?;
        // Rules in force are numbered as in the files.
        let rule_set = engine.rule_set.load();
        let compiled = rule_set.find_domain(&name.domain).ok_or_else(no_rule)?;
        let compiled_rule = compiled.rules.get(number as usize).ok_or_else(no_rule)?;
        let key = match key {
            NamedKey::Attributes(_) => compiled_rule.key_hash.digest(values.iter().map(String::as_str)),
            NamedKey::Digest(digest) if digest.is_of(&name.domain, &name.rule) => digest.key(),
            NamedKey::Digest(digest) => return Err(wrong_rule(control, name, digest)),
        };
        let states = state_digests(compiled_rule, &key);
        Ok(FoundKeys { domain: Arc::clone(domain), number, values, is_single, key, states })
    }

    fn each_state(&self, engine: &Engine, mut visit: impl FnMut(&mut Shard, &Digest)) {
        for digest in &self.states {
            visit(&mut engine.shards.lock_for(digest), digest);
        }
    }

    fn rule(&self) -> &Rule {
        let rule = self.domain.rules().get(self.number as usize);
        rule.unwrap_or_else(|| unreachable!("a key was found in a rule of its domain"))
    }

    /// The values of attributes in `show_keys`.
    fn text(&self, key: NamedKey<'_>) -> Option<Box<str>> {
        let NamedKey::Attributes(attributes) = key else { return None };
        let is_shown = |name: &str| self.rule().show_keys.iter().any(|shown| **shown == *name);
        let shown = attributes.iter().filter(|(name, _)| is_shown(name));
        let shown: Vec<String> = shown.map(|(name, value)| format!("{name}={value}")).collect();
        (!shown.is_empty()).then(|| shown.join(" ").into())
    }
}

fn wrong_rule(control: &OperatorControl, name: &RuleName, digest: ShownDigest) -> KeyError {
    let rules = control.configured_domains.iter().flat_map(|domain| {
        domain.rules().iter().map(|rule| RuleName { domain: domain.name().into(), rule: rule.name.clone() })
    });
    let other = rules.into_iter().find(|rule| digest.is_of(&rule.domain, &rule.rule));
    KeyError::OtherRule(name.clone(), other)
}

/// The digests of a key's states: per allowance the normal and the elastic one.
fn state_digests(compiled_rule: &CompiledRule, key: &Digest) -> Vec<Digest> {
    let all = compiled_rule.states.iter().flat_map(|(tag, salt)| [(*tag, *salt), (tag.elastic(), *salt)]);
    let mut states: Vec<Digest> = all.map(|(tag, salt)| key.with_tag_and_salt(tag, salt)).collect();
    states.dedup();
    states
}

pub(in crate::engine) fn digest_words(key: &Digest) -> [u64; 2] {
    [key.hash(), key.high()]
}

/// Bounds manual blocks; for larger numbers a `deny` list costs less.
pub(super) const BLOCKS_MAX: usize = 4_096;
