//! The page at `/`: the state of the daemon, readable at three in the morning. One file: its pictures, its
//! style and its few lines of script are in it, and it is whole without them. It changes nothing.

mod callers;
mod health;
mod held;
mod pools;
mod rules;
mod work;

use std::fmt::Write;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::Value;

use super::answer::{self, HttpAnswer};
use super::history::{HistorySample, Story};
use super::ledger::utc;
use super::{Desk, pages, recording, status, verbs};
use crate::page::{EscapedText, STYLE, Stretch, nonce, of};
use health::{Health, Sign};

/// The page.
pub(super) fn front(desk: &Desk) -> HttpAnswer {
    let story = desk.history.story(&HistorySample::take(desk));
    let now = desk.clock.now();
    let nonce = nonce();
    let host = std::fs::read_to_string(HOST_NAME_FILE).unwrap_or_default();
    let about = PageExtras { host: host.trim(), at: &utc(now.at, now), nonce: &nonce };
    let mut answer = answer::of_kind(StatusCode::OK, KIND, text(&status::told(desk), &story, &about));
    let headers = answer.headers_mut();
    for (name, value) in SAFETY {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // It is digits and letters.
    if let Ok(policy) = HeaderValue::from_str(&policy(&nonce)) {
        headers.insert(hyper::header::CONTENT_SECURITY_POLICY, policy);
    }
    answer
}

/// Page data that the status does not contain.
#[derive(Clone, Copy, Debug)]
struct PageExtras<'a> {
    /// Where it runs.
    host: &'a str,
    /// When it was made.
    at: &'a str,
    /// Nonce that admits the page's own style and script.
    nonce: &'a str,
}

fn text(status: &Value, story: &Story, about: &PageExtras<'_>) -> String {
    let health = Health::of(status, story);
    let mut page = String::with_capacity(PAGE_BYTES);
    head(&mut page, health.sign(), about);
    let _ = write!(
        page,
        "<body><p id=\"silence\" role=\"alert\" hidden></p><div id=\"page\"><header><h1>tidegate <span \
         class=\"host\">{}</span></h1><p class=\"when\">as of <time datetime=\"{}\">{}</time>, <span id=\"pace\">loaded \
         anew every 5 s</span></p></header><main>",
        EscapedText(about.host),
        about.at,
        about.at.get(11..19).unwrap_or_default().to_owned() + " UTC",
    );
    health.write(&mut page);
    pools::decisions(status, story, &mut page);
    pools::write(status, story, &mut page);
    rules::write(status, story, &mut page);
    callers::write(status, &mut page);
    held::write(status, &mut page);
    work::write(status, &mut page);
    page.push_str("</main><footer><details><summary>What else this socket has</summary><ul>");
    for (path, what) in pages::others() {
        let _ = write!(page, "<li><a href=\".{path}\">{path}</a> {what}</li>");
    }
    for path in verbs::paths().chain([recording::PATH]) {
        let _ = write!(page, "<li>POST <code>{path}</code></li>");
    }
    let looks = story.steps.len() as u64;
    let _ = writeln!(
        page,
        "</ul></details><p>Pictures are drawn from {looks} {}, 5 s apart; they begin anew with the daemon.</p></footer></div><script nonce=\"{}\">{SCRIPT}</script></body></html>",
        of(looks, "look", "looks"),
        about.nonce,
    );
    page
}

fn head(page: &mut String, sign: Sign, about: &PageExtras<'_>) {
    let colour = match sign {
        Sign::Absent | Sign::Good => "%231a7f37",
        Sign::Note => "%23bf8700",
        Sign::Bad => "%23cf222e",
    };
    let _ = write!(
        page,
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{} tidegate {}</title><meta \
         name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light \
         dark\"><link id=\"icon\" rel=\"icon\" href=\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' \
         viewBox='0 0 2 2'%3E%3Ccircle cx='1' cy='1' r='1' fill='{colour}'/%3E%3C/svg%3E\"><noscript><meta \
         http-equiv=\"refresh\" content=\"5\"></noscript><style nonce=\"{}\">{STYLE}</style></head>",
        sign.mark(),
        EscapedText(about.host),
        about.nonce,
    );
}

/// Returns the content security policy: only the page's own content, and fetching the page again.
fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

/// Further security headers: no content sniffing, no referrer, same-origin isolation.
pub const SAFETY: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

const KIND: &str = "text/html; charset=utf-8";

const SCRIPT: &str = include_str!("front/page.js");

const HOST_NAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Time span of the pictures. A gap of three steps: the host was suspended, or the recording thread was late.
const TEN_MINUTES: Stretch = Stretch { seconds: 600.0, gap_seconds: 15.0 };

/// Room for a page of some twenty rules at once.
const PAGE_BYTES: usize = 64 * 1_024;

#[cfg(test)]
mod tests;
