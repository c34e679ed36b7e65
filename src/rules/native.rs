//! Descriptor trees as rules of `limits` that decide the same, for those who move from one to the other. What has no exact
//! form among rules stays a tree, which is written beside them. It only reads and puts words together.

mod text;
mod walk;
mod ways;
mod written;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use super::load::{Homes, Loaded, read};
use super::meaning::{Given, descriptors};
use super::problem::Problem;
use super::source::{Place, Report, Source};
use super::tree::Branch;
use super::written::File;
use super::{Position, Scope, yaml};
use walk::{Limited, walk};

/// One domain whose tree became rules.
#[derive(Debug)]
pub struct Native {
    /// The name of the domain.
    pub domain: Box<str>,
    /// The rules as a file; none if there are none.
    pub rules: Option<String>,
    /// How many they are.
    pub rules_count: usize,
    /// What stays of the tree as a file; none if nothing does.
    pub tree: Option<String>,
    /// The limits that stay in it.
    pub left: Vec<Left>,
    /// The lists of attributes of which a request must send a descriptor where it has all of one.
    pub lists: Vec<String>,
}

/// A limit that stays in its tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Where it is written.
    pub position: Position,
    /// The texts of its path, joined by dots.
    pub name: Box<str>,
    /// Why no rule does the same.
    pub why: &'static str,
}

/// Reads the trees of a directory, or of one file, and makes rules of them. The problems are all warnings.
///
/// # Errors
/// What is wrong with the files, errors among it: then nothing is made of any.
pub fn native(path: &Path) -> Result<(Vec<Native>, Vec<Problem>), Vec<Problem>> {
    let Loaded { mut problems, homes, .. } = read(path);
    let mut trees: BTreeMap<Box<str>, Vec<Branch>> = BTreeMap::new();
    if !problems.iter().any(Problem::is_error) {
        problems.extend(read_trees(&homes, &mut trees));
    }
    if problems.iter().any(Problem::is_error) {
        return Err(problems);
    }
    Ok((trees.iter().map(|(domain, tree)| Native::of(domain, tree)).collect(), problems))
}

impl Native {
    fn of(domain: &str, tree: &[Branch]) -> Native {
        let (limits, lists) = walk(tree);
        let (left, gone): (Vec<&Limited<'_>>, Vec<_>) =
            limits.iter().partition(|limited| limited.why.is_some());
        let counted = gone.into_iter().filter(|limited| limited.limit.amount.is_some());
        let rules: Vec<String> = counted.flat_map(written::rules).collect();
        let lists: Vec<String> = lists.iter().map(|list| format!("[{}]", list.join(", "))).collect();
        let stays: HashSet<*const Branch> =
            left.iter().filter_map(|limited| Some(std::ptr::from_ref(*limited.path.last()?))).collect();
        let told = left.iter().filter_map(|limited| Left::of(limited)).collect::<Vec<_>>();
        Native {
            domain: domain.into(),
            rules_count: rules.len(),
            rules: (!rules.is_empty()).then(|| written::rules_file(domain, &lists, &rules)),
            tree: (!told.is_empty()).then(|| written::tree_file(domain, tree, &stays, &told)),
            left: told,
            lists,
        }
    }
}

impl Left {
    fn of(limited: &Limited<'_>) -> Option<Left> {
        let position = limited.path.last()?.position.clone();
        Some(Left { position, name: limited.texts().join(".").into(), why: limited.why? })
    }
}

/// The trees of files that have been found good, by domain, in the order of the files. What they hold beside trees would be
/// lost, and is an error.
fn read_trees(homes: &Homes, trees: &mut BTreeMap<Box<str>, Vec<Branch>>) -> Vec<Problem> {
    let mut files: Vec<_> = homes.keys().collect();
    files.sort_unstable();
    let mut problems = Vec::new();
    for file in files {
        match Source::read(Path::new(&**file)) {
            Ok(source) => problems.extend(read_tree(&source, trees)),
            Err(unreadable) => problems.push(*unreadable.problem),
        }
    }
    problems
}

fn read_tree(source: &Source, trees: &mut BTreeMap<Box<str>, Vec<Branch>>) -> Vec<Problem> {
    let root = match yaml::read(source) {
        Ok(root) => root,
        Err(problem) => return vec![*problem],
    };
    // What they say of the file was said when it was read first.
    let mut said = Report::new(source);
    let mut report = Report::new(source);
    let file = File::read(&root, &mut said);
    let given = Given::by_settings(Scope::Host, None);
    let given = file.defaults.as_ref().map_or(given, |defaults| given.or_defaults(defaults, &mut said));
    let branches = descriptors(file.descriptors, given, &mut said);
    if !(File { descriptors: &[], ..file }).is_empty() {
        let mend = "move all but `domain` and `descriptors` into a file of its own, which stays as it is";
        report.error(Place::START, "there is more in this file than a descriptor tree", mend);
    }
    let mut limits = Vec::new();
    branches.iter().for_each(|branch| branch.limits(&mut limits));
    if limits.iter().any(|(_, limit)| limit.fleet.is_some()) {
        let mend = "keep it as it is: no rule of `limits` counts what is refused for all hosts together";
        report.error(Place::START, "this tree counts with `scope: fleet`", mend);
    }
    if let Some((_, domain)) = file.domain {
        trees.entry(domain.into()).or_default().extend(branches);
    }
    report.into_problems()
}
