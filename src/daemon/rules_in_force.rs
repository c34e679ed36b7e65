//! The rules in force: read at the start and on request. Problems in the files never stop the daemon.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{error, info, warn};

use super::last_good::{LastGood, ProvenRules};
use super::redis_settings::fleet_alone;
use crate::admin::{DomainInForce, ReloadResult, RulesRecord};
use crate::clock::Clock;
use crate::engine::{Engine, ReplacedRuleSet};
use crate::rules::{Domain, Library, ListKind, NotApplied, OpenFiles, Problem, Reading, STARTS_FRESH};
use crate::sys;
use crate::terms::counted;

/// The rules in force, and the means to read them again.
#[derive(Debug)]
pub(super) struct RulesInForce {
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    library: Library,
    record: Arc<Mutex<RulesRecord>>,
    /// Replaced rule sets that a decision thread may still use. They are freed here once unused, so that no
    /// decision waits while thousands of rules are freed.
    retired: Vec<ReplacedRuleSet>,
    /// The file of the last good rules, for a start at which the files have errors.
    last_good: Option<LastGood>,
    /// Whether the rules in force differ from that file.
    is_unsaved: bool,
    /// Whether the rules were compared with those of the last run.
    is_compared: bool,
    /// Whether the last reading left out files that were open.
    is_partial: bool,
    proof: ProvenRules,
    /// Whether the settings name a Redis, so that hosts can share a budget.
    has_redis: bool,
    /// The domains with errors, at the last reading.
    failing: Vec<Box<str>>,
}

impl RulesInForce {
    /// Reads the rules and puts them in force. A domain with errors gets its last good rules, if they were
    /// stored. After a crash loop the proven rules are put in force instead.
    pub(super) fn start(
        engine: &Arc<Engine>,
        clock: &Arc<Clock>,
        library: Library,
        (last_good, proof): (Option<LastGood>, ProvenRules),
        has_redis: bool,
    ) -> RulesInForce {
        let mut rules = RulesInForce {
            engine: Arc::clone(engine),
            clock: Arc::clone(clock),
            record: Arc::new(Mutex::new(RulesRecord {
                path: library.path().display().to_string(),
                ..RulesRecord::default()
            })),
            library,
            retired: Vec::new(),
            is_unsaved: last_good.is_some(),
            is_compared: false,
            is_partial: false,
            last_good,
            proof,
            has_redis,
            failing: Vec::new(),
        };
        if rules.begin_after_crash_loop() {
            return rules;
        }
        if let Some(last_good) = &rules.last_good {
            rules.library.remember(last_good.take_up());
        }
        let reading = rules.read(&OpenFiles::default());
        rules.log_failures(&reading);
        let domains = rules.library.domains();
        for domain in &domains {
            info!(domain = domain.name(), rules = domain.rules().len(), "this domain has limits");
        }
        rules.log_summary(match &reading.halt {
            Some(_) => "the rules could not be read",
            None => "the rules were read",
        });
        rules
    }

    /// Puts the proven rules in force, not the files, if they exist and this start follows a crash loop.
    fn begin_after_crash_loop(&mut self) -> bool {
        if !self.proof.is_after_crash_loop() {
            return false;
        }
        let texts = self.proof.file.as_ref().map(LastGood::take_up).unwrap_or_default();
        if texts.is_empty() {
            self.proof.files_are_read();
            error!(
                "there are no rules under which this daemon ran for a minute: the files are read as they are"
            );
            return false;
        }
        self.library.begin_with(texts);
        self.retired.push(self.engine.install_rules_at(self.library.domains(), self.clock.now().at));
        self.note(&Reading::default());
        error!(
            "the LAST RULES UNDER WHICH THIS DAEMON RAN FOR A MINUTE are in force, not the files: fix those and reload"
        );
        self.log_summary("the files were not read");
        true
    }

    /// Stores the rules in force as proven once they are old enough. Returns the time until then, if any.
    pub(super) fn prove(&mut self) -> Option<Duration> {
        let left = self.proof.left()?;
        if left.is_zero() {
            self.proof.keep(&self.library);
        }
        self.proof.left()
    }

    pub(super) fn path(&self) -> &Path {
        self.library.path()
    }

    pub(super) fn domains(&self) -> Vec<Arc<Domain>> {
        self.library.domains()
    }

    /// Whether all written rules are in force.
    pub(super) fn is_good(&self) -> bool {
        self.record.lock().good
    }

    /// Returns a summary in one line, for the service manager.
    pub(super) fn summary(&self) -> String {
        let domains = self.library.domains();
        let rules: usize = domains.iter().map(|domain| domain.rules().len()).sum();
        let errors = if self.is_good() {
            ""
        } else {
            "; the files have ERRORS, which the log and `tidegate check` name"
        };
        format!("serving: {} in {}{errors}", counted(rules, "rule"), counted(domains.len(), "domain"))
    }

    /// Returns the status of the rules, which every reading updates.
    pub(super) fn record(&self) -> Arc<Mutex<RulesRecord>> {
        Arc::clone(&self.record)
    }

