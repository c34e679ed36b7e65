//! No input at the operators' listeners affects decisions.

use crate::prelude::*;

#[test]
fn garbage_closes_only_its_own_connection() {
    let daemon = daemon();
    let mut wire = daemon.greeted();
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(100_000));
    let many: String = (0..5_000).map(|number| format!("x-{number}: y\r\n")).collect();
    let many = format!("GET /healthz HTTP/1.1\r\n{many}\r\n");
    let table: &[&[u8]] = &[
        b"",
        b"\r\n\r\n",
        b"GET",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00\x01\x02\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
        b"POST /reload HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"POST /reload HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /%00 HTTP/1.1\r\nhost: x\r\n\r\n",
        long.as_bytes(),
        many.as_bytes(),
    ];
    for bytes in table {
        let stream = UnixStream::connect(admin_socket(&daemon)).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let _ = writer.write_all(bytes);
        let _ = writer.shutdown(std::net::Shutdown::Write);
        let answer = String::from_utf8_lossy(&say(stream, b"")).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1."), "{answer}");
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        wire.assert_served();
    }
    // Of pipelined requests only the first is answered.
    let two = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /status HTTP/1.1\r\nhost: x\r\n\r\n";
    let answer = say(UnixStream::connect(admin_socket(&daemon)).unwrap(), two);
    assert_eq!(String::from_utf8_lossy(&answer).matches("HTTP/1.1 200").count(), 1);
    assert_eq!(get(&daemon, "/healthz").status, 200);
}
