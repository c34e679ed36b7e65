//! Slow clients: the order of ends and generous bounds, never exact times.

use crate::prelude::*;
use std::io::ErrorKind;
use std::sync::mpsc;

/// Waits on a thread for the end of a connection without a reply, then sends its name.
fn report_end(name: &'static str, mut wire: Wire, ended: &mpsc::Sender<&'static str>) {
    let ended = ended.clone();
    thread::spawn(move || {
        wire.assert_ended();
        ended.send(name).unwrap();
    });
}

#[test]
fn closes_silent_and_half_frame_connections_only() {
    let daemon = daemon();
    let mut idle = daemon.greeted();
    let (ends, ended) = mpsc::channel();
    let silent = daemon.connect();
    let mut half_hello = daemon.connect();
    half_hello.send_bytes(&frame(&hello())[..5]);
    let mut header = daemon.greeted();
    header.send_bytes(&[0, 0]);
    // Half a frame after complete ones that were answered.
    let mut half = daemon.greeted();
    half.send_bytes(&[frame(&json!([8, 2])), frame(&hit(3, "u"))[..7].to_vec()].concat());
    assert_eq!(half.hear(), Some(json!([2, 2, true])));
    report_end("silent", silent, &ends);
    for half in [half_hello, header, half] {
        report_end("half", half, &ends);
    }
    drop(ends);
    // 1 s for half a frame, 5 s for HELLO: the order distinguishes them.
    assert_eq!(ended.iter().collect::<Vec<_>>(), ["half", "half", "half", "silent"]);
    idle.assert_served();
}

#[test]
fn times_out_frame_sent_byte_by_byte() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    let bytes = frame(&hit(1, &"u".repeat(200)));
    // One byte every 0.1 s takes more than 20 s; with a second for each byte, the frame would be answered.
    let sent = bytes.iter().position(|byte| {
        sleep(Duration::from_millis(100));
        wire.stream.write_all(&[*byte]).is_err()
    });
    assert!(sent.is_some(), "the frame was taken whole");
    wire.assert_ended();
}

#[test]
fn keeps_connection_that_completes_each_frame() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    let ping = frame(&json!([8, 1]));
    // Each write ends one frame and begins the next: the connection gets older than 1 s, but no frame does.
    wire.send_bytes(&ping[..4]);
    for _ in 0..12 {
        sleep(Duration::from_millis(150));
        wire.send_bytes(&[&ping[4..], &ping[..4]].concat());
        assert_eq!(wire.hear(), Some(json!([2, 1, true])));
    }
}

#[test]
fn closes_connection_that_never_reads() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    let mut bystander = daemon.greeted();
    let calm = daemon.process.resident_kib();
    wire.stream.set_nonblocking(true).unwrap();
    let block: Vec<u8> = (0..100).flat_map(|id| frame(&hit(id, "flood"))).collect();
    let (mut blocks, mut at) = (0, 0);
    let end = eventually("the flood is stopped for good", || {
        for _ in 0..100 {
            match wire.stream.write(&block[at..]) {
                Ok(written) => {
                    at = (at + written) % block.len();
                    blocks += usize::from(at == 0);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    assert!(bystander.is_served(), "the bystander, during the flood");
                    return None;
                }
                Err(error) => return Some(error),
            }
        }
        None
    });
    assert!(matches!(end.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{end}");
    assert!(blocks < 1_000, "100 000 hits were taken without a reply being read");
    let grown = daemon.process.resident_kib().saturating_sub(calm);
    assert!(grown <= 1_024, "one connection that does not read made the daemon grow by {grown} KiB");
    bystander.assert_served();
}
