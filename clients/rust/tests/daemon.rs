//! The client against the real daemon: rules, leases, and a daemon that is restarted, killed or stopped.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use support::{Daemon, client, until};
use tidegate_client::{Decision, Outcome, Reason, RunError, Verdict};

const RULES: &str = "
domain: api
concurrency:
  - {name: at-once, match: {job: export}, key: [], max: 40, expires: 1h}
  - {name: one, match: {job: single}, key: [], max: 1, expires: 1h}
limits:
  - {name: per-user, match: {job: message}, key: [user], rate: 1/h, burst: 2}
  - {name: tokens, match: {job: model}, key: [], unit: tokens, rate: 1000/h, max_debt: 1000}
  - {name: mails, match: {job: mail}, key: [], algorithm: leaky_bucket, rate: 10/s, queue: 20}
";

#[tokio::test]
async fn limits_charges_refunds_and_repeats_as_the_rules_say() {
    let daemon = Daemon::start(RULES).await;
    let (client, lines) = client(&daemon.path(), |builder| builder.pool("rust").slots(2));
    let message = || [("job", "message"), ("user", "7")];
    let first = client.hit("api", message()).idem("order-17").await;
    assert_eq!((first.is_allowed(), first.is_degraded(), first.status()), (true, false, 200));
    assert_eq!((first.rule.as_deref(), first.limit, first.remaining), (Some("per-user"), Some(2), Some(1)));
    assert_eq!(client.hit("api", message()).idem("order-17").await.remaining, Some(1), "a retry");
    assert_eq!(client.hit("api", message()).await.remaining, Some(0));
    let refused = client.hit("api", message()).await;
    assert_eq!(
        (refused.verdict, refused.status(), refused.domain.as_deref()),
        (Verdict::Limit, 429, Some("api"))
    );
    assert!(refused.retry_after.is_some_and(|retry| retry <= Duration::from_secs(3_600) && !retry.is_zero()));
    assert!(refused.message().starts_with("Over the limit per-user of 1 request an hour. Try again in "));
    for cost in [3, 1 << 40, u64::MAX] {
        let never = client.hit("api", message()).cost(cost).await;
        assert_eq!((never.verdict, never.retry_after), (Verdict::Limit, None), "{cost}");
    }
    for (of, is_done) in [("another", false), ("order-17", true), ("order-17", false)] {
        assert_eq!(client.refund("api", message(), -1, of).await, is_done, "{of}");
    }
    assert_eq!(client.peek("api", message()).await.remaining, Some(1));
    assert!(!client.charge("api", message(), -1).await, "a refund of nothing");
    assert_eq!(client.stats().refused.get(&Reason::NotAllowed), Some(&1));
    assert!(client.charge("api", [("job", "model")], [("tokens", 812)]).await);
    let left = client.peek("api", [("job", "model")]).cost([("tokens", 1)]).await;
    assert_eq!((left.remaining, left.unit.as_deref()), (Some(188), Some("tokens")));
    client.signal("loop_lag", 0.4);
    assert!(client.check().await);
    let stats = client.stats();
    assert!(stats.missed.is_empty() && stats.is_connected && !stats.is_breaker_open, "{stats:?}");
    assert_eq!(client.hit("nowhere", ()).await.rule, None);
    assert_eq!(client.hit("api", [("a", "b")]).await.rule, None);
    let _ = (client.hit("nowhere", ()).await, client.hit("api", ()).await);
    let logged = lines.all().join("\n");
    assert_eq!(logged.matches("the rules have no domain \"nowhere\"").count(), 1, "{logged}");
    assert_eq!(logged.matches("no rule of the domain \"api\" matches").count(), 1, "{logged}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_every_lease() {
    let daemon = Daemon::start(RULES).await;
    let (client, _) = client(&daemon.path(), |builder| builder);
    let mut tasks = Vec::new();
    for number in 0..400 {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            let work = async {
                tokio::task::yield_now().await;
                if number % 4 == 0 { Err("work") } else { Ok(number) }
            };
            client.acquire("api", [("job", "export")]).run(work).await
        }));
        if number % 4 == 1 {
            // Dropped at any point: before it is sent, in flight, at work.
            tasks[number].abort();
        }
        if number % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let (mut done, mut failed) = (0, 0);
    for task in tasks {
        match task.await {
            Ok(Ok(_)) => done += 1,
            Ok(Err(RunError::Work("work"))) => failed += 1,
            Ok(Err(RunError::Denied(denied))) => assert_eq!(denied.0.verdict, Verdict::Limit, "{denied}"),
            Ok(Err(error)) => panic!("{error:?}"),
            Err(cancelled) => assert!(cancelled.is_cancelled()),
        }
    }
    assert!(done > 0 && failed > 0, "{done} {failed}");
    until("all permits are free", async || {
        client.peek("api", [("job", "export")]).await.remaining == Some(40)
    })
    .await;
    let held = client.acquire("api", [("job", "single")]).await;
    assert!(held.lease().is_some() && held.renew().await);
    assert_eq!(client.acquire("api", [("job", "single")]).await.verdict, Verdict::Limit);
    client.close();
    // Another connection of the session ends the lease.
    held.release(Outcome::Ok);
    let is_free = async || client.peek("api", [("job", "single")]).await.remaining == Some(1);
    until("the lease is released", is_free).await;
    drop(client.acquire("api", [("job", "single")]).await);
    until("the lease is dropped", is_free).await;
    assert_eq!(client.stats().missed.get(&Reason::Timeout), None);
}

