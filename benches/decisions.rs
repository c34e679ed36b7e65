//! Parts of the in-process decision, without the socket.

#![allow(
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    missing_docs,
    reason = "a benchmark may stop where it stands; criterion's macros document nothing"
)]

#[path = "shared/inside.rs"]
mod inside;
#[path = "shared/lender.rs"]
mod lender;
#[path = "shared/workload.rs"]
mod workload;

use std::hash::Hasher;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use siphasher::sip128::{Hasher128, SipHasher13};
use tidegate::clock::{Now, Timestamp};
use tidegate::limit::token_bucket::{GcraState, TokenBucketQuota};
use tidegate::limit::{Outcome, Rate};
use tidegate::protocol::{DecisionReply, DescriptorList, Verdict, decode_request, encode_decision};
use tidegate::rules::Selection;

use inside::Inside;
use workload::{FRAME_HEADER_BYTES, Hits, USERS, UserName, Users};

/// One check of a token bucket: arithmetic alone.
fn judge(criterion: &mut Criterion) {
    let rate = Rate::new(100, 1_000_000_000).unwrap_or_else(|error| panic!("{error}"));
    let quota = TokenBucketQuota::new(rate, 500).unwrap_or_else(|error| panic!("{error}"));
    let mut state = GcraState::full(quota.scale(), Timestamp::ORIGIN);
    let mut nanos = 0;
    criterion.bench_function("token bucket: judge", |bencher| {
        bencher.iter(|| {
            // As fast as it refills: every request passes.
            nanos += 10_000_000;
            let (outcome, next) = state.judge(&quota, Timestamp::from_nanos(nanos), 1);
            state = next;
            assert!(outcome == Outcome::Pass);
        });
    });
}

/// The key digest. The engine's own is private; this hash is its main cost.
fn digest(criterion: &mut Criterion) {
    let user = workload::user(123_456);
    criterion.bench_function("key digest: SipHash-1-3-128 of one value", |bencher| {
        bencher.iter(|| {
            let user = black_box(&*user);
            let mut hasher = SipHasher13::new_with_keys(7, 7);
            hasher.write_usize(user.len());
            hasher.write(user.as_bytes());
            hasher.finish128().h1
        });
    });
}

/// Selects the rules of a request among 33.
fn select(criterion: &mut Criterion) {
    let rules = inside::rule_set();
    let domain = &rules[0];
    let user = workload::user(123_456);
    let mut matching = Vec::new();
    criterion.bench_function("rule selection, 33 rules", |bencher| {
        bencher.iter(|| {
            let attributes = black_box([("user", &*user), ("path", "/v1/charges")]);
            let mut selection = Selection::default();
            domain.select(&attributes, &mut selection, &mut matching);
            matching.len()
        });
    });
}

/// Decodes a request, encodes a reply.
fn codec(criterion: &mut Criterion) {
    let frame = Hits::new(Users::uniform(1)).next().to_vec();
    criterion.bench_function("decode a hit", |bencher| {
        bencher.iter(|| {
            let mut descriptors = DescriptorList::new();
            decode_request(black_box(&frame[FRAME_HEADER_BYTES..]), &mut descriptors).is_ok()
        });
    });
    let decision = DecisionReply {
        rule: Some("per-user"),
        limit: Some(10_000),
        window_us: Some(36_000_000_000_000),
        remaining: Some(9_999),
        reset_us: Some(3_600_000_000),
        retry_us: Some(0),
        ..DecisionReply::new(123_456, Verdict::Allow)
    };
    let mut out = Vec::with_capacity(4096);
    criterion.bench_function("encode a decision", |bencher| {
        bencher.iter(|| {
            out.clear();
            encode_decision(&mut out, black_box(&decision));
            out.len()
        });
    });
}

/// Decode, decide and encode with a million random keys, cache misses included; the frame takes 5 ns of it.
fn whole(criterion: &mut Criterion) {
    let mut nanos = 1_000_000_000;
    let mut inside = Inside::new().filled(USERS, Now::at_nanos(nanos));
    let mut hits = Hits::new(Users::uniform(1));
    criterion.bench_function("decode, decide, encode: 33 rules, 1 M keys", |bencher| {
        bencher.iter(|| {
            nanos += 1_000;
            inside.answer(hits.next(), Now::at_nanos(nanos)).len()
        });
    });
    let mut users = Users::uniform(1);
    criterion.bench_function("decide: 33 rules, 1 M keys", |bencher| {
        bencher.iter(|| {
            nanos += 1_000;
            let user = UserName::new(users.draw());
            inside.decide(&[("user", user.as_str()), ("path", "/v1/charges")], Now::at_nanos(nanos))
        });
    });
    // Few enough keys to stay in the L2 cache, and enough that none runs out of tokens.
    let mut cached = Inside::new().filled(CACHED, Now::at_nanos(nanos));
    let mut turn = 0;
    criterion.bench_function("decide: 33 rules, 10 000 keys", |bencher| {
        bencher.iter(|| {
            nanos += 1_000;
            turn = (turn + 1) % CACHED;
            let user = UserName::new(turn);
            cached.decide(&[("user", user.as_str()), ("path", "/v1/charges")], Now::at_nanos(nanos))
        });
    });
}

const CACHED: u32 = 10_000;

criterion_group!(benches, judge, digest, select, codec, whole);
criterion_main!(benches);
