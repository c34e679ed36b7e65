//! Tests a false Redis: a host falls back to local limits immediately and in little memory.

use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use super::daemon::eventually;
use super::hosts::{Caller, LINKED, admitted_by_one_bucket, count_log, passed, plan, rules};
use super::liar::Liar;

#[test]
fn hostile_redis_costs_no_memory_or_reply() {
    let zeros = vec![b'0'; 1 << 16];
    let lies: [(&str, Vec<u8>, Vec<u8>); 4] = [
        ("512 MB", b"$536870912\r\n".to_vec(), zeros.clone()),
        ("an endless line", b"+".to_vec(), zeros),
        ("deep nesting", Vec::new(), b"*1\r\n".repeat(1 << 14)),
        ("silence", Vec::new(), Vec::new()),
    ];
    for (name, first, then) in lies {
        let liar = Liar::start(first, then, true);
        let host = plan(&liar.url(), &rules("100/s", 50, "on_miss: refuse"), "").start();
        let before = host.process.resident_kib();
        let shared = Caller::start(host.socket(), "u1", 2, Duration::from_millis(5));
        let own = Caller::start(host.socket(), "job1", 1, Duration::from_millis(5));
        eventually(name, || (liar.connections.load(Ordering::Relaxed) > 0).then_some(()));
        sleep(Duration::from_secs(2));
        // A reply without a verdict would have ended them.
        let (shared, own) = (shared.stop(), own.stop());
        assert!(own.iter().all(|asked| asked.passed), "{name}: a rule of the host refused");
        let shared = [shared];
        let (admitted, alone) = (passed(&shared).len(), admitted_by_one_bucket(&shared, 100.0, 50));
        assert!(
            (alone * 7..=alone * 14).contains(&(admitted * 10)),
            "{name}: {admitted} passed, alone {alone}"
        );
        let grown = host.process.resident_kib().saturating_sub(before);
        assert!(grown < 16 << 10, "{name}: {grown} KiB more");
        assert_eq!(count_log(&host, LINKED), 0, "{name}: {}", host.log());
    }
}
