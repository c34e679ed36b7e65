//! The golden frames: their meaning, their bytes, the error of each bad one, and their arrival in any pieces.
//! `fuzz::targets::frames` has the properties of any bytes.

use crate::golden;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::sample::Index;
use proptest::{prop_assert, prop_assert_eq, proptest};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use tidegate::protocol::{
    Abandoned, AmountField, CheckRequest, CostField, DecisionReply, DescriptorList, Fault, FrameShape,
    FrameSplit, HelloFrame, MissedCounts, RefundReference, ReplyScratch, RequestFrame, RequestOptions,
    ShapedCheck, WireReply, decode_first, decode_reply, decode_request, encode_fault, encode_reply,
    encode_request, split_frame,
};

#[test]
fn encodes_and_decodes_good_requests() {
    for vector in golden::good().iter().filter(|vector| vector.direction == "request") {
        let frame = golden::bytes(&vector.hex);
        let payload = whole(&frame);
        let mut descriptors = DescriptorList::new();
        let request = match decode_request(payload, &mut descriptors) {
            Ok(request) => request,
            Err(fault) => panic!("{}: {fault}", vector.name),
        };
        assert_eq!(request_meaning(&request, &descriptors), normal(&vector.meaning), "{}", vector.name);
        let mut written = b"before".to_vec();
        encode_request(&mut written, &request, &descriptors).unwrap();
        assert_eq!(written[6..] == frame, vector.canonical, "{}: {:02x?}", vector.name, &written[6..]);
        if let RequestFrame::Hello(hello) = request {
            assert_eq!(decode_first(payload), Ok(hello), "{}", vector.name);
        }
    }
}

#[test]
fn encodes_and_decodes_good_replies() {
    for vector in golden::good().iter().filter(|vector| vector.direction == "reply") {
        let frame = golden::bytes(&vector.hex);
        let mut scratch = ReplyScratch::default();
        let reply = match decode_reply(whole(&frame), &mut scratch) {
            Ok(reply) => reply,
            Err(fault) => panic!("{}: {fault}", vector.name),
        };
        assert_eq!(reply_meaning(&reply), vector.meaning, "{}", vector.name);
        let mut written = b"before".to_vec();
        encode_reply(&mut written, &reply);
        assert_eq!(written[6..] == frame, vector.canonical, "{}: {:02x?}", vector.name, &written[6..]);
    }
}

#[test]
fn bad_frames_get_their_error() {
    for vector in golden::bad() {
        let bytes = golden::bytes(&vector.hex);
        let fault = match fault_of(&bytes, vector.after_hello) {
            Some(fault) => fault,
            None => panic!("{} is taken", vector.name),
        };
        let found = (fault.code.name(), fault.code.number(), fault.code.closes(), fault.id, fault.silent);
        let expected = (vector.code.as_str(), vector.number, vector.closes, vector.id, !vector.reply);
        assert_eq!(found, expected, "{}: {fault}", vector.name);

        let mut written = Vec::new();
        encode_fault(&mut written, &fault);
        if !vector.reply {
            assert!(written.is_empty(), "{}", vector.name);
            continue;
        }
        let mut scratch = ReplyScratch::default();
        let message = fault.to_string();
        let reply = WireReply::Error { id: vector.id, code: fault.code, message: &message };
        assert_eq!(decode_reply(whole(&written), &mut scratch), Ok(reply), "{}", vector.name);
    }
}

/// The payloads of good frames.
static GOOD: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| golden::good().iter().map(|vector| golden::bytes(&vector.hex)[4..].to_vec()).collect());

