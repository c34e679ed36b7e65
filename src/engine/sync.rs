//! Re-exports of the locks and atomics that synchronize threads: the production ones, or those of shuttle,
//! which runs a test's threads in many orders.
//!
//! Shuttle instead of loom: a decision takes a handful of over a hundred locks and loads the swapped rule
//! set, which no checker instruments. Loom would have to see all of it and enumerate every order, which does
//! not terminate in time. The tests concern the order of critical sections, not of single loads, and shuttle
//! samples thousands of those orders.

#[cfg(feature = "interleavings")]
pub(super) use checked::{Mutex, MutexGuard};
#[cfg(not(feature = "interleavings"))]
pub(super) use parking_lot::{Mutex, MutexGuard};
#[cfg(feature = "interleavings")]
pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(feature = "interleavings"))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

#[cfg(feature = "interleavings")]
mod checked {
    use std::sync::PoisonError;

    pub(in crate::engine) use shuttle::sync::MutexGuard;

    /// Shuttle's mutex behind the interface of `parking_lot`: no poisoning.
    #[derive(Debug, Default)]
    pub(in crate::engine) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(in crate::engine) fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        pub(in crate::engine) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
