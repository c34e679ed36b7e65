//! The golden frames: tests/vectors.

use serde_json::Value as Json;

use super::{Elements, Op, Request, Value, decode, is_name, shorten_idem, shorten_value, write};
use crate::Attributes;
use crate::decision::Decision;

const OPS: [Op; 9] =
    [Op::Hello, Op::Acquire, Op::Release, Op::Hit, Op::Peek, Op::Charge, Op::Renew, Op::Signal, Op::Ping];

pub(crate) fn bytes(hex: &Json) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn vectors(text: &str) -> Vec<Json> {
    serde_json::from_str(text).unwrap()
}

fn good() -> Vec<Json> {
    vectors(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/good.json")))
}

#[test]
fn writes_every_canonical_frame_that_it_reads() {
    let mut written = 0;
    for vector in good() {
        let (name, frame) = (&vector["name"], bytes(&vector["hex"]));
        let payload = &frame[4..];
        assert_eq!(u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize, payload.len(), "{name}");
        let message = decode(payload).unwrap_or_else(|fault| panic!("{name}: {}", fault.text));
        if vector["canonical"] == true {
            let mut bytes = Vec::new();
            write(&mut bytes, &Value::Array(message));
            assert_eq!(bytes, payload, "{name}");
            written += 1;
        }
    }
    assert!(written > 100, "{written}");
}

#[test]
fn encodes_requests_from_what_an_application_gives() {
    let mut written = 0;
    for vector in good() {
        let (name, frame) = (vector["name"].as_str().unwrap(), bytes(&vector["hex"]));
        let message = decode(&frame[4..]).unwrap();
        let [Value::Unsigned(op), id, elements @ ..] = &message[..] else { continue };
        let is_request = vector["direction"] == "request" && vector["canonical"] == true;
        let op = OPS[usize::try_from(*op).unwrap()];
        let id = match id {
            Value::Unsigned(id) => Some(*id),
            _ => None,
        };
        // Empty values are not sent, and the client keeps room for the longest id.
        if !is_request || ["hit_value_0", "hit_frame_largest"].contains(&name) {
            continue;
        }
        let encoded = match (op, elements) {
            (Op::Acquire | Op::Hit | Op::Peek | Op::Charge, [domain, descriptors, cost, rest @ ..]) => {
                let text = |value: &Value| match value {
                    Value::Text(text) => text.clone(),
                    other => panic!("{name}: {other:?}"),
                };
                let Value::Array(descriptors) = descriptors else { panic!("{name}") };
                let mut attributes = Attributes::default();
                for descriptor in descriptors {
                    let Value::Array(pairs) = descriptor else { panic!("{name}") };
                    let pairs = pairs.as_chunks::<2>().0.iter().map(|[key, value]| (text(key), text(value)));
                    attributes = attributes.and(pairs.collect::<Attributes>());
                }
                let options = rest.last().map_or(&Value::Nil, |last| last);
                let priority = rest.first().filter(|_| op != Op::Charge);
                Request {
                    op,
                    domain: text(domain),
                    descriptors: attributes
                        .checked()
                        .unwrap_or_else(|fault| panic!("{name}: {}", fault.text)),
                    cost: cost.clone(),
                    priority: match priority {
                        Some(Value::Text(priority)) => Some(priority.clone()),
                        _ => None,
                    },
                    options: match options {
                        Value::Map(options) => options.clone(),
                        _ => Vec::new(),
                    },
                }
                .elements()
                .unwrap()
            }
            _ => Elements::new(elements),
        };
        assert_eq!(encoded.frame(op, id), frame, "{name}");
        written += 1;
    }
    assert!(written > 70, "{written}");
}

#[test]
fn reads_the_fields_of_every_decision() {
    let mut largest = 0;
    for vector in good().iter().filter(|vector| vector["meaning"]["kind"] == "decision") {
        let (name, meaning) = (&vector["name"], &vector["meaning"]);
        let message = decode(&bytes(&vector["hex"])[4..]).unwrap();
        let (decision, lease) = Decision::read(&message[2..]).unwrap_or_else(|| panic!("{name}"));
        let micros =
            |time: Option<std::time::Duration>| time.map(|time| u64::try_from(time.as_micros()).unwrap());
        assert_eq!(decision.verdict.name(), meaning["verdict"], "{name}");
        assert_eq!(decision.rule.as_deref(), meaning["rule"].as_str(), "{name}");
        let numbers = [
            ("limit", decision.limit),
            ("remaining", decision.remaining),
            ("window_us", micros(decision.window)),
            ("reset_us", micros(decision.reset_after)),
            ("retry_us", micros(decision.retry_after)),
            ("lease", lease),
        ];
        for (field, number) in numbers {
            assert_eq!(number, meaning[field].as_u64(), "{name}: {field}");
        }
        let extra = &meaning["extra"];
        let texts = [&decision.help, &decision.unit, &decision.rate, &decision.digest];
        for (text, field) in texts.iter().zip(["help", "unit", "rate", "digest"]) {
            assert_eq!(text.as_deref(), extra[field].as_str(), "{name}: {field}");
        }
        let flags = (extra["hide"].as_bool().unwrap_or(false), extra["blocked"].as_bool().unwrap_or(false));
        assert_eq!((decision.is_hidden, decision.is_blocked), flags, "{name}");
        let notes = meaning["notes"].as_array().map_or(0, Vec::len);
        assert_eq!(decision.notes.len(), notes, "{name}");
        largest = largest.max(lease.unwrap_or(0));
    }
    assert_eq!(largest, i64::MAX.unsigned_abs());
}

#[test]
fn refuses_malformed_frames() {
    let mut refused = 0;
    let bad = vectors(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/bad.json")));
    for vector in bad.iter().filter(|vector| vector["code"] == "malformed") {
        let frame = bytes(&vector["hex"]);
        let Some((head, rest)) = frame.split_first_chunk::<4>().filter(|(_, rest)| !rest.is_empty()) else {
            continue;
        };
        let length = rest.len().min(u32::from_be_bytes(*head) as usize);
        match decode(&rest[..length]) {
            Err(_) => refused += 1,
            // Only a reader of requests detects the rest: op or id is no unsigned integer, or too large.
            Ok(message) => {
                let is_small = |value: Option<&Value>| matches!(value, Some(Value::Unsigned(number)) if *number < 1 << 63);
                assert!(!is_small(message.first()) || !is_small(message.get(1)), "{}", vector["name"]);
            }
        }
    }
    assert!(refused > 25, "{refused}");
}

#[test]
fn shortens_long_values_at_a_character() {
    let long = "ä".repeat(1_000);
    let short = shorten_value(long.clone());
    assert_eq!((short.len(), short.starts_with(&"ä".repeat(480))), (960 + 33, true));
    assert_eq!(shorten_value("x".repeat(1_024)).len(), 1_024);
    assert_eq!(shorten_idem(&format!("x{long}")).len(), 29 + 33, "29 is the end of a character");
    assert_eq!(shorten_idem(&"x".repeat(64)).len(), 64);
    let request = |count: usize| Request {
        op: Op::Hit,
        domain: "api".to_owned(),
        descriptors: (0..8)
            .map(|_| (0..16).map(|at| (at.to_string(), "x".repeat(count))).collect())
            .collect(),
        cost: Value::Unsigned(1),
        priority: None,
        options: Vec::new(),
    };
    assert!(request(1_024).elements().unwrap().bytes.len() <= 16_384 - 11);
    let request = Request {
        descriptors: (0..8).map(|_| vec![("n".repeat(64), String::new()); 40]).collect(),
        ..request(0)
    };
    assert_eq!(request.elements().unwrap_err().reason, crate::Reason::Invalid);
}

#[test]
fn knows_names() {
    for (name, is) in [
        ("a", true),
        ("", false),
        ("a:b", false),
        ("a/b", false),
        ("a b.c-d", true),
        ("ä\u{7f}", false),
        ("\u{85}", false),
        (&"x".repeat(64), true),
        (&"ä".repeat(33), false),
    ] {
        assert_eq!(is_name(name), is, "{name:?}");
    }
}
