//! Index of the rules of a domain: finds those that match a request without evaluating every rule.
//!
//! Each rule hangs on one *anchor* that a matching request must have: a value, prefix, suffix or network of
//! one attribute if the rule has such a condition; else the presence of an attribute; else none. Only the
//! anchors of a request are looked up, so rules for other paths and users cost nothing. Entries of `exempt`
//! and `deny` are indexed with the rules, under higher numbers.

mod by_names;

use std::collections::HashMap;

use arrayvec::ArrayVec;

pub use by_names::NamesSelection;

use super::finder::{Anchor, Finder};
use super::names::RuleNames;
use super::{Condition, Domain, Glob, KeyPart, ListedEntry, Pattern, Priorities, Rule, fold};

#[derive(Debug, Default)]
pub(super) struct Index {
    names: RuleNames,
    anchored: AnchoredRules,
    /// Plans of the rules, then of the lists.
    plans: Vec<SelectionPlan>,
    /// The `overrides` of each rule, each with the number of its allowance.
    overrides: HashMap<u32, FirstMatch<u32>>,
    /// The entries of `prioritize`, each with the index of its priority.
    prioritize: FirstMatch<usize>,
}

/// Rules by their anchors.
#[derive(Debug, Default)]
struct AnchoredRules {
    /// By attribute.
    anchors: Vec<Anchors>,
    always: Vec<AnchoredRule>,
}

