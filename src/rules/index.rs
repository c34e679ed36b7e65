//! Index of the rules of a domain: finds those that match a request without evaluating every rule.
//!
//! Each rule hangs on one *anchor* that a matching request must have: a value, prefix, suffix or network of
//! one attribute if the rule has such a condition; else the presence of an attribute; else none. Only the
//! anchors of a request are looked up, so rules for other paths and users cost nothing. Entries of `exempt`
//! and `deny` are indexed with the rules, under higher numbers.

use std::collections::HashMap;

use super::finder::{Anchor, Finder, length_bit};
use super::names::RuleNames;
use super::plan::{AttributeId, Selection, SelectionPlan};
use super::{Condition, KeyPart, ListedEntry, Priorities, Rule};

#[derive(Debug)]
pub(super) struct Index {
    names: RuleNames,
    anchors: Vec<Anchors>,
    always: Vec<AnchoredRule>,
    /// Plans of the rules, then of the lists.
    plans: Vec<SelectionPlan>,
    /// The `overrides` of each rule, in order, each with the number of its allowance.
    overrides: HashMap<u32, Vec<(SelectionPlan, u32)>>,
    /// The entries of `prioritize`, each with the index of its priority.
    prioritize: Vec<(SelectionPlan, usize)>,
}

#[derive(Debug, Default)]
struct Anchors {
    present: Vec<AnchoredRule>,
    /// The [`length_bit`] of each value that may be found. Others are not looked up.
    lengths: u64,
    by_value: Option<Box<Finder<AnchoredRule>>>,
}

#[derive(Clone, Copy, Debug)]
struct AnchoredRule {
    rule: u32,
    /// Whether having the anchor is sufficient to match.
    surely: bool,
}

impl Index {
    /// Builds the index. Rules are numbered from 0, list entries from `first_listed`; tree nodes, indexed
    /// elsewhere, have the numbers between.
    pub(super) fn new(
        rules: &[Rule],
        first_listed: usize,
        lists: &[ListedEntry],
        priorities: &Priorities,
    ) -> Index {
        let mut index = Index {
            names: RuleNames::default(),
            anchors: Vec::new(),
            always: Vec::new(),
            plans: Vec::new(),
            overrides: HashMap::new(),
            prioritize: Vec::new(),
        };
        let mut hanging: Vec<(u32, &[Condition])> = Vec::new();
        for (number, rule) in (0u32..).zip(rules) {
            let plan = index.plan(&rule.conditions, &rule.key);
            hanging.push((number, &rule.conditions));
            index.plans.push(plan);
            let list = rule.overrides.iter().flat_map(|overrides| &overrides.list);
            let list: Vec<_> =
                list.map(|(conditions, number)| (index.plan(conditions, &[]), *number)).collect();
            if !list.is_empty() {
                index.overrides.insert(number, list);
            }
        }
        index.plans.resize_with(first_listed.max(rules.len()), SelectionPlan::default);
        for listed in lists {
            // The number of entries is bounded together with that of rules.
            let number = u32::try_from(index.plans.len()).unwrap_or(u32::MAX);
            hanging.push((number, &listed.conditions));
            let plan = index.plan(&listed.conditions, &[]);
            index.plans.push(plan);
        }
        for entry in &priorities.prioritize {
            let plan = index.plan(&entry.conditions, &[]);
            index.prioritize.push((plan, entry.priority));
        }
        index.hang(&hanging);
        index
    }

