//! The page at `/`: the state of the daemon for people. One file with its charts, its style and a short script, and
//! whole without them. It changes nothing.

mod sections;

use maud::{PreEscaped, html};

use super::answer::{self, HttpAnswer};
use super::health::{CheckState, Health};
use super::history::{HistorySample, RateHistory};
use super::status::DaemonStatus;
use super::switches::utc;
use super::{AdminState, router};
use crate::page::{counted, document, nonce};

/// Answers with the page.
pub(super) fn render_page(admin: &AdminState) -> HttpAnswer {
    let story = admin.history.story(&HistorySample::take(admin));
    let now = admin.clock.now();
    let nonce = nonce();
    let host = std::fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
    let page = text(&DaemonStatus::read(admin), &story, [host.trim(), &utc(now.at, now), &nonce]);
    answer::html(page, &policy(&nonce))
}

/// Returns the page of a host at a time; the nonce admits the page's own style and script.
fn text(status: &DaemonStatus, story: &RateHistory, [host, at, nonce]: [&str; 3]) -> String {
    let health = Health::new(status, story);
    let (mark, _) = health.sign().mark_and_word();
    let colour = match health.sign() {
        CheckState::Absent | CheckState::Good => "%231a7f37",
        CheckState::Note => "%23bf8700",
        CheckState::Bad => "%23cf222e",
    };
    let icon = format!(
        "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 2 2'%3E%3Ccircle cx='1' cy='1' r='1' \
         fill='{colour}'/%3E%3C/svg%3E"
    );
    let head = html! {
        link id="icon" rel="icon" href=(icon);
        noscript { meta http-equiv="refresh" content="5"; }
    };
    let verbs = router::ROUTES.iter().filter(|route| route.action.is_verb()).map(|route| route.path);
    let body = html! {
        body {
            p id="silence" role="alert" hidden {}
            div id="page" {
                header {
                    h1 { "tidegate " span.host { (host) } }
                    p.when {
                        "as of " time datetime=(at) { (at.get(11..19).unwrap_or_default()) " UTC" } ", "
                        span id="pace" { "loaded anew every 5 s" }
                    }
                }
                main { (sections::health(&health)) (sections::all(status, story)) }
                footer {
                    details {
                        summary { "What else this socket has" }
                        ul {
                            @for (path, what) in router::others() { li { a href={ "." (path) } { (path) } " " (what) } }
                            @for path in verbs { li { "POST " code { (path) } } }
                        }
                    }
                    p {
                        "Pictures are drawn from " (counted(story.steps.len() as u64, "look", "looks"))
                        ", 5 s apart; they begin anew with the daemon."
                    }
                }
            }
            script nonce=(nonce) { (PreEscaped(include_str!("status_page/page.js"))) }
        }
    };
    document(&format!("{mark} tidegate {host}"), nonce, &head, "", &body)
}

/// Returns the content security policy: only the page's own content, and fetching the page again.
fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

#[cfg(test)]
mod tests;
