//! Operator overrides of the rules: switches, blocked keys, and the off switch. Each change compiles a new
//! rule set, so that decisions look up no overrides. Timed overrides end here; logging and persistence are
//! elsewhere.

mod fleet_overrides;
mod guard;
mod key_blocks;
mod switch;

use std::collections::HashSet;
use std::sync::Arc;

use super::counters::RuleTotals;
use super::rule_set::{Compiler, NAMES_SHOWN};
use super::slots::{NewSlot, Slots};
use super::{Engine, ReplacedRuleSet};
use crate::clock::{Now, Timestamp};
use crate::rules::de::{TYPO, nearest};
use crate::rules::{Domain, Mode, shown};

pub(super) use fleet_overrides::FleetBlockedKeys;
pub use fleet_overrides::{FleetChange, FleetOverrides};
pub use guard::Alarm;
pub(super) use guard::CallerSample;
use guard::Guards;
use key_blocks::blocked_keys;
pub use key_blocks::{BlockedKey, KeyError, NamedKey};
pub(super) use key_blocks::{BlockedKeys, digest_words};
pub use switch::{RuleName, RuleNameError, Switch, SwitchError, SwitchOrigin, SwitchView, Target};

/// The operator overrides, and the rules without them.
#[derive(Debug, Default)]
pub(super) struct OperatorControl {
    /// The strictest mode of any rule without a switch.
    configured_mode: Mode,
    pub(super) configured_domains: Vec<Arc<Domain>>,
    /// Domains without rules because of errors, for messages.
    invalid_domains: Vec<Box<str>>,
    /// Whether any rules were installed; the first installation is not a change.
    installed: bool,
    is_off: bool,
    own: HostOverrides,
    fleet: FleetOverrides,
    pub(super) guards: Guards,
    /// Spontaneous events that were not fetched yet.
    events: Vec<ControlEvent>,
    /// Replaced rule sets that a decision thread may still use.
    retired: Vec<ReplacedRuleSet>,
}

/// A change that no command on this host caused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// A switch expired.
    SwitchEnded(Switch),
    /// A key blocked by an operator was unblocked at its time.
    BlockEnded(BlockedKey),
    /// A rule refuses most callers right after a change.
    Guard(Alarm),
    /// A fleet-wide switch was set.
    FleetSwitched(Switch),
    /// A fleet-wide switch was cleared before its time.
    FleetCleared(Switch),
    /// A key was blocked on all hosts.
    FleetBlocked(BlockedKey),
    /// A key was unblocked on all hosts before its time.
    FleetUnblocked(BlockedKey),
}

/// The overrides of this host, for the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostOverrides {
    /// The switches.
    pub switches: Vec<Switch>,
    /// The keys blocked by operators.
    pub blocks: Vec<BlockedKey>,
}

impl OperatorControl {
    pub(super) fn new(configured_mode: Mode) -> OperatorControl {
        OperatorControl { configured_mode, ..OperatorControl::default() }
    }

    /// The mode of the whole daemon: never stricter than the configured one.
    fn daemon_mode(&self) -> Mode {
        let switched = self.find_latest_switch(|target| *target == Target::Daemon);
        let switched = switched.map_or(Mode::Enforce, |switch| switch.mode);
        let off = if self.is_off { Mode::Disabled } else { Mode::Enforce };
        self.configured_mode.max(switched).max(off)
    }

    /// The effective mode of a named item: that of its latest switch, else the written one, and never stricter
    /// than `daemon`, the mode of the whole daemon.
    pub(super) fn effective_mode(&self, domain: &str, name: &str, written: Mode, daemon: Mode) -> Mode {
        let switch = self.find_latest_switch(|target| target.matches_rule(domain, name));
        switch.map_or(written, |switch| switch.mode).max(daemon)
    }

    fn record_event(&mut self, event: ControlEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(event);
    }

    /// Whether no override or guard ends by time.
    pub(super) fn is_at_rest(&self) -> bool {
        let mut switches = self.own.switches.iter().chain(&self.fleet.switches);
        switches.all(|switch| switch.until.is_none())
            && self.own.blocks.is_empty()
            && self.fleet.blocks.is_empty()
            && self.guards.is_empty()
    }

