//! The time of one thread, shared by user and not by connection.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::server::{FairQueue, QueueMembership};
use tokio::runtime::Runtime;

/// Spends 100 µs, like a batch.
fn spend_batch(clock: &Clock) {
    let began = clock.now().at;
    while clock.now().at.since(began) < Duration::from_micros(100) {}
}

fn new_queue() -> (Arc<Clock>, Arc<FairQueue>) {
    let clock = Arc::new(Clock::start());
    (Arc::clone(&clock), Arc::new(FairQueue::new(clock)))
}

/// A queue, and the runtime of its rounds.
fn started() -> (Arc<Clock>, Arc<FairQueue>, Runtime) {
    let (clock, queue) = new_queue();
    let sleeping = Arc::clone(&queue);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.on_thread_park(move || sleeping.sleep()).build().unwrap();
    runtime.spawn(Arc::clone(&queue).begin_rounds());
    (clock, queue, runtime)
}

/// Counts the batches of a connection that is always busy.
async fn stay_busy(seat: Option<QueueMembership>, clock: Arc<Clock>, batches: Arc<AtomicU64>) {
    loop {
        if let Some(seat) = &seat {
            seat.admit().await;
        }
        spend_batch(&clock);
        batches.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
    }
}

fn is_ready<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn shares_time_by_user_not_by_connection() {
    let (clock, queue, runtime) = started();
    let batches = Arc::<AtomicU64>::default();
    for _ in 0..200 {
        runtime.spawn(stay_busy(Some(queue.join(1)), Arc::clone(&clock), Arc::clone(&batches)));
    }
    let seat = queue.join(2);
    let mut between = runtime.block_on(async {
        let mut between = Vec::new();
        for _ in 0..50 {
            tokio::task::yield_now().await;
            let before = batches.load(Ordering::Relaxed);
            seat.admit().await;
            spend_batch(&clock);
            // Until this task runs again, other connections run their batches.
            tokio::task::yield_now().await;
            between.push(batches.load(Ordering::Relaxed) - before);
        }
        between
    });
    between.sort_unstable();
    // Two quanta of two or three batches each; rotation over connections would give 400.
    assert!(between[25] <= 20, "{between:?}");
    assert!(batches.load(Ordering::Relaxed) > 50, "the other user has its share");
}

#[test]
fn wakes_connections_of_a_user_one_at_a_time() {
    let (clock, queue) = new_queue();
    let seats = [(); 4].map(|()| queue.join(1));
    let _other = queue.join(2);
    let mut rounds = Box::pin(Arc::clone(&queue).begin_rounds());
    let [mut first, mut second, mut third, mut late] = seats.each_ref().map(|seat| Box::pin(seat.admit()));
    assert!(is_ready(&mut first));
    (0..3).for_each(|_| spend_batch(&clock));
    assert!(!is_ready(&mut second) && !is_ready(&mut third), "the quantum is used up");
    assert!(!is_ready(&mut rounds));
    assert!(!is_ready(&mut late), "it does not overtake those that wait");
    assert!(!is_ready(&mut third), "one is woken");
    assert!(is_ready(&mut second));
    while !is_ready(&mut third) {
        assert!(!is_ready(&mut rounds));
    }
}

/// The tasks of a connection that do not ask before each batch, as those of a library.
#[test]
fn runs_futures_in_turn() {
    let (clock, queue, runtime) = started();
    let batches = Arc::<AtomicU64>::default();
    for _ in 0..200 {
        let endless = stay_busy(None, Arc::clone(&clock), Arc::clone(&batches));
        let seat = queue.join(1);
        runtime.spawn(async move { seat.run_in_turn(endless).await });
    }
    let seat = queue.join(2);
    let passes = seat.run_in_turn(async {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    });
    runtime.block_on(passes);
    let batches = batches.load(Ordering::Relaxed);
    // Some batches in each of 50 rounds; rotation over connections would give 10 000.
    assert!((50..=1_000).contains(&batches), "{batches}");
}

#[test]
fn rotates_connections_of_a_user() {
    let (clock, queue, runtime) = started();
    let batches: [Arc<AtomicU64>; 20] = Default::default();
    for batches in &batches {
        runtime.spawn(stay_busy(Some(queue.join(1)), Arc::clone(&clock), Arc::clone(batches)));
    }
    let _other = queue.join(2);
    let count = || batches.iter().map(|of_one| of_one.load(Ordering::Relaxed)).collect::<Vec<_>>();
    runtime.block_on(async {
        while count().iter().sum::<u64>() < 400 {
            tokio::task::yield_now().await;
        }
    });
    let (least, most) = (count().into_iter().min(), count().into_iter().max());
    assert!(least.zip(most).is_some_and(|(least, most)| least > 0 && most <= 2 * least), "{:?}", count());
}
