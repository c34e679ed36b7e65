//! Honest hosts on one key of a store, in random order and at random times: commands that run late or never, lost replies,
//! hosts that die, and times at the edges of generations.

use tidegate::clock::Timestamp;
use tidegate::fleet::cell::{CellQuota, CellRate, CellReport, CellRequest, GENERATION_US, TOKEN};
use tidegate::fleet::command::{Bucket, CommandHead, KeyPayment, Payment, ScriptCommand, SyncBatch};
use tidegate::fleet::reply::{CommandReply, CostCover, ScriptReply};
use tidegate::fleet::window::{CellWindow, FleetWindowAlign, WindowRefund, WindowRequest};
use tidegate::limit::Rate;
use tidegate::rules::fleet_rate;

use super::store::Store;

/// One seeded run, and what it watches.
pub(crate) struct Schedule {
    seed: u64,
    random: Random,
    store: Store,
    hosts: Vec<HonestHost>,
    terms: CellQuota,
    /// Commands without a waiting host, which may still run.
    strays: Vec<ScriptCommand>,
    now: u64,
    began: u64,
    spent: u64,
    dropped: u64,
    /// How full a bucket is that all admitted tokens are poured into, in µtok · den; it leaks at the rate of the rule.
    poured: i128,
    poured_at: u64,
    /// Of a window: how it turns, and when how much was let through.
    window: Option<CellWindow>,
    passed: Vec<(u64, u64)>,
}

struct HonestHost {
    hand: u64,
    /// When it drops what it holds: 1.9 s after it sent the last sync that was answered.
    until: u64,
    last: Option<CellReport>,
    born_us: u64,
    waiting: Option<Waiting>,
    /// Paid for, and of no use.
    returned: WindowRefund,
}

#[derive(Clone, Copy)]
enum Act {
    Die,
    Lose,
    RunAStray,
    Spend,
    Send,
    Execute,
    Receive,
    Pay,
}

/// A sync on its way.
struct Waiting {
    call: ScriptCommand,
    ask: CellRequest,
    sent: u64,
    reply: Option<ScriptReply>,
}

impl Waiting {
    /// The tokens that its reply grants, if it has run.
    fn grant(&self) -> u64 {
        match &self.reply {
            Some(ScriptReply::Sync(reply)) => reply.results[0].grant,
            _ => 0,
        }
    }
}

impl Schedule {
    pub(crate) fn new(seed: u64, terms: CellQuota) -> Schedule {
        let mut random = Random(seed);
        let hosts = 2 + random.below(5);
        let now = 1_000 * GENERATION_US + random.below(GENERATION_US);
        let host = |_| HonestHost {
            hand: 0,
            until: 0,
            last: None,
            born_us: 0,
            waiting: None,
            returned: WindowRefund::default(),
        };
        Schedule {
            seed,
            random,
            store: Store::default(),
            hosts: (0..hosts).map(host).collect(),
            terms,
            strays: Vec::new(),
            now,
            began: now,
            spent: 0,
            dropped: 0,
            poured: 0,
            poured_at: now,
            window: None,
            passed: Vec::new(),
        }
    }

    /// The same on a window; some requests pay at once, and what they do not use comes back.
    pub(crate) fn of_window(seed: u64, terms: CellQuota, window: CellWindow) -> Schedule {
        Schedule { window: Some(window), ..Schedule::new(seed, terms) }
    }

    /// Goes on for this many steps, or until `us` have passed; says what does not hold.
    pub(crate) fn run(
        &mut self,
        steps: u32,
        us: u64,
        holds: impl Fn(&Schedule) -> Result<(), String>,
    ) -> Result<(), String> {
        let seldom = self.random.below(2) == 0;
        for step in 0..steps {
            let chosen = usize::try_from(self.random.below(self.hosts.len() as u64)).unwrap();
            let (now, acts) = match seldom {
                true => self.seldom(chosen),
                false => (self.next_moment(chosen), vec![self.any_act()]),
            };
            if now - self.began > us {
                break;
            }
            self.now = now;
            self.drop_what_is_old();
            acts.into_iter().for_each(|act| self.act(chosen, act));
            holds(self)
                .map_err(|why| format!("SEED={}, step {step}, {} µs: {why}", self.seed, now - self.began))?;
        }
        Ok(())
    }

