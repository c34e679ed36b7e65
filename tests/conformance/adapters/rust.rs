//! The adapter of the Rust client: a command as a line of JSON on standard input, its result on standard output. With the argument
//! `current_thread` the callers share one thread.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a failure ends the scenario; standard output is the protocol"
)]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tidegate_client::{Attributes, Client, Decision, OnFailure, Outcome, Reason, RunError};
use tokio::runtime::Builder;

#[derive(Default)]
struct Adapter {
    clients: HashMap<String, Client>,
    lines: Arc<Mutex<Vec<String>>>,
    last: Option<Decision>,
}

/// A value that is text without valid Unicode, which no `String` holds, loses it in the application.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) => String::from_utf8_lossy(b"\xff\xfe").into_owned(),
        other => other.to_string(),
    }
}

fn attributes(given: &Value) -> Attributes {
    let pairs = given["attributes"].as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
    pairs.map(|(name, value)| (name.clone(), text(value))).collect()
}

async fn ask(client: Client, given: Value) -> (Option<Decision>, Value) {
    let domain = given["domain"].as_str().unwrap();
    let mut check = match given["do"].as_str().unwrap() {
        "acquire" => client.acquire(domain, attributes(&given)),
        "peek" => client.peek(domain, attributes(&given)),
        _ => client.hit(domain, attributes(&given)),
    };
    if let Some(cost) = given["cost"].as_i64() {
        // The type of a cost is unsigned: an application with another number has to convert it.
        let Ok(cost) = u64::try_from(cost) else { return (None, json!({"raised": "TryFromIntError"})) };
        check = check.cost(cost);
    }
    if let Some(priority) = given["priority"].as_str() {
        check = check.priority(priority);
    }
    if let Some(key) = given["idem"].as_str() {
        check = check.idem(key);
    }
    if given["on_failure"] == "refuse" {
        check = check.on_failure(OnFailure::Refuse);
    }
    let began = Instant::now();
    let decision = check.await;
    let said = json!({
        "took_us": micros(began.elapsed()), "allowed": decision.is_allowed(), "verdict": decision.verdict.name(),
        "status": decision.status(), "degraded": decision.is_degraded(), "reason": decision.reason.map(Reason::name),
        "rule": decision.rule, "limit": decision.limit, "remaining": decision.remaining, "lease": decision.lease(),
        "retry_us": decision.retry_after.map(micros), "wait_us": micros(decision.wait()),
    });
    (Some(decision), said)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

async fn crowd(client: &Client, given: &Value) -> Value {
    let calls = (0..given["callers"].as_u64().unwrap()).map(|caller| {
        let mut given = given.clone();
        given["attributes"] = json!({"user": format!("u{caller}")});
        tokio::spawn(ask(client.clone(), given))
    });
    let mut all = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        all.push(call.await.unwrap().1);
    }
    json!({ "all": all })
}

/// Keeps the thread busy before the request is written, and before its reply is read.
async fn busy(time: Duration) {
    for _ in 0..3 {
        let began = Instant::now();
        while began.elapsed() < time {}
        tokio::task::yield_now().await;
    }
}

/// Runs work under a lease, which fails if `fails`.
async fn work(client: &Client, given: &Value) -> Value {
    let mut ran = false;
    let done = client.acquire(given["domain"].as_str().unwrap(), attributes(given)).run(async {
        ran = true;
        if given["fails"] == true { Err("of the application") } else { Ok(()) }
    });
    match done.await {
        Ok(()) => json!({"ran": ran}),
        Err(RunError::Denied(_)) => json!({"ran": ran, "raised": "Denied"}),
        Err(RunError::Work(_)) => json!({"ran": ran, "raised": "Work"}),
    }
}

impl Adapter {
    fn make(&self, given: &Value) -> Client {
        let lines = Arc::clone(&self.lines);
        let mut options = Client::builder()
            .socket(given["socket"].as_str().unwrap())
            .timeout(Duration::from_secs_f64(given["timeout_ms"].as_f64().unwrap() / 1e3))
            .enabled(given["enabled"] != false)
            .logger(move |line| lines.lock().unwrap().push(line.to_owned()));
        if let Some(rate) = given["fallback"].as_str() {
            options = options.fallback(rate).unwrap();
        }
        options.build()
    }

    async fn answer(&mut self, given: Value) -> Value {
        let name = given["client"].as_str().unwrap();
        let client = self.clients.get(name).cloned();
        match given["do"].as_str().unwrap() {
            "make" => drop(self.clients.insert(name.to_owned(), self.make(&given))),
            "log" => return json!({"lines": std::mem::take(&mut *self.lines.lock().unwrap())}),
            "crowd" => return crowd(&client.unwrap(), &given).await,
            "work" => return work(&client.unwrap(), &given).await,
            "release" => {
                let outcomes = HashMap::from([
                    ("ok", Outcome::Ok),
                    ("error", Outcome::Error),
                    ("dropped", Outcome::Dropped),
                ]);
                if let Some(decision) = self.last.take() {
                    decision.release(outcomes[given["outcome"].as_str().unwrap()]);
                }
            }
            "stats" => {
                let stats = client.unwrap().stats();
                return json!({
                    "missed": counts(&stats.missed), "refused": counts(&stats.refused),
                    "connections": u8::from(stats.is_connected), "breaker_open": stats.is_breaker_open,
                });
            }
            _ => {
                let time = Duration::from_secs_f64(given["busy_ms"].as_f64().unwrap_or(0.0) / 1e3);
                let ((decision, said), ()) = tokio::join!(ask(client.unwrap(), given), busy(time));
                self.last = decision;
                return said;
            }
        }
        json!({})
    }
}

fn counts(of: &BTreeMap<Reason, u64>) -> Map<String, Value> {
    of.iter().map(|(reason, count)| (reason.name().to_owned(), json!(count))).collect()
}

fn main() {
    let (sender, mut commands) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lines().try_for_each(|line| sender.send(line.unwrap())));
    let is_current = std::env::args().nth(1).is_some_and(|argument| argument == "current_thread");
    let mut builder = if is_current { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.enable_all().build().unwrap().block_on(async {
        let mut adapter = Adapter::default();
        while let Some(line) = commands.recv().await {
            println!("{}", adapter.answer(serde_json::from_str(&line).unwrap()).await);
        }
    });
}
