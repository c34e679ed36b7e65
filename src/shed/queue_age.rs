//! Queue age: requests are refused that have waited so long that their client has disconnected, or soon will. The wait
//! is an argument, measured by a proxy or the application.
//!
//! Source: the wait in the queue, not its length, shows that a service is overloaded (Zhou and others, “Overload
//! Control for Scaling WeChat Microservices”, 2018; Maurer, “Fail at Scale”, 2015). Where critical requests alone
//! exceed the capacity of the host, this bound keeps the host working on requests that still have a client.

use std::time::Duration;

use crate::clock::Micros;

/// Whether a request that has waited for `queued` exceeds `bound`. A wait above [`PLAUSIBLE_MAX`] comes from a wrong
/// clock and is not too old.
pub fn is_too_old(queued: Micros, bound: Duration) -> bool {
    let queued = Duration::from(queued);
    queued <= PLAUSIBLE_MAX && queued > bound
}

/// The longest plausible wait: proxies time out sooner, and wrong clocks are off by more.
pub const PLAUSIBLE_MAX: Duration = Duration::from_secs(60);
