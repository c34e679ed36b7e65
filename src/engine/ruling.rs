//! The compiled rule set in force: key hashes, tags and salts of states, counter slots and modes.

mod comparable;
mod kept;

use std::collections::HashMap;
use std::sync::Arc;

use comparable::{describe_key, is_shared, memory_kind, state_tag_and_salt};
pub(super) use comparable::{permit_salt, share_tag_and_salt};

use super::control::{BlockedKeys, CallerSample, FleetBlockedKeys, OperatorOverrides};
use super::decision::Unmatched;
use super::digest::{Digest, HashKey, KeyHash, Salt};
use super::fleet::FleetMembership;
use super::gate::{Gate, PoolShedding};
use super::kept::{FIRST_RULING, Heritage, Inherited, fingerprint};
use super::memory::MemoryKind;
use super::pool::{Pool, PoolTable};
use super::request::Request;
use super::slots::{PrioritySlot, Slot, Slots};
use super::tag::Tag;
use crate::clock::{Micros, Timestamp};
use crate::limit::Quota;
use crate::rules::shed::{Shed, ShedPart};
use crate::rules::{Domain, Limit, ListKind, Mode, OverTreatment, RefusedCost, Rule, RuleSet, Selection};

#[derive(Debug)]
pub(super) struct CompiledRuleSet {
    pub(super) rules: RuleSet,
    /// One for each domain of `rules`, in the same order.
    domains: Vec<CompiledDomain>,
    /// Used for every domain without rules.
    unlimited: (Domain, CompiledDomain),
    /// The strictest mode of any rule.
    pub(super) mode: Mode,
    /// Whether all checks are disabled.
    pub(super) disabled: bool,
    /// The number of rule sets in force before it.
    pub(super) number: u64,
    /// Rules with refunds by identity: the indexes of domain and rule.
    refunding: HashMap<u64, (usize, usize)>,
    /// The shortest window of all quotas.
    pub(super) window_min: Micros,
}

/// The compiled rules and lists of a domain, by index.
#[derive(Debug)]
pub(super) struct CompiledDomain {
    pub(super) rules: Vec<CompiledRule>,
    /// The slot of each list entry, and its effective mode. An exemption in shadow exempts.
    pub(super) lists: Vec<(Slot, Mode)>,
    /// The numbers of disabled rules and list entries, in ascending order.
    disabled: Vec<u32>,
    /// The slot of decisions that name no rule.
    pub(super) unnamed: Slot,
    /// By rank, the most important first.
    pub(super) priorities: Vec<PrioritySlot>,
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
    /// Its effective mode.
    pub(super) mode: Mode,
    /// Keys that operators blocked on this host, with the end of each block.
    blocked: Option<Arc<BlockedKeys>>,
    /// The fleet-wide hash of its keys, and the keys blocked on all hosts.
    pub(super) fleet_blocks: Option<FleetBlockedKeys>,
    /// Records its callers, for some minutes after a change.
    pub(super) caller_sample: Option<Arc<CallerSample>>,
    /// Set for a rule with one quota and no options in a domain of rules only: one look-up decides.
    pub(super) simple: Option<SimpleRule>,
    pub(super) is_concurrency: bool,
    pub(super) states: StateTags,
}

/// A rule with one quota and no options.
#[derive(Clone, Debug)]
pub(super) struct SimpleRule {
    pub(super) quota: Quota,
    pub(super) tag: Tag,
    pub(super) salt: Salt,
}

/// The tags and salts that separate states of a limit from incomparable ones.
#[derive(Debug)]
pub(super) struct StateTags {
    by_allowance: Vec<(Tag, Salt)>,
    /// Counts changes of the quotas, modulo 256: buckets of another generation are converted.
    generation: u8,
}

impl CompiledRuleSet {
    pub(super) fn empty(mode: Mode) -> CompiledRuleSet {
        CompiledRuleSet {
            rules: RuleSet::default(),
            domains: Vec::new(),
            unlimited: unlimited(mode),
            mode,
            disabled: mode == Mode::Disabled,
            number: 0,
            refunding: HashMap::new(),
            window_min: Micros::default(),
        }
    }

