//! The replay reads every line that `tidegate record` writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::json_line::{JsonLine, time};
use super::jsonl::Jsonl;
use super::player::Player;
use super::stage::ReplayStage;
use crate::clock::{Now, Timestamp};
use crate::engine::{ConnectionParams, Engine, EngineOptions, HashKey, Mode, Verdict, WorkOutcome};
use crate::protocol::{
    AmountField, ChargeFrame, CheckRequest, CostField, DescriptorList, FrameSplit, RequestFrame,
    RequestOptions, encode_request, split_frame,
};
use crate::record::{EventOrigin, NotedKind, Recorder, RecordingKey, RecordingWriter};

type RecordedPairs = Vec<(String, String)>;

#[derive(Clone, Debug)]
struct RecordedRequest {
    op: u8,
    domain: String,
    descriptors: Vec<RecordedPairs>,
    /// Without units, requests.
    units: BTreeMap<String, i64>,
    priority: Option<String>,
    idem: Option<Vec<u8>>,
    queued_us: Option<u64>,
    max_wait_us: Option<u64>,
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", Just("ü\"\\ { ".to_owned())]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof!["\\PC{0,20}", Just("\u{0}\n\u{7f}\u{2028}\"\\".to_owned()), Just("x".repeat(1_024))]
}

fn any_request() -> impl Strategy<Value = RecordedRequest> {
    let descriptors = prop::collection::vec(prop::collection::vec((name(), value()), 0..4), 0..3);
    let number = prop_oneof![Just(1), Just(0), 0..=i64::from(u32::MAX)];
    let units = prop::collection::btree_map(name(), number, 0..3);
    let options = (
        prop::option::of(name()),
        prop::option::of(prop::collection::vec(any::<u8>(), 1..64)),
        prop::option::of(any::<u64>()),
        prop::option::of(any::<u64>()),
    );
    (0..4u8, name(), descriptors, units, options).prop_map(
        |(op, domain, descriptors, units, (priority, idem, queued_us, max_wait_us))| RecordedRequest {
            op,
            domain,
            descriptors,
            units,
            priority,
            idem,
            queued_us,
            max_wait_us,
        },
    )
}

/// The request's frame without its length prefix.
fn payload(recorded: &RecordedRequest) -> Vec<u8> {
    let mut descriptors = DescriptorList::new();
    for pairs in &recorded.descriptors {
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(key, value)| (&**key, &**value)).collect();
        assert!(descriptors.push(&pairs));
    }
    let units = || recorded.units.iter().map(|(unit, number)| (&**unit, *number));
    let costs: Vec<(&str, u64)> = units().map(|(unit, cost)| (unit, cost.unsigned_abs())).collect();
    let amounts: Vec<(&str, i64)> = units().map(|(unit, amount)| (unit, -amount)).collect();
    let options = RequestOptions {
        idem: recorded.idem.as_deref(),
        queued_us: recorded.queued_us,
        max_wait_us: recorded.max_wait_us,
        ..RequestOptions::default()
    };
    let (cost, amount) = match recorded.units.is_empty() {
        true => (CostField::Requests(7), AmountField::Requests(-7)),
        false => (CostField::Units(costs.as_slice().into()), AmountField::Units(amounts.as_slice().into())),
    };
    let judge = CheckRequest {
        cost,
        priority: recorded.priority.as_deref(),
        options,
        ..CheckRequest::new(3, &recorded.domain)
    };
    let request = match recorded.op {
        0 => RequestFrame::Hit(judge),
        1 => RequestFrame::Peek(judge),
        2 => RequestFrame::Acquire(judge),
        _ => RequestFrame::Charge(ChargeFrame { id: None, domain: &recorded.domain, amount, options }),
    };
    let mut frame = Vec::new();
    encode_request(&mut frame, &request, &descriptors).unwrap();
    let FrameSplit::Frame { payload, .. } = split_frame(&frame) else { panic!("a whole frame") };
    payload.to_vec()
}

fn engine() -> Arc<Engine> {
    let hash_key = HashKey::from_bytes([7; 16]);
    Arc::new(Engine::new(EngineOptions { hash_key, mode: Mode::Enforce, memory_bytes_max: 1 << 20 }))
}

