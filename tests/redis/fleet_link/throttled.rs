//! Tests slow lines to Redis: 1 Mbit/s with a round trip of 50 ms, and a round trip of a second.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use redis::Value;
use tidegate::clock::read_boot_nanos;

use super::redis_server::Redis;
use super::{echo, echoed, failures, link, one, up};

/// Forwards so many bytes at a time with a delay. Ends with the connection.
fn pass(mut from: UnixStream, mut to: UnixStream, (bytes, delay): (usize, Duration)) {
    let mut part = vec![0; bytes];
    while let Ok(count @ 1..) = from.read(&mut part) {
        thread::sleep(delay);
        if to.write_all(&part[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// 3 125 bytes in 25 ms: 1 Mbit/s each way.
const NARROW: (usize, Duration) = (3_125, Duration::from_millis(25));

/// Two round trips are longer than any step of a connection may take.
const FAR: (usize, Duration) = (1 << 20, Duration::from_millis(520));

/// Listens for one connection at a time and forwards it to this server.
fn line(directory: &Path, server: PathBuf, pace: (usize, Duration)) -> PathBuf {
    let path = directory.join("line");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        while let Ok((here, _)) = listener.accept() {
            match UnixStream::connect(&server) {
                Ok(there) => {
                    let (back, forth) = (there.try_clone().unwrap(), here.try_clone().unwrap());
                    thread::spawn(move || pass(back, forth, pace));
                    thread::spawn(move || pass(here, there, pace));
                }
                Err(error) => assert_ne!(error.kind(), ErrorKind::AddrInUse),
            }
        }
    });
    path
}

#[tokio::test]
async fn waits_for_replies_over_a_slow_line() {
    let redis = Redis::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let server = redis.url().trim_start_matches("unix://").into();
    let link = link(&format!("unix://{}", line(directory.path(), server, NARROW).display()));
    up(&link).await;
    let script = echo();
    let text = "x".repeat(1_000);
    // A second's worth each way: far more than the reply timeout of a fast line.
    let calls = vec![echoed(&script, &text); 120];
    let begin = read_boot_nanos();
    for reply in link.send(one(&link).id, calls) {
        assert_eq!(reply.await.unwrap(), Value::BulkString(text.clone().into_bytes()));
    }
    assert!(read_boot_nanos() - begin > 900_000_000, "the line was slow");
    assert_eq!((failures(&link, "timeout"), one(&link).connections), (0, 1));
}

#[tokio::test]
async fn connects_to_server_a_second_away() {
    let redis = Redis::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let server = redis.url().trim_start_matches("unix://").into();
    let link = link(&format!("unix://{}", line(directory.path(), server, FAR).display()));
    up(&link).await;
    assert_eq!(failures(&link, "timeout"), 0);
}
