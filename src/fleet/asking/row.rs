//! The payments of one bucket that are on their way: one in each lane, under a number, to be said again in the same words
//! until somebody answers.

use crate::clock::Timestamp;
use crate::engine::Need;
use crate::fleet::call::{Bucket, COSTS_MAX, Cost, Host, Nonce, Payment, Place};
use arrayvec::ArrayVec;
use std::time::Duration;

/// The lanes of one bucket.
#[derive(Debug)]
pub(super) struct Row {
    bucket: Bucket,
    /// The life of the bucket, as last heard.
    pub(super) nonce: Option<Nonce>,
    lanes: Vec<Lane>,
}

#[derive(Debug)]
struct Lane {
    epoch: u64,
    seq: u64,
    /// When it was last sent on.
    used: Timestamp,
    flight: Option<Flight>,
}

/// A payment that nobody has answered yet.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) payment: Payment,
    /// What it pays for, in its order.
    pub(super) needs: ArrayVec<Need, COSTS_MAX>,
    pub(super) ticket: u64,
    pub(super) sent: Timestamp,
    /// When to say it again; `None`: it is on its way.
    again: Option<Timestamp>,
}

impl Row {
    pub(super) fn new(bucket: Bucket) -> Row {
        Row { bucket, nonce: None, lanes: Vec::new() }
    }

    /// Whether somebody is yet to answer.
    pub(super) fn is_busy(&self) -> bool {
        self.lanes.iter().any(|lane| lane.flight.is_some())
    }

    /// Whether another payment can be sent.
    pub(super) fn has_room(&self) -> bool {
        self.lanes.len() < usize::from(LANES) || self.lanes.iter().any(|lane| lane.flight.is_none())
    }

    /// Sends a payment off. There is room for it: its ticket would wait in vain.
    pub(super) fn send(
        &mut self,
        (host, offer): (Host, Nonce),
        costs: Vec<(Need, Cost)>,
        ticket: u64,
        now: Timestamp,
    ) -> &Payment {
        assert!(self.has_room(), "whoever sends sees that there is room first");
        let free = self.lanes.iter().position(|lane| lane.flight.is_none());
        let number = free.unwrap_or_else(|| {
            self.lanes.push(Lane { epoch: 1, seq: 0, used: now, flight: None });
            self.lanes.len() - 1
        });
        #[allow(clippy::indexing_slicing, reason = "it was found, or is new")]
        let lane = &mut self.lanes[number];
        if now.since(lane.used) >= REMEMBERED {
            // Redis would say that it knows nothing of this lane, and the call would be in vain.
            lane.renew();
        }
        lane.seq += 1;
        lane.used = now;
        let place = Place {
            bucket: self.bucket,
            host,
            lane: u8::try_from(number).unwrap_or_else(|_| unreachable!("a byte counts the lanes")),
            epoch: lane.epoch,
            seq: lane.seq,
            offer,
            known: self.nonce,
        };
        let (needs, costs) = costs.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        let payment = Payment { place, costs };
        let flight = Flight { payment, needs: needs.into_iter().collect(), ticket, sent: now, again: None };
        &lane.flight.insert(flight).payment
    }

    /// Takes the payment that was at this place, if it is still on its way.
    pub(super) fn land(&mut self, place: &Place) -> Option<Flight> {
        self.lane(place.lane)?.flight.take_if(|flight| flight.payment.place == *place)
    }

    /// The payment at this place is to be said again then.
    pub(super) fn repeat(&mut self, place: &Place, at: Timestamp) {
        let flight = self.lane(place.lane).and_then(|lane| lane.flight.as_mut());
        if let Some(flight) = flight.filter(|flight| flight.payment.place == *place) {
            flight.again = Some(at);
        }
    }

    /// A lane begins anew: what was before it in this lane is over.
    pub(super) fn renew(&mut self, lane: u8) {
        if let Some(lane) = self.lane(lane) {
            lane.renew();
        }
    }

    /// The payments that are to be said again by now.
    pub(super) fn due(&mut self, now: Timestamp) -> impl Iterator<Item = &Payment> {
        self.lanes.iter_mut().filter_map(move |lane| {
            let flight = lane.flight.as_mut()?;
            flight.again.take_if(|again| *again <= now).map(|_| &flight.payment)
        })
    }

    /// Whether one that was first sent so long ago was heard will never be known.
    pub(super) fn give_up(&mut self, now: Timestamp) {
        for lane in &mut self.lanes {
            if lane.flight.take_if(|flight| now.since(flight.sent) > REMEMBERED).is_some() {
                lane.renew();
            }
        }
    }

    fn lane(&mut self, number: u8) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(number))
    }
}

impl Lane {
    fn renew(&mut self) {
        self.epoch += 1;
        self.seq = 0;
    }
}

/// Payments of one bucket on their way at once.
const LANES: u8 = 192;

/// As long as Redis remembers the numbers of calls, less some.
const REMEMBERED: Duration = Duration::from_secs(50);
