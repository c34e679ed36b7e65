//! How a host hears what is said to all, and says something itself. No I/O: calls come out, what is said to them goes in.

use super::entry::{self, Moment, Read};
use super::{News, OrdersCall, OrdersSaid, Stamp};
use crate::clock::{Now, Timestamp};
use crate::engine::{FleetOrders, FleetWord};
use crate::fleet::call::Host;
use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Somebody's word, and where to say what became of it.
pub(in crate::fleet) type Spoken = (FleetWord, SyncSender<Result<bool, String>>);

/// How it stands.
#[derive(Debug)]
pub(in crate::fleet) struct Exchange {
    host: Host,
    /// What is known, as the engine has it.
    known: FleetOrders,
    words: VecDeque<Waiting>,
    /// The call that is on its way, and since when.
    sent: Option<(Sent, OrdersCall, Timestamp)>,
    asked: Option<Timestamp>,
    /// When Redis last said what time it is.
    moment: Option<Moment>,
    /// Redis is to be given the list again.
    is_behind: bool,
    refused: u64,
}

#[derive(Debug)]
struct Waiting {
    word: FleetWord,
    answer: SyncSender<Result<bool, String>>,
    since: Timestamp,
    /// The list was looked at since: what is said of it is said of what all know.
    has_looked: bool,
}

/// What is on its way.
#[derive(Debug)]
enum Sent {
    Look,
    /// This list again, as it is known.
    Again,
    /// This list, which has the first of the words in it.
    Word(FleetOrders),
}

impl Exchange {
    /// `known`: from the life before. `life`: bytes of chance, for a list of our own where there is none.
    pub(in crate::fleet) fn new(host: Host, mut known: FleetOrders, life: [u8; 16]) -> Exchange {
        if known.stamp == Stamp::default()
            && let Some(first) = known.stamp.first_chunk_mut()
        {
            *first = life;
        }
        Exchange {
            host,
            known,
            words: VecDeque::new(),
            sent: None,
            asked: None,
            moment: None,
            is_behind: false,
            refused: 0,
        }
    }

    /// Somebody has something to say.
    pub(in crate::fleet) fn say(&mut self, (word, answer): Spoken, now: Timestamp) {
        self.words.push_back(Waiting { word, answer, since: now, has_looked: false });
    }

    /// By what others know this host from now on.
    pub(in crate::fleet) fn renamed(&mut self, host: Host) {
        self.host = host;
    }

    /// What could not be meant, since the start.
    pub(in crate::fleet) fn refused(&self) -> u64 {
        self.refused
    }

    /// The call that is to go out now, if one is. `with_others`: others go to the same server now, so that it is as good a
    /// moment as any a little later.
    pub(in crate::fleet) fn due(&mut self, with_others: bool, now: Now) -> Option<OrdersCall> {
        self.give_up_late_ones(now.at);
        self.end(now.at);
        if self.sent.as_ref().is_some_and(|(.., since)| now.at.since(*since) < SILENT_MAX) {
            return None;
        }
        let (sent, put) = self.of_word(now.at).or_else(|| self.of_list(with_others, now.at))?;
        let call = OrdersCall { known: self.known.stamp, put };
        self.sent = Some((sent, call.clone(), now.at));
        self.asked = Some(now.at);
        Some(call)
    }

    /// To say the first of the words.
    fn of_word(&mut self, now: Timestamp) -> Option<(Sent, Option<Vec<u8>>)> {
        let moment = self.moment?;
        while let Some(waiting) = self.words.front().filter(|waiting| waiting.has_looked) {
            let (after, is_change) = self.known.after(&waiting.word);
            let list = match is_change {
                true => entry::list_of(&after, &self.host, self.moment_at(moment, now)).map(Some),
                false => Ok(None),
            };
            match list {
                Ok(Some(list)) => return Some((Sent::Word(after), Some(list))),
                Ok(None) => self.answer(Ok(false)),
                Err(too_long) => self.answer(Err(too_long.to_string())),
            }
        }
        None
    }

