//! Simulates a closed loop in virtual time: clients, a backlog and workers around an engine that decides. It
//! decides nothing and reads no clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::plan::{
    BACKLOG_MAX, CALLERS, EVENT, MILLI, PATIENCE_NANOS, PAUSE_NANOS, Plan, REFUSAL_NANOS, SECOND,
};
use crate::random::Random;
use crate::real::{Asked, Real, SLOW_LOOP, Said, View};
use crate::record::{Run, Second};

/// Runs a plan under the engine.
pub(crate) fn run(plan: &Plan, engine: &mut Real, seed: u64) -> Run {
    let mut plant = Plant::new(plan, engine, seed);
    plant.run();
    plant.run
}

/// One try of one request.
#[derive(Clone, Copy, Debug)]
struct Try {
    /// The second in which the request first arrived.
    second: u32,
    priority: usize,
    caller: u32,
    number: u32,
    came: u64,
    /// Its index in `settled`, if the plan has retries.
    serial: usize,
}

/// A worker and its current task.
#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    work: Option<(Try, u64)>,
    done: u64,
}

struct Plant<'a> {
    engine: &'a mut Real,
    run: Run,
    now: u64,
    arrivals: Random,
    services: Random,
    stalls: Random,
    backlog: VecDeque<Try>,
    workers: Vec<Worker>,
    idle: Vec<u32>,
    /// Completion times of workers, earliest first.
    done: BinaryHeap<Reverse<(u64, u32)>>,
    /// Scheduled retries by number, each with its time.
    again: BinaryHeap<Reverse<(u64, usize)>>,
    tries: Vec<Try>,
    /// Client timeouts, in order.
    patience: VecDeque<(u64, Try)>,
    /// Tries that ended for their client, if the plan has retries.
    settled: Vec<bool>,
    /// Leases in progress, and their total time until `counted`.
    leases: u64,
    held_nanos: u64,
    counted: u64,
    /// `held_nanos` at the ticks of the last 8 s, oldest first.
    held_at_ticks: VecDeque<u64>,
}

/// The next event.
enum Event {
    Arrival,
    Tick,
    Done(u32),
    Again(usize),
    GivesUp(Try),
    Stall,
}

