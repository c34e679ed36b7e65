//! The compiled rule set in force: key hashes, tags and salts of states, counter slots and modes; and its view for
//! readers outside of the engine.

mod comparable;

use std::collections::HashMap;
use std::sync::Arc;

pub(super) use comparable::{QuotaAge, is_shared, permit_salt, share_tag_and_salt};
use comparable::{describe_key, quota_ages, state_tag_and_salt};

use super::Engine;
use super::control::{BlockedKeys, CallerSample, FleetBlockedKeys, OperatorControl, RuleName, digest_words};
use super::decision::Unmatched;
use super::digest::{Digest, HashKey, KeyHash, Salt};
use super::footprint::memory_kinds;
use super::gate::{Gate, PoolShedding};
use super::memory::MemoryKind;
use super::request::{Request, UNIT_REQUESTS};
use super::slots::{Slot, Slots, find_or_assign};
use super::snapshot::{FIRST_RULE_SET, PreviousQuotas, fingerprint, fingerprint_names};
use super::tag::Tag;
use crate::clock::{Micros, Timestamp};
use crate::limit::Quota;
use crate::rules::de::{TYPO, nearest};
use crate::rules::shed::{Shed, ShedPart};
use crate::rules::{
    Domain, ListKind, Mode, NamedItem, OverTreatment, RefusedCost, Rule, RuleNames, Selection, shown,
};

#[derive(Debug)]
pub(super) struct CompiledRuleSet {
    pub(super) names: RuleNames,
    /// By their numbers in `names`.
    pub(super) domains: Vec<CompiledDomain>,
    /// Used for every domain without rules.
    unlimited: CompiledDomain,
    /// The strictest mode of any rule.
    pub(super) mode: Mode,
    /// The number of rule sets in force before it.
    pub(super) number: u64,
    /// Rules with refunds by identity: the indexes of domain and rule.
    refunding: HashMap<u64, (usize, usize)>,
    /// The shortest window of all quotas.
    pub(super) window_min: Micros,
}

/// A domain, and its compiled rules and lists by index.
#[derive(Debug)]
pub(super) struct CompiledDomain {
    pub(super) domain: Arc<Domain>,
    pub(super) rules: Vec<CompiledRule>,
    /// The slot of each list entry, and its effective mode. An exemption in shadow exempts.
    pub(super) lists: Vec<(Slot, Mode)>,
    /// The numbers of disabled rules and list entries, in ascending order.
    pub(super) disabled: Vec<u32>,
    /// The units that its rules count in; [`CompiledRule::unit`] is an index here.
    pub(super) units: Vec<Box<str>>,
    /// The slot of decisions that name no rule.
    pub(super) unnamed: Slot,
    /// By rank, the most important first.
    pub(super) priorities: Vec<Slot>,
    /// Whether any rule is guarded after a change.
    pub(super) is_guarded: bool,
    /// One for each pool that its rules configure.
    pub(super) gates: Vec<Gate>,
    /// Why a request without a matching rule is not limited; `None`: checks are disabled.
    pub(super) unmatched: Option<Unmatched>,
}

#[derive(Debug)]
pub(super) struct CompiledRule {
    pub(super) key_hash: KeyHash,
    /// Its identity, stable over reloads.
    pub(super) identity: u64,
    pub(super) slot: Slot,
    /// The slot of replies that it alone decides: the domain's slot for a shadow rule, which no reply names.
    pub(super) reply_slot: Slot,
    pub(super) mode: Mode,
    /// Keys that operators blocked on this host, with the end of each block.
    blocked: Option<Arc<BlockedKeys>>,
    /// The fleet-wide hash of its keys, and the keys blocked on all hosts.
    pub(super) fleet_blocks: Option<FleetBlockedKeys>,
    /// Records its callers, for some minutes after a change.
    pub(super) caller_sample: Option<Arc<CallerSample>>,
    /// Set for a rule with one quota and no options in a [simple domain](is_simple): one look-up decides, unless a list
    /// entry matches too.
    pub(super) simple: Option<SimpleRule>,
    pub(super) is_concurrency: bool,
    /// The index of its unit; 0: requests.
    pub(super) unit: usize,
    /// The tag and the salt, by allowance, that separate its states from incomparable ones.
    pub(super) states: Vec<(Tag, Salt)>,
    /// Counts changes of the quotas, modulo 256: buckets of another generation are converted.
    pub(super) generation: u8,
    /// The ages of the quotas, by allowance; empty: of the last change.
    ages: Vec<QuotaAge>,
    /// When its quotas last changed.
    changed_at: Timestamp,
}

