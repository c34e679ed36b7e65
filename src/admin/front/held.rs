//! Shows active switches and blocks with their origin, and the latest changes.

use std::fmt::Write;

use serde_json::Value;

use super::health::is;
use crate::admin::told::{list, word};
use crate::page::{EscapedText, IsolatedName};

pub(super) fn write(status: &Value, page: &mut String) {
    let switches = list(status, "/switches/switches");
    let blocks = list(status, "/switches/blocks");
    let changes = list(status, "/switches/changes");
    if switches.is_empty() && blocks.is_empty() && changes.is_empty() {
        return;
    }
    page.push_str(
        "<section aria-labelledby=\"held\"><h2 id=\"held\">Over the rules</h2><div class=\"columns\">",
    );
    let rows = switches.iter().map(|switch| {
        let what = switch.pointer("/rule").and_then(Value::as_str);
        let what = what.map_or_else(|| "everything".to_owned(), |rule| IsolatedName(rule).to_string());
        [what, format!("to {}", EscapedText(word(switch, "/mode"))), by(switch), until(switch)]
    });
    table(page, "Switches", ["What", "Switched", "By", "Until"], rows);
    let rows = blocks.iter().map(|block| {
        let digest = word(block, "/key");
        let key = match block.pointer("/text").and_then(Value::as_str) {
            Some(text) => IsolatedName(text).to_string(),
            None => format!("<code>{}</code>", EscapedText(digest.get(..16).unwrap_or(digest))),
        };
        [IsolatedName(word(block, "/rule")).to_string(), key, by(block), until(block)]
    });
    table(page, "Keys blocked by hand", ["Rule", "Key", "By", "Until"], rows);
    let rows = changes.iter().map(|change| {
        let words = |field| EscapedText(word(change, field)).to_string();
        [time(word(change, "/at")), words("/by"), words("/what"), String::new()]
    });
    table(page, "Last changes", ["When", "By", "What", ""], rows);
    page.push_str("</div></section>");
}

fn table(
    page: &mut String,
    caption: &str,
    headings: [&str; 4],
    rows: impl ExactSizeIterator<Item = [String; 4]>,
) {
    let all = rows.len();
    if all == 0 {
        return;
    }
    let headings: String = headings
        .iter()
        .filter(|heading| !heading.is_empty())
        .map(|heading| format!("<th scope=\"col\">{heading}</th>"))
        .collect();
    let more = match all.saturating_sub(ROWS_SHOWN) {
        0 => String::new(),
        left => format!("; {left} more: <code>tidegate switch</code>"),
    };
    let _ = write!(
        page,
        "<div class=\"wide\"><table><caption>{caption}{more}</caption><thead><tr>{headings}</tr></thead><tbody>"
    );
    for row in rows.take(ROWS_SHOWN) {
        let [first, rest @ ..] = row;
        let rest: String = rest
            .iter()
            .filter(|cell| !cell.is_empty())
            .map(|cell| format!("<td class=\"name\">{cell}</td>"))
            .collect();
        let _ = write!(page, "<tr><th scope=\"row\">{first}</th>{rest}</tr>");
    }
    page.push_str("</tbody></table></div>");
}

fn by(entry: &Value) -> String {
    let everywhere = if is(entry, "/fleet") { ", on all hosts" } else { "" };
    format!("{}{everywhere}", EscapedText(word(entry, "/by")))
}

fn until(entry: &Value) -> String {
    match word(entry, "/until") {
        "" => "it is switched back".to_owned(),
        at => time(at),
    }
}

/// A moment to the second, the day first, as it may be another.
fn time(at: &str) -> String {
    format!(
        "<time datetime=\"{}\">{}</time>",
        EscapedText(at),
        EscapedText(&at.replace('T', " ").replace('Z', " UTC"))
    )
}

/// Of each kind.
const ROWS_SHOWN: usize = 10;
