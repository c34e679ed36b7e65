//! Handling of replies and failures.

use super::SyncLoop;
use crate::clock::Now;
use crate::fleet::call::ScriptCommand;
use crate::fleet::link::NodeId;
use crate::fleet::reply::{Received, ScriptReply};
use crate::fleet::task::servers::Arrival;
use tracing::{debug, warn};

impl SyncLoop {
    pub(super) fn apply_arrival(&mut self, arrival: Arrival) {
        let now = self.clock.now();
        let Arrival { at, call, reply } = arrival;
        let decoded = reply.map(|bytes| ScriptReply::decode(&call, &bytes));
        match decoded {
            Some(Ok(Received { reply, clamped })) => {
                self.view.clamped += u64::from(clamped);
                self.counters.heard(now.at);
                // Replies about fleet overrides do not count for the link state.
                let servers = self.servers.as_mut().filter(|_| !matches!(call, ScriptCommand::Overrides(_)));
                servers.into_iter().for_each(|servers| servers.heard(at, now.at));
                self.answered(&call, reply, now);
                self.relink(now);
            }
            Some(Err(fault)) => {
                self.view.undecodable += 1;
                debug!(%fault, "Redis sent an invalid reply: the command counts as unanswered");
                self.failed(at, &call, now);
            }
            None => self.failed(at, &call, now),
        }
    }

    fn answered(&mut self, call: &ScriptCommand, reply: ScriptReply, now: Now) {
        match (call, reply) {
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
            (ScriptCommand::Overrides(call), ScriptReply::Overrides(said)) => {
                let news = self.overrides.answered(call, said, now);
                news.iter().for_each(|overrides| self.engine.apply_fleet_overrides(overrides));
                self.overrides.confirm();
            }
            (call, reply) => {
                let before = self.member.sync().host();
                let mut calls = Vec::new();
                self.member.answered(call, reply, now, &mut calls);
                if self.member.sync().host() != before {
                    self.rename();
                }
                self.send(calls.into_iter().map(|call| (None, call)).collect(), now);
            }
        }
    }

    fn failed(&mut self, at: Option<NodeId>, call: &ScriptCommand, now: Now) {
        match call {
            ScriptCommand::Beat(beat) => {
                self.reserves.failed(beat);
                if let Some(servers) = &mut self.servers {
                    servers.beat_failed(at, now.at);
                }
            }
            ScriptCommand::Overrides(call) => self.overrides.failed(call),
            call => self.member.failed(call, now.at),
        }
    }
}