/// Compiles the configured rules with the operator overrides.
pub(super) struct Compiler<'e> {
    pub(super) engine: &'e Engine,
    pub(super) control: &'e OperatorControl,
    pub(super) mode: Mode,
    /// Keys blocked on this host, and on all hosts.
    pub(super) blocks: [HashMap<RuleName, Arc<BlockedKeys>>; 2],
    pub(super) before: &'e CompiledRuleSet,
    pub(super) previous_quotas: &'e PreviousQuotas,
    pub(super) slots: &'e mut Slots,
    /// When the rules take force.
    pub(super) at: Timestamp,
}

#[derive(Clone, Debug)]
pub(super) struct SimpleRule {
    pub(super) quota: Quota,
    pub(super) tag: Tag,
    pub(super) salt: Salt,
}

impl CompiledRuleSet {
    pub(super) fn empty(mode: Mode) -> CompiledRuleSet {
        let unlimited = CompiledDomain {
            domain: Arc::new(Domain::new("", Vec::new())),
            rules: Vec::new(),
            lists: Vec::new(),
            disabled: Vec::new(),
            units: vec![UNIT_REQUESTS.into()],
            unnamed: Slot::UNATTRIBUTED,
            priorities: Vec::new(),
            is_guarded: false,
            gates: Vec::new(),
            unmatched: (mode != Mode::Disabled).then_some(Unmatched::Domain),
        };
        CompiledRuleSet {
            names: RuleNames::default(),
            domains: Vec::new(),
            unlimited,
            mode,
            number: 0,
            refunding: HashMap::new(),
            window_min: Micros::default(),
        }
    }

    #[inline]
    pub(super) fn find_domain(&self, domain: &str) -> Option<&CompiledDomain> {
        let found = self.names.find(domain)?;
        #[allow(
            clippy::indexing_slicing,
            reason = "each name has its domain; without it nothing would be judged"
        )]
        Some(&self.domains[found])
    }

    /// Returns a domain, or one without rules where its requests are not limited.
    #[inline]
    pub(super) fn find_or_unlimited(&self, domain: &str) -> &CompiledDomain {
        let found = if self.mode == Mode::Disabled { None } else { self.find_domain(domain) };
        found.unwrap_or(&self.unlimited)
    }

    /// Returns whether to refuse a request of uncountable cost, unless only shadow rules count it.
    pub(super) fn refuses_uncounted(&self, request: &Request<'_>) -> bool {
        request.oversized && self.mode == Mode::Enforce
    }

    pub(super) fn gates(&self) -> impl Iterator<Item = &Gate> {
        self.domains.iter().flat_map(|compiled| &compiled.gates)
    }

    /// Returns a rule with refunds by its identity.
    pub(super) fn find_rule(&self, identity: u64) -> Option<(&Rule, &CompiledRule)> {
        let (domain, rule) = *self.refunding.get(&identity)?;
        let compiled = self.domains.get(domain)?;
        Some((compiled.domain.rules().get(rule)?, compiled.rules.get(rule)?))
    }

    pub(super) fn rules_by_name(&self, domain: &str) -> HashMap<&str, (&Rule, &CompiledRule)> {
        let rules = self.find_domain(domain).into_iter().flat_map(CompiledDomain::each_rule);
        rules.map(|(rule, compiled_rule)| (&*rule.name, (rule, compiled_rule))).collect()
    }

    pub(super) fn each_rule(&self) -> impl Iterator<Item = (&Rule, &CompiledRule)> {
        self.domains.iter().flat_map(CompiledDomain::each_rule)
    }

    fn quotas(&self) -> impl Iterator<Item = &Quota> {
        let limits = self.each_rule().map(|(rule, _)| &rule.limit);
        limits.flat_map(|limit| limit.allowances.iter().flatten()).map(|allowance| &allowance.quota)
    }

    /// Returns the slots of rules whose `show_keys` has changed.
    pub(super) fn slots_with_changed_keys<'r>(
        &'r self,
        before: &'r CompiledRuleSet,
    ) -> impl Iterator<Item = Slot> + 'r {
        self.domains.iter().flat_map(|compiled| {
            let known = before.rules_by_name(compiled.domain.name());
            compiled.each_rule().filter_map(move |(rule, compiled_rule)| {
                let old = known.get(&*rule.name).map(|(old, _)| &old.show_keys);
                old.is_some_and(|old| *old != rule.show_keys).then_some(compiled_rule.slot)
            })
        })
    }

    pub(super) fn memory_kinds(&self) -> Vec<MemoryKind> {
        self.each_rule().flat_map(|(rule, _)| memory_kinds(rule)).collect()
    }
}

