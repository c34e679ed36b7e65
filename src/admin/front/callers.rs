//! Shows the callers with the most requests and refusals: digests, and text only if a rule allows it.

use std::fmt::Write;

use serde_json::Value;

use crate::admin::told::{list, number, word};
use crate::page::{EscapedText, IsolatedName, count};

pub(super) fn write(status: &Value, page: &mut String) {
    page.push_str(
        "<section aria-labelledby=\"callers\"><h2 id=\"callers\">Callers</h2><div class=\"columns\">",
    );
    kind(status, "refused", "Most refused", page);
    kind(status, "busiest", "Busiest", page);
    if !list(status, "/callers/would_refuse").is_empty() {
        kind(status, "would_refuse", "Most would-be refused", page);
    }
    page.push_str(
        "</div><p class=\"none\">Units of cost, fading over some ten minutes. A caller is a digest, but for what a rule \
         names in <code>show_keys</code>.</p></section>",
    );
}

fn kind(status: &Value, kind: &str, caption: &str, page: &mut String) {
    let callers = list(status, &format!("/callers/{kind}"));
    if callers.is_empty() {
        let none = "no caller stands out";
        let _ = write!(page, "<div><p class=\"caption\">{caption}</p><p class=\"none\">{none}</p></div>");
        return;
    }
    let _ = write!(
        page,
        "<div class=\"wide\"><table><caption>{caption}</caption><thead><tr><th scope=\"col\">Caller</th><th \
         scope=\"col\">Rule</th><th scope=\"col\" class=\"number\">Units, at least</th><th scope=\"col\" \
         class=\"number\">Up to so many more</th></tr></thead><tbody>"
    );
    for caller in callers.iter().take(CALLERS_SHOWN) {
        let digest = word(caller, "/digest");
        let short = digest.get(..DIGEST_SHOWN).unwrap_or(digest);
        let who = match caller.pointer("/text").and_then(Value::as_str) {
            Some(text) => IsolatedName(text).to_string(),
            None => format!("<code title=\"{}\">{}</code>", EscapedText(digest), EscapedText(short)),
        };
        let rule = format!("{}/{}", word(caller, "/domain"), word(caller, "/rule"));
        let _ = write!(
            page,
            "<tr><th scope=\"row\">{who}</th><td class=\"name\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            IsolatedName(&rule),
            count(number(caller, "/count")),
            count(number(caller, "/error")),
        );
    }
    page.push_str("</tbody></table></div>");
}

/// As many as `tidegate status` shows.
const CALLERS_SHOWN: usize = 10;

/// Enough to tell callers apart by eye; the whole of it is in its title.
const DIGEST_SHOWN: usize = 16;
