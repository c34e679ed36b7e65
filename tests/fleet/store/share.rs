//! Models sharing among hosts: reports of this generation and the one before, and the portion of a host.

use tidegate::fleet::cell::{AMOUNT_MAX, CellReport, DEMAND_MAX, TOKEN};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub held: u64,
    pub demand: u64,
    pub hosts: u32,
}

/// The sums of a generation and of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    pub now: Sums,
    pub before: Sums,
}

impl Reports {
    pub fn turn(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Replaces a host's previous report, if that still counts.
    pub fn replace(&mut self, generation: u64, last: Option<CellReport>, hold: u64, demand: u64) {
        if let Some(last) = last {
            let of_then = match generation.checked_sub(last.generation) {
                Some(0) => Some(&mut self.now),
                Some(1) => Some(&mut self.before),
                _ => None,
            };
            if let Some(sums) = of_then {
                sums.held = sums.held.saturating_sub(last.hold.min(AMOUNT_MAX));
                sums.demand = sums.demand.saturating_sub(last.demand.min(DEMAND_MAX));
                sums.hosts = sums.hosts.saturating_sub(1);
            }
        }
        self.hold(hold.min(AMOUNT_MAX));
        self.now.demand = (self.now.demand + demand.min(DEMAND_MAX)).min(DEMAND_MAX);
        self.now.hosts += 1;
    }

    pub fn hold(&mut self, more: u64) {
        self.now.held = (self.now.held + more).min(AMOUNT_MAX);
    }

    pub fn held(&self) -> u64 {
        self.now.held + self.before.held
    }

    pub fn demand(&self) -> u64 {
        self.now.demand + self.before.demand
    }

    pub fn hosts(&self) -> u32 {
        self.now.hosts + self.before.hosts
    }
}

/// Returns the whole tokens granted of a level for a demand; `share` limits them when scarce.
pub fn granted(level: i64, share: u64, all: u64, want: u64, dice: u32) -> u64 {
    let level = match u64::try_from(level) {
        Ok(level) if want > 0 && level >= TOKEN => level,
        _ => return 0,
    };
    let most = (level - level % TOKEN).min(want.div_ceil(TOKEN) * TOKEN);
    if level >= want + 200 * all {
        return most;
    }
    let share = want.min(level).min(share);
    let rounded = share - share % TOKEN + if u64::from(dice) < share % TOKEN { TOKEN } else { 0 };
    rounded.min(most)
}

/// Returns a host's portion of `pot` by demand; scales both until the product is exact in Lua.
pub fn portion(pot: i64, mut demand: u64, mut all: u64) -> u64 {
    let pot = u64::try_from(pot).unwrap_or(0);
    if demand == 0 || pot == 0 {
        return 0;
    }
    let scale = all.div_ceil(1 << 26);
    if scale > 1 {
        all = all.div_ceil(scale);
        demand = (demand / scale).clamp(1, all);
    }
    u64::try_from(u128::from(pot) * u128::from(demand) / u128::from(all)).unwrap()
}