    /// Whether files other than these have changed.
    pub(super) fn is_outdated_beside(&self, open: &OpenFiles) -> bool {
        self.library.is_outdated_beside(open)
    }

    /// Reads the rules again, those of domains to which no open file adds. Logs and returns the changes and problems.
    pub(super) fn reload(&mut self, open: &OpenFiles) -> ReloadResult {
        let failing = std::mem::take(&mut self.failing);
        let reading = self.read(open);
        self.log_failures(&reading);
        let is_fixed = |name: &&str| {
            reading.halt.is_none()
                && !self.failing.iter().any(|failing| **failing == **name)
                && self.domains().iter().any(|domain| domain.name() == *name)
        };
        let fixed = failing
            .iter()
            .map(|name| &**name)
            .filter(is_fixed)
            .map(|name| format!("{name}: its errors are fixed"));
        let changes: Vec<String> = fixed.chain(reading.changes.iter().cloned()).collect();
        for line in &changes {
            info!("{line}");
        }
        let outdated = counted(reading.kept.len() + reading.without.len(), "domain");
        let sum = match &reading.halt {
            Some(_) => "the rules that were in force stay".to_owned(),
            None if !self.failing.is_empty() => {
                format!("the rules were read again: {outdated} left out for errors")
            }
            None if changes.is_empty() => "the rules were read again: nothing changed".to_owned(),
            None => "the rules were read again and are in force".to_owned(),
        };
        self.log_summary(&sum);
        if reading.halt.is_some() {
            self.failing = failing;
        }
        ReloadResult { changes, problems: report_lines(&reading) }
    }

    fn log_failures(&self, reading: &Reading) {
        log_reading(reading, self.library.path(), self.library.domains().is_empty());
        if !self.has_redis {
            fleet_alone(&self.library.domains()).iter().for_each(log_problem);
        }
    }

    /// Stores the rules in force, if they have changed, for a start at which their files have errors.
    pub(super) fn save(&mut self) {
        if !std::mem::replace(&mut self.is_compared, true) {
            self.log_changes_since_last_run();
        }
        self.is_unsaved |= self.is_lost();
        if let Some(last_good) = self.last_good.as_mut().filter(|_| self.is_unsaved) {
            self.is_unsaved = !last_good.write(&self.library);
        }
    }

    /// Logs the changes from the rules that the last daemon stored. Not at the start itself, which would wait for it.
    fn log_changes_since_last_run(&self) {
        let before = self.last_good.as_ref().map(LastGood::texts).unwrap_or_default();
        if before.is_empty() {
            return;
        }
        let changes = self.library.changes_since(&before);
        let (named, rest) = changes.split_at(changes.len().min(NAMED_MAX));
        if !named.is_empty() {
            let more = if rest.is_empty() { String::new() } else { format!("; and {} more", rest.len()) };
            let count = changes.len();
            info!(changes = count, "since the last run the rules changed: {}{more}", named.join("; "));
        }
        rest.iter().filter(|line| line.ends_with(STARTS_FRESH)).for_each(|line| info!("{line}"));
    }

    /// Whether the saved rules were removed from the state directory.
    fn is_lost(&self) -> bool {
        // Without domains nothing is saved.
        !self.library.domains().is_empty()
            && self.last_good.as_ref().is_some_and(|last_good| !last_good.exists())
    }

    /// Whether something should be retried: reading files with errors, or storing the rules.
    pub(super) fn needs_retry(&self) -> bool {
        let is_unsaved = self.is_unsaved && self.last_good.is_some();
        is_unsaved || self.is_lost() || !self.is_good()
    }

    /// Frees replaced rule sets that no decision thread uses. Returns whether some remain.
    pub(super) fn free_retired(&mut self) -> bool {
        let before = self.retired.len();
        self.retired.retain(ReplacedRuleSet::is_in_use);
        if self.retired.len() < before {
            sys::trim_heap();
        }
        !self.retired.is_empty()
    }

    fn read(&mut self, open: &OpenFiles) -> Reading {
        let before = self.library.domains();
        let reading = self.library.read_beside(open);
        let after = self.library.domains();
        if before.iter().map(Arc::as_ptr).ne(after.iter().map(Arc::as_ptr)) {
            self.retired.push(self.engine.install_rules_at(self.library.domains(), self.clock.now().at));
            self.is_unsaved = true;
            self.proof.begin();
        }
        // The texts beside an open file cannot be stored before it is closed.
        self.is_unsaved |= std::mem::replace(&mut self.is_partial, !open.is_empty());
        self.proof.files_are_read();
        self.retired.retain(ReplacedRuleSet::is_in_use);
        sys::trim_heap();
        self.failing = [reading.kept.as_slice(), reading.without.as_slice()].concat();
        self.note(&reading);
        reading
    }

