//! Sends commands and settles their replies: follows redirections of a cluster and loads unknown scripts, each time
//! with the same bytes.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::cluster::{Redirect, redirect};
use super::connection::CommandResult;
use super::failure::{FailureClass, LinkError};
use super::node::NodeHandle;
use super::nodes::NodeId;
use super::{RedisCommand, RedisLink, Url};
use crate::fleet::round_trip::TIMEOUT_MAX;

type ReplyReceiver = oneshot::Receiver<CommandResult>;

impl RedisLink {
    /// Sends commands now, in one write, and returns their replies in order. A reply may be awaited later, or
    /// dropped; a reply that does not come times out by itself.
    #[must_use]
    pub fn send<'a>(
        &'a self,
        node: NodeId,
        commands: Vec<RedisCommand<'a>>,
    ) -> Vec<impl Future<Output = Result<Value, LinkError>>> {
        let mut bytes = Vec::new();
        commands.iter().for_each(|command| command.write_to(&mut bytes));
        let node = self.nodes.get(node);
        // Before the first attempt to connect has ended, nothing has failed.
        let is_counted = node.as_ref().is_none_or(|node| !node.is_starting());
        let not_found =
            || LinkError::new(FailureClass::Down, "the server is not one of the cluster's any more");
        let sent = node.ok_or_else(not_found).and_then(|node| Ok((node.send(bytes, commands.len())?, node)));
        let replies: Vec<_> = match sent {
            Ok((replies, node)) => replies.into_iter().map(|reply| Ok((Arc::clone(&node), reply))).collect(),
            Err(error) => commands.iter().map(|_| Err(error.clone())).collect(),
        };
        replies
            .into_iter()
            .zip(commands)
            .map(|(sent, command)| self.settle(sent, command, is_counted))
            .collect()
    }

    async fn settle(
        &self,
        sent: Result<(Arc<NodeHandle>, ReplyReceiver), LinkError>,
        command: RedisCommand<'_>,
        is_counted: bool,
    ) -> CommandResult {
        let settled = async {
            let (node, reply) = sent?;
            let value = arrived(reply).await?;
            let too_long = |_| Err(LinkError::new(FailureClass::Timeout, "sent on and on").of_sent());
            timeout(TIMEOUT_MAX, self.follow(node, command, value)).await.unwrap_or_else(too_long)
        };
        let result = settled.await;
        if let (Err(error), true) = (&result, is_counted) {
            self.shared.counts.count(error.class);
        }
        result
    }

    /// Resends a command after redirections and a script load until a server accepts it.
    async fn follow(
        &self,
        mut node: Arc<NodeHandle>,
        command: RedisCommand<'_>,
        mut value: Value,
    ) -> CommandResult {
        let (mut is_loaded, mut sends_asking) = (false, false);
        let mut hops = 0;
        while let Value::ServerError(error) = &value {
            let mut before = redis::pipe();
            let redirect = redirect(error, &node.url).filter(|_| self.shared.options.cluster);
            match redirect {
                Some(Redirect::Later) => sleep(LATER).await,
                Some(Redirect::Moved(slot, url)) => {
                    (node, sends_asking) = (self.arrive(&url).await?, false);
                    self.nodes.moved(slot, &url);
                    hops += 1;
                }
                Some(Redirect::Ask(url)) => {
                    (node, sends_asking) = (self.arrive(&url).await?, true);
                    hops += 1;
                }
                None if error.code() == "NOSCRIPT" && !is_loaded => {
                    is_loaded = true;
                    command.script.load(&mut before);
                }
                None => return understood(value),
            }
            if hops > HOPS_MAX {
                let why = "the servers of the cluster send a command in circles";
                return Err(LinkError::new(FailureClass::ClusterDown, why));
            }
            if sends_asking {
                before.cmd("ASKING");
            }
            value = again(&node, &before, &command).await?;
        }
        Ok(value)
    }

    /// The server of a redirection, once it accepts commands.
    async fn arrive(&self, url: &Url) -> Result<Arc<NodeHandle>, LinkError> {
        let too_many = || LinkError::new(FailureClass::Protocol, "a cluster of too many servers");
        let node = self.nodes.sent_to(url).ok_or_else(too_many)?;
        let unreached = |_| {
            let why = "the server that has the slot now cannot be reached";
            LinkError::new(FailureClass::ClusterDown, why)
        };
        timeout(TIMEOUT_MAX / 2, node.up()).await.map_err(unreached)?;
        Ok(node)
    }
}

/// Sends the preceding commands and this one in one write. Returns the reply to this one.
async fn again(node: &NodeHandle, before: &redis::Pipeline, command: &RedisCommand<'_>) -> CommandResult {
    let mut bytes = before.get_packed_pipeline();
    command.write_to(&mut bytes);
    let mut last = Value::Nil;
    for reply in node.send(bytes, before.len() + 1)? {
        understood(last)?;
        last = arrived(reply).await?;
    }
    Ok(last)
}

async fn arrived(reply: ReplyReceiver) -> CommandResult {
    // The sender was dropped with the link.
    reply.await.unwrap_or_else(|_| Err(LinkError::new(FailureClass::Down, "the link ended").of_sent()))
}

fn understood(value: Value) -> CommandResult {
    match value {
        Value::ServerError(error) => Err(LinkError::of_reply(&error)),
        value => Ok(value),
    }
}

/// Enough for a move to the new master and further moves meanwhile.
const HOPS_MAX: u32 = 5;

/// A slot move transfers a few thousand keys per second.
const LATER: Duration = Duration::from_millis(20);