impl CompiledDomain {
    /// Finds the rules and list entries that match and are not disabled.
    #[inline(always)]
    pub(super) fn select<'a>(
        &self,
        attributes: &[(&'a str, &'a str)],
        selection: &mut Selection<'a>,
        matching: &mut Vec<u32>,
    ) {
        self.domain.select(attributes, selection, matching);
        if !self.disabled.is_empty() {
            matching.retain(|number| self.disabled.binary_search(number).is_err());
        }
    }

    pub(super) fn each_rule(&self) -> impl Iterator<Item = (&Rule, &CompiledRule)> {
        self.domain.rules().iter().zip(&self.rules)
    }

    /// The effective modes, in the order of [`Domain::named`].
    pub(super) fn modes(&self) -> impl Iterator<Item = Mode> {
        let rules = self.rules.iter().map(|rule| rule.mode);
        let lists = self.lists.iter().map(|(_, mode)| *mode);
        rules.chain(lists).chain(self.gates.iter().flat_map(|gate| gate.shedding.modes.into_iter().flatten()))
    }
}

impl CompiledRule {
    /// Whether its refusals are enforced; otherwise they are only noted.
    #[inline]
    pub(super) fn enforced(&self) -> bool {
        self.mode == Mode::Enforce
    }

    /// Returns the end of an operator's block of a key; the origin of time if there is none.
    pub(super) fn blocked_until(&self, key: &Digest) -> Timestamp {
        let until = self.blocked.as_ref().and_then(|blocked| blocked.get(&digest_words(key)));
        until.copied().unwrap_or(Timestamp::ORIGIN)
    }

    /// Returns the end of a fleet-wide block of a key; the origin of time if there is none.
    #[inline]
    pub(super) fn fleet_blocked_until<'v, V: ExactSizeIterator<Item = &'v str>>(
        &self,
        values: impl Fn() -> V,
    ) -> Timestamp {
        let Some(FleetBlockedKeys { hash, blocked: Some(blocked) }) = &self.fleet_blocks else {
            return Timestamp::ORIGIN;
        };
        blocked.get(&digest_words(&hash.digest(values()))).copied().unwrap_or(Timestamp::ORIGIN)
    }

    /// The age of the quota of an allowance; `None`: of a quota beside it, which is as old as the last change.
    pub(super) fn quota_age(&self, allowance: Option<u32>) -> QuotaAge {
        let known = allowance.and_then(|allowance| self.ages.get(allowance as usize));
        known.copied().unwrap_or(QuotaAge { generations: 0, since: self.changed_at })
    }