/// Entries of which the first that matches holds.
#[derive(Debug, Default)]
struct FirstMatch<T> {
    list: Vec<(SelectionPlan, T)>,
    /// Of more than [`COMPARED_MAX`] entries, by their indexes.
    anchored: Option<AnchoredRules>,
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
        let mut index = Index::default();
        let mut hanging: Vec<(u32, &[Condition])> = Vec::new();
        for (number, rule) in (0u32..).zip(rules) {
            let plan = index.plan(&rule.conditions, &rule.key);
            hanging.push((number, &rule.conditions));
            index.plans.push(plan);
            if let Some(overrides) = &rule.overrides
                && !overrides.list.is_empty()
            {
                let list = overrides.list.iter().map(|(conditions, number)| (&**conditions, *number));
                let first_match = index.first_match(list);
                index.overrides.insert(number, first_match);
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
        let prioritize = priorities.prioritize.iter();
        index.prioritize = index.first_match(prioritize.map(|entry| (&*entry.conditions, entry.priority)));
        let wanted = hanging.iter().map(|(rule, conditions)| (*rule, index.plan_of(*rule), *conditions));
        index.anchored = AnchoredRules::new(wanted, index.names.len());
        index
    }

    fn first_match<'r, T>(
        &mut self,
        entries: impl Iterator<Item = (&'r [Condition], T)> + Clone,
    ) -> FirstMatch<T> {
        let list: Vec<_> =
            entries.clone().map(|(conditions, meaning)| (self.plan(conditions, &[]), meaning)).collect();
        let wanted = (0..).zip(&list).zip(entries);
        let wanted = wanted.map(|((number, (plan, _)), (conditions, _))| (number, plan, conditions));
        let anchored = (list.len() > COMPARED_MAX).then(|| AnchoredRules::new(wanted, self.names.len()));
        FirstMatch { list, anchored }
    }

    #[inline]
    #[allow(clippy::indexing_slicing, reason = "each rule and entry has its plan: it would admit without")]
    fn plan_of(&self, number: u32) -> &SelectionPlan {
        &self.plans[number as usize]
    }

    fn plan(&mut self, conditions: &[Condition], key: &[KeyPart]) -> SelectionPlan {
        SelectionPlan::new(conditions, key, |name| self.names.intern(name))
    }
}

impl AnchoredRules {
    /// Anchors each rule to its rarest condition.
    #[allow(clippy::indexing_slicing, reason = "the anchors are there: a rule without one would admit")]
    fn new<'r>(
        rules: impl Iterator<Item = (u32, &'r SelectionPlan, &'r [Condition])>,
        attributes: usize,
    ) -> AnchoredRules {
        let mut anchored = AnchoredRules::default();
        anchored.anchors.resize_with(attributes, Anchors::default);
        let wanted: Vec<_> =
            rules.map(|(rule, plan, conditions)| IndexedRule::new(rule, plan, conditions)).collect();
        // The number of rules per anchor, and per attribute that must be there. Choosing the rarest keeps the lists short.
        let mut frequency: HashMap<(AttributeId, Option<Anchor<'_>>), usize> = HashMap::new();
        for IndexedRule { plan, choices, .. } in &wanted {
            let anchors = choices.iter().flat_map(|(attribute, anchors)| {
                anchors.iter().map(|(anchor, _)| (*attribute, Some(*anchor)))
            });
            for anchor in anchors.chain(plan.needed().map(|attribute| (attribute, None))) {
                *frequency.entry(anchor).or_default() += 1;
            }
        }
        let count = |attribute, anchor| frequency.get(&(attribute, anchor)).copied().unwrap_or_default();
        let mut by_value: Vec<Vec<(Anchor<'_>, AnchoredRule)>> =
            anchored.anchors.iter().map(|_| Vec::new()).collect();
        for IndexedRule { rule, plan, choices } in &wanted {
            let rarest = choices.iter().min_by_key(|(attribute, anchors)| {
                anchors.iter().map(|(anchor, _)| count(*attribute, Some(*anchor))).sum::<usize>()
            });
            if let Some((attribute, anchors)) = rarest {
                let is_all = plan.conditions.len() == 1 && plan.asks_only_for(*attribute);
                for (anchor, surely) in anchors {
                    let hung = AnchoredRule { rule: *rule, surely: is_all && *surely };
                    by_value[*attribute].push((*anchor, hung));
                }
                continue;
            }
            let rarest = plan.needed().min_by_key(|attribute| count(*attribute, None));
            let surely = plan.conditions.is_empty() && rarest.is_none_or(|rarest| plan.asks_only_for(rarest));
            match rarest {
                Some(attribute) => {
                    anchored.anchors[attribute].present.push(AnchoredRule { rule: *rule, surely });
                }
                None => anchored.always.push(AnchoredRule { rule: *rule, surely }),
            }
        }
        for (anchors, by_value) in anchored.anchors.iter_mut().zip(by_value) {
            let lengths = by_value.iter().map(|(anchor, _)| match anchor {
                Anchor::Equal(value, false) => length_bit(value),
                _ => u64::MAX,
            });
            anchors.lengths = lengths.fold(0, |all, own| all | own);
            anchors.by_value = (!by_value.is_empty()).then(|| Box::new(Finder::new(by_value)));
        }
        anchored
    }
}

impl<T: Copy> FirstMatch<T> {
    fn find(&self, selection: &Selection<'_>) -> Option<T> {
        let Some(anchored) = &self.anchored else {
            return self.list.iter().find(|(plan, _)| plan.matches(selection)).map(|(_, meaning)| *meaning);
        };
        let mut numbers = Vec::new();
        let mut candidates = Candidates { rules: &mut numbers, lists: 0, unsure: false };
        candidates.take(&anchored.always);
        for (attribute, value) in selection.values.iter().filter(|(_, value)| !value.is_empty()) {
            // Attributes that came later have no anchors here.
            if let Some(anchors) = anchored.anchors.get(*attribute) {
                candidates.take_anchored(anchors, value);
            }
        }
        let entries =
            numbers.into_iter().filter_map(|number| Some((number, self.list.get(number as usize)?)));
        let found =
            entries.filter(|(_, (plan, _))| plan.matches(selection)).min_by_key(|(number, _)| *number);
        found.map(|(_, (_, meaning))| *meaning)
    }
}

impl Domain {
    /// Finds the rules and list entries, disabled ones included, that match these attributes and stores their
    /// numbers in `matching`: rules in file order, then entries as in [`Domain::lists`]. The first value of a
    /// name counts; an empty one is absent.
    #[inline(always)]
    pub fn select<'a>(
        &self,
        attributes: &[(&'a str, &'a str)],
        selection: &mut Selection<'a>,
        matching: &mut Vec<u32>,
    ) {
        let index = &self.index;
        matching.clear();
        selection.values.clear();
        let mut candidates = Candidates { rules: matching, lists: 0, unsure: false };
        candidates.take(&index.anchored.always);
        for (name, value) in attributes {
            let Some(attribute) = index.names.find(name) else { continue };
            let is_first = selection.values.iter().all(|(seen, _)| *seen != attribute);
            if !is_first || selection.values.try_push((attribute, value)).is_err() || value.is_empty() {
                continue;
            }
            #[allow(clippy::indexing_slicing, reason = "each name has its anchors: none would admit")]
            candidates.take_anchored(&index.anchored.anchors[attribute], value);
        }
        let Candidates { rules, lists, unsure } = candidates;
        if unsure {
            rules.retain(|rule| index.plan_of(*rule).matches(selection));
        }
        if lists > 1 {
            rules.sort_unstable();
            if lists >= REPEATED {
                rules.dedup();
            }
        }
    }

    /// Returns the values of a matching rule's key as sent, in the order of the key.
    pub fn key_values<'s, 'a>(
        &'s self,
        rule: u32,
        selection: &'s Selection<'a>,
    ) -> impl ExactSizeIterator<Item = &'a str> + Clone + 's {
        // Present, as the rule matches.
        let key = &self.index.plan_of(rule).key;
        key.iter().map(|attribute| selection.value(*attribute).unwrap_or_default())
    }

    /// Returns the allowance number of the rule's first override that matches.
    pub fn override_of(&self, rule: u32, selection: &Selection<'_>) -> Option<u32> {
        self.index.overrides.get(&rule)?.find(selection)
    }

    /// Returns the index in [`Domain::priorities`] of the priority of a request: the requested one if the domain has it,
    /// else that of the first matching entry of `prioritize`, else the lowest. `None` if the domain has no priorities.
    pub(crate) fn priority_index(&self, requested: Option<&str>, selection: &Selection<'_>) -> Option<usize> {
        let names = self.priorities();
        let known = requested.and_then(|requested| names.iter().position(|name| **name == *requested));
        known.or_else(|| self.index.prioritize.find(selection)).or(names.len().checked_sub(1))
    }
}

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
    fn take_anchored(&mut self, anchors: &Anchors, value: &str) {
        self.take(&anchors.present);
        if anchors.lengths & length_bit(value) != 0
            && let Some(by_value) = &anchors.by_value
        {
            let (lists, unsure) = take_by_value(by_value, value, self.rules);
            self.lists = self.lists.saturating_add(lists);
            self.unsure |= unsure;
        }
    }

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

/// The number of an attribute that some rule uses.
type AttributeId = usize;

#[derive(Debug, Default)]
struct SelectionPlan {
    conditions: Vec<SelectionStep>,
    key: Vec<AttributeId>,
}

#[derive(Debug)]
struct SelectionStep {
    attribute: AttributeId,
    or_absent: bool,
    matcher: Matcher,
}

/// The attributes of one request that some rule uses: the first value of each name.
#[derive(Debug, Default)]
pub struct Selection<'a> {
    values: ArrayVec<(AttributeId, &'a str), ATTRIBUTES_MAX>,
}

impl SelectionPlan {
    fn new(
        conditions: &[Condition],
        key: &[KeyPart],
        mut intern: impl FnMut(&str) -> AttributeId,
    ) -> SelectionPlan {
        let step = |condition: &Condition| SelectionStep {
            attribute: intern(&condition.attribute),
            or_absent: condition.or_absent,
            matcher: Matcher::new(&condition.any_of),
        };
        let conditions = conditions.iter().map(step).collect();
        SelectionPlan { conditions, key: key.iter().map(|part| intern(&part.attribute)).collect() }
    }

