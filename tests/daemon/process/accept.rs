//! Errors of accept: open connections are served, without a busy loop.

use crate::prelude::*;
use crate::state::strace::may_trace;

#[test]
fn accepts_again_after_any_error_of_accept() {
    needs!(may_trace());
    thread::scope(|threads| {
        for (error, warnings) in [("ENFILE", 3), ("ENOBUFS", 3), ("ENOMEM", 3), ("ECONNABORTED", 0)] {
            threads.spawn(move || fails(error, warnings));
        }
    });
}

/// The first connection is accepted, three calls fail, then the second is accepted.
fn fails(error: &str, warnings: usize) {
    let fault = format!("accept4:error={error}:when=2..4");
    let daemon = Plan::new().traced("", "accept4", &fault).start();
    let mut here = daemon.greeted();
    let late = thread::scope(|threads| {
        let late = threads.spawn(|| daemon.greeted());
        while !late.is_finished() {
            here.assert_served();
        }
        late.join().unwrap()
    });
    { late }.assert_served();
    let log = daemon.log();
    assert_eq!(log.matches("no connection can be let in").count(), warnings, "{error}: {log}");
    let trace = fs::read_to_string(daemon.plan.path("trace")).unwrap();
    let (calls, failed) = (trace.matches("accept4(").count(), trace.matches("(INJECTED)").count());
    assert_eq!(failed, 3, "{error}: {trace}");
    // Each connection costs one more call without result, and each failure one.
    assert!(calls <= 12, "{error}: {trace}");
}
