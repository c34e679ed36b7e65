//! Random begins and ends against a map: never a place too many or too few, and no counter below zero.

use std::collections::HashMap;

use tidegate::engine::{Session, WorkOutcome};

use super::office::{Ask, Office, ms};

/// A lease as the map has it.
#[derive(Clone, Copy, Debug)]
struct Held {
    session: usize,
    key: usize,
    ends_at: u64,
    id: u64,
}

/// A session as the map has it.
#[derive(Clone, Debug)]
struct Desk {
    session: Session,
    name: u8,
    /// When it ends if nobody comes back.
    left_at: Option<u64>,
}

const RULES: &str = "concurrency:\n- {name: each, key: [k], max: 3, expires: 40s}\n\
                     - {name: all, key: [], max: 11, expires: 20s, mode: shadow}\n";

#[test]
fn random_events_agree_with_a_map() {
    let mut dice = Dice::thrown();
    let mut office = Office::new(RULES);
    let mut desks: Vec<Desk> = Vec::new();
    let mut held: HashMap<u64, Held> = HashMap::new();
    let (mut now, mut refused) = (0, 0);
    for event in 0..100_000_u64 {
        now += dice.below(120);
        let_time_pass(&office, &mut desks, &mut held, now);
        if desks.len() < 8 {
            let name = u8::try_from(desks.len() + 1).unwrap();
            desks.push(Desk { session: office.session(name, 0, ms(now)), name, left_at: None });
        }
        let at = usize::try_from(dice.below(desks.len() as u64)).unwrap();
        let desk = desks[at].clone();
        match dice.below(100) {
            0..55 => {
                let key = usize::try_from(dice.below(6)).unwrap();
                let attributes = format!("k={key}");
                let told = office.ask(&desk.session, ms(now), Ask { id: event, ..Ask::acquire(&attributes) });
                let of_key = held.values().filter(|held| held.key == key).count();
                assert_eq!(told.lease.is_some(), of_key < 3, "event {event}: {told:?}");
                refused += u64::from(told.lease.is_none());
                if let Some(lease) = told.lease {
                    held.insert(lease, Held { session: at, key, ends_at: now + 40_000, id: event });
                }
            }
            55..85 => {
                // Now and then one that is gone, or another session's.
                let Some(lease) = any(&held, &mut dice) else { continue };
                let is_mine = held[&lease].session == at;
                let outcome = if dice.below(2) == 0 { WorkOutcome::Ok } else { WorkOutcome::Dropped };
                assert_eq!(office.engine.release_lease(&desk.session, lease, outcome, ms(now)), is_mine);
                if is_mine {
                    held.remove(&lease);
                    assert!(!office.engine.release_lease(&desk.session, lease, outcome, ms(now)));
                }
            }
            85..92 => {
                let Some(lease) = any(&held, &mut dice) else { continue };
                let is_mine = held[&lease].session == at;
                assert_eq!(office.engine.renew_lease(&desk.session, lease, ms(now)), is_mine);
                if is_mine {
                    held.get_mut(&lease).unwrap().ends_at = now + 40_000;
                }
            }
            92..96 => {
                let given_up: Vec<_> =
                    held.values().filter(|held| held.session == at).map(|held| held.id).take(2).collect();
                let mut ids = given_up.iter().map(|id| (1, *id));
                office.engine.abandon_requests(&desk.session, &mut ids, ms(now));
                held.retain(|_, held| !given_up.contains(&held.id));
            }
            96..98 if desk.left_at.is_none() => {
                office.engine.close_connection(&desk.session, ms(now));
                desks[at].left_at = Some(now + 5_000);
            }
            98 => {
                office.engine.end_session(&desk.session, ms(now));
                held.retain(|_, held| held.session != at);
                renew(&office, &mut desks[at], now);
            }
            _ if desk.left_at.is_some() => renew(&office, &mut desks[at], now),
            _ => {}
        }
        if event % 1_000 == 0 {
            assert_eq!(office.engine.leases().live, held.len() as u64);
        }
    }
    assert!(refused > 20_000, "refusals were seen: {refused}");
    desks.iter().for_each(|desk| office.engine.end_session(&desk.session, ms(now)));
    assert_eq!(office.engine.in_progress(), 0, "each lease has ended what it counted");
}

/// What ends by itself ends: leases, and sessions that nobody came back to.
fn let_time_pass(office: &Office, desks: &mut [Desk], held: &mut HashMap<u64, Held>, now: u64) {
    office.engine.end_expired_leases(ms(now));
    held.retain(|_, held| held.ends_at > now);
    for (number, desk) in desks.iter_mut().enumerate() {
        if desk.left_at.is_some_and(|at| at <= now) {
            held.retain(|_, held| held.session != number);
            renew(office, desk, now);
        }
    }
}

/// Its process is back, or another one in its place.
fn renew(office: &Office, desk: &mut Desk, now: u64) {
    desk.session = office.session(desk.name, 0, ms(now));
    desk.left_at = None;
}

fn any(held: &HashMap<u64, Held>, dice: &mut Dice) -> Option<u64> {
    let at = dice.below(held.len().max(1) as u64);
    held.keys().nth(usize::try_from(at).unwrap()).copied()
}

/// SplitMix64 (Steele, Lea, Flood, 2014).
struct Dice(u64);

impl Dice {
    fn thrown() -> Dice {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(5);
        println!("SEED={seed}");
        Dice(seed)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % end
    }
}