    pub(super) fn new(
        rules: RuleSet,
        before: &CompiledRuleSet,
        inherited: (&Heritage, &KeyHash),
        (hash_key, fleet): (&HashKey, &FleetMembership),
        said: &OperatorOverrides<'_>,
        slots: &mut Slots,
        pools: &PoolTable,
    ) -> CompiledRuleSet {
        let mode = said.mode;
        let domains = rules.domains().iter().map(|domain| {
            let known = before.rules_by_name(domain.name());
            let terms = domain.rules().iter().map(|rule| {
                let before = known.get(&*rule.name).copied();
                CompiledRule::new(domain, rule, before, inherited, (hash_key, fleet), said, slots)
            });
            let terms: Vec<CompiledRule> = terms.collect();
            let lists = domain.lists().iter().map(|entry| {
                let mode = match said.mode_of(domain, &entry.name, entry.mode) {
                    Mode::Shadow if entry.kind == ListKind::Exempt => Mode::Enforce,
                    mode => mode,
                };
                (slots.rule_slot(domain.name(), &entry.name), mode)
            });
            let lists: Vec<(Slot, Mode)> = lists.collect();
            let modes = terms.iter().map(|terms| terms.mode).chain(lists.iter().map(|(_, mode)| *mode));
            let disabled = (0..).zip(modes).filter(|(_, mode)| *mode == Mode::Disabled);
            CompiledDomain {
                disabled: disabled.map(|(number, _)| number).collect(),
                lists,
                unnamed: slots.domain_slot(domain.name()),
                priorities: domain.priorities().iter().map(|name| slots.priority_slot(name)).collect(),
                is_guarded: terms.iter().any(|terms| terms.caller_sample.is_some()),
                rules: terms,
                gates: gates(domain, said, slots, pools),
                unmatched: Some(Unmatched::Rule),
            }
        });
        let domains: Vec<CompiledDomain> = domains.collect();
        let window_min = quotas(&rules)
            .map(Quota::window)
            .filter(|window| *window > Micros::ZERO)
            .min()
            .unwrap_or_default();
        let refunding = refund_rules(&rules, &domains);
        let mut ruling = CompiledRuleSet {
            refunding,
            window_min,
            domains,
            unlimited: unlimited(mode),
            rules,
            mode,
            disabled: mode == Mode::Disabled,
            number: before.number + 1,
        };
        let (heritage, fingerprints) = inherited;
        if ruling.number == FIRST_RULING
            && heritage.names.is_some_and(|names| names != ruling.fingerprint(fingerprints))
        {
            // The restored grants belong to other rules.
            ruling.number += 1;
        }
        ruling
    }

    #[inline]
    pub(super) fn find_domain(&self, domain: &str) -> Option<(&Domain, &CompiledDomain)> {
        let found = self.rules.find(domain)?;
        #[allow(
            clippy::indexing_slicing,
            reason = "each domain has its terms; without them nothing would be judged"
        )]
        Some((&*self.rules.domains()[found], &self.domains[found]))
    }

    /// Returns a domain and its compiled rules, or a domain without rules where its requests are not limited.
    #[inline]
    pub(super) fn find_or_unlimited(&self, domain: &str) -> (&Domain, &CompiledDomain) {
        let found = if self.disabled { None } else { self.find_domain(domain) };
        found.unwrap_or((&self.unlimited.0, &self.unlimited.1))
    }

    /// Returns whether to refuse a request of uncountable cost, unless only shadow rules count it.
    pub(super) fn refuses_uncounted(&self, request: &Request<'_>) -> bool {
        request.oversized && self.mode == Mode::Enforce
    }

    pub(super) fn each_domain(&self) -> impl Iterator<Item = (&Domain, &CompiledDomain)> {
        self.rules.domains().iter().map(|domain| &**domain).zip(&self.domains)
    }

    pub(super) fn configured_pools(&self) -> Vec<(Arc<Pool>, Arc<PoolShedding>)> {
        let gates = self.domains.iter().flat_map(|terms| &terms.gates);
        gates.map(|gate| (Arc::clone(&gate.pool), Arc::clone(&gate.shedding))).collect()
    }

    /// Returns a rule with refunds by its identity.
    pub(super) fn find_rule(&self, identity: u64) -> Option<(&Rule, &CompiledRule)> {
        let place = *self.refunding.get(&identity)?;
        let (domain, rule) = place;
        let found = self.rules.domains().get(domain)?.rules().get(rule)?;
        Some((found, self.domains.get(domain)?.rules.get(rule)?))
    }

    pub(super) fn rules_by_name(&self, domain: &str) -> HashMap<&str, (&Rule, &CompiledRule)> {
        let Some((domain, terms)) = self.find_domain(domain) else { return HashMap::new() };
        domain.rules().iter().zip(&terms.rules).map(|(rule, terms)| (&*rule.name, (rule, terms))).collect()
    }

    /// Returns the slots of rules whose `show_keys` has changed.
    pub(super) fn slots_with_changed_keys<'r>(
        &'r self,
        before: &'r CompiledRuleSet,
    ) -> impl Iterator<Item = Slot> + 'r {
        let domains = self.rules.domains().iter().zip(&self.domains);
        domains.flat_map(|(domain, terms)| {
            let known = before.rules_by_name(domain.name());
            let rules = domain.rules().iter().zip(&terms.rules);
            rules.filter_map(move |(rule, terms)| {
                let old = known.get(&*rule.name).map(|(old, _)| &old.show_keys);
                old.is_some_and(|old| *old != rule.show_keys).then_some(terms.slot)
            })
        })
    }

    pub(super) fn memory_kinds(&self) -> Vec<MemoryKind> {
        let mut kinds: Vec<MemoryKind> = quotas(&self.rules).map(memory_kind).collect();
        let has_places = kinds.contains(&MemoryKind::Places);
        kinds.extend(has_places.then_some(MemoryKind::InProgress));
        for limit in limits(&self.rules) {
            kinds.extend(limit.block.map(|_| MemoryKind::Blocks));
            let is_soft = |allowance: &Option<_>| {
                allowance.as_ref().is_some_and(|allowance: &crate::rules::Allowance| {
                    matches!(allowance.over, OverTreatment::Soft(_))
                })
            };
            kinds.extend(limit.allowances.iter().any(is_soft).then_some(MemoryKind::SoftStates));
        }
        kinds
    }
}