proptest! {
    #![proptest_config(crate::rng::cases(300))]

    #[test]
    fn splits_frames_at_any_boundary(which in vec(any::<Index>(), 1..8), pieces in vec(1usize..300, 1..60)) {
        let sent: Vec<&Vec<u8>> = which.iter().map(|which| which.get(&GOOD)).collect();
        let mut stream = Vec::new();
        for payload in &sent {
            stream.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
            stream.extend(*payload);
        }
        let mut received: Vec<Vec<u8>> = Vec::new();
        let (mut buffer, mut stream) = (Vec::new(), stream.as_slice());
        for piece in pieces.iter().cycle() {
            let (now, later) = stream.split_at((*piece).min(stream.len()));
            buffer.extend(now);
            stream = later;
            loop {
                match split_frame(&buffer) {
                    FrameSplit::Frame { payload, consumed } => {
                        received.push(payload.to_vec());
                        buffer.drain(..consumed);
                    }
                    FrameSplit::More { needed } => {
                        let whole = buffer.first_chunk().map_or(4, |head| 4 + u32::from_be_bytes(*head) as usize);
                        prop_assert!(needed == whole && needed > buffer.len());
                        break;
                    }
                    FrameSplit::Broken(fault) => panic!("{fault}"),
                }
            }
            if stream.is_empty() {
                break;
            }
        }
        prop_assert_eq!(received.iter().collect::<Vec<_>>(), sent);
    }
}

/// Each good request as the known shape of each other one, and of itself with one byte more, less or changed.
#[test]
fn frames_of_any_known_shape_are_decoded_alike() {
    let are_short = |payload: &&Vec<u8>| payload.len() < 200;
    for known in GOOD.iter().filter(are_short) {
        let mut shape = FrameShape::default();
        shape.learn(known);
        let check = |payload: &[u8]| {
            let (mut compared, mut decoded) = (DescriptorList::new(), DescriptorList::new());
            let Some(ShapedCheck { op, id, domain, cost }) = shape.read(payload, &mut compared) else {
                return;
            };
            let cost = CostField::Requests(cost.into());
            let request = RequestFrame::Check(op, CheckRequest { cost, ..CheckRequest::new(id, domain) });
            let whole = decode_request(payload, &mut decoded);
            assert_eq!((whole, &decoded), (Ok(request), &compared), "{known:02x?} {payload:02x?}");
        };
        GOOD.iter().filter(are_short).for_each(|payload| check(payload));
        check(&known[..known.len() - 1]);
        check(&[known, &[0xc0][..]].concat());
        for at in 0..known.len() {
            let byte = known[at];
            for other in [byte ^ 1, byte ^ 0x80, byte.wrapping_add(1), 0, 0x7f, 0x92, 0xa3, 0xc0, 0xcd, 0xd9]
            {
                let mut changed = known.clone();
                changed[at] = other;
                check(&changed);
            }
        }
    }
}

#[test]
fn shape_is_learnt_anew_after_many_others() {
    let frame = |domain: &str, value: &str| {
        let mut descriptors = DescriptorList::new();
        assert!(descriptors.push(&[("user", value), ("path", "/")]));
        let mut frame = Vec::new();
        encode_request(&mut frame, &RequestFrame::hit(7, domain), &descriptors).unwrap();
        frame[4..].to_vec()
    };
    let mut shape = FrameShape::default();
    let mut becomes_outdated = |domain: &str, learnt: &str| {
        shape.learn(&frame(learnt, "ann"));
        (0..100).any(|number| {
            let frame = frame(domain, &format!("u{number}"));
            let is_known = shape.read(&frame, &mut DescriptorList::new()).is_some();
            assert_eq!(is_known, domain == learnt);
            shape.is_outdated()
        })
    };
    assert!(!becomes_outdated("api", "api"));
    assert!(becomes_outdated("web", "api"));
    assert!(!becomes_outdated("web", "web"));
}

#[test]
fn covers_every_kind_of_message() {
    assert!(golden::good().len() >= 60);
    assert!(golden::bad().len() >= 80);
}

