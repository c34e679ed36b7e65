//! Tests in virtual time that fifty daemons reconnect one by one after they lose the same Redis.

use super::{echo, options};
use crate::prelude::*;
use std::sync::{Arc, Mutex};
use tidegate::fleet::link::RedisLink;
use tokio::net::UnixListener;
use tokio::time::Instant;

const DAEMONS: usize = 50;

#[tokio::test(start_paused = true)]
async fn fifty_daemons_spread_reconnects() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    // Accepts and closes each connection, as a proxy without its Redis does.
    let listener = UnixListener::bind(&path).unwrap();
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    let server = tokio::spawn(async move {
        let begin = Instant::now();
        loop {
            let connection = listener.accept().await.unwrap();
            noted.lock().unwrap().push(begin.elapsed());
            drop(connection);
        }
    });
    let url = format!("unix://{}", path.display());
    // All at once, as after a power cut.
    let links: Vec<RedisLink> = (0..DAEMONS).map(|_| RedisLink::start(options(&url), vec![echo()])).collect();
    tokio::time::sleep(Duration::from_secs(90)).await;
    server.abort();
    drop(links);
    let times = times.lock().unwrap();
    // After some attempts delays have their full range: a mean of 2.5 s.
    let late: Vec<u128> =
        times.iter().filter(|time| **time >= Duration::from_secs(30)).map(Duration::as_millis).collect();
    let crowded =
        (0..late.len()).map(|at| late[at..].iter().take_while(|time| **time < late[at] + 100).count());
    let crowded = crowded.max().unwrap();
    let each_second = late.len() / 60;
    println!("{each_second} connects a second, at most {crowded} in a tenth of one");
    assert!((10..=25).contains(&each_second), "{each_second} connects a second");
    assert!(crowded <= DAEMONS / 4, "{crowded} connects in a tenth of a second");
}
