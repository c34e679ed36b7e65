//! Figures of a server under one kind of load, one entry for each repetition.

use std::io;

use crate::load::{Connection, Flow, Until, by_workers, in_flight, one_by_one};
use crate::servers::Server;
use crate::workload::Users;

/// Figures of one request at a time.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    pub(crate) p50_us: Vec<f64>,
    pub(crate) p99_us: Vec<f64>,
    pub(crate) cpu_us: Vec<f64>,
}

/// Figures of many requests in flight.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) per_second: Vec<f64>,
    pub(crate) cpu_us: Vec<f64>,
}

impl Latency {
    pub(crate) fn measure(&mut self, server: &Server, seed: usize, nanos: u64) -> io::Result<()> {
        let mut connection = server.connect(seed as u64 + 1)?;
        one_by_one(&mut connection, WARM_UP_NANOS)?;
        let cpu_before = server.cpu_nanos()?;
        let times = one_by_one(&mut connection, nanos)?;
        // The connection is still open, so its server thread still counts.
        let cpu_nanos = server.cpu_nanos()? - cpu_before;
        self.p50_us.push(times.value_at_quantile(0.5) as f64 / 1e3);
        self.p99_us.push(times.value_at_quantile(0.99) as f64 / 1e3);
        self.cpu_us.push(cpu_nanos as f64 / 1e3 / times.len() as f64);
        Ok(())
    }
}

impl Streams {
    /// Eight connections with `depth` requests in flight on each.
    pub(crate) fn measure(&mut self, server: &Server, depth: u64, nanos: u64) -> io::Result<()> {
        self.measure_of(server, depth, nanos, Users::uniform)
    }

    /// Like `measure`, with callers drawn by these seeds.
    pub(crate) fn measure_of(
        &mut self,
        server: &Server,
        depth: u64,
        nanos: u64,
        users: impl Fn(u64) -> Users,
    ) -> io::Result<()> {
        self.measure_by(server, 8, nanos, users, |connections, nanos| {
            in_flight(connections, depth, Until::Nanos(nanos))
        })
    }

    /// 64 blocking workers with a connection each.
    pub(crate) fn measure_workers(&mut self, server: &Server, nanos: u64) -> io::Result<()> {
        self.measure_by(server, 64, nanos, Users::uniform, by_workers)
    }

    fn measure_by(
        &mut self,
        server: &Server,
        connections: u64,
        nanos: u64,
        users: impl Fn(u64) -> Users,
        load: impl Fn(&mut [Connection], u64) -> io::Result<Flow>,
    ) -> io::Result<()> {
        let connect = |seed| server.connect_for(users(seed));
        let mut connections: Vec<Connection> = (1..=connections).map(connect).collect::<io::Result<_>>()?;
        load(&mut connections, WARM_UP_NANOS)?;
        let cpu_before = server.cpu_nanos()?;
        let flow = load(&mut connections, nanos)?;
        let cpu_nanos = server.cpu_nanos()? - cpu_before;
        self.per_second.push(flow.replies as f64 / (flow.nanos as f64 / 1e9));
        self.cpu_us.push(cpu_nanos as f64 / 1e3 / flow.replies as f64);
        Ok(())
    }
}

const WARM_UP_NANOS: u64 = 300_000_000;
