//! What a pool counts is what its leases are, whatever begins and ends them: work of either kind, and slots that are busy.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate::engine::{Session, WorkOutcome};

use super::office::{Ask, Office, ms};

const RULES: &str = "priorities: [critical, other]\nexempt:\n- {name: probes, match: {path: /healthz}}\n\
                     concurrency:\n- {name: short, match: {short: yes}, key: [], max: 4, expires: 2s}\n\
                     shed:\n- {pool: web, fleet: {reserve: 40%}, brake: {}, queue_age: {}}\n";

/// What each session is called, and how many requests it works on at once.
const SESSIONS: [u8; 3] = [1, 2, 3];
const SLOTS: [u32; 3] = [2, 0, 3];

#[derive(Clone, Debug)]
enum Event {
    /// By a session: whether it is important, waited too long, is exempt, ends soon, has a name.
    Acquire(usize, [bool; 4], Option<u8>),
    Release(prop::sample::Index),
    Abandon(prop::sample::Index),
    End(usize),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let acquire = (0..3_usize, any::<[bool; 4]>(), prop::option::weighted(0.2, 0..3_u8));
    prop_oneof![
        10 => acquire.prop_map(|(session, how, name)| Event::Acquire(session, how, name)),
        5 => any::<prop::sample::Index>().prop_map(Event::Release),
        1 => any::<prop::sample::Index>().prop_map(Event::Abandon),
        1 => (0..3_usize).prop_map(Event::End),
        3 => (0..3_000_u64).prop_map(Event::Pass),
    ]
}

/// A lease: its session, whether it is other work, its request's id, and when it ends.
type Held = HashMap<u64, (usize, bool, u64, u64)>;

fn count(held: &Held, is: impl Fn(&(usize, bool, u64, u64)) -> bool) -> u32 {
    u32::try_from(held.values().filter(|held| is(held)).count()).unwrap()
}

fn check(office: &Office, held: &Held, now: u64) -> Result<(), TestCaseError> {
    let pool = office.engine.pools(ms(now)).remove(0);
    let of = |session: usize| count(held, |(of, ..)| *of == session);
    // One that does not say how many works on all it has.
    let most = |slots: u32| if slots == 0 { u32::MAX } else { slots };
    let busy: u32 = (0..).zip(SLOTS).map(|(session, slots)| of(session).min(most(slots))).sum();
    let others = count(held, |(_, is_other, ..)| *is_other);
    prop_assert_eq!((pool.noncritical, pool.critical), (others, count(held, |(_, is_other, ..)| !is_other)));
    prop_assert_eq!(pool.busy, busy);
    prop_assert_eq!(pool.slots, Some(5));
    prop_assert_eq!(office.engine.leases().live, held.len() as u64);
    Ok(())
}

proptest! {
    #[test]
    fn a_pool_counts_what_its_leases_are(events in prop::collection::vec(event(), 0..150)) {
        let mut office = Office::new(RULES);
        let open = |office: &Office, at: usize, now: u64| -> Session {
            office.session(SESSIONS[at], SLOTS[at], ms(now))
        };
        let mut sessions: Vec<Session> = (0..SLOTS.len()).map(|at| open(&office, at, 0)).collect();
        let (mut held, mut now) = (Held::new(), 0);
        for (id, event) in (0..).zip(events) {
            match event {
                Event::Acquire(at, [important, late, exempt, short], name) => {
                    let attributes = match (exempt, short) {
                        (true, _) => "path=/healthz",
                        (_, true) => "short=yes",
                        _ => "a=b",
                    };
                    // Of a name only one thing is asked.
                    let name = name.map(|name| [name, SESSIONS[at], u8::from(important), u8::from(exempt), u8::from(short)]);
                    let told = office.ask(&sessions[at], ms(now), Ask {
                        id,
                        priority: Some(if important { "critical" } else { "other" }),
                        queued: late.then_some(3_000_000),
                        name: name.as_ref().map(|name| &name[..]),
                        ..Ask::acquire(attributes)
                    });
                    let lasts = if short && !exempt { 2_000 } else { 60_000 };
                    if let Some(lease) = told.lease {
                        held.entry(lease).or_insert((at, !important, id, now + lasts));
                    }
                }
                Event::Release(_) | Event::Abandon(_) if held.is_empty() => {}
                Event::Release(index) => {
                    let lease = *index.get(&held.keys().copied().collect::<Vec<_>>());
                    let (at, ..) = held.remove(&lease).unwrap();
                    prop_assert!(office.engine.release_lease(&sessions[at], lease, WorkOutcome::Error, ms(now)));
                }
                Event::Abandon(index) => {
                    let lease = *index.get(&held.keys().copied().collect::<Vec<_>>());
                    let (at, _, id, _) = held.remove(&lease).unwrap();
                    office.engine.abandon_requests(&sessions[at], &mut std::iter::once((1, id)), ms(now));
                }
                Event::End(at) => {
                    office.engine.end_session(&sessions[at], ms(now));
                    held.retain(|_, (of, ..)| *of != at);
                    sessions[at] = open(&office, at, now);
                }
                Event::Pass(millis) => {
                    now += millis;
                    office.engine.tick(ms(now));
                    held.retain(|_, (.., ends_at)| *ends_at > now);
                }
            }
            check(&office, &held, now)?;
        }
    }
}