    /// Ends expired switches and blocks. Returns whether any expired.
    fn end_expired(&mut self, at: Timestamp) -> bool {
        let has_ended = |until: Option<Timestamp>| until.is_some_and(|until| until <= at);
        let own = self.own.switches.extract_if(.., |switch| has_ended(switch.until));
        let everywhere = self.fleet.switches.extract_if(.., |switch| has_ended(switch.until));
        let ended: Vec<Switch> = own.chain(everywhere).collect();
        let own = self.own.blocks.extract_if(.., |block| has_ended(Some(block.until)));
        let everywhere = self.fleet.blocks.extract_if(.., |block| has_ended(Some(block.until)));
        let freed: Vec<BlockedKey> = own.chain(everywhere).collect();
        let some = !ended.is_empty() || !freed.is_empty();
        ended.into_iter().for_each(|switch| self.record_event(ControlEvent::SwitchEnded(switch)));
        freed.into_iter().for_each(|block| self.record_event(ControlEvent::BlockEnded(block)));
        some
    }
}

impl Engine {
    /// Sets the domains that have no rules because of errors, for [`Engine::describe_missing`].
    pub fn set_invalid_domains(&self, names: &[Box<str>]) {
        self.control.lock().invalid_domains = names.to_vec();
    }

    /// Says why there are no rules of a domain.
    pub fn describe_missing(&self, name: &str) -> String {
        if self.control.lock().invalid_domains.iter().any(|invalid| **invalid == *name) {
            let name = shown(name);
            return format!(
                "the rules of {name} have errors, so that it has NO LIMITS: `tidegate check` shows them"
            );
        }
        let in_force = self.in_force();
        let known: Vec<&str> = in_force.domains().map(|domain| domain.name()).collect();
        let near = nearest(name, known.iter().copied(), TYPO);
        let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        match known.len() {
            0 => format!("no domain {}, and there is no other", shown(name)),
            1 => format!("no domain {}; there is only {}", shown(name), known.join(", ")),
            2..=NAMES_SHOWN => format!("no domain {}; there are {}{near}", shown(name), known.join(", ")),
            more => format!("no domain {} among {more}{near}", shown(name)),
        }
    }

    /// Installs domains atomically; of two with the same name, which the reader excludes, the first. Rules that
    /// keep their name keep the state of their keys, if comparable, and their switches. Returns the previous
    /// rule set; dropping it may free thousands of rules. For the first rules, and where no bucket outlives a change.
    pub fn install_rules<D: Into<Arc<Domain>>>(
        &self,
        domains: impl IntoIterator<Item = D>,
    ) -> ReplacedRuleSet {
        self.install_rules_at(domains, Timestamp::ORIGIN)
    }

    /// Like [`Engine::install_rules`], with the time: buckets fill under a changed quota from then on.
    pub fn install_rules_at<D: Into<Arc<Domain>>>(
        &self,
        domains: impl IntoIterator<Item = D>,
        at: Timestamp,
    ) -> ReplacedRuleSet {
        let mut domains: Vec<Arc<Domain>> = domains.into_iter().map(Into::into).collect();
        let mut names = HashSet::new();
        domains.retain(|domain| names.insert(Box::<str>::from(domain.name())));
        let mut control = self.control.lock();
        control.configured_domains = domains;
        let is_first = !std::mem::replace(&mut control.installed, true);
        self.compile_and_install(&mut control, is_first, at)
    }

    /// Sets the off switch, which allows everything; a file controls it.
    pub fn set_off(&self, off: bool) {
        let mut control = self.control.lock();
        if control.is_off != off {
            control.is_off = off;
            self.recompile_rules(&mut control);
        }
    }

    /// Whether the off switch is set.
    pub fn is_off(&self) -> bool {
        self.control.lock().is_off
    }

    /// The overrides of this host.
    pub fn operator_overrides(&self) -> HostOverrides {
        self.control.lock().own.clone()
    }

