//! The batches of one bucket of cells that are on their way: one in each lane, under a number, to be repeated with the same
//! bytes until somebody answers.

use super::call::{Batch, Bucket, Cost, Host, Nonce, Payment, Place};
use super::cell::Ask;
use super::places::{Places, PlacesAsk};
use crate::clock::Timestamp;
use crate::engine::Need;
use std::collections::VecDeque;
use std::time::Duration;

/// Calls of one kind, each with a number in its lane.
pub(super) trait Numbered {
    type Ask;

    /// What an answer is needed for.
    type About: std::fmt::Debug;

    /// Calls of one bucket in flight at once.
    const LANES: u8;

    /// A lane that is idle for longer begins anew before its next call.
    const IDLE_MAX: Duration;

    /// The first of the lanes that are for such calls alone.
    const LANE_FIRST: u8;

    fn new(place: Place, asks: Vec<Self::Ask>) -> Self;

    fn place(&self) -> &Place;
}

impl Numbered for Batch {
    type Ask = Ask;

    /// The pages, in the order of the asks.
    type About = Vec<usize>;

    const LANES: u8 = LANES;

    const IDLE_MAX: Duration = Duration::MAX;

    const LANE_FIRST: u8 = 0;

    fn new(place: Place, asks: Vec<Ask>) -> Batch {
        Batch { place, asks }
    }

    fn place(&self) -> &Place {
        &self.place
    }
}

impl Numbered for Places {
    type Ask = PlacesAsk;

    /// The pages, in the order of the asks.
    type About = Vec<usize>;

    const LANES: u8 = LANES;

    const IDLE_MAX: Duration = Duration::MAX;

    const LANE_FIRST: u8 = 32;

    fn new(place: Place, asks: Vec<PlacesAsk>) -> Places {
        Places { place, asks }
    }

    fn place(&self) -> &Place {
        &self.place
    }
}

impl Numbered for Payment {
    type Ask = Cost;

    /// The needs, in the order of the costs, and the number of the ticket.
    type About = (Vec<Need>, u64);

    const LANES: u8 = 192;

    // Redis would say that it knows nothing of such a lane, and the call would be in vain.
    const IDLE_MAX: Duration = REMEMBERED;

    // Payments go by a host name of their own.
    const LANE_FIRST: u8 = 0;

    fn new(place: Place, costs: Vec<Cost>) -> Payment {
        Payment { place, costs }
    }

    fn place(&self) -> &Place {
        &self.place
    }
}

/// The lanes of one bucket.
#[derive(Debug)]
pub(super) struct Lanes<B: Numbered = Batch> {
    bucket: Bucket,
    lanes: Vec<Lane<B>>,
    /// The life of the bucket, as last heard.
    pub(super) nonce: Option<Nonce>,
    /// Pages that have something to say as soon as a lane is free, in their order.
    waiting: VecDeque<usize>,
}

#[derive(Debug)]
struct Lane<B: Numbered> {
    epoch: u64,
    seq: u64,
    used: Timestamp,
    flight: Option<Flight<B>>,
}

/// A batch that nobody has answered yet.
#[derive(Debug)]
pub(super) struct Flight<B: Numbered = Batch> {
    pub(super) batch: B,
    pub(super) about: B::About,
    /// When it was first sent.
    pub(super) sent: Timestamp,
    /// When to send it again; `None`: it is on its way.
    pub(super) again: Option<Timestamp>,
    /// It was, or is to be, sent more than once.
    pub(super) is_repeated: bool,
}

impl<B: Numbered> Lanes<B> {
    pub(super) fn new(bucket: Bucket) -> Lanes<B> {
        Lanes { bucket, lanes: Vec::new(), nonce: None, waiting: VecDeque::new() }
    }

    /// Whether a batch can be sent.
    pub(super) fn has_room(&self) -> bool {
        self.lanes.len() < usize::from(B::LANES) || self.lanes.iter().any(|lane| lane.flight.is_none())
    }

