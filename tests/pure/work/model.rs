//! Random starts and ends of leases against a map: each ends once, by release, by its time, with its session
//! or when abandoned; rules and pools agree with the map, and a session acts only on its own leases.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate::engine::{Session, WorkOutcome};

use crate::bench::{Ask, Bench};
use crate::engines::at_millis as ms;

const RULES: &str = "priorities: [critical, other]\nexempt:\n- {name: probes, match: {path: /healthz}}\n\
                     concurrency:\n- {name: short, match: {short: yes}, key: [], max: 4, expires: 2s}\n\
                     - {name: each, key: [k], max: 3, expires: 40s}\n\
                     shed:\n- {pool: web, fleet: {reserve: 40%}, brake: {}, queue_age: {}}\n";

/// The slots of each session; 0 means as many as it has requests.
const SLOTS: [u32; 3] = [2, 0, 3];

/// The attributes of a request, and the duration of its lease.
const KINDS: [(&str, u64); 5] = [
    ("path=/healthz k=a", 60_000),
    ("short=yes", 2_000),
    ("k=a", 40_000),
    ("k=b", 40_000),
    ("nothing=known", 60_000),
];

#[derive(Clone, Debug)]
enum Event {
    /// By a session: of a kind, whether it is critical and over its queue age, with an idempotency key.
    Acquire(usize, usize, [bool; 2], Option<u8>),
    Release(usize, prop::sample::Index),
    Renew(usize, prop::sample::Index),
    Abandon(prop::sample::Index),
    End(usize),
    /// The connection closes, or reopens.
    Close(usize),
    Return(usize),
    Pass(u64),
    /// Until something ends, or a millisecond less.
    PassUntil(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let lease = any::<prop::sample::Index>;
    let session = || 0..SLOTS.len();
    let acquire = (session(), 0..KINDS.len(), any::<[bool; 2]>(), prop::option::weighted(0.2, 0..3_u8));
    prop_oneof![
        12 => acquire.prop_map(|(session, kind, how, name)| Event::Acquire(session, kind, how, name)),
        4 => (session(), lease()).prop_map(|(session, lease)| Event::Release(session, lease)),
        2 => (session(), lease()).prop_map(|(session, lease)| Event::Renew(session, lease)),
        1 => lease().prop_map(Event::Abandon),
        1 => session().prop_map(Event::End),
        1 => session().prop_map(Event::Close),
        2 => session().prop_map(Event::Return),
        3 => (0..3_000_u64).prop_map(Event::Pass),
        2 => (0..2_u64).prop_map(Event::PassUntil),
    ]
}

/// A lease in the map.
#[derive(Clone, Copy, Debug)]
struct Held {
    session: usize,
    kind: usize,
    is_other: bool,
    id: u64,
    ends_at: u64,
}

struct Model {
    bench: Bench,
    /// With the time at which a session ends unless it returns.
    sessions: Vec<(Session, Option<u64>)>,
    held: HashMap<u64, Held>,
    now: u64,
}

impl Model {
    fn open(bench: &Bench, session: usize, now: u64) -> (Session, Option<u64>) {
        (bench.session(u8::try_from(session + 1).unwrap(), SLOTS[session], ms(now)), None)
    }

    fn count(&self, is: impl Fn(&Held) -> bool) -> u32 {
        u32::try_from(self.held.values().filter(|held| is(held)).count()).unwrap()
    }

    fn pick(&self, index: prop::sample::Index) -> u64 {
        let mut leases: Vec<u64> = self.held.keys().copied().collect();
        leases.sort_by_key(|lease| self.held[lease].id);
        *index.get(&leases)
    }

    fn pass(&mut self, now: u64) {
        self.now = now;
        self.bench.engine.tick(ms(now));
        for session in 0..SLOTS.len() {
            if self.sessions[session].1.is_some_and(|ends_at| ends_at <= now) {
                self.end(session);
            }
        }
        self.held.retain(|_, held| held.ends_at > now);
    }

    fn end(&mut self, session: usize) {
        self.held.retain(|_, held| held.session != session);
        self.sessions[session] = Model::open(&self.bench, session, self.now);
    }