    /// Restores overrides from a snapshot, also those of rules that are not installed yet.
    pub fn restore_operator_overrides(&self, overrides: HostOverrides) {
        let mut control = self.control.lock();
        control.own = overrides;
        control.own.switches.truncate(switch::SWITCHES_MAX);
        control.own.blocks.truncate(key_blocks::BLOCKS_MAX);
        self.recompile_rules(&mut control);
    }

    /// Takes the events since the last call, at most the last 1 000.
    #[must_use]
    pub fn take_control_events(&self) -> Vec<ControlEvent> {
        std::mem::take(&mut self.control.lock().events)
    }

    /// Ends expired switches and blocks, and evaluates the guards of changed rules.
    pub(super) fn end_expired_overrides(&self, now: Now) {
        let mut control = self.control.lock();
        control.retired.retain(ReplacedRuleSet::is_in_use);
        let mut some = control.end_expired(now.at);
        let (alarms, ended) = control.guards.evaluate_rules(now.at);
        some |= ended;
        for alarm in alarms {
            if let Some(until) = alarm.shadow_until {
                control.set_switch(Switch {
                    target: Target::Rule(alarm.rule.clone()),
                    mode: Mode::Shadow,
                    until: Some(until),
                    set_at: now.at,
                    by: SwitchOrigin::Guard,
                });
            }
            control.record_event(ControlEvent::Guard(alarm));
        }
        if some {
            self.recompile_rules(&mut control);
        }
    }

    /// Compiles and installs the rules with the current overrides. The replaced rule set is freed by a later
    /// tick, never by a decision. Does nothing before the first installation, which includes the overrides.
    fn recompile_rules(&self, control: &mut OperatorControl) {
        if !control.installed {
            return;
        }
        // No quota changes.
        let replaced = self.compile_and_install(control, false, Timestamp::ORIGIN);
        control.retired.push(replaced);
    }

    fn compile_and_install(
        &self,
        control: &mut OperatorControl,
        is_first: bool,
        at: Timestamp,
    ) -> ReplacedRuleSet {
        let mut slots = self.slots.lock();
        let before = self.rule_set.load_full();
        let mode = control.daemon_mode();
        control.watch_changed_rules(&before, mode, is_first);
        self.fleet.register_limits(&control.configured_domains, &self.options.hash_key);
        let mut previous_quotas = self.previous_quotas.lock();
        slots.begin_rule_set();
        let compiler = Compiler {
            engine: self,
            control,
            mode,
            blocks: [blocked_keys(&control.own.blocks), blocked_keys(&control.fleet.blocks)],
            before: &before,
            previous_quotas: &previous_quotas,
            slots: &mut slots,
            at,
        };
        let rule_set = compiler.compile();
        previous_quotas.add_removed(&before, &rule_set, &self.fingerprints);
        drop(previous_quotas);
        self.pools.configure(|pool| rule_set.gates().find(|gate| Arc::ptr_eq(&gate.pool, pool)));
        self.shards.memory().share_out(&rule_set.memory_kinds());
        rule_set.slots_with_changed_keys(&before).for_each(|slot| self.callers.forget(slot));
        drop(before);
        let rule_set = Arc::new(rule_set);
        for given in slots.finish_rule_set(&rule_set) {
            self.reassign_slot(&given, control, &mut slots);
        }
        ReplacedRuleSet(self.rule_set.swap(rule_set))
    }

    /// Prepares a reassigned slot, before any thread counts there: adds the counts of its previous rule, and
    /// the guard alarms of the new rule from when it had no slot, to the slot of all other rules.
    fn reassign_slot(&self, given: &NewSlot, control: &mut OperatorControl, slots: &mut Slots) {
        let mut removed =
            RuleTotals { guard: control.guards.take_alarm_count(&given.name), ..RuleTotals::default() };
        if let Some(before) = &given.before {
            let threads = self.threads.lock();
            removed.add(&RuleTotals::sum(&before.domain, &before.rule, given.slot, &threads));
            removed.guard += control.guards.take_alarm_count(before);
            threads.iter().for_each(|thread| thread.clear(given.slot));
            self.callers.forget(given.slot);
        }
        slots.removed.add(&removed);
    }
}

const EVENTS_MAX: usize = 1_000;
