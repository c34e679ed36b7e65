//! A client of tidegate, the rate limiter and load shedder of this host.
//!
//! ```no_run
//! # async fn example() -> Result<(), tidegate_client::Denied> {
//! use tidegate_client::{Client, Outcome};
//!
//! let client = Client::new(); // one per process
//! let granted = client.acquire("api", [("user", "u1")]).await.granted()?;
//! // The work.
//! granted.release(Outcome::Ok);
//! # Ok(())
//! # }
//! ```
//!
//! No call fails because of the daemon, or takes longer than its deadline of 20 ms. Without a reply the decision is *allow*, and
//! [`Decision::reason`] says why. All requests of a client share one connection, in a task of the current tokio runtime.

mod answer;
mod attributes;
mod breaker;
mod builder;
mod check;
mod client;
mod connection;
mod decision;
mod fallback;
mod fault;
#[cfg(feature = "tower")]
mod layer;
mod reports;
mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use attributes::{Amount, Attributes, Cost};
pub use builder::ClientBuilder;
pub use check::{Check, OnFailure, RunError};
pub use client::{Client, Stats};
pub use decision::{Decision, Denied, Outcome, Verdict};
pub use fallback::RateError;
pub use fault::Reason;
#[cfg(feature = "tower")]
pub use layer::{LimitLayer, LimitService};

/// Locks a state that is valid after a panic too.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
