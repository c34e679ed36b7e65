//! Reading a frame, however hostile, and matching a request to nodes allocate nothing.

use tidegate::protocol::{
    DescriptorList, FRAME_BYTES_MAX, FrameSplit, decode_first, decode_request, split_frame,
};
use tidegate::rules::{NodeHits, read_text};

use crate::counting::asked_bytes;
use crate::golden;

#[test]
fn decoding_allocates_nothing() {
    let good = golden::good();
    let good = good.iter().map(|vector| (vector.name.clone(), golden::bytes(&vector.hex)));
    let bad = golden::bad();
    let bad = bad.iter().map(|vector| (vector.name.clone(), golden::bytes(&vector.hex)));
    for (name, bytes) in good.chain(bad).chain(bombs()) {
        let asked = asked_bytes(|| {
            if let FrameSplit::Frame { payload, .. } = split_frame(&bytes) {
                let _ = decode_request(payload, &mut DescriptorList::new());
                let _ = decode_first(payload);
            }
        });
        assert_eq!(asked, 0, "{name}");
    }
}

/// Frames of the largest size: heads that announce 2³² − 1 items wherever a head may stand, and maps that
/// make a reader compare the maximum number of keys.
fn bombs() -> Vec<(String, Vec<u8>)> {
    let mut bombs = Vec::new();
    let starts: [(&str, &[u8]); 6] = [
        ("outermost", b""),
        ("op", b"\x97"),
        ("descriptors", b"\x97\x03\x07\xa3api"),
        ("descriptor", b"\x97\x03\x07\xa3api\x91"),
        ("cost", b"\x97\x03\x07\xa3api\x90"),
        ("options", b"\x97\x03\x07\xa3api\x90\x01\xc0"),
    ];
    for (place, start) in starts {
        for marker in [0xdd, 0xdf, 0xdb, 0xc6, 0xc9] {
            for fill in [0x00, 0xa0, 0x90, 0xc0] {
                let mut payload = start.to_vec();
                payload.extend([marker, 0xff, 0xff, 0xff, 0xff]);
                payload.resize(FRAME_BYTES_MAX, fill);
                bombs.push((format!("{marker:02x} as {place}, then {fill:02x}"), frame(&payload)));
            }
        }
    }
    let mut keys = b"\x93\x08\x07\xde\x0f\x80".to_vec();
    for key in 0..0x0f80u32 {
        keys.extend([0xa2, u8::try_from(key / 128).unwrap(), u8::try_from(key % 128).unwrap(), 0xc0]);
    }
    bombs.push(("3968 keys".to_owned(), frame(&keys)));
    bombs
}

fn frame(payload: &[u8]) -> Vec<u8> {
    [&u32::try_from(payload.len()).unwrap().to_be_bytes()[..], payload].concat()
}

#[test]
fn node_lookup_allocates_nothing() {
    let node = |value: &str| {
        let limit = "rate_limit: {unit: hour, requests_per_unit: 1, name: a, replaces: [{name: b}]}";
        format!("- {{key: k, value: '{value}', {limit}}}\n")
    };
    let nodes: String =
        (0..300).map(|number| node(&number.to_string()) + &node(&format!("/{number}*"))).collect();
    let shared = "- {key: '*y*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}\n";
    let loaded = read_text("tree.yaml", &format!("domain: api\ndescriptors:\n{nodes}{shared}"));
    let tree = loaded.domains.first().unwrap().tree();
    // The longest texts that the socket carries.
    let (key, value) = ("y".repeat(64), "z".repeat(1_024));
    let descriptors = [
        &[("k", "7")][..],
        &[("k", "/299/x")],
        &[("k", &value)],
        &[(&key, &value)],
        &[(&key, "other")],
        &[("k", "7"), ("k", "8")],
        &[],
    ];
    let mut hits = NodeHits::new();
    let mut bytes = 0;
    let asked = asked_bytes(|| {
        tree.select_hits(descriptors.into_iter(), &mut hits);
        for hit in &hits {
            let descriptor = descriptors.get(usize::from(hit.descriptor)).unwrap();
            bytes += tree.key_values(hit.hit, descriptor).map(str::len).sum::<usize>();
        }
    });
    assert_eq!(asked, 0);
    assert_eq!(hits.len(), 3, "{hits:?}");
    assert!(bytes > 64, "what it counts by was read: {bytes}");
}
