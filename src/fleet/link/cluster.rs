//! The Redis Cluster protocol: the slot of a tag, the slot map, and redirections.

use redis::Value;

use super::url::Url;

/// The slot of a hash tag, the text between a key's braces: its CRC16 (XMODEM) modulo 16 384.
pub(super) fn slot_of(tag: &str) -> u16 {
    let mut crc: u16 = 0;
    for byte in tag.bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS
}

/// A range of slots, both ends included, and its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) master: Url,
}

/// Reads the reply of `asked` to CLUSTER SLOTS; `None` if malformed.
pub(super) fn read_slots(reply: &Value, asked: &Url) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else { return None };
    ranges.iter().map(|range| read_range(range, asked)).collect()
}

fn read_range(range: &Value, asked: &Url) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else { return None };
    let slot = |value: &Value| match value {
        Value::Int(slot) => u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        // The server does not know its own address: use the one that reached it.
        Value::Nil => "",
        _ => return None,
    };
    let master = place(host, u16::try_from(*port).ok()?, asked)?;
    Some(Range { first: slot(first)?, last: slot(last)?, master }).filter(|range| range.first <= range.last)
}

/// A redirection, sent instead of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// The slot has moved to another server.
    Moved(u16, Url),
    /// The slot is being moved to another server, which has these keys already.
    Ask(Url),
    /// The slot is being moved, and its servers have some of the keys each.
    Later,
}

/// Reads a redirection of a command sent to `asked`; `None` if the error is none.
pub(super) fn redirect(error: &redis::ServerError, asked: &Url) -> Option<Redirect> {
    let code = error.code();
    if code == "TRYAGAIN" {
        return Some(Redirect::Later);
    }
    let mut words = error.details()?.split(' ');
    let slot = words.next()?.parse().ok().filter(|slot| *slot < SLOTS)?;
    let (host, port) = words.next()?.rsplit_once(':')?;
    let there = place(host, port.parse().ok()?, asked)?;
    match code {
        "MOVED" => Some(Redirect::Moved(slot, there)),
        "ASK" => Some(Redirect::Ask(there)),
        _ => None,
    }
}

/// A server beside the asked one, which stands for the host of a server that does not know its own.
fn place(host: &str, port: u16, asked: &Url) -> Option<Url> {
    let host = if host.is_empty() { asked.host()? } else { host };
    asked.beside(host.trim_start_matches('[').trim_end_matches(']'), port)
}

pub(super) const SLOTS: u16 = 16_384;

#[cfg(test)]
mod tests {
    use super::{Redirect, Url, Value, read_slots, redirect};

    fn error(text: &str) -> redis::ServerError {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap() {
            Value::ServerError(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn redirections_are_read_strictly() {
        let asked: Url = "rediss://here:1".parse().unwrap();
        let to = |text: &str| redirect(&error(text), &asked);
        let there: Url = "rediss://10.0.0.7:7001".parse().unwrap();
        assert_eq!(to("MOVED 5 10.0.0.7:7001"), Some(Redirect::Moved(5, there.clone())));
        assert_eq!(to("ASK 5 10.0.0.7:7001"), Some(Redirect::Ask(there)));
        assert_eq!(to("MOVED 5 :7001"), Some(Redirect::Moved(5, "rediss://here:7001".parse().unwrap())));
        assert_eq!(to("MOVED 5 ::1:7001"), Some(Redirect::Moved(5, "rediss://[::1]:7001".parse().unwrap())));
        assert_eq!(to("TRYAGAIN Multiple keys request during rehashing of slot"), Some(Redirect::Later));
        for nonsense in [
            "MOVED",
            "MOVED 5",
            "MOVED 16384 a:1",
            "MOVED 5 a:0",
            "MOVED 5 a:99999",
            "MOVED 5 ?:1",
            "MOVED 5 a b:1",
            "MOVED x a:1",
            "ERR 5 a:1",
            "ASK 5 a\u{7f}:1",
        ] {
            assert_eq!(to(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_map_is_read_whole_or_not_at_all() {
        let asked: Url = "redis://seed:1".parse().unwrap();
        let read = |text: &str| read_slots(&redis::parse_redis_value(text.as_bytes()).unwrap(), &asked);
        let one = "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$1\r\na\r\n:7\r\n$2\r\nid\r\n*0\r\n";
        let ranges = read(one).unwrap();
        assert_eq!(
            (ranges[0].first, ranges[0].last, ranges[0].master.to_string()),
            (0, 16383, "redis://a:7".into())
        );
        assert_eq!(
            read(&one.replace("$1\r\na\r\n", "$-1\r\n")).unwrap()[0].master.to_string(),
            "redis://seed:7"
        );
        for (from, to) in [
            (":16383", ":16384"),
            (":0", ":-1"),
            (":7", ":0"),
            (":7", ":70000"),
            ("$1\r\na", ":1"),
            ("*3", "*0"),
        ] {
            assert_eq!(read(&one.replacen(from, to, 1)), None, "{to}");
        }
        assert_eq!(read("*0\r\n"), Some(vec![]));
        assert_eq!(read("+OK\r\n"), None);
    }
}