    /// Finds the rules that match, in file order, and stores their numbers in `matching`.
    #[inline(always)]
    pub(super) fn select<'a>(
        &self,
        attributes: &[(&'a str, &'a str)],
        selection: &mut Selection<'a>,
        matching: &mut Vec<u32>,
    ) {
        matching.clear();
        selection.values.clear();
        let mut candidates = Candidates { rules: matching, lists: 0, unsure: false };
        candidates.take(&self.always);
        for (name, value) in attributes {
            let Some(attribute) = self.names.find(name) else { continue };
            let is_first = selection.values.iter().all(|(seen, _)| *seen != attribute);
            if !is_first || selection.values.try_push((attribute, value)).is_err() || value.is_empty() {
                continue;
            }
            #[allow(
                clippy::indexing_slicing,
                reason = "each name has its anchors: what hangs there would admit"
            )]
            let anchors = &self.anchors[attribute];
            candidates.take(&anchors.present);
            if anchors.lengths & length_bit(value) != 0
                && let Some(by_value) = &anchors.by_value
            {
                let (lists, unsure) = take_by_value(by_value, value, candidates.rules);
                candidates.lists = candidates.lists.saturating_add(lists);
                candidates.unsure |= unsure;
            }
        }
        let Candidates { rules, lists, unsure } = candidates;
        if unsure {
            rules.retain(|rule| self.plan_of(*rule).matches(selection));
        }
        if lists > 1 {
            rules.sort_unstable();
            if lists >= REPEATED {
                rules.dedup();
            }
        }
    }

    pub(super) fn key_values<'s, 'a>(
        &'s self,
        rule: u32,
        selection: &'s Selection<'a>,
    ) -> impl ExactSizeIterator<Item = &'a str> + Clone + 's {
        // Present, as the rule matches.
        self.plan_of(rule).key.iter().map(|attribute| selection.value(*attribute).unwrap_or_default())
    }

    #[inline]
    #[allow(clippy::indexing_slicing, reason = "each rule and entry has its plan: it would admit without")]
    fn plan_of(&self, number: u32) -> &SelectionPlan {
        &self.plans[number as usize]
    }

    /// Returns the allowance number of the rule's first override that matches.
    pub(super) fn override_of(&self, rule: u32, selection: &Selection<'_>) -> Option<u32> {
        let list = self.overrides.get(&rule)?;
        list.iter().find(|(plan, _)| plan.matches(selection)).map(|(_, number)| *number)
    }

    /// Returns the priority index of the first `prioritize` entry that matches.
    pub(super) fn priority_of(&self, selection: &Selection<'_>) -> Option<usize> {
        let found = self.prioritize.iter().find(|(plan, _)| plan.matches(selection));
        found.map(|(_, priority)| *priority)
    }

    /// Makes the plan of conditions and a key. New attributes get empty anchors.
    fn plan(&mut self, conditions: &[Condition], key: &[KeyPart]) -> SelectionPlan {
        SelectionPlan::new(conditions, key, |name| {
            let attribute = self.names.intern(name);
            if attribute == self.anchors.len() {
                self.anchors.push(Anchors::default());
            }
            attribute
        })
    }

    /// Anchors each rule to its rarest condition.
    #[allow(
        clippy::indexing_slicing,
        reason = "plans and anchors are there: a rule that hung nowhere would admit"
    )]
    fn hang(&mut self, rules: &[(u32, &[Condition])]) {
        let wanted: Vec<IndexedRule<'_>> = rules
            .iter()
            .map(|(rule, conditions)| IndexedRule::new(*rule, &self.plans[*rule as usize], conditions))
            .collect();
        let frequency = Frequency::of(&wanted);
        let mut by_value: Vec<Vec<(Anchor<'_>, AnchoredRule)>> =
            self.anchors.iter().map(|_| Vec::new()).collect();
        for IndexedRule { rule, plan, choices } in &wanted {
            let rarest =
                choices.iter().min_by_key(|(attribute, anchors)| frequency.of_anchors(*attribute, anchors));
            if let Some((attribute, anchors)) = rarest {
                let is_all = plan.conditions.len() == 1 && plan.asks_only_for(*attribute);
                for (anchor, surely) in anchors {
                    let hung = AnchoredRule { rule: *rule, surely: is_all && *surely };
                    by_value[*attribute].push((*anchor, hung));
                }
                continue;
            }
            let rarest = plan.needed().min_by_key(|attribute| frequency.of_presence(*attribute));
            let surely = plan.conditions.is_empty() && rarest.is_none_or(|rarest| plan.asks_only_for(rarest));
            match rarest {
                Some(attribute) => self.anchors[attribute].present.push(AnchoredRule { rule: *rule, surely }),
                None => self.always.push(AnchoredRule { rule: *rule, surely }),
            }
        }
        for (anchors, by_value) in self.anchors.iter_mut().zip(by_value) {
            let lengths = by_value.iter().map(|(anchor, _)| match anchor {
                Anchor::Equal(value, false) => length_bit(value),
                _ => u64::MAX,
            });
            anchors.lengths = lengths.fold(0, |all, own| all | own);
            anchors.by_value = (!by_value.is_empty()).then(|| Box::new(Finder::new(by_value)));
        }
    }
}

