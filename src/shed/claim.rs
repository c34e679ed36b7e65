//! How much other work a host lets in where many hosts have one reserve: its claim. Each host says it to all, and hears
//! what the others claim together, so that all claims fit into what is not kept back, whoever speaks first.
//!
//! ```text
//!   claims of all hosts ≤ ⌊(1 − reserve) · slots of all⌋
//!   a host's own part = ⌊(1 − reserve) · its own slots⌋: more is borrowed, and yields to whoever asks for his own
//! ```
//!
//! Promise: what hosts claim together is never above what they may, as long as each speaks once a second and is heard.
//! Nobody adds to its claim before it was said to all and found to fit, so stale sums cannot be used twice.

use super::FleetSums;

/// The claim of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// What it lets in.
    most: u32,
    /// Its own part when it last spoke.
    own: u32,
    /// What it has said that it claims; never less than it lets in, nor than it has in progress.
    said: u32,
    /// What all hosts may claim, and what the others do claim, as last heard.
    all: u64,
    elsewhere: u64,
    /// The slots of all hosts, as last heard.
    slots: u64,
    /// How often in a row nobody was heard to ask for more than there is.
    calm: u8,
}

/// What there is on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// Its slots.
    pub slots: u32,
    /// How much other work it has in progress.
    pub others: u32,
    /// What is kept back, in thousandths.
    pub reserve: u16,
    /// Whether other work was refused since it last spoke.
    pub is_refusing: bool,
}

impl Here {
    /// What it may let in where it is alone, which is what it can always have.
    #[must_use]
    pub fn own_part(&self) -> u32 {
        FleetSums::default().most_others_here(self.slots, self.reserve)
    }
}

impl Claim {
    /// Of a host that nobody has heard of, or not for long.
    #[must_use]
    pub fn of(here: &Here) -> Claim {
        let own = here.own_part();
        // Nobody is known to ask for any of it.
        Claim { most: own, own, said: own, calm: 1, ..Claim::default() }
    }

    /// What it lets in.
    #[must_use]
    pub const fn most(&self) -> u32 {
        self.most
    }

    /// What it is about to say that it claims. What it does not need is given back at once where others ask.
    pub fn say(&mut self, here: &Here) -> u32 {
        let own = here.own_part();
        // Slots that came or went since bring or take their own part with them.
        let most = self.most.saturating_add(own).saturating_sub(self.own).min(here.slots);
        self.own = own;
        let said = if here.is_refusing || here.others >= most {
            // One at least: that is how those learn of it who have more than they need. Where others ask already, nobody
            // who has his own part stands in their way.
            let is_asked = self.elsewhere.saturating_add(u64::from(most)) > self.all;
            let more = if is_asked { 0 } else { self.part_of_free(here).min(most / 4 + 1).max(1) };
            most.saturating_add(more).max(own).min(here.slots)
        } else if self.calm == 0 {
            most.min(needed(here))
        } else if self.calm >= CALM {
            // What was lent comes back as far as nobody has it.
            most.max(own.min(most.saturating_add(self.part_of_free(here))))
        } else {
            most
        };
        // What is in progress is there, whatever may come.
        self.said = said.max(here.others);
        self.most = most.min(self.said);
        self.said
    }

    /// What all other hosts together said last, once they have heard this one. Unless it `may_grow`, what others give
    /// back is left for the time being.
    pub fn hear(&mut self, elsewhere: FleetSums, here: &Here, may_grow: bool) {
        let own = here.own_part();
        let room = elsewhere.most_others_here(here.slots, here.reserve);
        let most = if may_grow { self.most.max(self.said.min(room)) } else { self.most };
        // Who has more than its own part yields to whoever asks for his.
        self.most = if most > own { most.min(room.max(own)) } else { most };
        let all = FleetSums { others: 0, ..elsewhere }.most_others_here(here.slots, here.reserve);
        (self.all, self.elsewhere) = (u64::from(all), elsewhere.others);
        self.slots = elsewhere.slots.saturating_add(u64::from(here.slots));
        let is_short = elsewhere.others.saturating_add(u64::from(self.said)) > self.all;
        self.calm = if is_short { 0 } else { self.calm.saturating_add(1) };
    }

    /// This host's part of what nobody claims, by its slots, rounded up.
    fn part_of_free(&self, here: &Here) -> u32 {
        let claimed = self.elsewhere.saturating_add(u64::from(self.said));
        let free = u128::from(self.all.saturating_sub(claimed));
        let part = (free * u128::from(here.slots)).div_ceil(u128::from(self.slots.max(1)));
        u32::try_from(part).unwrap_or(u32::MAX)
    }
}

/// What a host keeps that lends: what it has at work, a quarter more, and a little for what comes before it can ask.
fn needed(here: &Here) -> u32 {
    here.others.saturating_add(here.others / 4).saturating_add(here.slots / 16 + 1)
}

/// So often in a row must nobody ask for more than there is, before what was lent is taken back without need.
const CALM: u8 = 5;