    #[inline]
    pub(super) fn tag_and_salt(&self, allowance: u32) -> (Tag, Salt) {
        self.states.get(allowance as usize).copied().unwrap_or((Tag::NONE, Salt::NONE))
    }
}

impl Compiler<'_> {
    pub(super) fn compile(mut self) -> CompiledRuleSet {
        let mut rule_set =
            CompiledRuleSet { number: self.before.number + 1, ..CompiledRuleSet::empty(self.mode) };
        for domain in &self.control.configured_domains {
            rule_set.names.intern(domain.name());
            rule_set.domains.push(self.domain(domain));
        }
        let windows = rule_set.quotas().map(Quota::window).filter(|window| *window > Micros::ZERO);
        rule_set.window_min = windows.min().unwrap_or_default();
        rule_set.refunding = refund_rules(&rule_set.domains);
        if rule_set.number == FIRST_RULE_SET
            && self
                .previous_quotas
                .names
                .is_some_and(|names| names != fingerprint_names(&rule_set, &self.engine.fingerprints))
        {
            // The restored grants belong to other rules.
            rule_set.number += 1;
        }
        rule_set
    }

    fn domain(&mut self, domain: &Arc<Domain>) -> CompiledDomain {
        let known = self.before.rules_by_name(domain.name());
        let mut units = vec![UNIT_REQUESTS.into()];
        let rules = domain.rules().iter().map(|rule| {
            let unit = rule.unit.as_deref().and_then(|unit| find_or_assign(&mut units, unit, usize::MAX));
            let compiled = self.rule(domain, rule, known.get(&*rule.name).copied());
            CompiledRule { unit: unit.unwrap_or_default(), ..compiled }
        });
        let rules: Vec<CompiledRule> = rules.collect();
        let lists = domain.lists().iter().map(|entry| {
            let mode = match self.mode_of(domain, &entry.name, entry.mode) {
                Mode::Shadow if entry.kind == ListKind::Exempt => Mode::Enforce,
                mode => mode,
            };
            (self.slots.rule_slot(domain.name(), &entry.name), mode)
        });
        let lists: Vec<(Slot, Mode)> = lists.collect();
        let modes = rules.iter().map(|rule| rule.mode).chain(lists.iter().map(|(_, mode)| *mode));
        let disabled = (0..).zip(modes).filter(|(_, mode)| *mode == Mode::Disabled);
        CompiledDomain {
            domain: Arc::clone(domain),
            disabled: disabled.map(|(number, _)| number).collect(),
            lists,
            units,
            unnamed: self.slots.domain_slot(domain.name()),
            priorities: domain.priorities().iter().map(|name| self.slots.priority_slot(name)).collect(),
            is_guarded: rules.iter().any(|rule| rule.caller_sample.is_some()),
            rules,
            gates: domain
                .sheds()
                .iter()
                .enumerate()
                .map(|(entry, shed)| self.gate(domain, entry, shed))
                .collect(),
            unmatched: Some(Unmatched::Rule),
        }
    }

    /// `before`: the rule of this name in the former rule set.
    fn rule(&mut self, domain: &Domain, rule: &Rule, before: Option<(&Rule, &CompiledRule)>) -> CompiledRule {
        let Engine { options, fleet, fingerprints, .. } = self.engine;
        let hash_key = &options.hash_key;
        let of_rule = |key: &HashKey| key.for_rule(domain.name(), &rule.name, &describe_key(rule));
        let key_hash = of_rule(fleet.hash_key(is_shared(rule), hash_key));
        let name = RuleName { domain: domain.name().into(), rule: rule.name.clone() };
        let [blocked, everywhere] = self.blocks.each_ref().map(|blocks| blocks.get(&name).cloned());
        let fleet_blocks = fleet
            .is_joined()
            .then(|| FleetBlockedKeys { hash: of_rule(fleet.hash_key(true, hash_key)), blocked: everywhere });
        let is_blocked = blocked.is_some() || fleet_blocks.as_ref().is_some_and(|it| it.blocked.is_some());
        let guarding = self.control.guards.find_sample(domain.name(), &rule.name).cloned();
        let slot = self.slots.rule_slot(domain.name(), &rule.name);
        let mode = self.mode_of(domain, &rule.name, rule.mode);
        // Under this host's key: the identity must not change with the fleet secret.
        let identity = of_rule(hash_key).digest_bytes(b"identity").high();
        // A rule that counts another unit or key shares no state with the former one.
        let before = before.filter(|(_, compiled_rule)| compiled_rule.identity == identity);
        let (mut ages, mut changed_at) = (Vec::new(), self.at);
        let inherited = before.map(|(old, compiled_rule)| {
            let is_same = old.overrides == rule.overrides && old.limit == rule.limit;
            if is_same {
                (ages, changed_at) = (compiled_rule.ages.clone(), compiled_rule.changed_at);
            } else {
                ages = quota_ages(rule, (old, compiled_rule), self.at);
            }
            (is_same, compiled_rule.generation)
        });
        let print = || fingerprint(fingerprints, &rule.limit, rule.overrides.as_deref());
        let inherited = inherited.or_else(|| self.previous_quotas.find(identity, print));
        let generation = inherited.map_or(0, |(is_same, former)| former.wrapping_add(u8::from(!is_same)));
        let states = rule.limit.allowances.iter().map(|allowance| {
            let quota = allowance.as_ref().map(|allowance| &allowance.quota);
            quota.map_or((Tag::NONE, Salt::NONE), |quota| state_tag_and_salt(quota, generation, hash_key))
        });
        let states: Vec<(Tag, Salt)> = states.collect();
        // The fast path knows neither guards nor operators' blocks.
        let is_simple = is_simple(domain) && !is_blocked && guarding.is_none();
        CompiledRule {
            key_hash,
            identity,
            slot,
            reply_slot: if mode == Mode::Enforce { slot } else { self.slots.domain_slot(domain.name()) },
            mode,
            simple: simple_rule(rule, &states).filter(|_| is_simple),
            blocked,
            fleet_blocks,
            caller_sample: guarding,
            is_concurrency: rule.expires.is_some(),
            unit: 0,
            states,
            generation,
            ages,
            changed_at,
        }
    }

    fn gate(&mut self, domain: &Domain, entry: usize, shed: &Shed) -> Gate {
        let mode_of = |name: &str, written| self.mode_of(domain, name, written);
        Gate {
            pool: self.engine.pools.find_or_create(&shed.pool),
            shedding: Arc::new(PoolShedding::new(domain, shed, mode_of)),
            first: domain.shedder(entry, ShedPart::Fleet),
            slots: ShedPart::ALL.map(|part| self.slots.rule_slot(domain.name(), &shed.rule_name(part))),
        }
    }

    fn mode_of(&self, domain: &Domain, name: &str, written: Mode) -> Mode {
        self.control.effective_mode(domain.name(), name, written, self.mode)
    }
}

