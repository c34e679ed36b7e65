//! A server with wrong or malformed replies.
#![allow(dead_code, unreachable_pub, reason = "no test file uses all of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Greets like Redis, then sends these bytes, the last of them repeatedly until the client stops reading.
pub struct Liar {
    directory: tempfile::TempDir,
    pub written: Arc<AtomicUsize>,
    pub connections: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Liar {
    pub fn start(first: Vec<u8>, then: Vec<u8>, greets: bool) -> Liar {
        let directory = tempfile::Builder::new().prefix("tidegate-liar-").tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        let (written, connections, is_over) =
            <(Arc<AtomicUsize>, Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
        let (all, met, over) = (Arc::clone(&written), Arc::clone(&connections), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let (stream, _) = listener.accept().unwrap();
                met.fetch_add(1, Ordering::Relaxed);
                let _ = lie(stream, &first, &then, greets, &all);
            }
        });
        Liar { directory, written, connections, is_over, thread: Some(thread) }
    }

    pub fn url(&self) -> String {
        format!("unix://{}/s", self.directory.path().display())
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(self.directory.path().join("s"));
        self.thread.take().unwrap().join().unwrap();
    }
}

fn lie(
    mut stream: UnixStream,
    first: &[u8],
    then: &[u8],
    greets: bool,
    all: &AtomicUsize,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let mut bytes = [0; 4096];
    if greets {
        let _ = stream.read(&mut bytes)?;
        stream.write_all(b"+PONG\r\n")?;
    }
    if stream.read(&mut bytes)? == 0 {
        return Ok(());
    }
    stream.write_all(first)?;
    while !then.is_empty() && all.load(Ordering::Relaxed) < ENOUGH {
        all.fetch_add(stream.write(then)?, Ordering::Relaxed);
    }
    while stream.read(&mut bytes)? > 0 {}
    Ok(())
}

/// The most bytes that a server sends.
const ENOUGH: usize = 64 << 20;