/// The daemon's error for the first frame in these bytes.
fn fault_of(bytes: &[u8], after_hello: bool) -> Option<Fault> {
    let payload = match split_frame(bytes) {
        FrameSplit::Frame { payload, .. } => payload,
        FrameSplit::Broken(fault) => return Some(fault),
        FrameSplit::More { .. } => return None,
    };
    if !after_hello {
        return decode_first(payload).err();
    }
    match decode_request(payload, &mut DescriptorList::new()) {
        Ok(RequestFrame::Hello(hello)) => Some(Fault::second_hello(hello.id)),
        Ok(_) => None,
        Err(fault) => Some(fault),
    }
}

fn whole(frame: &[u8]) -> &[u8] {
    match split_frame(frame) {
        FrameSplit::Frame { payload, consumed } if consumed == frame.len() => payload,
        other => panic!("{other:?}"),
    }
}

/// `idem` by its bytes, written as text or not.
fn normal(meaning: &Value) -> Value {
    let mut meaning = meaning.clone();
    for name in ["/options/idem", "/options/of"] {
        if let Some(idem) = meaning.pointer_mut(name)
            && let Some(text) = idem.as_str()
        {
            *idem = binary(text.as_bytes());
        }
    }
    meaning
}

fn binary(bytes: &[u8]) -> Value {
    json!({ "bin": bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>() })
}

fn request_meaning(request: &RequestFrame<'_>, descriptors: &DescriptorList<'_>) -> Value {
    match request {
        RequestFrame::Hello(hello) => {
            json!({ "op": "hello", "id": hello.id, "version": hello.version, "info": info(hello) })
        }
        RequestFrame::Check(op, judge) => judged((*op).into(), judge, descriptors),
        RequestFrame::Charge(charge) => json!({
            "op": "charge", "id": charge.id, "domain": charge.domain, "descriptors": flat(descriptors),
            "amount": match charge.amount {
                AmountField::Requests(amount) => json!(amount),
                AmountField::Units(units) => units.iter().map(|(unit, n)| (unit.to_owned(), json!(n))).collect(),
            },
            "options": options(&charge.options),
        }),
        RequestFrame::Release { id, lease, outcome } => {
            json!({ "op": "release", "id": id, "lease": lease, "outcome": outcome.name() })
        }
        RequestFrame::Renew { id, lease } => json!({ "op": "renew", "id": id, "lease": lease }),
        RequestFrame::Signal { id, pool, name, permille } => {
            json!({ "op": "signal", "id": id, "pool": pool, "name": name, "permille": permille })
        }
        RequestFrame::Ping { id } => json!({ "op": "ping", "id": id }),
    }
}

fn judged(op: &str, judge: &CheckRequest<'_>, descriptors: &DescriptorList<'_>) -> Value {
    json!({
        "op": op, "id": judge.id, "domain": judge.domain, "descriptors": flat(descriptors),
        "cost": match judge.cost {
            CostField::Requests(cost) => json!(cost),
            CostField::Units(units) => units.iter().map(|(unit, n)| (unit.to_owned(), json!(n))).collect(),
        },
        "priority": judge.priority, "options": options(&judge.options),
    })
}

fn flat(descriptors: &DescriptorList<'_>) -> Value {
    let texts =
        |pairs: &[(&str, &str)]| pairs.iter().flat_map(|(key, value)| [json!(key), json!(value)]).collect();
    let all: Vec<Value> = descriptors.iter().map(texts).collect();
    let attributes: Vec<_> = descriptors.iter().flatten().copied().collect();
    assert_eq!(descriptors.attributes(), attributes);
    Value::Array(all)
}

fn options(options: &RequestOptions<'_>) -> Value {
    let mut meaning = Map::new();
    put(&mut meaning, "idem", options.idem.map(binary));
    put(
        &mut meaning,
        "of",
        options.of.map(|of| match of {
            RefundReference::IdempotencyKey(idem) => binary(idem),
            RefundReference::Lease(lease) => Value::from(lease),
        }),
    );
    put(&mut meaning, "queued_us", options.queued_us.map(Value::from));
    put(&mut meaning, "max_wait_us", options.max_wait_us.map(Value::from));
    put(&mut meaning, "all", options.all.then_some(Value::Bool(true)));
    reports(&mut meaning, &options.missed, &options.abandoned);
    Value::Object(meaning)
}

