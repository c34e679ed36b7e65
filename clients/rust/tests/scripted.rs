//! The client against a daemon that answers slowly, wrongly or not at all, and against none.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::type_complexity,
    reason = "a panic fails the test"
)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::{Scripted, allow, client, frame, until};
use tidegate_client::{Attributes, Outcome, Reason, Verdict};

const SHORT: Duration = Duration::from_millis(100);

/// An array of 10 elements for a request with a small id: DECISION with these elements.
fn decision(payload: &[u8], elements: &[u8]) -> Vec<u8> {
    frame(&[&[0x92 + u8::try_from(elements.len()).unwrap(), 1, payload[2]], elements].concat())
}

#[tokio::test]
async fn closes_the_connection_after_a_wrong_frame() {
    let wrong: [fn(&[u8]) -> Vec<u8>; 12] = [
        |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        |_| vec![0, 0, 0, 0],
        |_| vec![0xff; 64],
        |_| frame(&[0xc1]),
        |_| frame(&[0x93, 1, 99, 0]),
        |of| decision(of, &[5]),
        |of| decision(of, &[0xa1, b'x']),
        |of| decision(of, &[0, 7]),
        |of| frame(&[0x93, 2, of[2], 0xc3]),
        |of| frame(&[0x93, 9, of[2], 0xc3]),
        |_| frame(&[0x94, 0, 0, 1, 0x80]),
        |of| frame(&[&[0x94, 3, of[2], 1, 0xa1, b'x'][..], &[0; 9]].concat()),
    ];
    for (number, reply) in wrong.into_iter().enumerate() {
        let daemon = Scripted::start(move |payload| Some(reply(payload)));
        let (client, lines) = client(&daemon.path(), |builder| builder);
        let decision = client.hit("api", [("user", "u1")]).await;
        assert_eq!(decision.reason, Some(Reason::Protocol), "{number}: {decision:?}");
        assert!(decision.is_allowed() && !client.stats().is_connected, "{number}");
        assert!(lines.all()[0].ends_with("; requests are not limited"), "{number}: {:?}", lines.all());
    }
}

#[tokio::test]
async fn refuses_what_the_daemon_refuses() {
    for (code, reason) in [(6, Reason::Invalid), (7, Reason::Quota), (11, Reason::NotAllowed)] {
        let daemon = Scripted::start(move |of| Some(frame(&[0x94, 3, of[2], code, 0xa2, b'n', b'o'])));
        let (client, lines) = client(&daemon.path(), |builder| builder.fallback("1/s").unwrap());
        for _ in 0..2 {
            let decision = client.acquire("api", ()).await;
            assert_eq!((decision.reason, decision.status()), (Some(reason), 503), "{code}");
            assert!(!decision.is_degraded() && client.stats().is_connected && decision.granted().is_err());
        }
        assert_eq!((client.stats().refused[&reason], lines.all().len()), (2, 1), "{:?}", lines.all());
    }
    // One that keeps the connection, but is no refusal.
    let daemon = Scripted::start(|of| Some(frame(&[0x94, 3, of[2], 5, 0xa2, b'n', b'o'])));
    let (client, _) = client(&daemon.path(), |builder| builder);
    assert_eq!(client.hit("api", ()).await.reason, Some(Reason::Protocol));
    assert!(client.stats().is_connected && !client.stats().is_breaker_open);
}

#[tokio::test]
async fn refuses_invalid_requests_without_asking() {
    let daemon = Scripted::start(|of| Some(allow(of, 0)));
    let (client, lines) = client(&daemon.path(), |builder| builder);
    let many = |count: usize| (0..count).map(|at| (at.to_string(), "v")).collect::<Attributes>();
    let descriptors = (0..9).fold(Attributes::default(), |all, _| all.and([("a", "b")]));
    for (domain, attributes) in [
        ("a/b", many(1)),
        ("", many(1)),
        ("api", many(17)),
        ("api", [("a:b", "v")].into()),
        ("api", descriptors),
    ] {
        let decision = client.hit(domain, attributes.clone()).await;
        assert_eq!((decision.reason, decision.status()), (Some(Reason::Invalid), 503), "{attributes:?}");
        assert!(!client.charge(domain, attributes, 1).await);
    }
    assert_eq!(client.hit("api", ()).cost([("a/b", 1)]).await.reason, Some(Reason::Invalid));
    // As a map it would be malformed, and pass.
    assert_eq!(client.hit("api", ()).cost([("a", 1), ("a", 2)]).await.reason, Some(Reason::Invalid));
    assert!(!client.charge("api", (), [("a", 1), ("a", 2)]).await);
    assert!(daemon.seen.lock().unwrap().is_empty() && !client.stats().is_connected);
    assert_eq!((client.stats().refused[&Reason::Invalid], lines.all().len()), (13, 4), "{:?}", lines.all());
    // Sixteen, without the empty ones, and a priority that is no name.
    let sixteen = many(16).with("empty", "");
    assert_eq!(client.hit("api", sixteen).priority("no:name").await.reason, None);
    assert_eq!(daemon.of(3)[0].last(), Some(&1), "the cost is the last element");
}

