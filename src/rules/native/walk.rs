//! What the lists of entries that an application sends lead to: for each limit of a tree the rules that do the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::ways::{Except, Values, Way, ways};
use crate::rules::fields::check_name;
use crate::rules::tree::{Branch, NodeLimit, rule_name};

/// A limit of a tree.
pub(super) struct Limited<'b> {
    /// The nodes from the top to it.
    pub(super) path: Vec<&'b Branch>,
    pub(super) limit: &'b NodeLimit,
    /// Why no rule of `limits` does the same.
    pub(super) why: Option<&'static str>,
    /// What leads to it, each by other attributes.
    pub(super) found: Vec<Found<'b>>,
}

/// What a request must be like for its entries to lead to a limit.
#[derive(Clone, Default)]
pub(super) struct Found<'b> {
    /// The attributes, in the order of the entries.
    pub(super) list: Vec<&'b str>,
    /// Those of which not every value will do.
    pub(super) conditions: Vec<(&'b str, String)>,
    /// Of those, what is meant by none of their values all the same.
    pub(super) except: Vec<(&'b str, Except)>,
    /// Those by whose values it counts.
    pub(super) key: Vec<&'b str>,
    unsaid: Option<&'static str>,
}

/// The lists of attributes that have limits: what applications send descriptors of.
pub(super) type Lists<'b> = BTreeSet<Vec<&'b str>>;

impl Limited<'_> {
    /// The texts of its nodes.
    pub(super) fn texts(&self) -> Vec<&str> {
        self.path.iter().map(|node| &*node.text).collect()
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        self.path.iter().map(|node| &*node.key)
    }

    /// Why requests lead to it by other attributes than those that are written, or by none.
    fn unsent(&self) -> Option<&'static str> {
        let keys: BTreeSet<&str> = self.keys().collect();
        if self.keys().any(|key| key.contains('*')) {
            return Some("the key of an entry has a star: it stands for attributes of any name");
        }
        if keys.len() < self.path.len() {
            return Some("a key comes twice on its path: rules see the first attribute of a name");
        }
        let is_sent = |key: &&str| check_name(key, "an entry").is_ok();
        (self.path.len() > ENTRIES_MAX || !keys.iter().all(is_sent))
            .then_some("no request carries its entries")
    }
}

/// All limits of a tree in file order, each with what leads to it or why that has no native form, and the lists that
/// lead there.
pub(super) fn walk(tree: &[Branch]) -> (Vec<Limited<'_>>, Lists<'_>) {
    let mut limits = Vec::new();
    collect(tree, &mut Vec::new(), &mut limits);
    let lists: Lists<'_> = limits
        .iter()
        .filter(|limited| limited.unsent().is_none())
        .map(|limited| limited.path.iter().map(|node| &*node.key).collect())
        .collect();
    tell_why(&mut limits);
    let places: HashMap<*const Branch, usize> = limits
        .iter()
        .enumerate()
        .filter_map(|(place, limited)| Some((std::ptr::from_ref(*limited.path.last()?), place)))
        .collect();
    for list in &lists {
        follow(tree, list, &Found { list: list.clone(), ..Found::default() }, &mut |node, found| {
            let limited = places.get(&std::ptr::from_ref(node)).and_then(|place| limits.get_mut(*place));
            if let Some(limited) = limited {
                limited.why = limited.why.or(found.unsaid);
                limited.found.push(found);
            }
        });
    }
    for limited in &mut limits {
        if limited.found.is_empty() && limited.limit.amount.is_some() {
            limited.why = limited.why.or(Some("no request finds it: others on its level are found before"));
        }
        // That of the attributes it is written with is the first.
        let own: Vec<&str> = limited.path.iter().map(|node| &*node.key).collect();
        limited.found.sort_by_key(|found| found.list != own);
    }
    (limits, lists)
}

fn collect<'b>(level: &'b [Branch], path: &mut Vec<&'b Branch>, limits: &mut Vec<Limited<'b>>) {
    for node in level {
        path.push(node);
        if let Some(limit) = &node.limit {
            limits.push(Limited { path: path.clone(), limit, why: None, found: Vec::new() });
        }
        collect(&node.branches, path, limits);
        path.pop();
    }
}

/// What of a limit itself has no native form.
fn tell_why(limits: &mut [Limited<'_>]) {
    let replaced: BTreeSet<&str> =
        limits.iter().flat_map(|limited| &limited.limit.replaces).map(|(name, _)| &**name).collect();
    let mut names: BTreeMap<Box<str>, usize> = BTreeMap::new();
    for limited in limits.iter() {
        *names.entry(rule_name(&limited.texts())).or_default() += 1;
    }
    for limited in limits {
        let limit = limited.limit;
        let is_replaced =
            limit.amount.is_some() && limit.name.as_ref().is_some_and(|name| replaced.contains(&**name));
        limited.why = if !limit.replaces.is_empty() || is_replaced {
            Some("it replaces another limit or is replaced: rules do not look at each other")
        } else {
            match limit.amount {
                // Nothing is counted, so nothing is written.
                None => continue,
                Some(amount) if amount.count == 0 => Some(
                    "it refuses everything and the request counts elsewhere: an entry of `deny` would not count it",
                ),
                Some(amount) if amount.seconds == WEEK => {
                    Some("its week turns on Thursday: that of `fixed_window` on Monday")
                }
                Some(_) if names.get(&rule_name(&limited.texts())).is_some_and(|count| *count > 1) => {
                    Some("the name of another limit reads the same")
                }
                Some(_) => limited.unsent(),
            }
        };
    }
}

/// Tells each node that a list of entries may end at, with what the attributes must be like for that.
fn follow<'b>(
    level: &'b [Branch],
    list: &[&'b str],
    so_far: &Found<'b>,
    ends_at: &mut impl FnMut(&'b Branch, Found<'b>),
) {
    let Some((key, rest)) = list.split_first() else { return };
    for Way { node, values, apart } in ways(level, key) {
        let mut found = so_far.clone();
        match values {
            Values::All => {}
            Values::Matching(condition) => found.conditions.push((key, condition)),
            Values::Except(condition, except) => {
                let others = found.except.iter().any(|(_, except)| except.but.is_some());
                if others && except.but.is_some() {
                    found.unsaid = found.unsaid.or(Some(BOTH_TAKEN));
                }
                found.conditions.push((key, condition));
                found.except.push((key, except));
            }
            Values::Unsaid(why) => found.unsaid = found.unsaid.or(Some(why)),
        }
        if apart {
            found.key.push(key);
        }
        match rest {
            [] => ends_at(node, found),
            rest => follow(&node.branches, rest, &found, ends_at),
        }
    }
}

const BOTH_TAKEN: &str = "the texts of two patterns on its path fit patterns above them";

/// Windows of this length begin on other days natively.
const WEEK: u32 = 7 * 86_400;

/// As the socket carries them.
const ENTRIES_MAX: usize = 16;