    #[inline]
    fn matches(&self, selection: &Selection<'_>) -> bool {
        let has = |attribute: &AttributeId| selection.value(*attribute).is_some();
        self.key.iter().all(has)
            && self.conditions.iter().all(|step| match selection.value(step.attribute) {
                Some(value) => step.matcher.holds(value),
                None => step.or_absent,
            })
    }

    fn asks_only_for(&self, attribute: AttributeId) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.all(|step| step.attribute == attribute) && self.key.iter().all(|step| *step == attribute)
    }

    /// Returns the attributes that a matching request must have.
    fn needed(&self) -> impl Iterator<Item = AttributeId> + '_ {
        let conditions = self.conditions.iter().filter(|step| !step.or_absent);
        conditions.map(|step| step.attribute).chain(self.key.iter().copied())
    }
}

impl<'a> Selection<'a> {
    /// Returns the value of an attribute; an empty one is absent.
    #[inline]
    fn value(&self, attribute: AttributeId) -> Option<&'a str> {
        let found = self.values.iter().find(|(known, _)| *known == attribute);
        found.map(|(_, value)| *value).filter(|value| !value.is_empty())
    }
}

/// Matches a value that matches any of its patterns.
#[derive(Debug, Default)]
struct Matcher {
    /// Compared one by one.
    few: Vec<Pattern>,
    /// Globs without regard to case that are not in `many`. The value is lowercased once for all.
    any_case: Vec<Glob>,
    /// The negated patterns, one matcher for each [`Pattern::Not`].
    not: Vec<Matcher>,
    /// Patterns with an anchor, if there are more than [`COMPARED_MAX`] patterns.
    many: Option<Box<Finder<Pattern>>>,
}

