//! In-flight batches of one bucket of cells: one per lane, each with a sequence number, resent with the same
//! bytes until answered.

use super::call::{Bucket, Host, KeyPayment, Nonce, Payment, SequencePosition, SyncBatch};
use super::cell::CellRequest;
use super::places::{PermitCommand, PermitRequest};
use crate::clock::Timestamp;
use crate::engine::Shortfall;
use std::collections::VecDeque;
use std::time::Duration;

/// Calls of one kind, each with a sequence number in its lane.
pub(super) trait SequencedBatch {
    type Ask;

    /// The context that a reply needs.
    type About: std::fmt::Debug;

    /// Maximum calls of one bucket in flight.
    const LANES: u8;

    /// A lane that was idle this long is renewed before its next call.
    const IDLE_MAX: Duration;

    /// The first lane number reserved for this kind.
    const LANE_FIRST: u8;

    fn new(place: SequencePosition, asks: Vec<Self::Ask>) -> Self;

    fn place(&self) -> &SequencePosition;
}

impl SequencedBatch for SyncBatch {
    type Ask = CellRequest;

    /// Page numbers in the table, in the order of the asks.
    type About = Vec<usize>;

    const LANES: u8 = LANES;

    const IDLE_MAX: Duration = Duration::MAX;

    const LANE_FIRST: u8 = 0;

    fn new(place: SequencePosition, asks: Vec<CellRequest>) -> SyncBatch {
        SyncBatch { place, asks }
    }

    fn place(&self) -> &SequencePosition {
        &self.place
    }
}

impl SequencedBatch for PermitCommand {
    type Ask = PermitRequest;

    /// Page numbers in the table, in the order of the asks.
    type About = Vec<usize>;

    const LANES: u8 = LANES;

    const IDLE_MAX: Duration = Duration::MAX;

    const LANE_FIRST: u8 = 32;

    fn new(place: SequencePosition, asks: Vec<PermitRequest>) -> PermitCommand {
        PermitCommand { place, asks }
    }

    fn place(&self) -> &SequencePosition {
        &self.place
    }
}

impl SequencedBatch for Payment {
    type Ask = KeyPayment;

    /// The needs, in the order of the costs, and the ticket's number.
    type About = (Vec<Shortfall>, u64);

    const LANES: u8 = 192;

    // Redis has forgotten a lane idle for longer and would answer `Unknown`, wasting the call.
    const IDLE_MAX: Duration = REMEMBERED;

    // Payments use a host name of their own.
    const LANE_FIRST: u8 = 0;

    fn new(place: SequencePosition, costs: Vec<KeyPayment>) -> Payment {
        Payment { place, costs }
    }

    fn place(&self) -> &SequencePosition {
        &self.place
    }
}

#[derive(Debug)]
pub(super) struct Sequences<B: SequencedBatch = SyncBatch> {
    bucket: Bucket,
    lanes: Vec<Sequence<B>>,
    /// The bucket's nonce in the last reply.
    pub(super) nonce: Option<Nonce>,
    /// Pages waiting for a free lane, oldest first.
    waiting: VecDeque<usize>,
}

#[derive(Debug)]
struct Sequence<B: SequencedBatch> {
    epoch: u64,
    seq: u64,
    used: Timestamp,
    flight: Option<UnansweredBatch<B>>,
}

/// An unanswered batch.
#[derive(Debug)]
pub(super) struct UnansweredBatch<B: SequencedBatch = SyncBatch> {
    pub(super) batch: B,
    pub(super) about: B::About,
    /// Time of the first send.
    pub(super) sent: Timestamp,
    /// Time of the next send; `None` while a send is under way.
    pub(super) again: Option<Timestamp>,
    pub(super) is_repeated: bool,
}

impl<B: SequencedBatch> Sequences<B> {
    pub(super) fn new(bucket: Bucket) -> Sequences<B> {
        Sequences { bucket, lanes: Vec::new(), nonce: None, waiting: VecDeque::new() }
    }

    pub(super) fn has_room(&self) -> bool {
        self.lanes.len() < usize::from(B::LANES) || self.lanes.iter().any(|lane| lane.flight.is_none())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.lanes.iter().any(|lane| lane.flight.is_some())
    }

    /// Queues a page until a lane is free.
    pub(super) fn wait(&mut self, page: usize) {
        self.waiting.push_back(page);
    }