    fn next_moment(&mut self, chosen: usize) -> u64 {
        let edge = (self.now / GENERATION_US + 1) * GENERATION_US;
        let until = self.hosts[chosen].until;
        match self.random.below(12) {
            0 => edge - 1 - self.random.below(20_000),
            1 => edge,
            2 => edge + self.random.below(1_000),
            3 if until > self.now => until - 1,
            4 => self.now + self.random.below(700_000),
            5..=7 => self.now + self.random.below(100_000),
            _ => self.now + self.random.below(200),
        }
        .max(self.now)
    }

    /// A step of hosts that are seldom heard: one borrows just before an edge, and spends all of it just before it would
    /// have to drop it; another borrows right after the edge at which that lapses.
    fn seldom(&mut self, chosen: usize) -> (u64, Vec<Act>) {
        let edge = (self.now / GENERATION_US + 1) * GENERATION_US;
        let until = self.hosts[chosen].until;
        let sync = vec![Act::Send, Act::Execute, Act::Receive];
        match self.random.below(6) {
            0 => ((edge - 1 - self.random.below(20_000)).max(self.now), sync),
            1 => (edge + self.random.below(1_000), [sync, vec![Act::Spend; 3]].concat()),
            2 | 3 if until > self.now => (until - 1, vec![Act::Spend; 5]),
            4 => (self.now + self.random.below(300_000), sync),
            _ => (self.now + self.random.below(50_000), vec![Act::Spend]),
        }
    }

    fn drop_what_is_old(&mut self) {
        for host in &mut self.hosts {
            if self.now >= host.until {
                self.dropped += std::mem::take(&mut host.hand);
            }
        }
    }

    fn any_act(&mut self) -> Act {
        match self.random.below(if self.window.is_some() { 46 } else { 40 }) {
            40.. => Act::Pay,
            0 => Act::Die,
            1 => Act::Lose,
            2..=3 => Act::RunAStray,
            4..=13 => Act::Spend,
            14..=22 => Act::Send,
            23..=31 => Act::Execute,
            _ => Act::Receive,
        }
    }

    fn act(&mut self, chosen: usize, act: Act) {
        match act {
            Act::Die => self.die(chosen),
            Act::Lose => self.lose(chosen),
            Act::RunAStray => self.run_a_stray(),
            Act::Spend => self.spend(chosen),
            Act::Send => self.send(chosen),
            Act::Execute => self.execute(chosen),
            Act::Receive => self.receive(chosen),
            Act::Pay => self.pay(chosen),
        }
    }

    fn spend(&mut self, chosen: usize) {
        let host = &mut self.hosts[chosen];
        let tokens = host.hand / TOKEN;
        let spent = if self.random.below(2) == 0 { tokens } else { self.random.below(tokens + 1) } * TOKEN;
        host.hand -= spent;
        self.spent += spent;
        self.passed.push((self.now, spent));
        let (num, den) = (i128::from(self.terms.rate.num()), i128::from(self.terms.rate.den()));
        let leaked = i128::from(self.now - self.poured_at) * num;
        self.poured = (self.poured - leaked).max(0) + i128::from(spent) * den;
        self.poured_at = self.now;
    }

