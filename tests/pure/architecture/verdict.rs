//! The permissions of each room in the design, and the faults of a file against them.

use super::source::{Token, rooms_named, tokens};

/// The rooms that each room may name. Every room may name `clock`, `terms`, and itself. An unlisted room does
/// not exist.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("main", EVERYONE),
    ("cli", EVERYONE),
    ("adapters", &["protocol", "server", "limit"]),
    ("daemon", &["adapters", "admin", "server", "fleet", "host", "state", "engine", "rules", "sys"]),
    ("trace", &["protocol", "server", "engine", "rules", "record", "state", "page"]),
    ("server", &["protocol", "engine", "record", "sys"]),
    ("fleet", &["engine", "rules"]),
    ("admin", &["adapters", "server", "fleet", "state", "engine", "rules", "record", "page"]),
    ("record", &["protocol", "engine", "sys"]),
    ("host", &["engine", "sys"]),
    ("state", &["engine", "sys"]),
    ("engine", &["rules", "shed", "limit"]),
    ("rules", &["limit"]),
    ("limit", &[]),
    ("shed", &[]),
    ("protocol", &[]),
    ("page", &[]),
    ("sys", &[]),
    ("clock", &[]),
    ("terms", &[]),
    ("lib", &[]),
];

const EVERYONE: &[&str] = &[
    "adapters", "cli", "daemon", "trace", "server", "fleet", "admin", "record", "host", "state", "engine",
    "rules", "limit", "shed", "protocol", "page", "sys",
];

/// Words that a room must not use: forbidden work needs them.
const MAY_NOT_SAY: &[(&str, &[&str])] = &[
    ("limit", &["tokio", "tokio_util", "redis", "tracing", "Mutex", "RwLock", "async", "await"]),
    ("shed", &["tokio", "tokio_util", "serde", "redis", "tracing", "Mutex", "RwLock", "async", "await"]),
    ("engine", &["tokio", "tokio_util", "redis", "async", "await", "UnixStream", "TcpStream"]),
    ("rules", &["tokio", "tokio_util", "redis", "async", "await"]),
    ("record", &["tokio", "tokio_util", "redis", "async", "await", "UnixStream", "File"]),
    ("trace", &["tokio", "tokio_util", "redis", "async", "await", "UnixStream", "TcpStream"]),
    ("protocol", &["tokio", "tokio_util", "serde", "redis", "async", "await"]),
];

/// Words, or paths of two, that only these rooms use.
const ONLY_SAID_IN: &[(&[&str], &[&str], &str)] = &[
    (&["unsafe"], &["sys"], "only src/sys touches the kernel by hand"),
    (&["Instant", "::", "now"], &["clock"], "only clock.rs reads a clock: take `now` as an argument"),
    (&["SystemTime", "::", "now"], &["clock"], "only clock.rs reads a clock: take `now` as an argument"),
    (&["clock_gettime"], &["clock"], "only clock.rs reads a clock: take `now` as an argument"),
    (&[".", "elapsed", "("], &["clock"], "it reads a clock: take `now` as an argument"),
    (&["process", "::", "exit"], &["cli"], "it skips the drain: return to the caller"),
    (&["process", "::", "abort"], &[], "it skips the drain: return to the caller"),
];

/// Rooms with exact arithmetic, where time and tokens are integers. A float of seconds since 1970 is off by
/// 238 ns.
const EXACT: &[&str] = &["limit", "engine", "protocol", "server"];

/// Words of floats.
const FLOATS: &[&str] =
    &["f32", "f64", "as_secs_f32", "as_secs_f64", "from_secs_f32", "from_secs_f64", "mul_f32", "mul_f64"];

/// Files of shedding alone, where probabilities and shares of time are floats; and a line of the log.
const FLOATS_IN: &[&str] = &[
    "engine/signals.rs",
    "engine/pool.rs",
    "engine/pool/controller.rs",
    "engine/snapshot.rs",
    "engine/gate.rs",
    "engine/watch.rs",
    "server/mod.rs",
];

/// A longer file may hold two concepts.
const LINES_MAX: usize = 500;

/// Whether one room may name another.
pub(crate) fn may_name(room: &str, other: &str) -> bool {
    let allowed = MAY_NAME.iter().find(|(name, _)| *name == room).map_or(&[][..], |(_, allowed)| allowed);
    other == room || other == "clock" || other == "terms" || allowed.contains(&other)
}

