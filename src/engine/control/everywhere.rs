//! What operators say to all hosts that share a Redis, as this host last heard it. Who hears it is no business of this room.
//!
//! Beside it stands what was said to this host alone. Of two words about the mode of one thing the later one holds; a key is
//! refused as long as one of the two says so.

use std::sync::Arc;

use super::by_hand::{BlockedKeys, Found, pair};
use super::{Blocked, By, Control, Event, KeyError, RuleName, Switch, SwitchView, Target};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::digest::{HashKey, KeyHash};
use crate::engine::fleet::Fleet;
use crate::rules::Mode;

/// All that is said to all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetOrders {
    /// Which list of it this is: of no meaning here but that it is kept.
    pub stamp: [u8; 32],
    /// What is switched.
    pub switches: Vec<Switch>,
    /// Keys that are refused, known by the digests that all hosts know.
    pub blocks: Vec<Blocked>,
}

/// One word to all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetWord {
    /// In another mode than the files say.
    Switch(Switch),
    /// As the files, or the host, say.
    Clear(Target),
    /// Refused until a moment.
    Block(Blocked),
    /// Refused no more: a key of a rule.
    Free(RuleName, [u64; 2]),
}

impl FleetOrders {
    /// The same after one more word; whether it changes anything.
    #[must_use]
    pub fn after(&self, word: &FleetWord) -> (FleetOrders, bool) {
        let mut orders = self.clone();
        let is_change = match word {
            FleetWord::Switch(switch)
                if switch.target == Target::Everything && switch.mode == Mode::Enforce =>
            {
                orders.clear(&Target::Everything)
            }
            FleetWord::Switch(switch) => {
                orders.clear(&switch.target);
                orders.switches.push(switch.clone());
                true
            }
            FleetWord::Clear(target) => orders.clear(target),
            FleetWord::Block(block) => {
                orders.free(&block.rule, block.key);
                orders.blocks.push(block.clone());
                true
            }
            FleetWord::Free(rule, key) => orders.free(rule, *key),
        };
        (orders, is_change)
    }

    fn clear(&mut self, target: &Target) -> bool {
        let before = self.switches.len();
        self.switches.retain(|known| known.target != *target);
        self.switches.len() < before
    }

    fn free(&mut self, rule: &RuleName, key: [u64; 2]) -> bool {
        let before = self.blocks.len();
        self.blocks.retain(|known| known.rule != *rule || known.key != key);
        self.blocks.len() < before
    }
}

impl Engine {
    /// What is said to all hosts.
    #[must_use]
    pub fn fleet_orders(&self) -> FleetOrders {
        self.control.lock().fleet.clone()
    }

    /// From now on this is what is said to all hosts. What is new in it, and what is no more, is among the events.
    pub fn take_fleet_orders(&self, orders: &FleetOrders) {
        let mut control = self.control.lock();
        let before = std::mem::replace(&mut control.fleet, orders.clone());
        let is_same = |one: &Switch, other: &Switch| {
            (&one.target, one.mode, one.by) == (&other.target, other.mode, other.by)
                && one.until.is_some() == other.until.is_some()
        };
        let came = orders.switches.iter().filter(|new| !before.switches.iter().any(|old| is_same(old, new)));
        let gone =
            before.switches.iter().filter(|old| !orders.switches.iter().any(|new| new.target == old.target));
        let is_key = |one: &Blocked, other: &Blocked| one.rule == other.rule && one.key == other.key;
        let blocked = orders.blocks.iter().filter(|new| !before.blocks.iter().any(|old| is_key(old, new)));
        let freed = before.blocks.iter().filter(|old| !orders.blocks.iter().any(|new| is_key(old, new)));
        let events = came.map(|switch| Event::FleetSwitched(switch.clone()));
        let events = events.chain(gone.map(|switch| Event::FleetCleared(switch.clone())));
        let events = events.chain(blocked.map(|block| Event::FleetBlocked(block.clone())));
        let events: Vec<Event> = events.chain(freed.map(|block| Event::FleetFreed(block.clone()))).collect();
        events.into_iter().for_each(|event| control.happened(event));
        if before.switches != orders.switches || before.blocks != orders.blocks {
            self.enact(&mut control);
        }
    }

