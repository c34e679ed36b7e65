//! All pools by name: those that the rules watch over, and those that somebody is in.

use std::collections::HashMap;
use std::sync::Arc;

use super::pool::{Pool, PoolView};
use super::sync::Mutex;
use super::watch::Watch;
use crate::clock::Timestamp;

/// All pools.
#[derive(Debug, Default)]
pub(super) struct Pools(Mutex<HashMap<Box<str>, Arc<Pool>>>);

impl Pools {
    /// The pool of this name.
    pub(super) fn of(&self, name: &str) -> Arc<Pool> {
        let mut pools = self.0.lock();
        if let Some(pool) = pools.get(name) {
            return Arc::clone(pool);
        }
        let pool = Arc::new(Pool::new(name));
        pools.insert(name.into(), Arc::clone(&pool));
        pool
    }

    /// The pool of this name, if it is there.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Pool>> {
        self.0.lock().get(name).cloned()
    }

    /// Puts in force what watches over pools, and over no other.
    pub(super) fn watch(&self, watches: &[(Arc<Pool>, Arc<Watch>)]) {
        for pool in self.all() {
            let watch = watches.iter().find(|(watched, _)| Arc::ptr_eq(watched, &pool));
            pool.watch_by(watch.map(|(_, watch)| Arc::clone(watch)));
        }
    }

    pub(super) fn tick(&self, at: Timestamp) {
        self.all().iter().for_each(|pool| pool.tick(at));
    }

    /// Forgets pools that nobody is in and nothing watches over, and readings that are too old.
    pub(super) fn sweep(&self, at: Timestamp) {
        let mut pools = self.0.lock();
        // Whoever holds it besides is about to join it.
        pools.retain(|_, pool| pool.is_watched() || pool.is_used() || Arc::strong_count(pool) > 1);
        pools.values().for_each(|pool| pool.signals.lock().forget_old(at));
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.all().iter().all(|pool| pool.is_at_rest())
    }

    /// Every pool, in the order of their names.
    pub(super) fn view(&self, at: Timestamp) -> Vec<PoolView> {
        let mut views: Vec<PoolView> = self.all().iter().map(|pool| pool.view(at)).collect();
        views.sort_unstable_by(|one, other| one.pool.cmp(&other.pool));
        views
    }

    pub(super) fn all(&self) -> Vec<Arc<Pool>> {
        self.0.lock().values().cloned().collect()
    }
}