    /// Whether any batch is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.lanes.iter().any(|lane| lane.flight.is_some())
    }

    /// A page waits until a lane is free.
    pub(super) fn wait(&mut self, page: usize) {
        self.waiting.push_back(page);
    }

    /// Whether somebody waits, and need not any longer.
    pub(super) fn has_room_for_waiting(&self) -> bool {
        !self.waiting.is_empty() && self.has_room()
    }

    /// Who has waited longest, if a lane is free.
    pub(super) fn take_waiting(&mut self) -> Option<usize> {
        if self.has_room_for_waiting() { self.waiting.pop_front() } else { None }
    }

    /// Sends a batch off.
    ///
    /// # Errors
    /// No lane is free: what the batch was for.
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
            self.lanes.push(Lane { epoch, seq: 0, used: now, flight: None });
        }
        let (Some(lane), Ok(number)) = (self.lanes.get_mut(index), u8::try_from(index)) else {
            return Err(about);
        };
        if now.since(lane.used) >= B::IDLE_MAX {
            lane.renew();
        }
        lane.seq += 1;
        lane.used = now;
        let place = Place {
            bucket: self.bucket,
            host,
            lane: B::LANE_FIRST + number,
            epoch: lane.epoch,
            seq: lane.seq,
            offer,
            known: self.nonce,
        };
        let flight = Flight { batch: B::new(place, asks), about, sent: now, again: None, is_repeated: false };
        Ok(&lane.flight.insert(flight).batch)
    }

    /// Takes the batch that was at this place, if it is still on its way.
    pub(super) fn land(&mut self, place: &Place) -> Option<Flight<B>> {
        self.lane(place.lane)?.flight.take_if(|flight| flight.batch.place() == place)
    }

    /// The batch at this place is to be sent again then.
    pub(super) fn repeat(&mut self, place: &Place, at: Timestamp) {
        let flight = self.lane(place.lane).and_then(|lane| lane.flight.as_mut());
        if let Some(flight) = flight.filter(|flight| flight.batch.place() == place) {
            flight.again = Some(at);
            flight.is_repeated = true;
        }
    }

    /// A lane begins anew: what was before it in this lane is over.
    pub(super) fn renew(&mut self, lane: u8) {
        if let Some(lane) = self.lane(lane) {
            lane.renew();
        }
    }

    fn lane(&mut self, number: u8) -> Option<&mut Lane<B>> {
        self.lanes.get_mut(usize::from(number.checked_sub(B::LANE_FIRST)?))
    }

    /// All of them begin anew, under another name.
    pub(super) fn renew_all(&mut self) {
        self.lanes.iter_mut().for_each(Lane::renew);
    }

    /// Every batch that nobody has answered.
    pub(super) fn flights(&mut self) -> impl Iterator<Item = &mut Flight<B>> {
        self.lanes.iter_mut().filter_map(|lane| lane.flight.as_mut())
    }

    /// Takes the batches that Redis may have forgotten the numbers of: whether they were heard will never be known.
    pub(super) fn give_up(&mut self, now: Timestamp) -> Vec<Flight<B>> {
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

impl<B: Numbered> Lane<B> {
    fn renew(&mut self) {
        self.epoch += 1;
        self.seq = 0;
    }
}

/// Redis remembers the numbers of calls for so long, and ten seconds.
const REMEMBERED: Duration = Duration::from_secs(50);

/// Batches of one bucket on their way at once: with two buckets a thousand cells, which is two thousand a second of a Redis that is
/// half a second away.
const LANES: u8 = 16;

#[cfg(test)]
mod tests {
    use super::{Batch, Bucket, LANES, Lanes};
    use crate::clock::Timestamp;

    #[test]
    fn what_finds_no_lane_is_given_back_and_who_waits_is_taken_in_order() {
        let mut lanes = Lanes::<Batch>::new(Bucket::from_number(3));
        let send = |lanes: &mut Lanes, page| {
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