impl CompiledDomain {
    /// Finds the rules and list entries of its domain that match and are not disabled.
    #[inline(always)]
    pub(super) fn select<'a>(
        &self,
        domain: &Domain,
        attributes: &[(&'a str, &'a str)],
        selection: &mut Selection<'a>,
        matching: &mut Vec<u32>,
    ) {
        domain.select(attributes, selection, matching);
        if !self.disabled.is_empty() {
            matching.retain(|number| self.disabled.binary_search(number).is_err());
        }
    }

    /// The effective modes, in the order of [`Domain::named`].
    pub(super) fn modes(&self) -> impl Iterator<Item = Mode> {
        let rules = self.rules.iter().map(|rule| rule.mode);
        let lists = self.lists.iter().map(|(_, mode)| *mode);
        rules.chain(lists).chain(self.gates.iter().flat_map(|gate| gate.shedding.modes.into_iter().flatten()))
    }
}

impl CompiledRule {
    fn new(
        domain: &Domain,
        rule: &Rule,
        before: Option<(&Rule, &CompiledRule)>,
        (heritage, fingerprints): (&Heritage, &KeyHash),
        (hash_key, fleet): (&HashKey, &FleetMembership),
        said: &OperatorOverrides<'_>,
        slots: &mut Slots,
    ) -> CompiledRule {
        let keys = fleet.hash_key(is_shared(rule), hash_key);
        let of_rule = |key: &HashKey| key.for_rule(domain.name(), &rule.name, &describe_key(rule));
        let key_hash = of_rule(keys);
        let blocked = said.find_blocked_keys(domain.name(), &rule.name);
        let everywhere = said.find_fleet_blocked_keys(domain.name(), &rule.name);
        let everywhere = FleetBlockedKeys::for_rule(fleet, hash_key, of_rule, everywhere);
        let is_blocked = blocked.is_some() || everywhere.as_ref().is_some_and(|it| it.blocked.is_some());
        let guarding = said.control.guards.find_sample(domain.name(), &rule.name).cloned();
        let slot = slots.rule_slot(domain.name(), &rule.name);
        let mode = said.mode_of(domain, &rule.name, rule.mode);
        // Under this host's key: the identity must not change with the fleet secret.
        let identity = of_rule(hash_key).digest_bytes(b"identity").high();
        // A rule that counts another unit or key shares no state with the former one.
        let before = before.filter(|(_, terms)| terms.identity == identity);
        let same_overrides = before.is_some_and(|(old, _)| old.overrides == rule.overrides);
        let print = || fingerprint(fingerprints, &rule.limit, rule.overrides.as_deref());
        let inherited =
            before.map(|(old, terms)| (same_overrides && old.limit == rule.limit, terms.states.generation));
        let inherited = inherited.or_else(|| heritage.find(identity, print));
        let states = StateTags::new(&rule.limit, inherited, hash_key);
        CompiledRule {
            key_hash,
            identity,
            slot,
            reply_slot: if mode == Mode::Enforce { slot } else { slots.domain_slot(domain.name()) },
            mode,
            // The fast path knows neither guards nor operators' blocks.
            simple: states
                .simple_rule(rule)
                .filter(|_| is_simple(domain) && !is_blocked && guarding.is_none()),
            blocked,
            fleet_blocks: everywhere,
            caller_sample: guarding,
            is_concurrency: rule.expires.is_some(),
            states,
        }
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
        let until = self.blocked.as_ref().and_then(|blocked| blocked.get(&[key.hash(), key.high()]));
        until.copied().unwrap_or(Timestamp::ORIGIN)
    }

