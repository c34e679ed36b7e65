//! A Redis Cluster of three real servers for one test.
#![allow(unreachable_pub, reason = "no test file uses all of it")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test that cannot be set up has failed"
)]

use std::time::Duration;

use super::redis_server::{Redis, free_port};

pub struct Three(pub [Redis; 3]);

impl Three {
    pub fn start() -> Three {
        let thirds = ["0 5460", "5461 10922", "10923 16383"];
        let servers = std::array::from_fn(|_| {
            let (port, bus) = (free_port(), free_port().to_string());
            Redis::start_at(
                port,
                &["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "2000"],
            )
        });
        for (server, slots) in servers.iter().zip(thirds) {
            server.order(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
        }
        for other in &servers[1..] {
            let info = other.say("CONFIG GET cluster-port");
            let bus = info.trim_end().rsplit("\r\n").next().unwrap().to_owned();
            servers[0].order(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", other.port));
        }
        let end = tidegate::clock::read_boot_nanos() + 30_000_000_000;
        let three = Three(servers);
        while !three.is_whole() {
            assert!(tidegate::clock::read_boot_nanos() < end, "the cluster did not come about");
            std::thread::sleep(Duration::from_millis(10));
        }
        three
    }

    /// Whether each server reports the cluster as ok.
    pub fn is_whole(&self) -> bool {
        self.0.iter().all(|server| server.say("CLUSTER INFO").contains("cluster_state:ok"))
    }

    /// The server that has the slot of a tag.
    pub fn home(&self, tag: &str) -> usize {
        // A missing key of the slot: nil at its server, MOVED elsewhere.
        let has = |server: &Redis| server.say(&format!("GET {{{tag}}}:nothing")).starts_with("$-1");
        self.0.iter().position(has).expect("a tag has a home")
    }

    pub fn slot(&self, tag: &str) -> String {
        self.0[0].say(&format!("CLUSTER KEYSLOT {{{tag}}}")).trim_start_matches(':').trim_end().to_owned()
    }

    /// Starts to migrate a slot; the first server still has its keys.
    pub fn begin_move(&self, slot: &str, from: usize, to: usize) {
        self.0[to].order(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.id(from)));
        self.0[from].order(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.id(to)));
    }

    /// Assigns the slot to the second server.
    pub fn end_move(&self, slot: &str, from: usize, to: usize) {
        for server in [&self.0[to], &self.0[from]] {
            server.order(&format!("CLUSTER SETSLOT {slot} NODE {}", self.id(to)));
        }
    }

    fn id(&self, index: usize) -> String {
        self.0[index].say("CLUSTER MYID").lines().nth(1).unwrap().to_owned()
    }
}