fn simple_rule(rule: &Rule, states: &[(Tag, Salt)]) -> Option<SimpleRule> {
    let ([Some(allowance)], [(tag, salt)]) = (rule.limit.allowances.as_slice(), states) else { return None };
    let is_plain = allowance.over == OverTreatment::Refuse
        && rule.limit.refused == RefusedCost::Free
        && rule.limit.block.is_none()
        && rule.overrides.is_none()
        && rule.expires.is_none()
        && rule.refund_on.is_none()
        && rule.unit.is_none()
        && rule.warn_at.is_none()
        && rule.key.iter().all(crate::rules::KeyPart::is_plain);
    is_plain.then(|| SimpleRule { quota: allowance.quota.clone(), tag: *tag, salt: *salt })
}

/// Returns the indexes of domain and rule of the rules with refunds, by identity.
fn refund_rules(domains: &[CompiledDomain]) -> HashMap<u64, (usize, usize)> {
    let rules = domains.iter().enumerate().flat_map(|(domain, compiled)| {
        compiled
            .each_rule()
            .enumerate()
            .map(move |(number, (rule, compiled_rule))| (rule, compiled_rule, (domain, number)))
    });
    let refunding = rules.filter(|(rule, ..)| rule.refund_on.is_some());
    refunding.map(|(_, compiled_rule, indices)| (compiled_rule.identity, indices)).collect()
}

