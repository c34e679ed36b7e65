//! Queue age: what has waited so long already that its client has gone, or soon will, is not started. It measures nothing:
//! a proxy or the application says how long.
//!
//! Source: the wait in the queue, not the length of it, says that a service is overloaded (Zhou and others, “Overload
//! Control for Scaling WeChat Microservices”, 2018; Maurer, “Fail at Scale”, 2015). Where critical work alone is more than
//! the host can do, this is what keeps it doing work that still counts.

use std::time::Duration;

use crate::clock::Micros;

/// Whether a request that has waited for `queued` waited longer than `bound`. What is said to have waited for more than
/// [`BELIEVED_MAX`] was measured by a clock that is off, and is not too old.
#[must_use]
pub fn is_too_old(queued: Micros, bound: Duration) -> bool {
    let queued = Duration::from(queued);
    queued <= BELIEVED_MAX && queued > bound
}

/// The longest wait that is believed: proxies give up sooner, clocks that differ do so by more.
pub const BELIEVED_MAX: Duration = Duration::from_secs(60);
