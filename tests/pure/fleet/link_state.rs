//! When heartbeats are due, and what counts as an outage.

use std::time::Duration;

use tidegate::clock::Timestamp;
use tidegate::fleet::link_state::LinkState;

fn at(ms: u64) -> Timestamp {
    Timestamp::default().after(Duration::from_millis(ms))
}

#[test]
fn who_has_just_been_heard_asks_soon_again_how_many_there_are() {
    let mut link = LinkState::new(1, at(0));
    let mut heartbeats = Vec::new();
    for ms in 0..2_500 {
        if link.accepts_heartbeat(at(ms)) {
            heartbeats.push(ms);
            link.sent(at(ms));
            link.record_reply(at(ms));
        }
    }
    assert_eq!(heartbeats, [0, 250, 1_250, 2_250]);
}

#[test]
fn refusals_are_an_outage_after_a_tenth_of_a_second_unless_a_command_runs() {
    for (ran_at_ms, is_linked) in [(None, false), (Some(99), true)] {
        let mut link = LinkState::new(1, at(0));
        link.record_reply(at(0));
        link.sent(at(0));
        link.record_refusal();
        link.detect_outage(true, Duration::from_millis(250), at(100));
        assert!(link.is_linked());
        ran_at_ms.into_iter().for_each(|ms| link.record_reply(at(ms)));
        link.sent(at(100));
        link.detect_outage(true, Duration::from_millis(250), at(201));
        assert_eq!(link.is_linked(), is_linked, "a command ran at {ran_at_ms:?} ms");
    }
}

#[test]
fn silence_is_an_outage_after_a_second_and_sooner_where_there_is_no_connection() {
    for (is_connected, timeout_ms, silent_ms) in
        [(true, 250, 1_000), (true, 2_000, 2_000), (false, 2_000, 300)]
    {
        let timeout = Duration::from_millis(timeout_ms);
        let mut link = LinkState::new(1, at(0));
        link.record_reply(at(0));
        link.detect_outage(is_connected, timeout, at(60_000));
        assert!(link.is_linked(), "nobody waits for anything");
        link.sent(at(0));
        for (ms, is_linked) in [(silent_ms, true), (silent_ms + 1, false)] {
            link.detect_outage(is_connected, timeout, at(ms));
            assert_eq!(link.is_linked(), is_linked, "{is_connected} {timeout:?} {ms}");
        }
    }
}