/// Returns whether attributes select all rules of the domain, and only they and its lists decide.
fn is_simple(domain: &Domain) -> bool {
    domain.sheds().is_empty() && domain.priorities().is_empty() && domain.tree().is_empty()
}

/// The rules in force at one moment; they are not freed while this exists.
#[derive(Clone, Debug)]
pub struct InForce(Arc<CompiledRuleSet>);

impl Engine {
    pub fn in_force(&self) -> InForce {
        InForce(self.rule_set.load_full())
    }
}

impl InForce {
    pub fn domains(&self) -> impl ExactSizeIterator<Item = &Arc<Domain>> {
        self.0.domains.iter().map(|compiled| &compiled.domain)
    }

    /// Describes a request that no rule of the domain matches, by the names of its attributes.
    pub fn describe_unmatched(&self, domain: &str, attributes: &[(&str, &str)]) -> String {
        let first =
            |names: &[&str]| names.iter().take(NAMES_SHOWN).map(|name| shown(name)).collect::<Vec<_>>();
        let listed = |names: &[&str]| first(names).join(", ");
        let (empty, given): (Vec<_>, Vec<_>) = attributes.iter().partition(|(_, value)| value.is_empty());
        let [empty, given] = [empty, given].map(|of| of.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        let with = if given.is_empty() { "without attributes" } else { &format!("with {}", listed(&given)) };
        let empty = if empty.is_empty() { "" } else { &format!(" (empty: {})", listed(&empty)) };
        let text = format!("no rule of {} matches a request {with}{empty}", shown(domain));
        let of = self.0.find_or_unlimited(domain);
        let mut rules = of.domain.rules().iter().zip(0..).zip(of.modes());
        let matching =
            rules.find(|((_, number), mode)| of.domain.why_not(*number, *mode, attributes).is_none());
        if let Some(((rule, _), _)) = matching {
            let unit = rule.unit.as_deref().unwrap_or(UNIT_REQUESTS);
            let why = match rule.limit.quota() {
                Some(Quota::Concurrency(_)) => "of work in progress: use ACQUIRE in place of HIT",
                _ => &format!("which counts {}, and the cost has none", shown(unit)),
            };
            return format!("{text} but {}, {why}", rule.name);
        }
        let (unused, used) = (of.domain.unused(attributes), of.domain.attribute_names());
        let near = unused.iter().find_map(|name| nearest(name, used.iter().copied(), TYPO));
        match (unused.as_slice(), near) {
            (unused, Some(near)) => format!("{text}, and none uses {}; did you mean {near}?", listed(unused)),
            _ => format!("{text}; `tidegate why {domain} KEY=VALUE` says why"),
        }
    }

    /// All items with their effective modes: by domain, the limits in file order, then lists, then shedder
    /// parts.
    pub fn each(&self) -> impl Iterator<Item = NamedItem<'_>> {
        self.0.domains.iter().flat_map(|compiled| {
            compiled.domain.named().zip(compiled.modes()).map(|(named, mode)| NamedItem { mode, ..named })
        })
    }
}

/// More names than fit a line are counted.
pub(super) const NAMES_SHOWN: usize = 12;
