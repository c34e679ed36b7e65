//! Valid and invalid frames, and the replies.

use super::golden;
use crate::prelude::*;

#[test]
fn answers_every_bad_golden_frame_as_recorded() {
    let daemon = daemon();
    let frames = golden::bad();
    assert!(frames.len() >= 60, "{}", frames.len());
    for bad in frames {
        let mut wire = if bad.after_hello { daemon.greeted() } else { daemon.connect() };
        wire.send_bytes(&golden::bytes(&bad.hex));
        if bad.reply {
            let reply = wire.hear().unwrap_or_else(|| panic!("{}: closed without a reply", bad.name));
            assert_eq!(error_of(&reply), (bad.id, bad.number.into()), "{}: {reply}", bad.name);
        }
        if bad.closes {
            assert_eq!(wire.hear(), None, "{} closes", bad.name);
        } else if bad.after_hello {
            assert!(wire.is_served(), "{} keeps the connection", bad.name);
        } else {
            // Still open, before HELLO.
            assert_eq!(wire.ask(&hello())[0], 0, "{} keeps the connection", bad.name);
        }
    }
}

#[test]
fn answers_good_frames_before_a_bad_one() {
    let daemon = daemon();
    for bad in [framed(&[]), framed(&[0x91, 0xc1]), vec![0xff; 4]] {
        let mut wire = daemon.greeted();
        let mut bytes = frame(&json!([8, 2]));
        bytes.extend(frame(&json!([4, 3, "api", [["user", "first"]]])));
        bytes.extend(bad);
        // Frames after one that closes the connection are ignored.
        bytes.extend(frame(&json!([8, 4])));
        wire.send_bytes(&bytes);
        let replies = wire.hear_all();
        assert_eq!(replies.len(), 3, "{replies:?}");
        assert_eq!(replies[0], json!([2, 2, true]));
        assert_eq!(verdict_of(&replies[1]), 0);
        assert_eq!(replies[2][0], 3);
    }
}

#[test]
fn answers_one_batch_in_one_write() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    // One write is one read and one write of the daemon: polling shows either no reply or all.
    let frames: Vec<u8> = (0..60).flat_map(|id| frame(&json!([8, id]))).collect();
    let expected: Vec<_> = (0..60).map(|id| json!([2, id, true])).collect();
    wire.stream.set_nonblocking(true).unwrap();
    for _ in 0..50 {
        wire.send_bytes(&frames);
        while !wire.has_more() {}
        assert_eq!(wire.hear_together(), expected);
    }
}

#[test]
fn accepts_split_frames_and_longest_frames() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    for byte in frame(&hit(1, "pieces")) {
        wire.send_bytes(&[byte]);
    }
    assert_eq!(verdict_of(&wire.hear().unwrap()), 0);
    // Eight descriptors with 16 values, near the bound of 16 384 bytes, twice in a row.
    let value = "v".repeat(118);
    let descriptor: Vec<_> = (0..16).flat_map(|key| [format!("k{key:02}"), value.clone()]).collect();
    let request = json!([3, 2, "api", vec![descriptor; 8]]);
    let bytes = frame(&request);
    assert!((16_000..=16_388).contains(&bytes.len()), "{}", bytes.len());
    wire.send_bytes(&bytes.repeat(2));
    assert_eq!(verdict_of(&wire.hear().unwrap()), 0);
    assert_eq!(verdict_of(&wire.hear().unwrap()), 0);
    wire.assert_served();
}
