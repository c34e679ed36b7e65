//! Reading a frame, however hostile, allocates nothing.

use tidegate::protocol::{
    DescriptorList, FRAME_BYTES_MAX, FrameSplit, decode_first, decode_request, split_frame,
};

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