    fn acquire(
        &mut self,
        id: u64,
        session: usize,
        kind: usize,
        [important, late]: [bool; 2],
        name: Option<u8>,
    ) {
        let (attributes, lasts) = KINDS[kind];
        // Each name has one kind of request.
        let name = name.map(|name| [name, session as u8, u8::from(important), kind as u8]);
        let ask = Ask {
            id,
            priority: Some(if important { "critical" } else { "other" }),
            queued: late.then_some(3_000_000),
            repeat: name.as_ref().map(|name| crate::bench::named(name)),
            ..Ask::acquire(attributes)
        };
        let of_kind = self.count(|held| held.kind == kind);
        let answer = self.bench.ask_by(&self.sessions[session].0, ms(self.now), ask);
        let most = [u32::MAX, 4, 3, 3, u32::MAX][kind];
        assert!(!answer.line.starts_with("limit") || of_kind == most, "{answer:?} of {of_kind}");
        if let Some(lease) = answer.lease
            && !self.held.contains_key(&lease)
        {
            assert!(of_kind < most, "{answer:?} of {of_kind}");
            let held = Held { session, kind, is_other: !important, id, ends_at: self.now + lasts };
            self.held.insert(lease, held);
        }
    }

    fn apply(&mut self, id: u64, event: &Event) {
        let at = ms(self.now);
        match *event {
            Event::Acquire(session, kind, how, name) => self.acquire(id, session, kind, how, name),
            Event::Release(..) | Event::Renew(..) | Event::Abandon(_) if self.held.is_empty() => {}
            Event::Release(session, index) => {
                let lease = self.pick(index);
                let release = || {
                    let session = &self.sessions[session].0;
                    self.bench.engine.release_lease(session, lease, WorkOutcome::Error, at)
                };
                let is_own = self.held[&lease].session == session;
                assert_eq!([release(), release()], [is_own, false]);
                self.held.retain(|other, _| *other != lease || !is_own);
            }
            Event::Renew(session, index) => {
                let lease = self.pick(index);
                let is_own = self.held[&lease].session == session;
                let renewed = self.bench.engine.renew_lease(&self.sessions[session].0, lease, at);
                assert_eq!(renewed, is_own);
                if is_own {
                    let held = self.held.get_mut(&lease).unwrap();
                    held.ends_at = self.now + KINDS[held.kind].1;
                }
            }
            Event::Abandon(index) => {
                let lease = self.pick(index);
                let Held { session, id, .. } = self.held.remove(&lease).unwrap();
                let (session, mut ids) = (&self.sessions[session].0, std::iter::once((1, id)));
                self.bench.engine.abandon_requests(session, &mut ids, at);
            }
            Event::End(session) => {
                self.bench.engine.end_session(&self.sessions[session].0, at);
                self.end(session);
            }
            Event::Close(session) => {
                if self.sessions[session].1.is_none() {
                    self.bench.engine.close_connection(&self.sessions[session].0, at);
                    self.sessions[session].1 = Some(self.now + 5_000);
                }
            }
            Event::Return(session) => {
                if self.sessions[session].1.is_some() {
                    self.sessions[session] = Model::open(&self.bench, session, self.now);
                }
            }
            Event::Pass(millis) => self.pass(self.now + millis),
            Event::PassUntil(less) => {
                let ends = self.held.values().map(|held| held.ends_at);
                let ends = ends.chain(self.sessions.iter().filter_map(|(_, ends_at)| *ends_at));
                let next = ends.min().unwrap_or(self.now).saturating_sub(less);
                self.pass(next.max(self.now));
            }
        }
    }

    fn check(&self) {
        let pool = self.bench.engine.pools(ms(self.now)).remove(0);
        // Work of a session without slots occupies none of the others.
        let busy =
            (0..).zip(SLOTS).map(|(session, slots)| self.count(|held| held.session == session).min(slots));
        assert_eq!(pool.noncritical, self.count(|held| held.is_other));
        assert_eq!(pool.critical, self.count(|held| !held.is_other));
        assert_eq!((pool.busy, pool.slots), (busy.sum(), Some(5)));
        assert_eq!(self.bench.engine.leases().live, self.held.len() as u64);
        let permits = self.count(|held| (1..4).contains(&held.kind));
        assert_eq!(self.bench.engine.in_progress(), u64::from(permits));
    }
}

proptest! {
    #![proptest_config(crate::rng::cases(60))]

    #[test]
    fn leases_rules_and_pools_match_reference_model(events in prop::collection::vec(event(), 0..200)) {
        let bench = Bench::new(RULES);
        let sessions = (0..SLOTS.len()).map(|session| Model::open(&bench, session, 0)).collect();
        let mut model = Model { bench, sessions, held: HashMap::new(), now: 0 };
        for (id, event) in (1..).zip(&events) {
            model.apply(id, event);
            model.check();
        }
    }
}
