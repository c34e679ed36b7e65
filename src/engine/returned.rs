//! When what goes back was paid: it leaves only the window that it was counted in. Kept beside the shares, for hardly any key
//! ever has it.

use super::fleet::SharedKey;
use super::sync::Mutex;
use std::collections::HashMap;

/// By key, the earliest moment by the clock of Redis, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Returned(Mutex<HashMap<([u8; 16], u64), u64>>);

impl Returned {
    /// Something goes back that was paid then; zero: it is of no window.
    pub(super) fn note(&self, key: &SharedKey, paid_us: u64) {
        if paid_us == 0 {
            return;
        }
        let mut returned = self.0.lock();
        let id = (key.name(), key.budget());
        if returned.len() >= RETURNED_MAX && !returned.contains_key(&id) {
            return;
        }
        let paid = returned.entry(id).or_insert(paid_us);
        *paid = paid_us.min(*paid);
    }

    /// When the first of what goes back now was paid.
    pub(super) fn take(&self, key: &SharedKey) -> Option<u64> {
        self.0.lock().remove(&(key.name(), key.budget()))
    }
}

/// Keys of which something is to go back: more than are called for in a second. What is beyond stays counted.
const RETURNED_MAX: usize = 1 << 14;
