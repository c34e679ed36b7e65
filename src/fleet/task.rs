//! The thread that talks with the other hosts, by way of Redis. No decision waits for it: it takes what keys call for and
//! puts in what the others answer.

mod servers;
mod talk;

use super::counters::Counters;
use super::identity::Identity;
use super::link;
use super::overrides::{Change, Seal};
use super::questions::Questions;
use super::secrets::Mark;
use crate::clock::Clock;
use crate::engine::{Asker, Engine, FleetChange, Standing};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use talk::Talk;
use tokio::sync::{mpsc, oneshot};

/// What the talk is about, and with whom.
pub struct Plan {
    /// The servers.
    pub link: link::Options,
    /// Who this host is.
    pub identity: Identity,
    /// What tells this machine from others.
    pub marks: Vec<Vec<u8>>,
    /// What tells its fleet secret from others.
    pub secret: Mark,
    /// Authenticates fleet overrides.
    pub seal: Seal,
    /// Keeps who this host is, if that is kept.
    pub keep: Option<Keep>,
}

/// Keeps the bytes of an identity. It may take as long as a disk does.
pub type Keep = Arc<dyn Fn(&[u8]) -> io::Result<()> + Send + Sync>;

/// The talk. To be finished; if it is dropped instead, what is in hand lapses.
#[derive(Debug)]
pub struct Fleet {
    stop: oneshot::Sender<()>,
    ended: Receiver<()>,
    counters: Arc<Counters>,
    voice: Voice,
    questions: Questions,
}

/// Changes the fleet overrides.
#[derive(Clone, Debug)]
pub struct Voice(mpsc::Sender<Change>);

impl Fleet {
    /// The handle of the thread that talks, and its work. That Redis is not there yet is no reason not to talk.
    ///
    /// # Errors
    /// The servers cannot be meant.
    pub fn new(
        engine: Arc<Engine>,
        clock: Arc<Clock>,
        standing: Arc<Standing>,
        plan: Plan,
    ) -> io::Result<(Fleet, impl FnMut() + Send + 'static)> {
        plan.link.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let (stop, mut stopped) = oneshot::channel();
        let (ends, ended) = sync_channel(1);
        let counters = Arc::new(Counters::default());
        let (speaks, changes) = mpsc::channel(CHANGES_MAX);
        let (questions, asked) = Questions::new();
        let mut talk = Talk::new(engine, clock, standing, plan, (Arc::clone(&counters), changes, asked));
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            #[allow(clippy::expect_used, reason = "for want of descriptors the thread is run again")]
            let runtime = runtime.expect("descriptors for a runtime");
            runtime.block_on(talk.go_on(&mut stopped));
            // A name server, or a disk, may hold a thread for as long as it likes.
            runtime.shutdown_background();
            let _ = ends.try_send(());
        };
        Ok((Fleet { stop, ended, counters, voice: Voice(speaks), questions }, work))
    }

    /// The same on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started, or the servers cannot be meant.
    pub fn start(
        engine: Arc<Engine>,
        clock: Arc<Clock>,
        standing: Arc<Standing>,
        plan: Plan,
    ) -> io::Result<Fleet> {
        let (fleet, work) = Fleet::new(engine, clock, standing, plan)?;
        std::thread::Builder::new().name("sync".into()).spawn(work)?;
        Ok(fleet)
    }

    /// What is to be told of it.
    #[must_use]
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// By which operators change the fleet overrides.
    #[must_use]
    pub fn voice(&self) -> Voice {
        self.voice.clone()
    }

    /// Makes the calls that requests wait for.
    #[must_use]
    pub fn asker(&self) -> Asker {
        Arc::new(self.questions.clone())
    }

    /// Gives back what is in hand, as far as [`LEAVE_MAX`] allows, and ends. Nobody is to decide any more.
    pub fn finish(self) {
        let _ = self.stop.send(());
        // Without an answer it goes all the same.
        let _ = self.ended.recv_timeout(LEAVE_MAX * 2);
    }
}

impl Voice {
    /// Changes them, and waits for some seconds at most. Whether it changes anything.
    ///
    /// # Errors
    /// Why they are not changed, or that this is not known.
    pub fn change(&self, change: FleetChange) -> Result<bool, String> {
        let (answer, answered) = sync_channel(1);
        let busy = || "too much is being said to the other hosts at once: say it again".to_owned();
        self.0.try_send((change, answer)).map_err(|_| busy())?;
        let silent = |_| "the thread that talks with the other hosts does not answer: see the log".to_owned();
        answered.recv_timeout(SAY_MAX).map_err(silent)?
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("link", &self.link).finish_non_exhaustive()
    }
}

/// Changes that wait. Operators are few.
const CHANGES_MAX: usize = 16;

/// Longer than whoever says it tries.
const SAY_MAX: Duration = Duration::from_secs(4);

/// How long the end may take: what is not given back by then lapses within four seconds.
pub const LEAVE_MAX: Duration = Duration::from_millis(300);
