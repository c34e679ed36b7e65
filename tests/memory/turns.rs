//! Turns of a thread that connections give up leave no memory behind.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate::server::FairQueue;

use super::counting::held;

fn is_ready<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn forgets_turns_that_are_given_up() {
    let clock = Arc::new(Clock::start());
    let queue = Arc::new(FairQueue::new(Arc::clone(&clock)));
    let [first, second, _other] = [1, 1, 2].map(|user| queue.join(user));
    assert!(is_ready(&mut Box::pin(first.admit())));
    // Longer than the quantum of a user.
    let began = clock.now().at;
    while clock.now().at.since(began) < Duration::from_micros(300) {}
    let before = held();
    (0..1_000).for_each(|_| assert!(!is_ready(&mut Box::pin(first.admit()))));
    assert!(held() - before < 4 << 10, "{} bytes", held() - before);
    let mut turn = Box::pin(second.admit());
    assert!(!is_ready(&mut turn));
    assert!(!is_ready(&mut Box::pin(queue.begin_rounds())));
    assert!(is_ready(&mut turn), "the one that waits is woken");
}
