//! The shedders as a model of a few lines, written apart from the engine: sound it must pass what the engine passes, and
//! with any of its flaws it must not.

use std::collections::VecDeque;

use crate::plan::{CRITICAL, MILLI, SECOND, TEST};
use crate::random::mixed;
use crate::shedder::{Asked, By, Parts, Said, Setting, Shedder, View};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Nothing.
    Sound,
    /// s stays where it is, once it has risen to 0.25.
    Frozen,
    /// s never leaves its resting value.
    AtRest,
    /// All or nothing: everything sheddable above 0.8, nothing below 0.7.
    BangBang,
    /// From the first refusal to the last in 3 s, not 120.
    SteepRamp,
    /// The busy workers at one moment in 8 s, not their mean.
    OneSample,
    /// The mean of 30 s, not of 8.
    LongWindow,
    /// −28/120 in integers that round down: −1.
    IntegerRest,
    /// The bands hold without a queue as well.
    UngatedBrake,
    /// The slow loop sees what the brake leaves.
    UnfedBrake,
}

impl Flaw {
    /// All that is wrong.
    pub(crate) const ALL: [Flaw; 9] = [
        Flaw::Frozen,
        Flaw::AtRest,
        Flaw::BangBang,
        Flaw::SteepRamp,
        Flaw::OneSample,
        Flaw::LongWindow,
        Flaw::IntegerRest,
        Flaw::UngatedBrake,
        Flaw::UnfedBrake,
    ];
}

/// All that the engine knows of one pool, as a model.
pub(crate) struct Model {
    flaw: Flaw,
    parts: Parts,
    slots: u32,
    leak: f64,
    severity: f64,
    leases: [u32; 2],
    busy_nanos: u64,
    counted: u64,
    ticks: u64,
    /// `busy_nanos` at the last ticks, newest last.
    past: VecDeque<u64>,
    /// The queue at the last ticks.
    queues: VecDeque<u32>,
    /// Until when the brake is on.
    braking_until: Option<u64>,
    utilization: Option<f64>,
}

impl Model {
    pub(crate) fn new(flaw: Flaw, setting: &Setting) -> Model {
        let Setting { parts, slots, leak, .. } = *setting;
        Model {
            flaw,
            parts,
            slots,
            leak,
            severity: Self::resting(flaw),
            leases: [0; 2],
            busy_nanos: 0,
            counted: 0,
            ticks: 0,
            past: VecDeque::from([0]),
            queues: VecDeque::new(),
            braking_until: None,
            utilization: None,
        }
    }

    fn resting(flaw: Flaw) -> f64 {
        match flaw {
            Flaw::IntegerRest => f64::from((-28_i32).div_euclid(120)),
            _ => -28.0 / 120.0,
        }
    }

    fn busy(&self) -> u32 {
        self.leases.iter().sum()
    }

    fn count_until(&mut self, at: u64) {
        self.busy_nanos += u64::from(self.busy()) * (at - self.counted);
        self.counted = at;
    }

    /// The mean of the last so many ticks.
    fn busy_share(&self, ticks: usize) -> Option<f64> {
        let span = ticks.min(self.past.len() - 1);
        let (last, before) = (self.past.back()?, self.past.get(self.past.len() - 1 - span)?);
        let slot_nanos = (span as u64 * TICK_NANOS * u64::from(self.slots)) as f64;
        (span > 0).then(|| (last - before) as f64 / slot_nanos)
    }

    fn step(&mut self, utilization: f64, seconds: f64) {
        let a = match utilization {
            u if u < 0.7 => u / 0.7 - 1.0,
            u if u < 0.8 => -120.0 * self.leak,
            u => (u - 0.8) / 0.2,
        };
        let full = if self.flaw == Flaw::SteepRamp { 3.0 } else { 120.0 };
        let moved = self.severity + seconds * a.clamp(-1.0, 1.0) / full;
        let moved = match self.flaw {
            Flaw::AtRest => self.severity,
            Flaw::Frozen if self.severity >= 0.25 => self.severity,
            Flaw::BangBang if utilization > 0.8 => 1.0,
            Flaw::BangBang if utilization < 0.7 => Self::resting(self.flaw),
            Flaw::BangBang => self.severity,
            _ => moved,
        };
        self.severity = moved.clamp(Self::resting(self.flaw), 1.0);
    }

    /// Small hosts see queues of one or two all the time.
    fn brake(&mut self, queue: u32, at: u64) {
        let (ticks, least) =
            if self.slots < 8 { (8, (self.slots / 2).max(2)) } else { (4, self.slots.max(2)) };
        self.queues.push_back(queue);
        if self.queues.len() > ticks {
            self.queues.pop_front();
        }
        let stands = self.queues.len() == ticks && self.queues.iter().all(|queue| *queue >= least);
        if stands {
            self.braking_until = Some(at + 2 * SECOND);
        }
        self.braking_until = self.braking_until.filter(|until| at < *until);
    }

    /// How many of the less important there are.
    fn place(priority: usize) -> usize {
        TEST - priority
    }

    fn bands(&self) -> bool {
        self.parts.brake() && (self.braking_until.is_some() || self.flaw == Flaw::UngatedBrake)
    }
}

impl Shedder for Model {
    fn ask(&mut self, asked: &Asked, at: u64) -> Said {
        self.count_until(at);
        let Asked { priority, caller, queued_nanos, .. } = *asked;
        if priority != CRITICAL {
            let place = Self::place(priority);
            if self.bands() && self.busy() * 1_000 >= self.slots * BANDS[place] {
                return Said::Shed { by: By::Brake };
            }
            let chance = (3.0 * self.severity.max(0.0) - place as f64).clamp(0.0, 1.0);
            let draw = mixed(u64::from(caller) ^ 0x5eed << 32) as f64 / u64::MAX as f64;
            if self.parts.workers() && draw < chance {
                return Said::Shed { by: By::Workers };
            }
        }
        let bound = if priority == CRITICAL { 2_500 } else { 500 } * MILLI;
        if self.parts.queue_age() && queued_nanos > bound {
            return Said::Shed { by: By::QueueAge };
        }
        let class = usize::from(priority != CRITICAL);
        self.leases[class] += 1;
        Said::Grant { lease: class as u64 }
    }

    fn release(&mut self, _worker: u32, lease: u64, at: u64) {
        self.count_until(at);
        self.leases[lease as usize] -= 1;
    }

    fn tick(&mut self, queue: u32, at: u64) {
        self.count_until(at);
        self.ticks += 1;
        self.past.push_back(self.busy_nanos);
        if self.past.len() > 121 {
            self.past.pop_front();
        }
        self.brake(queue, at);
        let fed = self.parts.brake() && self.braking_until.is_some() && self.flaw != Flaw::UnfedBrake;
        self.utilization = self.busy_share(if self.flaw == Flaw::LongWindow { 120 } else { 32 });
        let now = f64::from(self.busy()) / f64::from(self.slots);
        let (every, seen) =
            if self.flaw == Flaw::OneSample { (32, Some(now)) } else { (4, self.utilization) };
        if self.ticks.is_multiple_of(every) {
            let seen = if fed { 1.0 } else { seen.unwrap_or(0.0) };
            self.step(seen, every as f64 / 4.0);
        }
    }

    fn view(&self) -> View {
        let braking = self.parts.brake() && self.braking_until.is_some();
        View { utilization: self.utilization, severity: self.severity, braking, leases: self.leases }
    }
}

/// What share of the slots, in thousandths, the least important may use while the brake is on, and the next ones.
const BANDS: [u32; 3] = [700, 800, 900];
const TICK_NANOS: u64 = 250 * MILLI;
