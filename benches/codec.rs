//! Time to decode and encode one frame: a typical hit and its decision, and the worst frames.
//!
//! `cargo bench --bench codec` prints times. With a number after `--` it only repeats the typical work, to
//! count instructions: `valgrind --tool=callgrind --toggle-collect='codec::decode_hit'
//! target/release/deps/codec-… 1000`, likewise `codec::encode_allow`.

#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "small numbers")]

use std::hint::black_box;

use tidegate::clock::read_boot_nanos;
use tidegate::protocol::{
    CostField, DecisionReply, DescriptorList, FRAME_BYTES_MAX, Fault, Op, RequestFrame, Verdict,
    decode_request, encode_decision, encode_request,
};

fn main() {
    match std::env::args().find_map(|argument| argument.parse().ok()) {
        Some(rounds) => everyday(rounds, |_, rounds, work| (0..rounds).for_each(|_| work())),
        None => {
            everyday(1_000_000, measure);
            for (name, payload) in worst() {
                let mut descriptors = DescriptorList::new();
                measure(name, 1_000, &mut || {
                    let _ = black_box(decode_request(black_box(&payload), &mut descriptors));
                });
            }
        }
    }
}

fn everyday(rounds: u32, run: impl Fn(&str, u32, &mut dyn FnMut())) {
    let hit = hit();
    let mut descriptors = DescriptorList::new();
    run("decode a hit", rounds, &mut || {
        let _ = black_box(decode_hit(black_box(&hit), &mut descriptors));
    });
    let decision = allow();
    let mut out = Vec::with_capacity(4_096);
    run("encode a decision", rounds, &mut || {
        out.clear();
        encode_allow(&mut out, black_box(&decision));
        black_box(&out);
    });
}

#[inline(never)]
fn decode_hit<'a>(payload: &'a [u8], descriptors: &mut DescriptorList<'a>) -> Result<u64, Fault> {
    match decode_request(payload, descriptors)? {
        RequestFrame::Check(Op::Hit, judge) => Ok(match judge.cost {
            CostField::Requests(cost) => judge.id + judge.domain.len() as u64 + cost,
            CostField::Units(_) => 0,
        }),
        _ => Ok(0),
    }
}

#[inline(never)]
fn encode_allow(out: &mut Vec<u8>, decision: &DecisionReply<'_>) {
    encode_decision(out, decision);
}

fn measure(name: &str, rounds: u32, work: &mut dyn FnMut()) {
    let start = read_boot_nanos();
    for _ in 0..rounds {
        work();
    }
    let nanos = (read_boot_nanos() - start) as f64 / f64::from(rounds.max(1));
    #[allow(clippy::print_stdout, reason = "this is what it is for")]
    {
        println!("{name:<40} {nanos:>10.1} ns");
    }
}

fn hit() -> Vec<u8> {
    let mut descriptors = DescriptorList::new();
    let pushed = descriptors.push(&[("method", "POST"), ("path", "/v1/charges"), ("user", "u123456")]);
    let mut frame = Vec::new();
    let written = encode_request(&mut frame, &RequestFrame::hit(100_000, "api"), &descriptors);
    assert!(pushed && written.is_ok());
    frame.split_off(4)
}

fn allow() -> DecisionReply<'static> {
    DecisionReply {
        rule: Some("charges-per-user"),
        limit: Some(100),
        window_us: Some(60_000_000),
        remaining: Some(42),
        reset_us: Some(600_000),
        retry_us: Some(0),
        ..DecisionReply::new(100_000, Verdict::Allow)
    }
}

/// Frames near the largest size that are the most work to decode.
fn worst() -> Vec<(&'static str, Vec<u8>)> {
    let option = |key: &[u8], value: &[u8]| [b"\x97\x03\x07\xa3api\x90\x01\xc0\x81", key, value].concat();
    let filled = |mut payload: Vec<u8>, part: &dyn Fn(u32) -> Vec<u8>, count: u32| {
        (0..count).for_each(|number| payload.extend(part(number)));
        assert!(payload.len() <= FRAME_BYTES_MAX);
        payload
    };
    let bytes = |number: u32| [(number >> 7 & 127) as u8, (number & 127) as u8];
    let key = |number: u32| [&[0xa2][..], &bytes(number), &[0xc0]].concat();
    let scattered = |number: u32| key(number.wrapping_mul(2_654_435_761) % 4_051);
    let sixteen = |_| (0..16).fold(vec![0xde, 0, 16], |map, number| [map, key(number)].concat());
    vec![
        ("4050 keys in order", filled(option(b"\xa1x", b"\xde\x0f\xd2"), &key, 4_050)),
        ("4050 keys scattered", filled(option(b"\xa1x", b"\xde\x0f\xd2"), &scattered, 4_050)),
        ("4050 keys as units", filled(b"\x95\x03\x07\xa3api\x90\xde\x0f\xd2".to_vec(), &scattered, 4_050)),
        ("8000 keys, all empty", filled(option(b"\xa1x", b"\xde\x1f\x40"), &|_| vec![0xa0, 0xc0], 8_000)),
        ("240 maps of 16 keys", filled(option(b"\xa1x", b"\xdc\x00\xf0"), &sixteen, 240)),
        ("16000 empty maps", filled(option(b"\xa1x", b"\xdc\x3e\x80"), &|_| vec![0x80], 16_000)),
        ("5000 abandoned", filled(option(b"\xa9abandoned", b"\xdc\x13\x88"), &|_| vec![0x92, 1, 5], 5_000)),
        ("a value of 16 KiB", filled(option(b"\xa1x", b"\xda\x3f\x00"), &|_| "é".into(), 0x1f80)),
    ]
}
