//! Headers, message and body of an HTTP response, the same bytes as in every client: tests/vectors/answers.json.

use std::fmt::Write;
use std::time::Duration;

use crate::decision::{Decision, Verdict};

impl Decision {
    /// Returns one sentence for people: the rule, its limit, and the time of a retry.
    #[must_use]
    pub fn message(&self) -> String {
        let is_limited = self.verdict == Verdict::Limit;
        let cause = match self.named() {
            _ if self.is_allowed() => return "Allowed.".to_owned(),
            _ if self.verdict == Verdict::Deny => return "This request is not allowed.".to_owned(),
            _ if is_limited && self.is_blocked => "This caller is blocked.".to_owned(),
            Some((rule, limit)) if is_limited => format!("Over the limit {rule} of {}.", self.quota(limit)),
            _ if is_limited => "Too many requests.".to_owned(),
            _ if self.reason.is_some() => "The request could not be judged.".to_owned(),
            _ => "The service is at its capacity.".to_owned(),
        };
        match self.retry_after {
            None => format!("{cause} It asks for more than the limit holds: it can never pass."),
            Some(retry) => format!("{cause} Try again in {} s.", seconds(retry).max(1)),
        }
    }

    /// Returns RateLimit (draft-ietf-httpapi-ratelimit-headers-11), X-Ratelimit and, of a refusal, Retry-After headers. Do not
    /// send them with redirects.
    #[must_use]
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        if let Some((rule, limit)) = self.named() {
            let (limit, remaining) = (limit.min(NUMBER_MAX), self.remaining.unwrap_or(0).min(NUMBER_MAX));
            let window = self.window.filter(|window| !window.is_zero());
            let name = quoted(rule);
            let (mut level, mut policy) = (format!("{name};r={remaining}"), format!("{name};q={limit}"));
            let unit = if window.is_some() { self.unit() } else { "concurrent-requests" };
            if unit != "requests" {
                policy += &format!(";qu={}", quoted(unit));
            }
            if let Some(window) = window {
                level += &format!(";t={}", seconds(self.reset_after.unwrap_or_default()));
                policy += &format!(";w={}", seconds(window));
            }
            headers.extend([("RateLimit", level), ("RateLimit-Policy", policy)]);
            headers.push(("X-Ratelimit-Limit", limit.to_string()));
            headers.push(("X-Ratelimit-Remaining", remaining.to_string()));
        }
        if let Some(retry) = self.retry_after.filter(|_| !self.is_allowed()) {
            let retry = seconds(retry).clamp(1, NUMBER_MAX).to_string();
            if !self.is_hidden {
                headers.push(("X-Ratelimit-Retry-After", retry.clone()));
            }
            headers.push(("Retry-After", retry));
        }
        headers
    }

    /// Returns the body of a refusal: application/problem+json of RFC 9457.
    #[must_use]
    pub fn problem(&self) -> String {
        let (about, title) = match self.verdict {
            Verdict::Limit if self.is_blocked => ("urn:tidegate:problem:blocked", "Too Many Requests"),
            Verdict::Limit => {
                ("https://iana.org/assignments/http-problem-types#quota-exceeded", "Too Many Requests")
            }
            Verdict::Shed => {
                let about = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
                (about, "Service Unavailable")
            }
            _ => ("about:blank", "Forbidden"),
        };
        let (status, detail) = (self.status(), escaped(&self.message()));
        let mut body = format!(r#"{{"type":"{about}","title":"{title}","status":{status},"detail":{detail}"#);
        if let Some((rule, limit)) = self.named().filter(|_| self.verdict == Verdict::Limit) {
            let (rule, window) = (escaped(rule), thousandths(self.window.unwrap_or_default()));
            body += &format!(r#","violated-policies":[{rule}],"limit":{limit},"window":{window}"#);
            if let (Some(domain), Some(digest)) = (&self.domain, &self.digest) {
                body += &format!(r#","domain":{},"digest":{}"#, escaped(domain), escaped(digest));
            }
        }
        if let Some(retry) = self.retry_after {
            body += &format!(r#","retry_after":{}"#, thousandths(retry));
        }
        if let Some(help) = &self.help {
            body += &format!(r#","help":{}"#, escaped(help));
        }
        body + "}"
    }

    /// The rule and its limit, if callers may see them.
    fn named(&self) -> Option<(&str, u64)> {
        self.rule.as_deref().zip(self.limit).filter(|_| !self.is_hidden)
    }

    fn unit(&self) -> &str {
        self.unit.as_deref().unwrap_or("requests")
    }

    /// Returns the quota as the rule writes it, if the daemon sent that, else the limit and its window.
    fn quota(&self, limit: u64) -> String {
        let unit = self.unit();
        if let Some((count, periods, article, noun)) = self.rate.as_deref().and_then(read_rate) {
            let unit = if (count, unit) == ("1", "requests") { "request" } else { unit };
            return match periods {
                "" | "1" => format!("{count} {unit} {article} {noun}"),
                _ => format!("{count} {unit} in {periods} {noun}s"),
            };
        }
        match self.window.filter(|window| !window.is_zero()) {
            Some(window) => format!("{limit} {unit} in {} s", thousandths(window)),
            None => format!("{limit} at once"),
        }
    }
}

/// Reads a rate such as `300/15min`: the count, the number of periods, and the period in words.
pub(crate) fn read_rate(rate: &str) -> Option<(&str, &str, &'static str, &'static str)> {
    let (count, period) = rate.split_once('/')?;
    let name = period.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let periods = period.strip_suffix(name)?;
    let is_number = |text: &str| text.len() <= 10 && text.bytes().all(|byte| byte.is_ascii_digit());
    let (_, article, noun) = PERIODS.into_iter().find(|(known, ..)| *known == name)?;
    (!count.is_empty() && is_number(count) && is_number(periods)).then_some((count, periods, article, noun))
}

/// Rounds up to seconds.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Formats seconds, rounded up to milliseconds.
fn thousandths(time: Duration) -> String {
    let millis = time.as_nanos().div_ceil(1_000_000);
    let text = format!("{}.{:03}", millis / 1_000, millis % 1_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a string of structured fields: printable ASCII, other characters as `?`.
fn quoted(text: &str) -> String {
    let is_printable = |character: char| (' '..='~').contains(&character);
    let printable = text.chars().map(|character| if is_printable(character) { character } else { '?' });
    escaped(&printable.collect::<String>())
}

/// Formats a string of JSON with the fewest escapes.
fn escaped(text: &str) -> String {
    let mut json = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            '\n' => json += "\\n",
            '\r' => json += "\\r",
            '\t' => json += "\\t",
            '\u{8}' => json += "\\b",
            '\u{c}' => json += "\\f",
            '\0'..=' ' if character != ' ' => {
                // A string takes all text.
                let _ = write!(json, "\\u{:04x}", u32::from(character));
            }
            _ => json.push(character),
        }
    }
    json + "\""
}

/// Structured fields hold 15 digits.
const NUMBER_MAX: u64 = 999_999_999_999_999;

const PERIODS: [(&str, &str, &str); 7] = [
    ("ms", "a", "millisecond"),
    ("s", "a", "second"),
    ("min", "a", "minute"),
    ("h", "an", "hour"),
    ("day", "a", "day"),
    ("week", "a", "week"),
    ("month", "a", "month"),
];

#[cfg(test)]
mod tests;
