//! Operator overrides of the rules: switches, blocked keys, and the off switch. Each change compiles a new
//! rule set, so that decisions look up no overrides. Timed overrides end here; logging and persistence are
//! elsewhere.

mod by_hand;
mod fleet_overrides;
mod guard;
mod names;
mod switch;

use std::collections::HashMap;
use std::sync::Arc;

use super::ruling::Ruling;
use super::slots::{NewSlot, Slots};
use super::totals::RuleTotals;
use super::{Engine, Replaced};
use crate::clock::{Now, Timestamp};
use crate::rules::{Domain, Mode, RuleSet};

pub(super) use by_hand::BlockedKeys;
use by_hand::blocked_keys;
pub use by_hand::{Blocked, KeyError};
pub(super) use fleet_overrides::Everywhere;
pub use fleet_overrides::{FleetChange, FleetOverrides};
pub use guard::Alarm;
pub(super) use guard::Guarding;
use guard::Guards;
pub use names::{NotNamed, RuleName};
pub use switch::{NotSwitched, Switch, SwitchOrigin, SwitchView, Target};

/// The operator overrides, and the rules without them.
#[derive(Debug, Default)]
pub(super) struct OperatorControl {
    written: Vec<Arc<Domain>>,
    /// Whether any rules were installed; the first installation is not a change.
    installed: bool,
    off: bool,
    switches: Vec<Switch>,
    blocks: Vec<Blocked>,
    fleet: FleetOverrides,
    pub(super) guards: Guards,
    /// Spontaneous events that were not fetched yet.
    events: Vec<ControlEvent>,
    /// Replaced rule sets that a decision thread may still use.
    retired: Vec<Replaced>,
}

/// A change that no command on this host caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A switch expired.
    SwitchEnded(Switch),
    /// A key blocked by an operator was unblocked at its time.
    BlockEnded(Blocked),
    /// A rule refuses most callers right after a change.
    Guard(Alarm),
    /// A fleet-wide switch was set.
    FleetSwitched(Switch),
    /// A fleet-wide switch was cleared before its time.
    FleetCleared(Switch),
    /// A key was blocked on all hosts.
    FleetBlocked(Blocked),
    /// A key was unblocked on all hosts before its time.
    FleetFreed(Blocked),
}

/// The overrides of this host, for the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// The switches.
    pub switches: Vec<Switch>,
    /// The keys blocked by operators.
    pub blocks: Vec<Blocked>,
}

impl OperatorControl {
    /// The mode of the whole daemon: never stricter than `made_with`.
    fn mode(&self, made_with: Mode) -> Mode {
        let switched = self.said_of(|target| *target == Target::Everything);
        let switched = switched.map_or(Mode::Enforce, |switch| switch.mode);
        let off = if self.off { Mode::Disabled } else { Mode::Enforce };
        made_with.max(switched).max(off)
    }

    /// The rules in their switched modes. Domains without switches are shared with `written`.
    fn rules(&self) -> RuleSet {
        let switched = |domain: &str, rule: &str| {
            self.said_of(|target| target.is_rule(domain, rule)).map(|switch| switch.mode)
        };
        let domains = self.written.iter().map(|domain| {
            let is_touched = domain.named().any(|named| switched(domain.name(), named.name).is_some());
            match is_touched {
                true => Arc::new(domain.in_modes(&|rule| switched(domain.name(), rule))),
                false => Arc::clone(domain),
            }
        });
        RuleSet::new(domains)
    }

    fn happened(&mut self, event: ControlEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(event);
    }

    fn is_at_rest(&self) -> bool {
        let mut switches = self.switches.iter().chain(&self.fleet.switches);
        switches.all(|switch| switch.until.is_none())
            && self.blocks.is_empty()
            && self.fleet.blocks.is_empty()
            && self.guards.is_empty()
    }

    /// Ends expired switches and blocks. Returns whether any expired.
    fn end_due(&mut self, at: Timestamp) -> bool {
        let has_ended = |until: Option<Timestamp>| until.is_some_and(|until| until <= at);
        let own = self.switches.extract_if(.., |switch| has_ended(switch.until));
        let everywhere = self.fleet.switches.extract_if(.., |switch| has_ended(switch.until));
        let ended: Vec<Switch> = own.chain(everywhere).collect();
        let own = self.blocks.extract_if(.., |block| has_ended(Some(block.until)));
        let everywhere = self.fleet.blocks.extract_if(.., |block| has_ended(Some(block.until)));
        let freed: Vec<Blocked> = own.chain(everywhere).collect();
        let some = !ended.is_empty() || !freed.is_empty();
        ended.into_iter().for_each(|switch| self.happened(ControlEvent::SwitchEnded(switch)));
        freed.into_iter().for_each(|block| self.happened(ControlEvent::BlockEnded(block)));
        some
    }
}

impl Engine {
    /// Installs a rule set atomically. Rules that keep their name keep the state of their keys, if
    /// comparable, and their switches. Returns the previous rule set; dropping it may free thousands of
    /// rules.
    pub fn install(&self, rules: RuleSet) -> Replaced {
        let mut control = self.control.lock();
        control.written = rules.domains().to_vec();
        drop(rules);
        let is_first = !std::mem::replace(&mut control.installed, true);
        self.put_in_force(&mut control, is_first)
    }

    /// Sets the off switch, which allows everything; a file controls it.
    pub fn set_off(&self, off: bool) {
        let mut control = self.control.lock();
        if control.off != off {
            control.off = off;
            self.enact(&mut control);
        }
    }

