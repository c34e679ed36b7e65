//! The replies to commands sent together, in order. Follows redirections of a cluster and loads unknown scripts,
//! each time with the same bytes.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};

use super::cluster::{Redirect, redirect};
use super::connection::CommandResult;
use super::failure::{FailureClass, LinkError};
use super::node::NodeHandle;
use super::nodes::NodeId;
use super::reply_timeout::TIMEOUT_MAX;
use super::script::Script;
use super::{RedisCommand, RedisLink};

/// The pending replies of commands sent together.
#[derive(Debug)]
pub struct Replies<'a> {
    link: &'a RedisLink,
    node: Option<Arc<NodeHandle>>,
    bytes: Arc<Vec<u8>>,
    asked: VecDeque<ExpectedReply<'a>>,
    deadline: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct ExpectedReply<'a> {
    script: &'a Script,
    bytes: Range<usize>,
    reply: Result<oneshot::Receiver<CommandResult>, LinkError>,
}

impl<'a> Replies<'a> {
    pub(super) fn send(
        link: &'a RedisLink,
        id: NodeId,
        commands: &[RedisCommand<'a>],
        limit: Option<Duration>,
    ) -> Replies<'a> {
        let mut bytes = Vec::new();
        let ranges: Vec<_> = commands
            .iter()
            .map(|command| {
                let from = bytes.len();
                command.script.call(command.keys, command.args, &mut bytes);
                from..bytes.len()
            })
            .collect();
        let bytes = Arc::new(bytes);
        let node = link.nodes.get(id);
        let gone = || LinkError::new(FailureClass::Down, "the server is not one of the cluster's any more");
        let sent =
            node.as_ref().ok_or_else(gone).and_then(|node| node.send(Arc::clone(&bytes), commands.len()));
        let replies: Vec<_> = match sent {
            Ok(receivers) => receivers.into_iter().map(Ok).collect(),
            Err(error) => commands.iter().map(|_| Err(error.clone())).collect(),
        };
        let parts = commands.iter().zip(ranges).zip(replies);
        let asked =
            parts.map(|((command, bytes), reply)| ExpectedReply { script: command.script, bytes, reply });
        let deadline = limit.map(|limit| Box::pin(sleep(limit)));
        Replies { link, node, bytes, asked: asked.collect(), deadline }
    }

    /// Waits for the reply to the next command; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Value, LinkError>> {
        let asked = self.asked.pop_front()?;
        let bytes = self.bytes.get(asked.bytes.clone()).unwrap_or_default();
        let settled = settle(self.link, self.node.as_deref(), bytes, asked);
        let result = match &mut self.deadline {
            None => settled.await,
            Some(deadline) => tokio::select! {
                biased;
                result = settled => result,
                // The connection stays open and still matches the late reply to this command.
                () = deadline => Err(LinkError::new(FailureClass::Timeout, "no reply within the time that the caller had").of_sent()),
            },
        };
        if let Err(error) = &result {
            self.link.shared.counts.count(error.class);
        }
        Some(result)
    }
}

async fn settle(
    link: &RedisLink,
    node: Option<&NodeHandle>,
    bytes: &[u8],
    asked: ExpectedReply<'_>,
) -> CommandResult {
    let value = arrived(asked.reply?).await?;
    let (Some(node), Value::ServerError(error)) = (node, &value) else { return Ok(value) };
    let is_elsewhere = link.shared.options.cluster && redirect(error, &node.url).is_some();
    if !is_elsewhere && error.code() != "NOSCRIPT" {
        return understood(value);
    }
    let too_long = || LinkError::new(FailureClass::Timeout, "sent on and on").of_sent();
    let followed = timeout(TIMEOUT_MAX, follow(link, node, bytes, asked.script, value)).await;
    followed.unwrap_or_else(|_| Err(too_long()))
}

/// Resends a command after redirections and a script load until a server accepts it.
async fn follow(
    link: &RedisLink,
    asked: &NodeHandle,
    bytes: &[u8],
    script: &Script,
    first: Value,
) -> CommandResult {
    let mut value = first;
    let mut here: Option<Arc<NodeHandle>> = None;
    let (mut is_loaded, mut is_asking) = (false, false);
    let mut hops = 0;
    loop {
        let node = here.as_deref().unwrap_or(asked);
        let Value::ServerError(error) = &value else { return Ok(value) };
        let mut before = Vec::new();
        match redirect(error, &node.url).filter(|_| link.shared.options.cluster) {
            Some(Redirect::Later) => {
                sleep(LATER).await;
            }
            Some(Redirect::Moved(slot, url)) => {
                (here, is_asking) = (Some(arrive(link, &url).await?), false);
                link.nodes.moved(slot, &url);
                hops += 1;
            }
            Some(Redirect::Ask(url)) => {
                (here, is_asking) = (Some(arrive(link, &url).await?), true);
                hops += 1;
            }
            None if error.code() == "NOSCRIPT" && !is_loaded => {
                is_loaded = true;
                before.push(script.load());
            }
            None => return understood(value),
        }
        if hops > HOPS_MAX {
            return Err(LinkError::new(
                FailureClass::ClusterDown,
                "the servers of the cluster send a command in circles",
            ));
        }
        if is_asking {
            before.push(redis::cmd("ASKING").get_packed_command());
        }
        value = again(here.as_deref().unwrap_or(asked), &before, bytes).await?;
    }
}

/// The server of a redirection, once it accepts commands.
async fn arrive(link: &RedisLink, url: &super::Url) -> Result<Arc<NodeHandle>, LinkError> {
    let node = link.nodes.sent_to(url);
    let node = node.ok_or_else(|| LinkError::new(FailureClass::Protocol, "a cluster of too many servers"))?;
    let unreached =
        || LinkError::new(FailureClass::ClusterDown, "the server that has the slot now cannot be reached");
    timeout(TIMEOUT_MAX / 2, node.up()).await.map_err(|_| unreached())?;
    Ok(node)
}

/// Sends the preceding commands and this one in one write. Returns the reply to this one.
async fn again(node: &NodeHandle, before: &[Vec<u8>], bytes: &[u8]) -> CommandResult {
    let all = before.iter().map(Vec::as_slice).chain([bytes]).collect::<Vec<_>>().concat();
    let mut replies = node.send(Arc::new(all), before.len() + 1)?;
    let last = replies.pop();
    for reply in replies {
        understood(arrived(reply).await?)?;
    }
    match last {
        Some(reply) => arrived(reply).await,
        None => Err(LinkError::new(FailureClass::Other, "nothing was sent")),
    }
}

async fn arrived(reply: oneshot::Receiver<CommandResult>) -> CommandResult {
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