impl<'a> Plant<'a> {
    fn new(plan: &Plan, engine: &'a mut Real, seed: u64) -> Plant<'a> {
        let seconds = Vec::with_capacity(plan.end() as usize);
        Plant {
            engine,
            run: Run {
                plan: plan.clone(),
                seconds,
                first_shed: f64::INFINITY,
                first_slow: f64::INFINITY,
                utilization_off: 0.0,
            },
            now: 0,
            arrivals: Random::new(seed, 1),
            services: Random::new(seed, 2),
            stalls: Random::new(seed, 3),
            backlog: VecDeque::with_capacity(BACKLOG_MAX),
            workers: vec![Worker::default(); plan.workers as usize],
            idle: (0..plan.workers).rev().collect(),
            done: BinaryHeap::new(),
            again: BinaryHeap::new(),
            tries: Vec::new(),
            patience: VecDeque::new(),
            settled: Vec::new(),
            leases: 0,
            held_nanos: 0,
            counted: 0,
            held_at_ticks: VecDeque::new(),
        }
    }

    fn run(&mut self) {
        let end = self.run.plan.end() * SECOND;
        self.run.seconds.push(Second::default());
        let (mut arrival, mut tick) = (self.next_arrival(0), TICK_NANOS);
        let mut stall = if self.run.plan.pauses { self.next_stall(0) } else { u64::MAX };
        loop {
            let (at, event) = self.next(arrival, tick, stall);
            if at > end {
                break;
            }
            self.count_until(at);
            match event {
                Event::Arrival => {
                    self.first_try();
                    arrival = self.next_arrival(at);
                }
                Event::Tick => {
                    self.tick();
                    tick = at + TICK_NANOS;
                }
                Event::Done(worker) => self.worker_is_done(worker),
                Event::Again(place) => {
                    self.again.pop();
                    let once_more = Try { came: at, ..self.tries[place] };
                    self.enters(once_more);
                }
                Event::GivesUp(gone) => {
                    self.patience.pop_front();
                    self.fails(&gone);
                }
                Event::Stall => {
                    self.stall();
                    stall = self.next_stall(at);
                }
            }
        }
        self.run.seconds.truncate(self.run.plan.end() as usize);
    }

    fn next(&self, arrival: u64, tick: u64, stall: u64) -> (u64, Event) {
        let (mut at, mut event) = (tick, Event::Tick);
        if arrival < at {
            (at, event) = (arrival, Event::Arrival);
        }
        if stall < at {
            (at, event) = (stall, Event::Stall);
        }
        if let Some(Reverse((done, worker))) = self.done.peek().filter(|Reverse((done, _))| *done < at) {
            (at, event) = (*done, Event::Done(*worker));
        }
        if let Some(Reverse((again, place))) = self.again.peek().filter(|Reverse((again, _))| *again < at) {
            (at, event) = (*again, Event::Again(*place));
        }
        if let Some((until, gone)) = self.patience.front().filter(|(until, _)| *until < at) {
            (at, event) = (*until, Event::GivesUp(*gone));
        }
        (at, event)
    }

    /// Advances time and adds up lease time.
    fn count_until(&mut self, at: u64) {
        self.held_nanos += self.leases * (at - self.counted);
        (self.counted, self.now) = (at, at);
    }

    fn current(&mut self) -> &mut Second {
        self.run.seconds.last_mut().unwrap()
    }

    /// Returns the second in which a request first arrived.
    fn of(&mut self, one: &Try) -> &mut Second {
        &mut self.run.seconds[one.second as usize]
    }

    /// Draws a Poisson arrival at the current rate: memoryless, so a change of load simply redraws.
    fn next_arrival(&mut self, mut at: u64) -> u64 {
        for place in 0..self.run.plan.load.len() {
            let (until, load) = self.run.plan.load[place];
            if at < until * SECOND {
                let gap = self.arrivals.exponential() / (load * self.run.plan.capacity());
                let next = at + (gap * SECOND as f64) as u64;
                if next < until * SECOND {
                    return next;
                }
                at = until * SECOND;
            }
        }
        u64::MAX
    }

    fn first_try(&mut self) {
        let greedy = self.run.plan.greedy.filter(|(share, _)| self.arrivals.share() < *share);
        let (caller, priority) = match greedy {
            // Only the greedy caller is number 0.
            Some((_, priority)) => (0, priority),
            None => {
                let priority = self.run.plan.priority(&mut self.arrivals);
                (1 + self.arrivals.below(CALLERS), priority)
            }
        };
        let second = (self.run.seconds.len() - 1) as u32;
        self.current().offered[priority] += 1;
        self.enters(Try { second, priority, caller, number: 0, came: self.now, serial: 0 });
    }

    /// Delivers a try to the host.
    fn enters(&mut self, mut one: Try) {
        if self.run.plan.retries > 0 {
            one.serial = self.settled.len();
            self.settled.push(false);
            self.patience.push_back((self.now + PATIENCE_NANOS, one));
        }
        self.of(&one).tries[one.priority] += 1;
        if let Some(worker) = self.idle.pop() {
            self.works_on(worker, one);
        } else if self.backlog.len() < BACKLOG_MAX {
            self.backlog.push_back(one);
            let waiting = self.backlog.len() as u32;
            let second = self.current();
            second.queue_max = second.queue_max.max(waiting);
        } else {
            self.of(&one).lost[one.priority] += 1;
            self.fails(&one);
        }
    }

    /// Assigns a request to a worker, which asks the engine to start it.
    fn works_on(&mut self, worker: u32, one: Try) {
        let Try { priority, caller, .. } = one;
        let asked = Asked { worker, priority, caller, queued_nanos: self.now - one.came };
        let (work, span) = match self.engine.ask(&asked, self.now) {
            Said::Grant(lease) => {
                self.of(&one).admitted[priority] += 1;
                self.leases += 1;
                (Some((one, lease)), self.run.plan.service_nanos(&mut self.services, self.now))
            }
            Said::Shed(by) => {
                self.of(&one).shed[priority] += 1;
                self.note_shed(by);
                self.fails(&one);
                (None, REFUSAL_NANOS)
            }
            Said::Limit => {
                self.of(&one).limited[priority] += 1;
                self.fails(&one);
                (None, REFUSAL_NANOS)
            }
        };
        let done = self.now + span;
        self.workers[worker as usize] = Worker { work, done };
        self.done.push(Reverse((done, worker)));
    }

    fn note_shed(&mut self, by: &str) {
        if self.now >= EVENT * SECOND {
            let after = self.now as f64 / 1e9 - EVENT as f64;
            self.run.first_shed = self.run.first_shed.min(after);
            if by == SLOW_LOOP {
                self.run.first_slow = self.run.first_slow.min(after);
            }
        }
    }

    fn worker_is_done(&mut self, number: u32) {
        self.done.pop();
        let worker = &mut self.workers[number as usize];
        if worker.done > self.now {
            // The process stalled meanwhile.
            self.done.push(Reverse((worker.done, number)));
            return;
        }
        if let Some((one, lease)) = worker.work.take() {
            self.leases -= 1;
            self.engine.release(number, lease, self.now);
            if self.now - one.came <= PATIENCE_NANOS {
                self.of(&one).succeeded[one.priority] += 1;
                self.current().answered += 1;
                self.settle(&one);
            } else {
                self.of(&one).late[one.priority] += 1;
            }
        }
        match self.backlog.pop_front() {
            Some(next) => self.works_on(number, next),
            None => self.idle.push(number),
        }
    }

    /// Settles a try; returns whether it was open.
    fn settle(&mut self, one: &Try) -> bool {
        self.settled.get_mut(one.serial).is_some_and(|settled| !std::mem::replace(settled, true))
    }

    /// Handles a try that was refused, lost or timed out: its client may retry.
    fn fails(&mut self, one: &Try) {
        if self.settle(one) && one.number < self.run.plan.retries {
            let wait = (0.25 + 0.5 * self.arrivals.share()) * f64::from(1_u32 << one.number);
            let place = self.tries.len();
            self.tries.push(Try { number: one.number + 1, ..*one });
            self.again.push(Reverse((self.now + (wait * SECOND as f64) as u64, place)));
        }
    }

    /// Each process stalls once a second on average.
    fn next_stall(&mut self, at: u64) -> u64 {
        at + (self.stalls.exponential() * SECOND as f64 / f64::from(self.run.plan.workers)) as u64
    }

    /// Stalls one process, idle or busy.
    fn stall(&mut self) {
        let number = self.stalls.below(self.run.plan.workers);
        let worker = &mut self.workers[number as usize];
        if let Some(place) = self.idle.iter().position(|idle| *idle == number) {
            self.idle.remove(place);
            worker.done = self.now + PAUSE_NANOS;
            self.done.push(Reverse((worker.done, number)));
        } else {
            worker.done += PAUSE_NANOS;
        }
    }

    /// Compares the reported utilization of the last 8 s with the workers' actual one.
    fn compare_utilization(&mut self, view: View) {
        self.held_at_ticks.push_back(self.held_nanos);
        if self.held_at_ticks.len() > TICKS_OF_WINDOW {
            let done = self.held_nanos - self.held_at_ticks.pop_front().unwrap();
            let workers = f64::from(self.run.plan.workers);
            let truth = done as f64 / (TICKS_OF_WINDOW as u64 * TICK_NANOS) as f64 / workers;
            let off = view.utilization.map_or(f64::INFINITY, |shown| (shown - truth).abs());
            // The very first reading has no predecessor.
            if self.now > 10 * SECOND {
                self.run.utilization_off = self.run.utilization_off.max(off);
            }
        }
    }

    fn tick(&mut self) {
        let queue = self.backlog.len() as u32;
        let (view, busy_nanos) = (self.engine.tick(queue, self.now), self.held_nanos);
        self.compare_utilization(view);
        let second = self.current();
        (second.view, second.queue, second.busy_nanos) = (view, queue, busy_nanos);
        if self.now.is_multiple_of(SECOND) {
            self.run.seconds.push(Second { view, ..Second::default() });
        }
    }
}

const TICK_NANOS: u64 = 250 * MILLI;
/// The window of u.
const TICKS_OF_WINDOW: usize = 32;