    fn send(&mut self, chosen: usize) {
        let host = &mut self.hosts[chosen];
        if host.waiting.is_some() {
            return;
        }
        let back = if self.random.below(3) == 0 { self.random.below(host.hand + 1) } else { 0 };
        host.hand -= back;
        let ask = CellRequest {
            key: [9; 16],
            terms: self.terms,
            last: host.last,
            hold: host.hand,
            back,
            owed: 0,
            want: if self.random.below(4) == 0 { 0 } else { self.random.below(2 * self.terms.burst) },
            demand: if self.random.below(2) == 0 { 0 } else { self.random.below(2_000_000) },
            waited_us: self.random.below(1_000_000),
            random: u32::try_from(self.random.below(1_000_000)).unwrap(),
            knew_us: None,
            window: self
                .window
                .map(|window| WindowRequest { window, returned: std::mem::take(&mut host.returned) }),
        };
        let head = CommandHead {
            bucket: Bucket::of(&ask.key, 16),
            born_us: host.born_us,
            sent_at: Timestamp::ORIGIN,
        };
        let call = ScriptCommand::Sync(SyncBatch { head, asks: vec![ask], numbers: vec![0] });
        host.waiting = Some(Waiting { call, ask, sent: self.now, reply: None });
    }

    /// Runs a call, once.
    fn execute(&mut self, chosen: usize) {
        let waiting = self.hosts[chosen].waiting.as_mut().filter(|waiting| waiting.reply.is_none());
        if let Some(waiting) = waiting {
            waiting.reply = Some(self.store.call(&waiting.call, self.now));
        }
    }

    fn receive(&mut self, chosen: usize) {
        let host = &mut self.hosts[chosen];
        let Some(waiting) = host.waiting.take_if(|waiting| waiting.reply.is_some()) else { return };
        let Some(ScriptReply::Sync(answer)) = waiting.reply else { panic!("no reply to a sync") };
        host.born_us = answer.born_us;
        let said = answer.results[0];
        host.hand += said.grant;
        let hold = waiting.ask.hold + said.grant;
        host.last = Some(CellReport { hold, demand: waiting.ask.demand, generation: said.generation });
        host.until = waiting.sent + KEPT_IN_HAND_US;
        if self.now >= host.until {
            self.dropped += std::mem::take(&mut host.hand);
        }
    }

    /// The host gets no reply: the call has run, or runs later, or never.
    fn lose(&mut self, chosen: usize) {
        let host = &mut self.hosts[chosen];
        let Some(waiting) = host.waiting.take() else { return };
        host.last = None;
        self.dropped += waiting.grant();
        if waiting.reply.is_none() {
            self.strays.push(waiting.call);
        }
    }

    /// Pays for a request at once, which then passes, or is of no use.
    fn pay(&mut self, chosen: usize) {
        let Some(window) = self.window else { return };
        let cost = (1 + self.random.below(3)) * TOKEN;
        let head = CommandHead {
            bucket: Bucket::of(&[9; 16], 16),
            born_us: self.hosts[chosen].born_us,
            sent_at: Timestamp::ORIGIN,
        };
        let cost = KeyPayment { key: [9; 16], terms: self.terms, cost, knew_us: None, window: Some(window) };
        let payment = Payment { head, costs: vec![cost], check: (0, Vec::new()) };
        let reply = self.store.call(&ScriptCommand::Exact(payment), self.now);
        let ScriptReply::Exact(CommandReply { results: paid, .. }) = reply else { return };
        if paid[0].wait != CostCover::No {
            return;
        }
        if self.random.below(2) == 0 {
            self.spent += cost.cost;
            self.passed.push((self.now, cost.cost));
        } else {
            let returned = &mut self.hosts[chosen].returned;
            returned.amount += cost.cost;
            returned.paid_us = Some(returned.paid_us.map_or(self.now, |paid| paid.min(self.now)));
        }
    }

    fn die(&mut self, chosen: usize) {
        self.lose(chosen);
        let host = &mut self.hosts[chosen];
        self.dropped += std::mem::take(&mut host.hand);
        (host.last, host.born_us) = (None, 0);
        host.returned = WindowRefund::default();
    }

    /// Runs a command without a waiting host: its granted tokens are lost, its refund counts.
    fn run_a_stray(&mut self) {
        let Some(call) = self.strays.pop() else { return };
        if let ScriptReply::Sync(reply) = self.store.call(&call, self.now) {
            self.dropped += reply.results[0].grant;
        }
    }

