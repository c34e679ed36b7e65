//! A rules file: errors have a position and a help, and rules without errors can decide.

use std::sync::Arc;

use tidegate::clock::Now;
use tidegate::engine::{Descriptors, Engine, EngineOptions, HashKey, Op, Request};
use tidegate::rules::{Domain, Mode, Problem, conditions, read_text};

/// Reads the bytes as a rules file.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let loaded = read_text("rules.yaml", text);
    check_problems(&loaded.problems, text);
    assert!(loaded.domains.is_empty() || !loaded.has_errors(), "half a domain");
    assert!(loaded.has_errors() || loaded.domains.len() + loaded.failed.len() == 1, "no error and no domain");
    for rule in loaded.domains.iter().flat_map(|domain| domain.rules()) {
        drop((rule.fields(), conditions(&rule.conditions)));
    }
    judge_some(loaded.domains);
}

/// Asserts that each problem has a position, a help and a rendering.
pub(super) fn check_problems(problems: &[Problem], text: &str) {
    for problem in problems {
        let position = &problem.position;
        assert!(position.line >= 1 && position.column >= 1, "{problem}");
        assert!(position.line as usize <= text.split(['\n', '\r']).count(), "{problem}");
        assert!(!problem.message.is_empty() && !problem.help.is_empty(), "{problem}");
        assert!(!problem.to_string().contains(['\n', '\t', '\0']), "{problem}");
        assert!(!problem.render(false).is_empty() && problem.to_json().is_object(), "{problem}");
    }
}

/// Installs domains and decides some requests over an hour of virtual time.
pub(super) fn judge_some(domains: Vec<Arc<Domain>>) {
    let names: Vec<String> = domains.iter().map(|domain| domain.name().to_owned()).collect();
    let engine = new_engine();
    drop(engine.install_rules(domains));
    let mut decider = engine.decider();
    for second in [0, 1, 3_600] {
        // A date outside the range of the debug hooks that panic.
        let now =
            Now { utc_offset_nanos: 1_772_539_200_000_000_000, ..Now::at_nanos(second * 1_000_000_000) };
        for name in &names {
            for op in [Op::Hit, Op::Peek, Op::Acquire] {
                for attributes in ATTRIBUTES {
                    let request = Request {
                        lists_all_limits: true,
                        ..Request::new(op, name, Descriptors::from_attributes(attributes))
                    };
                    drop(decider.decide(&request, now));
                }
            }
        }
        engine.tick(now);
        engine.sweep(now);
    }
    assert_eq!(engine.in_progress(), 0);
}

pub fn new_engine() -> Arc<Engine> {
    let hash_key = HashKey::from_bytes([7; 16]);
    Arc::new(Engine::new(EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 16 << 20 }))
}

/// Attributes that the rules of the corpus match and count by.
const ATTRIBUTES: [&[(&str, &str)]; 4] = [
    &[],
    &[("user", "u1"), ("method", "POST"), ("path", "/v1/charges"), ("ip", "192.0.2.7"), ("card", "c")],
    &[("u", "ann"), ("v", "x"), ("plan", "gold"), ("org", "o"), ("host", "h"), ("job", "export")],
    &[
        ("message_type", "marketing"),
        ("to_number", "1"),
        ("agent", "a bot"),
        ("ip2", "2001:db8::1"),
        ("m", "429"),
    ],
];