#[tokio::test]
async fn sleeps_as_a_wait_says() {
    let daemon = Daemon::start(RULES).await;
    let (client, _) = client(&daemon.path(), |builder| builder);
    let start = tokio::time::Instant::now();
    for _ in 0..3 {
        let granted = client.acquire("api", [("job", "mail")]);
        assert!(granted.run(async { Ok::<_, ()>(()) }).await.is_ok());
    }
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
    let held = (client.hit("api", [("job", "mail")]).await, client.hit("api", [("job", "mail")]).await);
    assert_eq!(held.1.verdict, Verdict::Wait);
    let refused = client.hit("api", [("job", "mail")]).max_wait(Duration::ZERO).await;
    assert_eq!(refused.verdict, Verdict::Limit);
}

#[tokio::test]
async fn decides_without_a_stopped_killed_or_restarted_daemon_and_finds_it_again() {
    let mut daemon = Daemon::start(RULES).await;
    let (client, lines) = client(&daemon.path(), |builder| builder.timeout(Duration::from_millis(300)));
    let ask = async || -> Decision { client.acquire("api", [("job", "single")]).await };
    let judged = async || until("the daemon decides", async || ask().await.reason.is_none()).await;
    judged().await;
    daemon.hang().await;
    let degraded = ask().await;
    assert_eq!((degraded.reason, degraded.is_allowed()), (Some(Reason::Timeout), true));
    daemon.signal(Signal::CONT);
    judged().await;
    daemon.end(Signal::TERM);
    assert_eq!(ask().await.reason, Some(Reason::Unreachable));
    assert!(client.stats().is_breaker_open);
    assert_eq!(ask().await.reason, Some(Reason::Breaker));
    daemon.restart().await;
    judged().await;
    daemon.end(Signal::KILL);
    until("the end is noticed", async || !client.stats().is_connected).await;
    assert_eq!(ask().await.reason, Some(Reason::Unreachable));
    let refused = client.hit("api", ()).on_failure(tidegate_client::OnFailure::Refuse).await;
    assert_eq!((refused.status(), refused.is_degraded()), (503, true));
    daemon.restart().await;
    judged().await;
    let lines = lines.all();
    let is_state = |line: &String| line.contains("not limited") || line.contains("answers again");
    assert!(lines.len() >= 3 && lines.iter().all(is_state), "{lines:?}");
}

/// A restart between requests loses none: requests that the daemon did not read are sent again.
#[tokio::test]
async fn loses_no_decision_to_an_orderly_restart() {
    let mut daemon = Daemon::start(RULES).await;
    let (client, _) = client(&daemon.path(), |builder| builder);
    for _ in 0..5 {
        assert_eq!(client.hit("api", ()).await.reason, None);
        daemon.end(Signal::TERM);
        daemon.restart().await;
    }
    assert_eq!(client.hit("api", ()).await.reason, None);
    assert!(client.stats().missed.is_empty(), "{:?}", client.stats());
}

#[tokio::test]
async fn uses_a_fallback_while_the_daemon_is_down() {
    let mut daemon = Daemon::start(RULES).await;
    let (client, lines) =
        client(&daemon.path(), |builder| builder.fallbacks([("per-user", "1/h"), ("*", "3/h")]).unwrap());
    let hit = async |user: &str| client.hit("api", [("job", "message"), ("user", user)]).await;
    assert_eq!(hit("u1").await.rule.as_deref(), Some("per-user"));
    daemon.end(Signal::KILL);
    let decisions = [hit("u1").await, hit("u1").await, hit("u2").await];
    assert!(decisions.iter().all(|decision| decision.reason == Some(Reason::Fallback)), "{decisions:?}");
    assert_eq!(decisions.map(|decision| decision.status()), [200, 429, 200]);
    assert!(lines.all()[0].ends_with("requests are limited by the fallback"), "{:?}", lines.all());
}

/// Whatever happens to the daemon, every call ends, and so does every lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_calls_and_leases_while_the_daemon_is_killed_and_stopped() {
    let mut daemon = Daemon::start(RULES).await;
    let (client, _) = client(&daemon.path(), |builder| builder.timeout(Duration::from_millis(50)));
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let (client, is_over) = (client.clone(), Arc::clone(&is_over));
            tokio::spawn(async move {
                let mut calls = 0_u32;
                while !is_over.load(Ordering::Relaxed) {
                    let granted = client.acquire("api", [("job", "export")]).await;
                    assert!(granted.is_allowed() || granted.verdict == Verdict::Limit, "{granted:?}");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    if number % 2 == 0 {
                        granted.release(Outcome::Ok);
                    }
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    for round in 0..6 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        match round % 3 {
            0 => daemon.end(Signal::KILL),
            1 => daemon.end(Signal::TERM),
            _ => {
                daemon.hang().await;
                tokio::time::sleep(Duration::from_millis(60)).await;
                daemon.signal(Signal::CONT);
                continue;
            }
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
        daemon.restart().await;
    }
    is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        assert!(task.await.unwrap() > 10);
    }
    until("every lease has ended", async || {
        client.peek("api", [("job", "export")]).await.remaining == Some(40)
    })
    .await;
    let stats = client.stats();
    assert!(!stats.missed.contains_key(&Reason::Protocol) && stats.refused.is_empty(), "{stats:?}");
}