    /// What all hosts know a key of a rule by: under the secret in use, and under the other one that this host has.
    ///
    /// # Errors
    /// The attributes name no key of the rule; or its keys are known to nobody else, for there is no fleet.
    pub fn keys_everywhere(
        &self,
        rule: &RuleName,
        attributes: &[(&str, &str)],
    ) -> Result<Vec<[u64; 2]>, KeyError> {
        let control = self.control.lock();
        let found = Found::of(self, &control, rule, attributes)?;
        if found.values.is_empty() {
            return Err(KeyError::OneKey(rule.clone()));
        }
        let ruling = self.ruling.load();
        let terms = ruling.find(&rule.domain).and_then(|(_, terms)| terms.rules.get(found.number as usize));
        let everywhere = terms.and_then(|terms| terms.everywhere.as_ref());
        let Everywhere { hash, other, .. } = everywhere.ok_or_else(|| KeyError::Alone(rule.clone()))?;
        let digest = |hash: &KeyHash| pair(&hash.digest(found.values.iter().map(String::as_str)));
        Ok([Some(hash), other.as_ref()].into_iter().flatten().map(digest).collect())
    }

    /// What is switched on all hosts, in the order in which it was.
    #[must_use]
    pub fn fleet_switches(&self) -> Vec<SwitchView> {
        let control = self.control.lock();
        control.fleet.switches.iter().map(|switch| control.view(switch, self.options.mode)).collect()
    }
}

impl Control {
    /// Of what is said about one thing, to this host and to all, what was said last.
    pub(super) fn said_of(&self, is_it: impl Fn(&Target) -> bool) -> Option<&Switch> {
        let own = self.switches.iter().find(|switch| is_it(&switch.target));
        let everywhere = self.fleet.switches.iter().find(|switch| is_it(&switch.target));
        match (own, everywhere) {
            (Some(own), Some(everywhere)) => Some(if own.said > everywhere.said { own } else { everywhere }),
            (own, everywhere) => own.or(everywhere),
        }
    }
}

impl By {
    /// Whether it was said to all hosts.
    #[must_use]
    pub fn is_fleet(self) -> bool {
        matches!(self, By::Fleet { .. })
    }
}

/// How all hosts know the keys of one rule, and which of them are refused.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Everywhere {
    pub(in crate::engine) hash: KeyHash,
    /// By the other secret that this host has: a key that was blocked under it is refused as well.
    pub(in crate::engine) other: Option<KeyHash>,
    pub(in crate::engine) blocked: Option<Arc<BlockedKeys>>,
    /// Of a rule of the fleet, what is blocked on this host alone: its keys turn with the secret.
    here: Option<Arc<BlockedKeys>>,
}

impl Everywhere {
    /// Of a rule that counts by something; `None`: there is no fleet.
    pub(in crate::engine) fn of(
        fleet: &Fleet,
        own: &HashKey,
        of_rule: impl Fn(&HashKey) -> KeyHash,
        blocked: Option<Arc<BlockedKeys>>,
        here: Option<Arc<BlockedKeys>>,
    ) -> Option<Everywhere> {
        let other = fleet.other_key().map(&of_rule);
        let here = here.filter(|_| other.is_some());
        fleet.is_joined().then(|| Everywhere {
            hash: of_rule(fleet.hash_key(true, own)),
            other,
            blocked,
            here,
        })
    }

    /// Whether any key is blocked.
    #[inline]
    pub(in crate::engine) fn blocks(&self) -> bool {
        self.blocked.is_some() || self.here.is_some()
    }

    /// Until when a key is refused, whichever secret it was said under; the origin of time: it is not.
    pub(in crate::engine) fn blocked_until<'v, V: ExactSizeIterator<Item = &'v str>>(
        &self,
        values: impl Fn() -> V,
    ) -> Timestamp {
        let until = |blocked: &Option<Arc<BlockedKeys>>, key: &[u64; 2]| {
            blocked.as_ref().and_then(|blocked| blocked.get(key)).copied().unwrap_or(Timestamp::ORIGIN)
        };
        let now = until(&self.blocked, &pair(&self.hash.digest(values())));
        let Some(other) = &self.other else { return now };
        let key = pair(&other.digest(values()));
        now.max(until(&self.blocked, &key)).max(until(&self.here, &key))
    }
}