    /// Whether the off switch is set.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.control.lock().off
    }

    /// The overrides of this host.
    #[must_use]
    pub fn orders(&self) -> Orders {
        let control = self.control.lock();
        Orders { switches: control.switches.clone(), blocks: control.blocks.clone() }
    }

    /// Restores overrides from a snapshot, also those of rules that are not installed yet.
    pub fn take_up(&self, orders: Orders) {
        let mut control = self.control.lock();
        control.switches = orders.switches;
        control.switches.truncate(switch::SWITCHES_MAX);
        control.blocks = orders.blocks;
        control.blocks.truncate(by_hand::BLOCKS_MAX);
        self.enact(&mut control);
    }

    /// Takes the events since the last call, at most the last 1 000.
    #[must_use]
    pub fn events(&self) -> Vec<ControlEvent> {
        std::mem::take(&mut self.control.lock().events)
    }

    /// Ends expired switches and blocks, and evaluates the guards of changed rules.
    pub(super) fn tend(&self, now: Now) {
        let mut control = self.control.lock();
        control.retired.retain(Replaced::is_in_use);
        let mut some = control.end_due(now.at);
        let (alarms, ended) = control.guards.look(now.at);
        some |= ended;
        for alarm in alarms {
            if let Some(until) = alarm.shadow_until {
                control.set(Switch {
                    target: Target::Rule(alarm.rule.clone()),
                    mode: Mode::Shadow,
                    until: Some(until),
                    said: now.at,
                    by: SwitchOrigin::Guard,
                });
            }
            control.happened(ControlEvent::Guard(alarm));
        }
        if some {
            self.enact(&mut control);
        }
    }

    /// Whether no override or guard ends by time.
    pub(super) fn is_untended(&self) -> bool {
        self.control.lock().is_at_rest()
    }

    /// Compiles and installs the rules with the current overrides. The replaced rule set is freed by a later
    /// tick, never by a decision. Does nothing before the first installation, which includes the overrides.
    fn enact(&self, control: &mut OperatorControl) {
        if !control.installed {
            return;
        }
        let replaced = self.put_in_force(control, false);
        control.retired.push(replaced);
    }

    fn put_in_force(&self, control: &mut OperatorControl, is_first: bool) -> Replaced {
        let mut slots = self.slots.lock();
        let before = self.ruling.load_full();
        let mode = control.mode(self.options.mode);
        let rules = control.rules();
        control.guards.watch(rules.domains(), &before, mode, is_first);
        let (blocked, everywhere) = (blocked_keys(&control.blocks), blocked_keys(&control.fleet.blocks));
        let said =
            OperatorOverrides { mode, blocked: &blocked, everywhere: &everywhere, guards: &control.guards };
        let mut heritage = self.heritage.lock();
        slots.begin();
        let (inherited, hash_key) = ((&*heritage, &self.fingerprints), &self.options.hash_key);
        self.fleet.join(&rules, hash_key);
        let keys = (hash_key, &self.fleet);
        let ruling = Ruling::new(rules, &before, inherited, keys, &said, &mut slots, &self.pools);
        before.left_behind(&ruling, &self.fingerprints).into_iter().for_each(|rule| heritage.add(rule));
        drop(heritage);
        self.pools.watch(&ruling.watches());
        self.shards.memory().share_out(&ruling.kinds());
        ruling.shown_otherwise(&before).for_each(|slot| self.callers.forget(slot));
        drop(before);
        let ruling = Arc::new(ruling);
        for given in slots.made(&ruling) {
            self.hand_over(&given, control, &mut slots);
        }
        Replaced(self.ruling.swap(ruling))
    }

    /// Prepares a reassigned slot, before any thread counts there: adds the counts of its previous rule, and
    /// the guard alarms of the new rule from when it had no slot, to the slot of all other rules.
    fn hand_over(&self, given: &NewSlot, control: &mut OperatorControl, slots: &mut Slots) {
        let mut gone = RuleTotals { guard: control.guards.take_told(&given.name), ..RuleTotals::default() };
        if let Some(before) = &given.before {
            let threads = self.threads.lock();
            gone.add(&RuleTotals::sum(&before.domain, &before.rule, given.slot, &threads));
            gone.guard += control.guards.take_told(before);
            threads.iter().for_each(|thread| thread.clear(given.slot));
            self.callers.forget(given.slot);
        }
        slots.keep(&gone);
    }
}

const EVENTS_MAX: usize = 1_000;

#[derive(Clone, Copy)]
pub(in crate::engine) struct OperatorOverrides<'c> {
    /// The strictest mode of any rule.
    pub(in crate::engine) mode: Mode,
    /// Keys blocked on this host.
    pub(in crate::engine) blocked: &'c HashMap<RuleName, Arc<BlockedKeys>>,
    /// Keys blocked on all hosts.
    pub(in crate::engine) everywhere: &'c HashMap<RuleName, Arc<BlockedKeys>>,
    /// Rules whose callers are sampled.
    pub(in crate::engine) guards: &'c Guards,
}

impl OperatorOverrides<'_> {
    pub(in crate::engine) fn blocked(&self, domain: &str, rule: &str) -> Option<Arc<BlockedKeys>> {
        of_rule(self.blocked, domain, rule)
    }

    pub(in crate::engine) fn blocked_everywhere(&self, domain: &str, rule: &str) -> Option<Arc<BlockedKeys>> {
        of_rule(self.everywhere, domain, rule)
    }
}

fn of_rule(
    blocked: &HashMap<RuleName, Arc<BlockedKeys>>,
    domain: &str,
    rule: &str,
) -> Option<Arc<BlockedKeys>> {
    if blocked.is_empty() {
        return None;
    }
    blocked.get(&RuleName { domain: domain.into(), rule: rule.into() }).cloned()
}
