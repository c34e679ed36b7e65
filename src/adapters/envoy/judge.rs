//! The decision of one request, as requests of the protocol: one for each `hits_addend`.

use std::sync::atomic::Ordering;

use tonic::Status;
use tracing::warn;

use super::messages::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use super::{EnvoyHandler, own_limits, statuses};
use crate::adapters::bodies::{self, Pairs};
use crate::adapters::decision::HttpDecision;
use crate::adapters::exchange::{self, WireAnswer};
use crate::adapters::link::NumberedFrame;
use crate::limit::fixed_window::FixedWindowQuota;
use crate::protocol::{
    CheckRequest, Code, DESCRIPTORS_MAX, Mode, Op, PAIRS_MAX, RequestFrame, RequestOptions, UnitsField,
    is_name,
};

/// Descriptors of one cost, by their index in the request, and the decision about them.
#[derive(Debug)]
pub(super) struct DecidedGroup {
    pub(super) descriptors: Vec<usize>,
    pub(super) decision: HttpDecision,
}

impl EnvoyHandler {
    pub(super) async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let domain = String::from_utf8_lossy(&request.domain);
        if !self.state.opens(&domain, &self.peer) {
            let message = "this domain is not open over TCP; help: add it to `adapters.envoy.domains`";
            return Err(Status::permission_denied(message));
        }
        if request.descriptors.is_empty() {
            return Err(Status::invalid_argument("a request needs a descriptor"));
        }
        let quotas = request
            .descriptors
            .iter()
            .map(|each| each.limit.as_ref().map(own_limits::read_quota).transpose());
        let quotas: Vec<Option<FixedWindowQuota>> = quotas.collect::<Result<_, _>>()?;
        let ignored = request.descriptors.iter().filter(|each| each.is_negative_hits);
        self.state.counters.ignored.fetch_add(ignored.count() as u64, Ordering::Relaxed);
        let groups = groups(request);
        let frames = groups.iter().map(|(cost, indexes)| self.frame(&domain, *cost, indexes, request));
        let frames: Vec<NumberedFrame> =
            frames.collect::<Result<_, _>>().map_err(Status::invalid_argument)?;
        let open = || exchange::open(&self.state.connector, NAME, self.peer.user, None);
        let answers = self.link.exchange(None, open, &frames).await;
        let answers = answers.map_err(|reason| Status::unavailable(reason.name()))?;
        let decided = groups.into_iter().zip(answers).map(|((_, descriptors), answer)| match answer {
            WireAnswer::Decision(mut decision) => {
                decision.answer.domain = Some(domain.clone().into_owned());
                Ok(DecidedGroup { descriptors, decision: *decision })
            }
            WireAnswer::Error(code, message) => Err(refused(code, message)),
            WireAnswer::Done(_) => Err(Status::unavailable("protocol")),
        });
        let mut decided: Vec<DecidedGroup> = decided.collect::<Result<_, _>>()?;
        self.judge_own_limits(request, &domain, &quotas, &mut decided);
        Ok(statuses::combine(&decided, request.descriptors.len()))
    }

    fn judge_own_limits(
        &self,
        request: &RateLimitRequest,
        domain: &str,
        quotas: &[Option<FixedWindowQuota>],
        decided: &mut Vec<DecidedGroup>,
    ) {
        if quotas.iter().all(Option::is_none) {
            return;
        }
        let mode = self.state.connector.mode(domain, self.peer.user).unwrap_or(Mode::Disabled);
        let mut table = self.state.own_limits.lock();
        let now = self.state.clock.now();
        for (index, (descriptor, quota)) in request.descriptors.iter().zip(quotas).enumerate() {
            let Some(quota) = quota else { continue };
            let cost = cost(request, descriptor);
            let decision = own_limits::judge(&mut table, domain, descriptor, quota, cost, mode, now);
            decided.push(DecidedGroup { descriptors: vec![index], decision });
        }
        self.state.counters.evictions.store(table.evictions, Ordering::Relaxed);
    }

    /// The frame of one group. A cost of 0 asks whether one more would pass, and charges nothing.
    fn frame(
        &self,
        domain: &str,
        cost: u64,
        indexes: &[usize],
        request: &RateLimitRequest,
    ) -> Result<NumberedFrame, String> {
        let id = self.link.next_id();
        let check = CheckRequest {
            cost: UnitsField::Requests(cost.max(1)),
            options: RequestOptions { max_wait_us: Some(0), all: true, ..RequestOptions::default() },
            ..CheckRequest::new(id, domain)
        };
        let frame = RequestFrame::Check(if cost == 0 { Op::Peek } else { Op::Hit }, check);
        let descriptors = indexes.iter().filter_map(|index| request.descriptors.get(*index));
        let frame = bodies::fitting(&frame, descriptors.clone().map(pairs).collect())?;
        let entries = |descriptor: &RateLimitDescriptor| {
            descriptor.entries.len() + usize::from(descriptor.limit.is_some())
        };
        if let Some(entries) = descriptors.map(entries).max().filter(|most| *most > PAIRS_MAX) {
            warn!(
                domain,
                entries,
                "a descriptor of Envoy has more than {PAIRS_MAX} entries, and is judged by the first"
            );
        }
        Ok((id, frame))
    }
}

/// Groups the descriptors by cost, in the order of the request; a frame has room for some. Those of cost 0 stay apart: of
/// equal ones each would ask whether two more pass.
fn groups(request: &RateLimitRequest) -> Vec<(u64, Vec<usize>)> {
    let mut groups: Vec<(u64, Vec<usize>)> = Vec::new();
    for (index, descriptor) in request.descriptors.iter().enumerate() {
        let cost = cost(request, descriptor);
        match groups
            .iter_mut()
            .find(|(of, indexes)| cost > 0 && *of == cost && indexes.len() < DESCRIPTORS_MAX)
        {
            Some((_, indexes)) => indexes.push(index),
            None => groups.push((cost, vec![index])),
        }
    }
    groups
}

fn cost(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    match descriptor.hits_addend {
        _ if descriptor.is_negative_hits => 0,
        Some(own) => own,
        None => request.hits_addend.max(1).into(),
    }
}

fn pairs(descriptor: &RateLimitDescriptor) -> Pairs<'_> {
    // A value may be any bytes of a header. A key that no rule can name matches none, and the other entries count.
    let pairs = descriptor.entries.iter().map(|entry| match std::str::from_utf8(&entry.key) {
        Ok(key) if is_name(key) => (key, String::from_utf8_lossy(&entry.value)),
        _ => (NO_NAME, "".into()),
    });
    // The rules judge a longer descriptor by its first entries. No node has as many, and one of fewer is another node.
    let has_node = descriptor.limit.is_none() && descriptor.entries.len() <= PAIRS_MAX;
    let no_node = (!has_node).then(|| (NO_NODE, "".into()));
    no_node.into_iter().chain(pairs).take(PAIRS_MAX).collect()
}

/// The status of an ERROR.
fn refused(code: Code, message: String) -> Status {
    match code {
        Code::Invalid => Status::invalid_argument(message),
        Code::Quota => Status::resource_exhausted(message),
        Code::NotAllowed | Code::Forbidden => Status::permission_denied(message),
        code => Status::unavailable(code.name()),
    }
}

/// The first attribute of a descriptor that has a limit of its own, or too many entries, so that no node of a tree counts it.
/// It is empty, so that no rule matches it.
const NO_NODE: &str = "no node";

/// The same for an entry whose key is no name.
const NO_NAME: &str = "no name";

/// The name in HELLO.
const NAME: &str = "envoy";