/// Late replies count while their callers wait; a grant of a caller that has left is released.
#[tokio::test]
async fn matches_replies_by_id_and_releases_grants_of_dropped_calls() {
    let daemon = Scripted::start(|of| {
        // The reply to the first request comes with the reply to the third.
        Some(match (of[1], of[2]) {
            (2, _) | (_, 1) => Vec::new(),
            (_, 3) => [allow(of, 0), allow(&[0, 0, 1], 9)].concat(),
            _ => allow(of, 5),
        })
    });
    let (client, _) = client(&daemon.path(), |builder| builder);
    let first = tokio::spawn(std::future::IntoFuture::into_future(client.acquire("api", ())));
    until("it is in flight", async || daemon.of(1).len() == 1).await;
    let second = client.acquire("api", ()).await;
    assert_eq!(second.lease(), Some(5));
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(client.hit("api", ()).await.reason, None);
    until("the late grant is released", async || daemon.of(2).len() == 1).await;
    assert_eq!(daemon.of(2)[0], [0x94, 2, 0xc0, 9, 2], "as dropped");
    second.release(Outcome::Error);
    until("the other is released", async || daemon.of(2).len() == 2).await;
    assert_eq!(daemon.of(2)[1], [0x94, 2, 0xc0, 5, 1]);
}

#[tokio::test]
async fn reports_missed_decisions_and_abandoned_grants_with_the_next_request() {
    let asked = AtomicUsize::new(0);
    let daemon = Scripted::start(move |of| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Some(Vec::new()),
        _ => Some(allow(of, 0)),
    });
    let (client, _) = client(&daemon.path(), |builder| builder.timeout(SHORT));
    let late = client.acquire("api", ()).await;
    assert_eq!((late.reason, client.stats().is_connected), (Some(Reason::Timeout), false));
    until("it is asked again", async || client.hit("api", ()).await.reason.is_none()).await;
    let carried = |payload: &Vec<u8>| {
        let text = String::from_utf8_lossy(payload);
        // [connection 1, id 1] of the ACQUIRE.
        text.contains("missed") && text.contains("timeout") && payload.ends_with(&[0x91, 0x92, 1, 1])
    };
    assert_eq!(daemon.of(3).iter().filter(|payload| carried(payload)).count(), 1, "{:?}", daemon.of(3));
    assert_eq!(client.hit("api", ()).await.reason, None);
    assert!(!carried(daemon.of(3).last().unwrap()), "once");
}

#[tokio::test]
async fn opens_the_breaker_after_three_timeouts_and_probes() {
    let daemon = Scripted::start(|_| Some(Vec::new()));
    let (client, lines) = client(&daemon.path(), |builder| builder.timeout(SHORT));
    // Overlapping failures are one.
    let together =
        [client.hit("api", ()), client.hit("api", ()), client.hit("api", ()), client.hit("api", ())];
    let together = together.map(|check| tokio::spawn(std::future::IntoFuture::into_future(check)));
    for decision in together {
        assert_eq!(decision.await.unwrap().reason, Some(Reason::Timeout));
    }
    assert!(!client.stats().is_breaker_open);
    // A delay of this process is none.
    until("it opens", async || {
        assert_eq!(client.hit("api", ()).await.reason, Some(Reason::Timeout));
        client.stats().is_breaker_open
    })
    .await;
    let asked = daemon.of(3).len();
    assert!(asked >= 4 + 2, "{asked}");
    let (mut sent, mut unsent) = (0, 0);
    until("it probes", async || {
        match client.hit("api", ()).await.reason {
            Some(Reason::Breaker) => unsent += 1,
            Some(Reason::Timeout) => sent += 1,
            other => panic!("{other:?}"),
        }
        sent > 0 && unsent > 0
    })
    .await;
    // A PING is answered, the request is not: one failure opens it again. Other calls cost no I/O.
    assert_eq!((daemon.of(3).len() - asked, daemon.of(8).len()), (sent, sent));
    assert!(client.stats().is_breaker_open);
    assert_eq!(lines.all().len(), 1, "{:?}", lines.all());
}