/// A rule to be indexed and the conditions it can be anchored to.
struct IndexedRule<'r> {
    rule: u32,
    plan: &'r SelectionPlan,
    choices: Vec<(AttributeId, Vec<(Anchor<'r>, bool)>)>,
}

impl<'r> IndexedRule<'r> {
    fn new(rule: u32, plan: &'r SelectionPlan, conditions: &'r [Condition]) -> IndexedRule<'r> {
        let choices = plan.conditions.iter().zip(conditions).filter(|(step, _)| !step.or_absent);
        let choices = choices.filter_map(|(step, condition)| {
            let mut anchors: Vec<_> = condition.any_of.iter().map(Anchor::of).collect::<Option<_>>()?;
            // Of two equal anchors, keep the sure one.
            anchors.sort_unstable_by_key(|(anchor, surely)| (*anchor, !surely));
            anchors.dedup_by_key(|(anchor, _)| *anchor);
            Some((step.attribute, anchors))
        });
        IndexedRule { rule, plan, choices: choices.collect() }
    }
}

struct Candidates<'m> {
    rules: &'m mut Vec<u32>,
    /// The number of lists they came from. More than one: unsorted; from [`REPEATED`] on: duplicates.
    lists: u32,
    /// Whether some have further conditions.
    unsure: bool,
}

impl Candidates<'_> {
    #[inline]
    fn take(&mut self, hung: &[AnchoredRule]) {
        if hung.is_empty() {
            return;
        }
        self.lists = self.lists.saturating_add(1);
        for AnchoredRule { rule, surely } in hung {
            self.rules.push(*rule);
            self.unsure |= !surely;
        }
    }
}

/// Adds the rules anchored to a value; returns the number of lists they came from, and whether some have more
/// conditions. Not inlined, as most requests have no indexed value.
#[inline(never)]
fn take_by_value(by_value: &Finder<AnchoredRule>, value: &str, rules: &mut Vec<u32>) -> (u32, bool) {
    let mut candidates = Candidates { rules, lists: 0, unsure: false };
    candidates.take(by_value.equal(value));
    by_value.any_other(value, |hung| {
        candidates.take(hung);
        candidates.lists |= REPEATED;
        false
    });
    (candidates.lists, candidates.unsure)
}

/// The number of rules per anchor, and per attribute that must be there. Choosing the rarest keeps the lists short.
struct Frequency<'r>(HashMap<(AttributeId, Option<Anchor<'r>>), usize>);

impl<'r> Frequency<'r> {
    fn of(wanted: &[IndexedRule<'r>]) -> Frequency<'r> {
        let mut rules = HashMap::new();
        for IndexedRule { plan, choices, .. } in wanted {
            let anchors = choices.iter().flat_map(|(attribute, anchors)| {
                anchors.iter().map(|(anchor, _)| (*attribute, Some(*anchor)))
            });
            for anchor in anchors.chain(plan.needed().map(|attribute| (attribute, None))) {
                *rules.entry(anchor).or_default() += 1;
            }
        }
        Frequency(rules)
    }

    fn of_anchors(&self, attribute: AttributeId, anchors: &[(Anchor<'r>, bool)]) -> usize {
        anchors.iter().filter_map(|(anchor, _)| self.0.get(&(attribute, Some(*anchor)))).sum()
    }

    fn of_presence(&self, attribute: AttributeId) -> usize {
        self.0.get(&(attribute, None)).copied().unwrap_or_default()
    }
}

/// Far more lists than one request can match.
const REPEATED: u32 = 1 << 16;