fn info(hello: &HelloFrame<'_>) -> Value {
    let mut meaning = Map::new();
    put(&mut meaning, "client", hello.client.map(Value::from));
    put(&mut meaning, "session", hello.session.map(|session| binary(&session)));
    put(&mut meaning, "pid", hello.pid.map(Value::from));
    put(&mut meaning, "pool", Some(hello.pool).filter(|pool| *pool != "default").map(Value::from));
    put(&mut meaning, "slots", Some(hello.slots).filter(|slots| *slots > 0).map(Value::from));
    put(&mut meaning, "connection", Some(hello.connection).filter(|count| *count > 0).map(Value::from));
    reports(&mut meaning, &hello.missed, &hello.abandoned);
    Value::Object(meaning)
}

fn reports(meaning: &mut Map<String, Value>, missed: &MissedCounts, abandoned: &Abandoned<'_>) {
    let missed: Map<_, _> = missed.iter().map(|(reason, n)| (reason.name().to_owned(), json!(n))).collect();
    put(meaning, "missed", Some(missed).filter(|missed| !missed.is_empty()).map(Value::Object));
    let abandoned: Vec<Value> = abandoned.iter().map(|(connection, id)| json!([connection, id])).collect();
    put(meaning, "abandoned", Some(abandoned).filter(|list| !list.is_empty()).map(Value::Array));
}

fn put(meaning: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let Some(value) = value {
        meaning.insert(key.to_owned(), value);
    }
}

fn reply_meaning(reply: &WireReply<'_>) -> Value {
    match reply {
        WireReply::Welcome { id, version, server, boot, connection, frame_bytes_max, mode } => json!({
            "kind": "welcome", "id": id, "version": version,
            "info": {
                "server": server, "boot": boot, "connection": connection, "frame_bytes_max": frame_bytes_max,
                "mode": mode.name(),
            },
        }),
        WireReply::Decision(decision) => decision_meaning(decision),
        WireReply::Done { id, ok } => json!({ "kind": "done", "id": id, "ok": ok }),
        WireReply::Error { id, code, message } => {
            json!({ "kind": "error", "id": id, "code": code.name(), "message": message })
        }
        WireReply::Goodbye { reason } => json!({ "kind": "goodbye", "id": null, "reason": reason }),
    }
}

fn decision_meaning(decision: &DecisionReply<'_>) -> Value {
    let notes: Vec<_> = decision.notes.iter().map(|(kind, rule)| json!([kind.name(), rule])).collect();
    let all = decision.all.map(|entries| {
        let entry = entries.iter();
        entry
            .map(|is| json!([is.rule, is.limit, is.window_us, is.remaining, is.reset_us]))
            .collect::<Vec<_>>()
    });
    let mut extra = Map::new();
    put(&mut extra, "help", decision.help.map(Value::from));
    put(&mut extra, "hide", decision.hide.then_some(Value::Bool(true)));
    put(&mut extra, "unit", decision.unit.map(Value::from));
    put(&mut extra, "rate", decision.rate.map(Value::from));
    put(&mut extra, "blocked", decision.blocked.then_some(Value::Bool(true)));
    put(&mut extra, "digest", decision.digest.map(Value::from));
    json!({
        "kind": "decision", "id": decision.id, "verdict": decision.verdict.name(), "rule": decision.rule,
        "limit": decision.limit, "window_us": decision.window_us, "remaining": decision.remaining,
        "reset_us": decision.reset_us, "retry_us": decision.retry_us, "lease": decision.lease,
        "notes": Some(notes).filter(|notes| !notes.is_empty()), "all": all,
        "extra": Some(extra).filter(|extra| !extra.is_empty()),
    })
}