    /// Returns the end of a fleet-wide block of a key; the origin of time if there is none.
    #[inline]
    pub(super) fn fleet_blocked_until<'v, V: ExactSizeIterator<Item = &'v str>>(
        &self,
        values: impl Fn() -> V,
    ) -> Timestamp {
        match &self.fleet_blocks {
            Some(everywhere) if everywhere.has_blocked_keys() => everywhere.blocked_until(values),
            _ => Timestamp::ORIGIN,
        }
    }
}

impl StateTags {
    /// `before`: whether the quotas equal those of the former rule set, and their generation there.
    fn new(limit: &Limit, before: Option<Inherited>, hash_key: &HashKey) -> StateTags {
        let generation = match before {
            Some((true, generation)) => generation,
            Some((false, generation)) => generation.wrapping_add(1),
            None => 0,
        };
        let by_allowance = limit.allowances.iter().map(|allowance| {
            let quota = allowance.as_ref().map(|allowance| &allowance.quota);
            quota.map_or((Tag::NONE, Salt::NONE), |quota| state_tag_and_salt(quota, generation, hash_key))
        });
        StateTags { by_allowance: by_allowance.collect(), generation }
    }

    /// Returns the tag and the salt of states under an allowance.
    #[inline]
    pub(super) fn tag_and_salt(&self, allowance: u32) -> (Tag, Salt) {
        self.by_allowance.get(allowance as usize).copied().unwrap_or((Tag::NONE, Salt::NONE))
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (Tag, Salt)> {
        self.by_allowance.iter().copied()
    }

    fn simple_rule(&self, rule: &Rule) -> Option<SimpleRule> {
        let [Some(allowance)] = rule.limit.allowances.as_slice() else { return None };
        let is_plain = allowance.over == OverTreatment::Refuse
            && rule.limit.refused == RefusedCost::Free
            && rule.limit.block.is_none()
            && rule.overrides.is_none()
            && rule.expires.is_none()
            && rule.refund_on.is_none()
            && rule.unit.is_none()
            && rule.warn_at.is_none()
            && rule.key.iter().all(crate::rules::KeyPart::is_plain);
        let (tag, salt) = self.tag_and_salt(0);
        is_plain.then(|| SimpleRule { quota: allowance.quota.clone(), tag, salt })
    }
}

fn unlimited(mode: Mode) -> (Domain, CompiledDomain) {
    let terms = CompiledDomain {
        rules: Vec::new(),
        lists: Vec::new(),
        disabled: Vec::new(),
        unnamed: Slot::UNATTRIBUTED,
        priorities: Vec::new(),
        is_guarded: false,
        gates: Vec::new(),
        unmatched: (mode != Mode::Disabled).then_some(Unmatched::Domain),
    };
    (Domain::new("", Vec::new()), terms)
}

fn refund_rules(rules: &RuleSet, terms: &[CompiledDomain]) -> HashMap<u64, (usize, usize)> {
    let domains = rules.domains().iter().zip(terms).enumerate();
    let rules = domains.flat_map(|(domain, (rules, terms))| {
        let rules = rules.rules().iter().zip(&terms.rules).enumerate();
        rules.map(move |(rule, (meant, terms))| (meant.refund_on, terms.identity, (domain, rule)))
    });
    rules
        .filter(|(refund_on, ..)| refund_on.is_some())
        .map(|(_, identity, place)| (identity, place))
        .collect()
}

/// Returns whether the domain has only rules that attributes select.
fn is_simple(domain: &Domain) -> bool {
    domain.lists().is_empty()
        && domain.sheds().is_empty()
        && domain.priorities().is_empty()
        && domain.tree().is_empty()
}

fn gates(domain: &Domain, said: &OperatorOverrides<'_>, slots: &mut Slots, pools: &PoolTable) -> Vec<Gate> {
    let gate = |(entry, shed): (usize, &Shed)| Gate {
        pool: pools.find_or_create(&shed.pool),
        shedding: Arc::new(PoolShedding::new(domain, shed, |name, written| {
            said.mode_of(domain, name, written)
        })),
        first: domain.shedder(entry, ShedPart::Fleet),
        slots: ShedPart::ALL.map(|part| slots.rule_slot(domain.name(), &shed.rule_name(part))),
    };
    domain.sheds().iter().enumerate().map(gate).collect()
}

fn limits(rules: &RuleSet) -> impl Iterator<Item = &Limit> {
    rules.domains().iter().flat_map(|domain| domain.rules()).map(|rule| &rule.limit)
}

fn quotas(rules: &RuleSet) -> impl Iterator<Item = &Quota> {
    limits(rules).flat_map(|limit| limit.allowances.iter().flatten()).map(|allowance| &allowance.quota)
}