    pub(super) fn has_room_for_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.has_room()
    }

    /// Removes the page that has waited longest, if a lane is free.
    pub(super) fn take_waiting(&mut self) -> Option<usize> {
        if self.has_room_for_waiting() { self.waiting.pop_front() } else { None }
    }

    /// Sends a batch.
    ///
    /// # Errors
    /// No lane is free; returns `about`.
    pub(super) fn send(
        &mut self,
        (host, epoch, offer): (Host, u64, Nonce),
        asks: Vec<B::Ask>,
        about: B::About,
        now: Timestamp,
    ) -> Result<&B, B::About> {
        if !self.has_room() {
            return Err(about);
        }
        let free = self.lanes.iter().position(|lane| lane.flight.is_none());
        let index = free.unwrap_or(self.lanes.len());
        if free.is_none() {
            self.lanes.push(Sequence { epoch, seq: 0, used: now, flight: None });
        }
        let (Some(lane), Ok(number)) = (self.lanes.get_mut(index), u8::try_from(index)) else {
            return Err(about);
        };
        if now.since(lane.used) >= B::IDLE_MAX {
            lane.renew();
        }
        lane.seq += 1;
        lane.used = now;
        let place = SequencePosition {
            bucket: self.bucket,
            host,
            lane: B::LANE_FIRST + number,
            epoch: lane.epoch,
            seq: lane.seq,
            offer,
            known: self.nonce,
        };
        let flight =
            UnansweredBatch { batch: B::new(place, asks), about, sent: now, again: None, is_repeated: false };
        Ok(&lane.flight.insert(flight).batch)
    }

    /// Removes the batch at `place`, if it is in flight.
    pub(super) fn land(&mut self, place: &SequencePosition) -> Option<UnansweredBatch<B>> {
        self.lane(place.lane)?.flight.take_if(|flight| flight.batch.place() == place)
    }

    /// Schedules a resend of the batch at `place`.
    pub(super) fn repeat(&mut self, place: &SequencePosition, at: Timestamp) {
        let flight = self.lane(place.lane).and_then(|lane| lane.flight.as_mut());
        if let Some(flight) = flight.filter(|flight| flight.batch.place() == place) {
            flight.again = Some(at);
            flight.is_repeated = true;
        }
    }

    /// Starts a new epoch of a lane, which ends all earlier calls in it.
    pub(super) fn renew(&mut self, lane: u8) {
        if let Some(lane) = self.lane(lane) {
            lane.renew();
        }
    }

    fn lane(&mut self, number: u8) -> Option<&mut Sequence<B>> {
        self.lanes.get_mut(usize::from(number.checked_sub(B::LANE_FIRST)?))
    }

    pub(super) fn renew_all(&mut self) {
        self.lanes.iter_mut().for_each(Sequence::renew);
    }

    pub(super) fn flights(&mut self) -> impl Iterator<Item = &mut UnansweredBatch<B>> {
        self.lanes.iter_mut().filter_map(|lane| lane.flight.as_mut())
    }

    /// Removes batches whose sequence numbers Redis may have forgotten: their effect stays unknown.
    pub(super) fn give_up(&mut self, now: Timestamp) -> Vec<UnansweredBatch<B>> {
        let mut given_up = Vec::new();
        for lane in &mut self.lanes {
            if let Some(flight) = lane.flight.take_if(|flight| now.since(flight.sent) > REMEMBERED) {
                given_up.push(flight);
                lane.renew();
            }
        }
        given_up
    }
}

impl<B: SequencedBatch> Sequence<B> {
    fn renew(&mut self) {
        self.epoch += 1;
        self.seq = 0;
    }
}

/// Redis remembers sequence numbers for this time plus 10 s.
const REMEMBERED: Duration = Duration::from_secs(50);

/// Batches of one bucket in flight: with two buckets 1000 cells, or 2000 cells/s at a round trip of 0.5 s.
const LANES: u8 = 16;

#[cfg(test)]
mod tests {
    use super::{Bucket, LANES, Sequences, SyncBatch};
    use crate::clock::Timestamp;

    #[test]
    fn what_finds_no_lane_is_given_back_and_who_waits_is_taken_in_order() {
        let mut lanes = Sequences::<SyncBatch>::new(Bucket::from_number(3));
        let send = |lanes: &mut Sequences, page| {
            let sent = lanes.send(([1; 16], 7, [2; 16]), Vec::new(), vec![page], Timestamp::ORIGIN);
            sent.map(|batch| batch.place)
        };
        let places: Vec<_> = (0..usize::from(LANES)).map(|page| send(&mut lanes, page).unwrap()).collect();
        assert_eq!(send(&mut lanes, 99), Err(vec![99]), "no lane is free");
        [5, 4, 6].into_iter().for_each(|page| lanes.wait(page));
        assert!(!lanes.has_room_for_waiting() && lanes.take_waiting().is_none());
        assert_eq!(lanes.land(&places[2]).unwrap().about, [2]);
        let taken: Vec<_> = std::iter::from_fn(|| lanes.take_waiting()).collect();
        assert_eq!(taken, [5, 4, 6]);
        let again = send(&mut lanes, 99).unwrap();
        assert_eq!((again.lane, again.seq), (places[2].lane, places[2].seq + 1));
    }
}