#[tokio::test]
async fn counts_a_reply_that_arrived_while_this_process_overslept() {
    let daemon = Scripted::start(|of| Some(allow(of, 0)));
    let (client, _) = client(&daemon.path(), |builder| builder.timeout(SHORT));
    assert_eq!(client.hit("api", ()).await.reason, None);
    let busy = async {
        tokio::task::yield_now().await;
        std::thread::sleep(3 * SHORT);
    };
    let (decision, ()) = tokio::join!(std::future::IntoFuture::into_future(client.hit("api", ())), busy);
    assert_eq!(decision.reason, None);
}

#[tokio::test]
async fn keeps_many_requests_on_one_connection() {
    let daemon = Scripted::start(|of| {
        // All take longer than the timeout, and those in flight less.
        std::thread::sleep(Duration::from_millis(1));
        // Ids above 127 are longer.
        let id = &of[2..of.len() - 6];
        Some(frame(&[&[0x9a, 1], id, &[0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0, 0xc0]].concat()))
    });
    let (client, _) = client(&daemon.path(), |builder| builder.timeout(Duration::from_secs(1)));
    let calls: Vec<_> = (0..1_500)
        .map(|_| tokio::spawn(std::future::IntoFuture::into_future(client.hit("api", ()))))
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap().reason, None);
    }
    assert_eq!((daemon.of(0).len(), daemon.of(3).len()), (1, 1_500));
}

#[tokio::test]
async fn explains_why_there_is_no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let check = async |words: &str| {
        let (client, lines) = client(&path, |builder| builder);
        let start = tokio::time::Instant::now();
        let decision = client.acquire("api", ()).await;
        assert_eq!((decision.reason, decision.verdict), (Some(Reason::Unreachable), Verdict::Allow));
        assert!(start.elapsed() < support::PATIENT / 2, "at once");
        assert_eq!(client.acquire("api", ()).await.reason, Some(Reason::Breaker));
        assert!(lines.all().len() == 1 && lines.all()[0].contains(words), "{words}: {:?}", lines.all());
        assert_eq!(client.stats().missed.values().sum::<u64>(), 2);
    };
    check("no daemon at ").await;
    std::fs::write(&path, "").unwrap();
    check("is no socket: set TIDEGATE_SOCKET").await;
}

#[tokio::test]
async fn does_nothing_if_it_is_off() {
    let daemon = Scripted::start(|of| Some(allow(of, 0)));
    let (client, _) = client(&daemon.path(), |builder| builder.enabled(false));
    let decision = client.acquire("api", ()).await;
    assert_eq!((decision.reason, decision.is_allowed()), (Some(Reason::Disabled), true));
    assert!(!client.check().await && !client.charge("api", (), 1).await);
    assert!(daemon.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn closes_with_its_last_clone() {
    let daemon = Scripted::start(|of| Some(allow(of, 0)));
    let (client, _) = client(&daemon.path(), |builder| builder);
    let calls = client.clone();
    assert_eq!(client.hit("api", ()).await.reason, None);
    drop(client);
    assert_eq!(calls.hit("api", ()).await.reason, None);
    assert_eq!((daemon.of(0).len(), daemon.open()), (1, 1));
    drop(calls);
    until("its connection is closed", async || daemon.open() == 0).await;
}

/// The panics print their messages.
#[tokio::test]
async fn decides_although_functions_of_the_application_panic() {
    let daemon = Scripted::start(|of| Some(allow(of, 0)));
    let (observed, lines) =
        client(&daemon.path(), |builder| builder.on_decision(|_, _| panic!("of the application")));
    for _ in 0..2 {
        assert_eq!(observed.hit("api", ()).await.reason, None);
    }
    assert_eq!(lines.all(), ["on_decision panicked: the decision is not affected"]);
    let absent = daemon.path().with_extension("absent");
    let (logged, _) = client(&absent, |builder| builder.logger(|_| panic!("of the application")));
    assert_eq!(logged.hit("api", ()).await.reason, Some(Reason::Unreachable));
}
