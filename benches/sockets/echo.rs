//! The lower bound: a blocking server, one thread for each connection, that answers bytes with bytes.
//!
//! It has neither frames nor decisions: any cost above it is the limiter's.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

/// Answers every `request_bytes` bytes with `reply`, until killed.
pub(crate) fn serve(socket: &Path, request_bytes: usize, reply: &[u8]) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    for stream in listener.incoming() {
        let (stream, reply) = (stream?, reply.to_vec());
        thread::spawn(move || answer(stream, request_bytes, &reply));
    }
    Ok(())
}

fn answer(mut stream: UnixStream, request_bytes: usize, reply: &[u8]) -> io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    let mut replies = Vec::new();
    let mut unanswered = 0;
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        unanswered += read;
        replies.clear();
        while unanswered >= request_bytes {
            unanswered -= request_bytes;
            replies.extend_from_slice(reply);
        }
        stream.write_all(&replies)?;
    }
}
