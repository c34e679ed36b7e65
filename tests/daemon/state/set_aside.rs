//! Files of the state directory that are unusable or exceed the memory budget.

use tidegate::engine::{Engine, EngineOptions, HashKey};
use tidegate::rules::Mode;
use tidegate::state::read_tables;

use super::fixture::{ANY_SIZE, Fixture, KEY, here, s};

#[test]
fn keeps_limited_keys_where_the_next_memory_is_smaller() {
    const RULES: &str = "limits:\n- {name: all, key: [u], rate: 5/h}\n";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tables");
    let mut before = Fixture::new(RULES);
    // Far more keys than fit afterwards are one token short; a few have none left.
    for user in 0..20_000 {
        before.hit(&format!("u=free{user}"), s(1));
    }
    for user in 0..200 {
        (0..6).for_each(|_| drop(before.hit(&format!("u=limited{user}"), s(1))));
    }
    before.write(&path, s(2));
    let memory_bytes_max = 256 << 10;
    let engine = Engine::new(EngineOptions {
        hash_key: HashKey::from_bytes(KEY.0),
        mode: Mode::Enforce,
        memory_bytes_max,
    });
    read_tables(&path, KEY, &engine, &here(s(2)), ANY_SIZE).unwrap();
    let mut after = Fixture::of(engine);
    after.install(RULES);
    let (bytes, keys) = (after.engine.memory_bytes(), after.engine.keys());
    // Tables of a few keys are never refused.
    assert!(bytes <= memory_bytes_max + (16 << 10) && keys < 15_000, "{bytes} bytes, {keys} keys");
    let limited = (0..200).filter(|user| {
        let user = format!("limited{user}");
        after.hit(&format!("u={user}"), s(3)).starts_with("Limit")
    });
    let limited = limited.count();
    assert!(limited >= 198, "{limited} of 200");
}