    fn note(&self, reading: &Reading) {
        self.engine.set_invalid_domains(&reading.without);
        let is_good = reading.is_good();
        let domains = self.library.fingerprints().map(|(domain, content)| DomainInForce {
            name: domain.name().into(),
            sha: content.to_string(),
            rules: domain.rules().len() as u64,
        });
        let domains: Vec<_> = domains.collect();
        let mut record = self.record.lock();
        // A reading that is not applied leaves every domain as it was, and the first one leaves none.
        record.lacks_limits = match reading.halt {
            Some(_) => record.lacks_limits || domains.is_empty(),
            None => !reading.without.is_empty() || !reading.homeless.is_empty(),
        };
        let when = if is_good { &mut record.last_success } else { &mut record.last_failure };
        *when = Some(self.clock.now().at.as_nanos() as f64 / 1e9);
        (record.good, record.domains) = (is_good, domains);
        (record.kept, record.without) = (reading.kept.clone(), reading.without.clone());
        let first = reading.problems.iter().find(|problem| problem.is_error());
        record.first_error = first.map(|error| match error.position.line {
            0 => error.position.file.to_string(),
            line => format!("{}:{line}", error.position.file),
        });
    }

    fn log_summary(&self, message: &str) {
        let domains = self.library.domains();
        let rules: usize = domains.iter().map(|domain| domain.rules().len()).sum();
        let path = self.library.path().display();
        info!(%path, domains = domains.len(), rules, "{message}");
        if !domains.iter().any(|domain| may_refuse(domain)) {
            warn!(%path, "no rule is in force: everything is allowed");
        }
    }
}

/// Whether a domain can refuse a request: by a rule, an entry of `deny`, or a part of `shed`.
fn may_refuse(domain: &Domain) -> bool {
    let denies = domain.lists().iter().any(|listed| listed.kind == ListKind::Deny);
    let sheds = domain.sheds().iter().any(|shed| shed.parts().next().is_some());
    denies || sheds || !domain.rules().is_empty()
}

pub(super) fn log_problem(problem: &Problem) {
    if problem.is_error() { error!("{problem}") } else { warn!("{problem}") }
}

/// Returns why some of the written rules are not in force, one line each; empty if all are.
fn report_lines(reading: &Reading) -> Vec<String> {
    let errors = || reading.problems.iter().filter(|problem| problem.is_error());
    let mut lines: Vec<String> = errors().take(ANSWERED_MAX).map(ToString::to_string).collect();
    if let Some(more) = errors().count().checked_sub(ANSWERED_MAX).filter(|more| *more > 0) {
        lines.push(format!("and {more} more errors: `tidegate check` shows them all"));
    }
    lines.extend(reading.without.iter().map(|domain| format!("{domain}: has NO LIMITS until that is fixed")));
    lines.extend(reading.kept.iter().map(|domain| format!("{domain}: keeps its last good rules")));
    lines.extend(reading.halt.as_ref().map(|halt| format!("{halt}: nothing is changed")));
    lines
}

fn log_reading(reading: &Reading, path: &Path, is_empty: bool) {
    let state = if is_empty { "there are NO LIMITS" } else { "NOTHING IS CHANGED" };
    reading.problems.iter().take(PROBLEMS_MAX).for_each(log_problem);
    if let Some(left @ [_, ..]) = reading.problems.get(PROBLEMS_MAX..) {
        let (more, path) = (left.len(), path.display());
        match left.iter().any(Problem::is_error) {
            true => error!("and {more} more problems: `tidegate check {path}` shows them all"),
            false => warn!("and {more} more warnings: `tidegate check {path}` shows them all"),
        }
    }
    for domain in &reading.without {
        error!(%domain, "the rules of this domain have errors: it has NO LIMITS until they are fixed");
    }
    for domain in &reading.recalled {
        error!(%domain, "the rules of this domain have errors: it has YESTERDAY'S, the last that were good, until they are fixed");
    }
    for domain in reading.kept.iter().filter(|domain| !reading.recalled.contains(domain)) {
        error!(%domain, "the rules of this domain have errors: it keeps its last good rules until they are fixed");
    }
    match &reading.halt {
        Some(halt @ NotApplied::Unsettled) => warn!("{halt}: nothing is changed until they stop changing"),
        Some(halt) => error!("{halt}: {state} until that is fixed"),
        None => {}
    }
}

/// The first problems of a file with thousands suffice.
const PROBLEMS_MAX: usize = 1_000;

/// The changes since the last run that one line of the log has.
const NAMED_MAX: usize = 8;

/// As many as an operator reads in a terminal.
const ANSWERED_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::may_refuse;
    use crate::rules::read_text;

    #[test]
    fn domain_with_any_refusing_section_may_refuse() {
        for (text, may) in [
            ("limits: [{name: a, key: [], rate: 1/s}]", true),
            ("concurrency: [{name: a, key: [], max: 1}]", true),
            ("deny: [{name: a, match: {b: c}}]", true),
            ("shed: [{pool: web, queue_age: {}}]", true),
            ("descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 5}}]", true),
            ("exempt: [{name: a, match: {b: c}}]", false),
            ("shed: [{pool: web, slots: 4}]", false),
            ("limits: []", false),
        ] {
            let loaded = read_text("rules.yaml", &format!("domain: api\n{text}\n"));
            assert_eq!(loaded.domains.iter().any(|domain| may_refuse(domain)), may, "{text}");
        }
    }
}
