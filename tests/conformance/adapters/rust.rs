//! The adapter of the Rust client: a command as a line of JSON on standard input, its result on standard output. With the argument
//! `current_thread` the callers share a thread.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a panic fails the scenario"
)]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, from_str, json};
use tidegate_client::{Attributes, Client, Decision, OnFailure, Outcome, Reason, RunError};
use tokio::runtime::Builder;
use tokio::time::Instant;

fn attributes(given: &Value) -> Attributes {
    let pairs = given["attributes"].as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
    let text = |value: &Value| match value {
        Value::Object(_) => String::from_utf8_lossy(b"\xff\xfe").into_owned(), // no String is invalid Unicode
        value => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    };
    pairs.map(|(name, value)| (name.clone(), text(value))).collect()
}

async fn ask(client: Client, given: Value) -> (Value, Option<Decision>) {
    let (domain, attributes) = (given["domain"].as_str().unwrap(), attributes(&given));
    let check = match given["do"].as_str().unwrap() {
        "acquire" => client.acquire(domain, attributes),
        "peek" => client.peek(domain, attributes),
        _ => client.hit(domain, attributes),
    };
    // A cost is unsigned: an application has to convert other numbers.
    let Ok(cost) = u64::try_from(given["cost"].as_i64().unwrap_or(1)) else {
        return (json!({"raised": "TryFromIntError"}), None);
    };
    let [priority, idem] = ["priority", "idem"].map(|name| given[name].as_str().unwrap_or_default());
    let on_failure = if given["on_failure"] == "refuse" { OnFailure::Refuse } else { OnFailure::Allow };
    let began = Instant::now();
    let decision = check.cost(cost).priority(priority).idem(idem).on_failure(on_failure).await;
    let took = began.elapsed();
    let said = json!({
        "allowed": decision.is_allowed(), "verdict": decision.verdict.name(), "status": decision.status(),
        "degraded": decision.is_degraded(), "reason": decision.reason.map(Reason::name), "rule": decision.rule,
        "limit": decision.limit, "remaining": decision.remaining, "lease": decision.lease(),
        "retry_us": decision.retry_after.map(micros), "wait_us": micros(decision.wait()), "took_us": micros(took),
    });
    (said, Some(decision))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

fn millis(given: &Value) -> Duration {
    Duration::from_secs_f64(given.as_f64().unwrap_or_default() / 1e3)
}

/// Keeps the thread busy, before a request is written and before its reply is read.
async fn busy(time: Duration) {
    for _ in 0..3 {
        let began = Instant::now();
        while began.elapsed() < time {}
        tokio::task::yield_now().await;
    }
}

async fn crowd(client: &Client, given: &Value) -> Value {
    let ask_as = |caller: u64| {
        let mut given = given.clone();
        given["attributes"] = json!({"user": format!("u{caller}")});
        tokio::spawn(ask(client.clone(), given))
    };
    let (calls, mut all) =
        ((0..given["callers"].as_u64().unwrap()).map(ask_as).collect::<Vec<_>>(), Vec::new());
    for call in calls {
        all.push(call.await.unwrap().0);
    }
    json!({ "all": all })
}

/// Runs work under a lease, which fails if `fails`.
async fn work(client: &Client, given: &Value) -> Value {
    let mut ran = false;
    let check = client.acquire(given["domain"].as_str().unwrap(), attributes(given));
    let done = check.run(async {
        ran = true;
        if given["fails"] == true { Err(std::fmt::Error) } else { Ok(()) }
    });
    let raised = match done.await {
        Ok(()) => None,
        Err(RunError::Denied(_)) => Some("Denied"),
        Err(RunError::Work(_)) => Some("Error"),
    };
    json!({"ran": ran, "raised": raised})
}

fn make(given: &Value, lines: Arc<Mutex<Vec<String>>>) -> Client {
    let logger = move |line: &str| lines.lock().unwrap().push(line.to_owned());
    let mut options = Client::builder().socket(given["socket"].as_str().unwrap()).logger(logger);
    options = options.enabled(given["enabled"] != false);
    if given["timeout_ms"].is_number() {
        options = options.timeout(millis(&given["timeout_ms"]));
    }
    match given["fallback"].as_str() {
        Some(rate) => options.fallback(rate).unwrap().build(),
        None => options.build(),
    }
}

fn counts(of: &BTreeMap<Reason, u64>) -> Map<String, Value> {
    of.iter().map(|(reason, count)| (reason.name().to_owned(), json!(count))).collect()
}

async fn answer(
    given: Value,
    clients: &mut HashMap<String, Client>,
    lines: &Arc<Mutex<Vec<String>>>,
    last: &mut Option<Decision>,
) -> Value {
    let name = given["client"].as_str().unwrap();
    match (given["do"].as_str().unwrap(), clients.get(name)) {
        ("make", _) => drop(clients.insert(name.to_owned(), make(&given, Arc::clone(lines)))),
        ("log", _) => return json!({"lines": std::mem::take(&mut *lines.lock().unwrap())}),
        ("release", _) => {
            let outcomes = [("ok", Outcome::Ok), ("error", Outcome::Error), ("dropped", Outcome::Dropped)];
            let (_, outcome) = outcomes.into_iter().find(|(name, _)| given["outcome"] == **name).unwrap();
            last.take().into_iter().for_each(|decision| decision.release(outcome));
        }
        ("stats", Some(client)) => {
            let stats = client.stats();
            let (missed, refused) = (counts(&stats.missed), counts(&stats.refused));
            let (connections, is_open) = (u8::from(stats.is_connected), stats.is_breaker_open);
            return json!({"missed": missed, "refused": refused, "connections": connections, "breaker_open": is_open});
        }
        ("crowd", Some(client)) => return crowd(client, &given).await,
        ("work", Some(client)) => return work(client, &given).await,
        (_, client) => {
            let busy = busy(millis(&given["busy_ms"]));
            let ((said, decision), ()) = tokio::join!(ask(client.unwrap().clone(), given), busy);
            *last = decision;
            return said;
        }
    }
    json!({})
}

fn main() {
    let (sender, mut commands) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lines().try_for_each(|line| sender.send(line.unwrap())));
    let is_current = std::env::args().nth(1).is_some_and(|argument| argument == "current_thread");
    let mut runtime = if is_current { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    runtime.enable_all().build().unwrap().block_on(async {
        let (mut clients, lines, mut last) = (HashMap::new(), Arc::default(), None);
        while let Some(line) = commands.recv().await {
            println!("{}", answer(from_str(&line).unwrap(), &mut clients, &lines, &mut last).await);
        }
    });
}