impl Matcher {
    fn new(patterns: &[Pattern]) -> Matcher {
        let mut matcher = Matcher::default();
        let is_many = patterns.len() > COMPARED_MAX;
        let mut many = Vec::new();
        for pattern in patterns {
            match (pattern, Anchor::of(pattern)) {
                (_, Some((anchor, _))) if is_many => many.push((anchor, pattern.clone())),
                (Pattern::Not(patterns), _) => matcher.not.push(Matcher::new(patterns)),
                (Pattern::AnyCase(glob), _) => matcher.any_case.push(glob.clone()),
                _ => matcher.few.push(pattern.clone()),
            }
        }
        matcher.many = (!many.is_empty()).then(|| Box::new(Finder::new(many)));
        matcher
    }

    /// Whether the value, which is not empty, matches.
    #[inline]
    fn holds(&self, value: &str) -> bool {
        self.few.iter().any(|pattern| pattern.holds(value)) || self.holds_otherwise(value)
    }

    fn holds_otherwise(&self, value: &str) -> bool {
        let found = |many: &Finder<Pattern>| {
            many.any(value, |patterns| patterns.iter().any(|pattern| pattern.holds(value)))
        };
        self.not.iter().any(|matcher| !matcher.holds(value))
            || self.many.as_deref().is_some_and(found)
            || !self.any_case.is_empty()
                && fold::with_lowercase(value, |value| self.any_case.iter().any(|glob| glob.matches(value)))
    }
}

/// One bit per length of a text, the last for all greater ones.
#[inline]
fn length_bit(value: &str) -> u64 {
    1 << value.len().min(63)
}

/// Far more lists than one request can match.
const REPEATED: u32 = 1 << 16;

/// The maximum of one request: 8 descriptors of 16 pairs.
const ATTRIBUTES_MAX: usize = 128;

/// Up to this number, comparing all costs no more than a lookup.
const COMPARED_MAX: usize = 8;