/// Records these requests and the renewals and ends of their leases.
fn recorded(requests: &[RecordedRequest], at: i64) -> String {
    let engine = engine();
    let now = Now { at: Timestamp::from_nanos(5), utc_offset_nanos: at };
    let opening =
        ConnectionParams { name: Some([1; 16]), user: 1, pool: "web", slots: 3, connection: 1, pid: None };
    let session = engine.open_session(&opening, now).unwrap();
    let mut named = [1; 17];
    named[0] = 1;
    let who = || Some(EventOrigin { user: 1, named, session: session.clone() });
    let recorder = Arc::new(Recorder::default());
    let reel = recorder.begin(None).unwrap();
    for (number, recorded) in (1..).zip(requests) {
        let note = |what| recorder.note(now.at, who(), what);
        let payload = payload(recorded).into_boxed_slice();
        match recorded.op {
            3 => note(NotedKind::Charged(payload)),
            op => {
                let lease = (op == 2).then_some(number);
                let (verdict, refused_by) = (Verdict::Allow, None);
                note(NotedKind::Decided { payload, verdict, refused_by, lease });
                lease.into_iter().for_each(|lease| {
                    note(NotedKind::Renewed(lease));
                    note(NotedKind::Ended(lease, WorkOutcome::Dropped));
                });
            }
        }
    }
    recorder.note(now.at, who(), NotedKind::Signal { name: "lag".into(), permille: 1_000 });
    recorder.note(now.at, who(), NotedKind::SessionEnded);
    let keys = requests.iter().flat_map(|recorded| recorded.descriptors.iter().flatten());
    let clear = keys.map(|(key, _)| key.as_str().into()).collect();
    let (mut writer, mut text) =
        (RecordingWriter::new(RecordingKey::from_bytes([1; 16]), clear, now), Vec::new());
    writer.open(&engine.open_sessions());
    while writer.write(&reel, 1 << 20) {
        text.append(&mut writer.take());
    }
    assert_eq!(writer.written().left_out, 0);
    String::from_utf8(text).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn reads_recorded_requests_as_sent(
        requests in prop::collection::vec(any_request(), 0..8),
        at in 0..4_000_000_000_000_000_000i64,
    ) {
        let text = recorded(&requests, at);
        let lines: Vec<JsonLine<'_>> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        prop_assert!(lines.iter().all(|line| time(line.t.0.get()).unwrap().as_nanos() == at.unsigned_abs() + 5));
        let ops: Vec<&str> = lines.iter().map(|line| line.op.as_deref().unwrap()).collect();
        let (first, last) = (&lines[0], &ops[ops.len() - 2..]);
        prop_assert_eq!((ops[0], first.pool.as_deref(), first.slots), ("hello", Some("web"), Some(3)));
        prop_assert_eq!(last, ["signal", "bye"]);
        let judged = lines.iter().filter(|line| line.domain.is_some());
        for (line, recorded) in judged.clone().zip(&requests) {
            let op = ["hit", "peek", "acquire", "charge"][usize::from(recorded.op)];
            prop_assert_eq!(line.op.as_deref(), Some(op));
            prop_assert_eq!(line.session.as_deref(), first.session.as_deref());
            prop_assert_eq!(line.domain.as_deref(), Some(&*recorded.domain));
            let read: Vec<Vec<String>> = line.descriptors.as_ref().unwrap().each().unwrap()
                .map(|texts| texts.iter().map(|text| text.to_string()).collect()).collect();
            let sent: Vec<Vec<String>> = recorded.descriptors.iter()
                .map(|pairs| pairs.iter().flat_map(|(key, value)| [key.clone(), value.clone()]).collect()).collect();
            prop_assert_eq!(read, sent);
            prop_assert_eq!(line.idem.is_some(), recorded.idem.is_some());
            prop_assert_eq!(line.queued_us, recorded.queued_us.filter(|_| recorded.op < 3));
        }
        prop_assert_eq!(judged.count(), requests.len());
        // The replay plays it from the first line to the last.
        let mut stage = ReplayStage::new(Player::new(Vec::new(), 0, false), None, None, "".as_ref());
        let mut jsonl = Jsonl::default();
        for (number, line) in (1..).zip(text.lines()) {
            prop_assert!(jsonl.line(line.as_bytes(), number, &mut stage).is_ok(), "{}", line);
        }
    }
}
