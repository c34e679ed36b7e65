//! Which secrets hosts have, and which of them all have agreed on.

use std::collections::BTreeMap;

use tidegate::fleet::secrets::{Agreed, Held, Mark};

use super::Kept;

#[derive(Clone, Debug, Default)]
pub(super) struct Secrets(Option<Kept<Hash>>);

#[derive(Clone, Debug, Default)]
struct Hash {
    state: Option<State>,
    /// By name: when each said so, and what.
    said: BTreeMap<String, (u64, Held)>,
}

#[derive(Clone, Debug)]
struct State {
    before: Option<Mark>,
    uses: Mark,
    wanted: Option<Mark>,
    from: u64,
    counted: Option<u64>,
    lacking: u32,
    who: Vec<String>,
}

impl Secrets {
    pub(super) fn agree(&mut self, host: &str, held: &Held, alive: usize, now: u64) -> Agreed {
        self.expire(now);
        let mut hash = self.0.take().map(|kept| kept.value).unwrap_or_default();
        let first = held.has[0];
        let mut state = hash.state.take().unwrap_or(State {
            before: None,
            uses: held.uses.unwrap_or(first),
            wanted: None,
            from: if held.uses.is_some() { now } else { now + SETTLES },
            counted: None,
            lacking: 0,
            who: Vec::new(),
        });
        state.from = state.from.min(now + LEAD.max(SETTLES));
        if let (None, true, Some(here)) = (state.before, now < state.from, held.uses) {
            (state.uses, state.from) = (here, now);
        }
        let known = hash.said.insert(host.to_owned(), (now, held.clone()));
        let is_old = state.counted.is_none_or(|counted| counted + COUNTED <= now || counted > now);
        if is_old || known.is_none_or(|(_, known)| known != *held) {
            state.counted = Some(now);
            if first != state.uses {
                state.wanted = Some(first);
            }
            hash.said.retain(|_, (at, _)| *at + GONE >= now && *at <= now);
            let is_here = |at: u64| at + SILENT >= now;
            let listed = hash.said.values().filter(|(at, _)| is_here(*at)).count();
            let is_had = hash.said.values().any(|(at, held)| is_here(*at) && held.has.contains(&state.uses));
            let all_first = hash.said.values().all(|(_, held)| held.has[0] == first);
            let lacks = |held: &Held| Some(held.has[0]) != state.wanted;
            let lacking = hash.said.iter().filter(|(_, (_, held))| lacks(held));
            let names: Vec<String> = lacking.map(|(name, _)| name[..8].to_owned()).collect();
            state.lacking = u32::try_from(names.len() + alive.saturating_sub(listed)).unwrap();
            state.who = names.into_iter().take(4).collect();
            if (!is_had || all_first && listed >= alive) && first != state.uses && now >= state.from {
                (state.before, state.uses, state.from) = (Some(state.uses), first, now + LEAD);
            }
        }
        let State { before, uses, from: from_us, .. } = state;
        let (lacking, who) = match state.wanted == Some(first) {
            true => (state.lacking, state.who.clone()),
            false => (0, Vec::new()),
        };
        hash.state = Some(state);
        self.0 = Some(Kept::new(hash, now, MONTH_MS));
        Agreed { before, uses, from_us, lacking, who }
    }

    pub(super) fn expire(&mut self, now_us: u64) {
        self.0.take_if(|kept| kept.at(now_us).is_none());
    }

    /// The fields as they stand in Redis, and when they run out.
    pub(super) fn fields(&self) -> Option<(BTreeMap<String, Vec<u8>>, u64)> {
        let Kept { value, until_ms } = self.0.as_ref()?;
        let of_held = |(at, held): &(u64, Held)| {
            let mut bytes = at.to_le_bytes().to_vec();
            bytes.extend(Mark::bytes(held.uses));
            held.has.iter().for_each(|mark| bytes.extend(Mark::bytes(Some(*mark))));
            bytes
        };
        let mut fields: BTreeMap<_, _> =
            value.said.iter().map(|(host, said)| (host.clone(), of_held(said))).collect();
        fields.extend(value.state.iter().map(|state| ("use".to_owned(), state.bytes())));
        Some((fields, *until_ms))
    }
}

impl State {
    fn bytes(&self) -> Vec<u8> {
        let marks = [self.before, Some(self.uses), self.wanted];
        let mut bytes: Vec<u8> = marks.map(Mark::bytes).concat();
        bytes.extend(self.from.to_le_bytes());
        bytes.extend(self.counted.map_or(-1, u64::cast_signed).to_le_bytes());
        bytes.extend(self.lacking.to_le_bytes());
        bytes.extend(self.who.concat().into_bytes());
        bytes.resize(BYTES, 0);
        bytes
    }
}

const SILENT: u64 = 5_000_000;
const GONE: u64 = 30_000_000;
const LEAD: u64 = 3_000_000;
const SETTLES: u64 = 2_000_000;
const COUNTED: u64 = 500_000;
const MONTH_MS: u64 = 2_678_400_000;
const BYTES: usize = 76;