    fn of_list(&mut self, with_others: bool, now: Timestamp) -> Option<(Sent, Option<Vec<u8>>)> {
        if let (true, Some(moment)) = (self.is_behind, self.moment) {
            self.is_behind = false;
            let list = entry::list_of(&self.known, &self.host, self.moment_at(moment, now)).ok()?;
            return Some((Sent::Again, Some(list)));
        }
        let every = if with_others { EVERY / 2 } else { EVERY };
        let is_due = self.asked.is_none_or(|asked| now.since(asked) >= every) || !self.words.is_empty();
        is_due.then_some((Sent::Look, None))
    }

    fn moment_at(&self, moment: Moment, now: Timestamp) -> Moment {
        let passed = u64::try_from(now.since(moment.at).as_micros()).unwrap_or(0);
        Moment { redis_us: moment.redis_us.saturating_add(passed), at: now }
    }

    /// Takes what was said to a call. What holds from now on, if that is something else than before.
    pub(in crate::fleet) fn answered(
        &mut self,
        call: &OrdersCall,
        said: OrdersSaid,
        now: Timestamp,
    ) -> Option<FleetOrders> {
        let sent = self.is_answer_to(call)?;
        self.words.iter_mut().for_each(|waiting| waiting.has_looked = true);
        let moment = Moment { redis_us: said.now_us, at: now };
        self.moment = Some(moment);
        let news = match (said.news, sent) {
            (News::Same, _) => return None,
            (News::Behind, _) => {
                self.is_behind = true;
                return None;
            }
            (News::TooLong, _) => {
                self.refused += 1;
                FleetOrders { stamp: said.stamp, ..self.known.clone() }
            }
            (News::Changed(list), _) => {
                let Read { orders, refused } = entry::read(&list, moment);
                self.refused += refused;
                FleetOrders { stamp: said.stamp, ..orders }
            }
            (News::Written, Sent::Word(orders)) => {
                self.answer(Ok(true));
                // As all others read it.
                let list = entry::list_of(&orders, &self.host, moment).unwrap_or_default();
                FleetOrders { stamp: said.stamp, ..entry::read(&list, moment).orders }
            }
            (News::Written, Sent::Look) => return None,
            (News::Written, Sent::Again) => FleetOrders { stamp: said.stamp, ..self.known.clone() },
        };
        self.known = news.clone();
        Some(news)
    }

    /// What was sent was not answered. A word in it may have been heard all the same.
    pub(in crate::fleet) fn failed(&mut self, call: &OrdersCall) {
        if let Some(Sent::Word(_)) = self.is_answer_to(call) {
            self.answer(Err(NOT_SURE.to_owned()));
        }
    }

    /// What was sent, if this was it: what comes late is an answer to something that was given up.
    fn is_answer_to(&mut self, call: &OrdersCall) -> Option<Sent> {
        let (sent, ..) = self.sent.take_if(|(_, sent, _)| sent == call)?;
        Some(sent)
    }

    /// As the engine ends what has had its time, so that nothing is said again that is over.
    fn end(&mut self, now: Timestamp) {
        self.known.switches.retain(|switch| switch.until.is_none_or(|until| until > now));
        self.known.blocks.retain(|block| block.until > now);
    }

    fn give_up_late_ones(&mut self, now: Timestamp) {
        while self.words.front().is_some_and(|waiting| now.since(waiting.since) > PATIENCE) {
            let is_sent = matches!(self.sent, Some((Sent::Word(_), ..)));
            if is_sent {
                self.sent = None;
            }
            self.answer(Err(if is_sent { NOT_SURE } else { NOT_SAID }.to_owned()));
        }
    }

    fn answer(&mut self, answer: Result<bool, String>) {
        if let Some(waiting) = self.words.pop_front() {
            // Whoever asked may be gone.
            let _ = waiting.answer.try_send(answer);
        }
    }
}

/// How often it is looked whether there is anything new.
const EVERY: Duration = Duration::from_secs(1);

/// What was not answered by then is asked again. It does no harm twice.
const SILENT_MAX: Duration = Duration::from_secs(2);

/// What was not said by then is not said any more.
const PATIENCE: Duration = Duration::from_millis(2_500);

const NOT_SAID: &str = "Redis does not answer: nothing is said to the other hosts. `tidegate doctor` says what is wrong with it; without \
                        `--fleet` it holds on this host alone";
const NOT_SURE: &str = "Redis did not answer in time: the other hosts may have been told or not. `tidegate switch` shows it within \
                        seconds once Redis is heard; saying it again does no harm";
