//! Replies of Redis: no bytes make the parser panic.

pub fn check(bytes: &[u8]) {
    let _ = redis::parse_redis_value(bytes);
}
