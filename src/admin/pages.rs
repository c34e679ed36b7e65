//! Read-only pages, one for each path.

use hyper::StatusCode;

use super::answer::{self, HttpAnswer};
use super::fleet::{FleetPage, FleetReading};
use super::status::DaemonStatus;
use super::switches::everything_everywhere;
use super::{AdminState, front, metrics, rules_page};

/// One page.
#[derive(Clone, Copy)]
pub(super) struct AdminPage {
    path: &'static str,
    what: &'static str,
    /// Whether it shows no callers, so that the metrics port may serve it.
    pub(super) is_harmless: bool,
    /// Makes it, without waiting for anything.
    pub(super) make: fn(&AdminState) -> HttpAnswer,
}

/// The page of a path.
pub(super) fn find(path: &str) -> Option<AdminPage> {
    PAGES.iter().find(|page| page.path == path).copied()
}

/// Returns the paths other than the first page, with their descriptions.
pub(super) fn others() -> impl Iterator<Item = (&'static str, &'static str)> {
    PAGES.iter().filter(|page| page.path != "/").map(|page| (page.path, page.what))
}

/// Where the pages are: to look at them changes nothing.
pub fn paths() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|page| page.path)
}

/// It answers, so it lives.
fn healthz(_: &AdminState) -> HttpAnswer {
    answer::text(StatusCode::OK, "ok\n")
}

/// Whether work should be sent here: the reasons against it, a line each.
fn readyz(desk: &AdminState) -> HttpAnswer {
    let mut reasons = Vec::new();
    if !desk.control.rules().is_good {
        reasons.push(
            "the rules have errors: `tidegate check` shows them; what could be read is in force".to_owned(),
        );
    }
    reasons.extend(desk.control.unready());
    if reasons.is_empty() {
        // Work may be sent here all the same.
        let fleet = FleetReading::take(desk, desk.clock.now().at);
        let notes = [fleet.forged_warning(), everything_everywhere(desk)];
        let notes: String = notes.into_iter().flatten().map(|note| format!("note: {note}\n")).collect();
        return answer::text(StatusCode::OK, format!("ready\n{notes}"));
    }
    answer::text(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n")
}

fn status(desk: &AdminState) -> HttpAnswer {
    answer::value(StatusCode::OK, &DaemonStatus::read(desk))
}

fn fleet(desk: &AdminState) -> HttpAnswer {
    answer::value(StatusCode::OK, &FleetPage::read(desk))
}

fn switches(desk: &AdminState) -> HttpAnswer {
    answer::value(StatusCode::OK, &super::switches::switches(desk))
}

const PAGES: &[AdminPage] = &[
    AdminPage { path: "/", what: "how it is, for people", is_harmless: false, make: front::front },
    AdminPage { path: "/metrics", what: "for Prometheus", is_harmless: true, make: metrics::metrics },
    AdminPage { path: "/healthz", what: "whether the daemon lives", is_harmless: true, make: healthz },
    AdminPage { path: "/status", what: "how it is, as JSON", is_harmless: false, make: status },
    AdminPage {
        path: "/fleet",
        what: "how it stands with the other hosts, as JSON",
        is_harmless: false,
        make: fleet,
    },
    AdminPage {
        path: "/rules",
        what: "the rules in force, as JSON",
        is_harmless: false,
        make: rules_page::rules,
    },
    AdminPage {
        path: "/switches",
        what: "what holds over the rules, and who said so",
        is_harmless: false,
        make: switches,
    },
    AdminPage { path: "/readyz", what: "whether work should be sent here", is_harmless: true, make: readyz },
];
