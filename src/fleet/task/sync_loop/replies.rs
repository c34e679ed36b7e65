//! Handling of replies and failures.

use super::SyncLoop;
use crate::clock::Now;
use crate::fleet::command::ScriptCommand;
use crate::fleet::link::NodeId;
use crate::fleet::reply::{Received, ScriptReply};
use crate::fleet::task::servers::Arrival;
use tracing::{debug, warn};

impl SyncLoop {
    pub(super) fn apply_arrival(&mut self, arrival: Arrival) {
        let now = self.clock.now();
        let Arrival { at, command, reply } = arrival;
        let decoded = reply.map(|bytes| ScriptReply::decode(&command, &bytes));
        match decoded {
            Some(Ok(Received { reply, clamped })) => {
                self.view.clamped += u64::from(clamped);
                self.counters.heard(now.at);
                // Replies about fleet overrides do not count for the link state.
                let servers =
                    self.servers.as_mut().filter(|_| !matches!(command, ScriptCommand::Overrides(_)));
                servers.into_iter().for_each(|servers| servers.heard(at, now.at));
                self.answered(&command, reply, now);
                self.relink(now);
            }
            Some(Err(fault)) => {
                self.view.undecodable += 1;
                debug!(%fault, "Redis sent an invalid reply: the command counts as unanswered");
                self.failed(at, &command, now);
            }
            None => self.failed(at, &command, now),
        }
    }

    fn answered(&mut self, command: &ScriptCommand, reply: ScriptReply, now: Now) {
        match (command, reply) {
            (ScriptCommand::Beat(beat), ScriptReply::Beat(reply)) => {
                let is_own = beat.host == self.member.sync().host();
                let is_overtaken = self.reserves.apply_reply(beat, &reply, &self.engine);
                if (is_overtaken || reply.is_name_taken) && is_own {
                    self.member.rename();
                    self.rename();
                }
                self.member.apply_heartbeat(&reply, now.at);
                self.view.alive = reply.hosts;
                let unlike = reply.hosts.saturating_sub(reply.alike);
                if unlike > 0 && self.view.unlike == 0 {
                    warn!(
                        hosts = unlike,
                        secret = %self.plan.secret,
                        "some hosts have ANOTHER FLEET SECRET, or an older version: this host shares no budget with the hosts of \
                         another secret. help: give all hosts the same file in `fleet_secret_files`"
                    );
                }
                self.view.unlike = unlike;
                let hosts = self.status.hosts();
                if self.plan.identity.hosts != hosts {
                    self.plan.identity.hosts = hosts;
                    self.keep();
                }
            }
            (ScriptCommand::Overrides(command), ScriptReply::Overrides(said)) => {
                let news = self.overrides.answered(command, said, now);
                news.iter().for_each(|overrides| self.engine.apply_fleet_overrides(overrides));
                self.overrides.confirm();
            }
            (command, reply) => {
                let before = self.member.sync().host();
                let mut commands = Vec::new();
                self.member.answered(command, reply, now, &mut commands);
                if self.member.sync().host() != before {
                    self.rename();
                }
                self.send(commands.into_iter().map(|command| (None, command)).collect(), now);
            }
        }
    }

    fn failed(&mut self, at: Option<NodeId>, command: &ScriptCommand, now: Now) {
        match command {
            ScriptCommand::Beat(beat) => {
                self.reserves.failed(beat);
                if let Some(servers) = &mut self.servers {
                    servers.beat_failed(at, now.at);
                }
            }
            ScriptCommand::Overrides(command) => self.overrides.failed(command),
            command => self.member.failed(command, now.at),
        }
    }
}
