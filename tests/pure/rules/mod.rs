//! The rules reader: the meaning of good files, directories, bounds. `diagnostics/` has the errors and
//! warnings, `fuzz` files with a typo in them.

use crate::problems;
mod files;
mod fleet;
mod keys;
mod library;
mod links;
mod quotas;
mod reference;
mod tables;

use std::sync::Arc;

use tidegate::rules::Domain;

/// Domains with the names of their rules: `api: a b; web: c`.
pub(crate) fn shown(domains: &[Arc<Domain>]) -> String {
    let domain = |domain: &Arc<Domain>| {
        let rules: Vec<_> = domain.rules().iter().map(|rule| &*rule.name).collect();
        format!("{}: {}", domain.name(), rules.join(" "))
    };
    domains.iter().map(domain).collect::<Vec<_>>().join("; ")
}