    fn level(&self) -> i64 {
        let bucket = Bucket::of(&[9; 16], 16).number();
        let cell = self.store.cell_at(bucket, [9; 16], self.now);
        cell.map_or(self.terms.burst.cast_signed(), |cell| cell.level)
    }

    /// What hosts have in hand, or may get at any moment.
    fn in_hands(&self) -> u64 {
        let of_host = |host: &HonestHost| {
            let coming = host.waiting.as_ref().map_or(0, |waiting| {
                let fresh = self.now < waiting.sent + KEPT_IN_HAND_US;
                if fresh { waiting.grant() } else { 0 }
            });
            host.hand + coming
        };
        self.hosts.iter().map(of_host).sum()
    }

    /// What is there and what is in hands is never more than a burst, and what was let through fits the rule in any window.
    pub(crate) fn is_bounded(&self) -> Result<(), String> {
        let (level, hands) = (self.level(), self.in_hands());
        if level + hands.cast_signed() > self.terms.burst.cast_signed() {
            return Err(format!("{level} are there and {hands} in hands"));
        }
        let most = i128::from(self.terms.burst) * i128::from(self.terms.rate.den());
        if self.poured > most {
            return Err(format!("{} let through more than burst and rate allow", self.poured - most));
        }
        Ok(())
    }

    /// No window had more than its limit: each that ends now is looked at, request by request.
    pub(crate) fn is_windowed(&self) -> Result<(), String> {
        let Some(CellWindow { slots, turns: FleetWindowAlign::Every { step, origin } }) = self.window else {
            return Ok(());
        };
        let is_in = |at: u64| match slots {
            1 => (at - origin) / step == (self.now - origin) / step,
            slots => at + step * u64::from(slots - 1) > self.now,
        };
        let passed = self.passed.iter().rev().take_while(|(at, _)| is_in(*at));
        let passed: u64 = passed.map(|(_, amount)| amount).sum();
        match passed > self.terms.burst {
            true => Err(format!("{passed} of {} were let through in one window", self.terms.burst)),
            false => Ok(()),
        }
    }

    /// Every token is there, in a hand, on its way, spent or dropped; for a rate at which none is earned meanwhile.
    pub(crate) fn is_conserved(&self) -> Result<(), String> {
        let waiting = self.hosts.iter().filter_map(|host| host.waiting.as_ref());
        let back = |waiting: &Waiting| if waiting.reply.is_none() { waiting.ask.back } else { 0 };
        let coming: u64 = waiting.map(|waiting| waiting.grant() + back(waiting)).sum();
        let hands: u64 = self.hosts.iter().map(|host| host.hand).sum();
        let strays = self.strays.iter().map(|call| match call {
            ScriptCommand::Sync(batch) => batch.asks[0].back,
            _ => 0,
        });
        let out = hands + coming + strays.sum::<u64>() + self.spent + self.dropped;
        let all = self.level() + out.cast_signed();
        if all != self.terms.burst.cast_signed() {
            return Err(format!("{all} tokens of {}", self.terms.burst));
        }
        Ok(())
    }

    /// How much came to pass.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }
}

pub(crate) fn terms(tokens: u64, period_us: u64, burst: u64) -> CellQuota {
    CellQuota { version: 1, rate: rate_of(tokens, period_us), burst: burst * TOKEN }
}

/// So many tokens in so many microseconds.
fn rate_of(tokens: u64, period_us: u64) -> CellRate {
    let rate = Rate::new(u32::try_from(tokens).unwrap(), period_us * 1_000).unwrap();
    let (num, den) = fleet_rate(rate).unwrap();
    CellRate::new(num, den).unwrap()
}

/// Numbers that look random, the same for the same seed (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below this; 0 below 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }
}

const KEPT_IN_HAND_US: u64 = 1_900_000;
