//! Documents of fleet overrides: authentic ones with any content can be applied, others are rejected.

use ring::hmac;
use tidegate::clock::Now;
use tidegate::engine::{FleetChange, Mode, RuleName, Switch, SwitchOrigin, Target};
use tidegate::fleet::overrides::{DOCUMENT_BYTES_MAX, OverridesDocument};
use tidegate::fleet::secrets::OverridesKey;
use tidegate::rules::read_text;

use super::rules::new_engine;

const SECRET: [u8; 32] = [7; 32];
const RULES: &str = "\
domain: api
limits:
- {name: per-user, key: [user], rate: 100/s, scope: fleet}
- {name: other, key: [user], rate: 100/s}
";

/// Opens the bytes as a document with a forged MAC, and as one with a valid MAC.
pub fn check(bytes: &[u8]) {
    let key = OverridesKey::of_secret(&SECRET);
    assert!(OverridesDocument::open(bytes, &key).is_none(), "accepts a forged document");
    let document = [bytes, &mac(bytes)].concat();
    let Some(document) = OverridesDocument::open(&document, &key) else {
        assert!(bytes.len() < 8 || document.len() > DOCUMENT_BYTES_MAX, "rejects an authentic document");
        return;
    };
    let engine = new_engine();
    let standing = engine.join_fleet(tidegate::engine::HashKey::from_bytes([9; 16]));
    let loaded = read_text("rules.yaml", RULES);
    assert!(!loaded.has_errors(), "{:?}", loaded.problems);
    drop(engine.install_rules(loaded.domains));
    // At the origin, on a day of 2026, after a year, with a wall clock before 1970.
    let day = 86_400_000_000_000;
    for (at, utc) in [(0, 0), (day, 1_772_539_200_000_000_000), (366 * day, 0), (day, i64::MIN / 2)] {
        let now = Now { utc_offset_nanos: utc, ..Now::at_nanos(at) };
        let overrides = document.overrides(now);
        assert!(overrides.switches.len() + overrides.blocks.len() <= bytes.len());
        engine.apply_fleet_overrides(&overrides);
        engine.tick(now);
        drop((engine.fleet_switches(), engine.blocked_keys(), engine.switches()));
        for change in changes(now) {
            let Ok(Some(next)) = document.after(&change, &[9; 16], &key, now) else { continue };
            assert!(next.version > document.version || document.version == u64::MAX);
            let reopened = OverridesDocument::open(&next.bytes, &key).expect("the next version is authentic");
            assert_eq!(reopened.overrides(now), next.overrides(now));
            assert!(next.bytes.len() <= DOCUMENT_BYTES_MAX);
        }
    }
    drop(standing);
}

fn changes(now: Now) -> [FleetChange; 2] {
    let target = Target::Rule(RuleName { domain: "api".into(), rule: "per-user".into() });
    let switch = Switch {
        target: target.clone(),
        mode: Mode::Disabled,
        until: Some(now.at.after(std::time::Duration::from_secs(60))),
        set_at: now.at,
        by: SwitchOrigin::User(0),
    };
    [FleetChange::Switch(switch), FleetChange::Clear(target)]
}

/// The MAC of a document, computed as the protocol specifies it.
fn mac(body: &[u8]) -> Vec<u8> {
    let purpose = b"tidegate: the MAC of fleet overrides, version 1";
    let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &SECRET), purpose);
    let key = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
    hmac::sign(&key, &[b"tg:{tm}:overrides", body].concat()).as_ref().to_vec()
}
