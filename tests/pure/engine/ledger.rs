//! The accounts of users: the bytes that clients make the daemon hold outside the tables.

use tidegate::clock::Now;
use tidegate::engine::{AccountUse, Engine, EngineOptions, HashKey, Mode};

const USER_BYTES_MAX: usize = 16 << 20;
const BYTES_MAX: usize = 64 << 20;

fn empty() -> Engine {
    Engine::new(EngineOptions {
        hash_key: HashKey::from_bytes([7; 16]),
        mode: Mode::Enforce,
        memory_bytes_max: 1 << 20,
    })
}

#[test]
fn charges_users_separately_and_reuses_returned_bytes() {
    let engine = empty();
    let (one, other) = (engine.account(1), engine.account(2));
    assert!(one.grow(AccountUse::Buffers, USER_BYTES_MAX));
    assert!(!one.grow(AccountUse::Buffers, 1), "no more for this user");
    assert!(other.grow(AccountUse::Buffers, USER_BYTES_MAX), "another user has as much");
    one.shrink(10);
    assert!(engine.account(1).grow(AccountUse::Buffers, 10) && !one.grow(AccountUse::Buffers, 1));
    assert_eq!(engine.held_bytes().total, 2 * USER_BYTES_MAX as u64);
    drop((one, other));
    engine.sweep(Now::at_nanos(0));
    assert_eq!(engine.held_bytes().total, 0);
}

#[test]
fn optional_uses_leave_room_for_others() {
    let account = empty().account(1);
    assert!(account.grow(AccountUse::Reports, USER_BYTES_MAX / 4) && !account.grow(AccountUse::Reports, 1));
    assert!(
        account.grow(AccountUse::PendingRequests, USER_BYTES_MAX / 4)
            && !account.grow(AccountUse::PendingRequests, 1)
    );
    assert!(account.grow(AccountUse::Buffers, USER_BYTES_MAX / 2) && !account.grow(AccountUse::Buffers, 1));
}

#[test]
fn full_accounts_leave_room_for_another_user() {
    let engine = empty();
    let greedy: Vec<_> = (0..100).map(|user| engine.account(user)).collect();
    for account in &greedy {
        while account.grow(AccountUse::Buffers, 4 << 10) {}
    }
    let held = engine.held_bytes();
    assert!(held.total <= BYTES_MAX as u64 && held.largest_user == USER_BYTES_MAX as u64, "{held:?}");
    // By then each new user gets half of the remainder, down to a block.
    assert!(held.total > BYTES_MAX as u64 - (64 << 10), "{held:?}");
    greedy[0].shrink(USER_BYTES_MAX);
    assert!(engine.account(100).grow(AccountUse::Buffers, USER_BYTES_MAX / 2));
}