/// The faults of a file, given its path below src/.
pub(crate) fn faults(path: &str, text: &str) -> Vec<String> {
    let room = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
    if !MAY_NAME.iter().any(|(name, _)| *name == room) {
        return vec![format!("src/{path}: there is no room `{room}` in the design")];
    }
    let tokens = tokens(text);
    let mut faults = Vec::new();
    let mut fault = |line: usize, message: String| faults.push(format!("src/{path}:{line}: {message}"));
    for (named, line) in rooms_named(path, &tokens) {
        if named == "*" {
            fault(line, "the root is named whole: name the rooms, so that this test sees them".into());
        } else if !may_name(room, &named) {
            fault(line, format!("`{room}` may not name `{named}`"));
        }
    }
    let words = MAY_NOT_SAY.iter().find(|(name, _)| *name == room).map_or(&[][..], |(_, words)| words);
    for token in tokens.iter().filter(|token| words.contains(&token.text.as_str())) {
        fault(token.line, format!("`{room}` does without `{}`", token.text));
    }
    if EXACT.contains(&room) && !FLOATS_IN.contains(&path) {
        for token in tokens.iter().filter(|token| FLOATS.contains(&token.text.as_str())) {
            fault(token.line, format!("`{}`: time and tokens are integers", token.text));
        }
    }
    for (words, _, reason) in ONLY_SAID_IN.iter().filter(|(_, places, _)| !places.contains(&room)) {
        for line in lines_that_say(&tokens, words) {
            fault(line, format!("`{}`: {reason}", words.concat()));
        }
    }
    if path == "lib.rs" {
        for token in tokens.iter().filter(|token| matches!(&*token.text, "fn" | "struct" | "use" | "{")) {
            fault(token.line, "lib.rs is a map of the rooms and holds nothing else".into());
        }
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        fault(lines, format!("{lines} lines: a file has at most {LINES_MAX}"));
    }
    faults
}

fn lines_that_say(tokens: &[Token], words: &[&str]) -> Vec<usize> {
    let windows = tokens.windows(words.len());
    let said = windows.filter(|window| window.iter().map(|token| &*token.text).eq(words.iter().copied()));
    said.filter_map(|window| Some(window.first()?.line)).collect()
}

#[test]
fn finds_each_forbidden_use() {
    let long = "\n".repeat(LINES_MAX + 1);
    let table: &[(&str, &str, &str)] = &[
        ("server/a.rs", "use crate::rules::Mode;", "src/server/a.rs:1: `server` may not name `rules`"),
        ("server/a.rs", "use crate::limit::Rate;", "`server` may not name `limit`"),
        ("engine/mod.rs", "use super::server;", "`engine` may not name `server`"),
        ("rules/load.rs", "use crate::engine::Engine;", "`rules` may not name `engine`"),
        ("limit/rate.rs", "use crate::rules::Rule;", "`limit` may not name `rules`"),
        ("protocol/a.rs", "\n\nuse crate::engine;", "src/protocol/a.rs:3: `protocol` may not name `engine`"),
        ("sys/mod.rs", "use crate::{clock, server};", "`sys` may not name `server`"),
        ("clock.rs", "use crate::engine;", "`clock` may not name `engine`"),
        ("terms.rs", "use crate::rules;", "`terms` may not name `rules`"),
        ("fleet/sync.rs", "use crate::server;", "`fleet` may not name `server`"),
        ("daemon/serve.rs", "use crate::cli::run;", "`daemon` may not name `cli`"),
        ("trace/event.rs", "use crate::daemon::log;", "`trace` may not name `daemon`"),
        ("helpers/mod.rs", "", "no room `helpers`"),
        ("server/mod.rs", "use crate::*;", "the root is named whole"),
        ("server/stream.rs", "unsafe { f() }", "`unsafe`: only src/sys"),
        ("cli/bench.rs", "std::time::Instant::now()", "`Instant::now`: only clock.rs"),
        ("server/mod.rs", "SystemTime::now()", "`SystemTime::now`: only clock.rs"),
        ("engine/mod.rs", "rustix::time::clock_gettime(c)", "`clock_gettime`: only clock.rs"),
        ("server/mod.rs", "started.elapsed()", "`.elapsed(`: it reads a clock"),
        ("server/mod.rs", "std::process::exit(1)", "`process::exit`: it skips"),
        ("engine/mod.rs", "use tokio::sync::Mutex;", "`engine` does without `tokio`"),
        ("protocol/mod.rs", "use serde::Serialize;", "`protocol` does without `serde`"),
        ("limit/mod.rs", "use redis::Client;", "`limit` does without `redis`"),
        ("limit/mod.rs", "use std::sync::Mutex;", "`limit` does without `Mutex`"),
        ("limit/a.rs", "fn f(seconds: f64) {}", "src/limit/a.rs:1: `f64`: time and tokens are integers"),
        ("engine/admission.rs", "let late = wait.as_secs_f64();", "`as_secs_f64`: time and tokens"),
        ("lib.rs", "pub fn helper() {}", "a map of the rooms"),
        ("daemon/serve.rs", &long, "501 lines"),
    ];
    for (path, text, expected) in table {
        let found = faults(path, text);
        assert!(found.iter().any(|fault| fault.contains(expected)), "{path}: {text}: {found:?}");
    }
    let innocent: &[(&str, &str)] = &[
        ("server/answer.rs", "use crate::{clock::Now, engine::Mode, protocol, sys};"),
        ("cli/bench.rs", "use crate::server; use crate::rules; std::process::exit(1)"),
        ("sys/mod.rs", "unsafe { f() }"),
        ("engine/gate.rs", "fn chance() -> f64 {}"),
        ("clock.rs", "SystemTime::now(); clock_gettime(c)"),
        ("engine/mod.rs", "use std::sync::Mutex; // unlike tokio's"),
        ("lib.rs", "//! A map.\npub mod engine;"),
        ("main.rs", "fn main() { tidegate::cli::run() }"),
    ];
    for (path, text) in innocent {
        assert_eq!(faults(path, text), Vec::<String>::new(), "{path}: {text}");
    }
}
