//! The locks and atomic numbers that decide what one thread sees of another. Names for them and nothing more: those of
//! every day, or those of a checker that runs the threads of a test in many orders.
//!
//! Shuttle and not loom: a decision takes a handful of locks out of a hundred and asks the swapped rule set, which knows
//! no checker. Loom would have to see all of it and try every order there is, which it cannot finish; what is at stake
//! here is the order of critical sections, not of single loads, and that shuttle tries by the thousand.

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

    /// The checker's lock, which is as the standard library's, with the manners of the one that it stands for.
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
