//! JSON lines: reads, checks and plays each line. The first invalid line ends the trace.

use std::collections::HashSet;

use arrayvec::ArrayVec;
use foldhash::fast::FixedState;

use super::access_log::AccessLine;
use super::event::{Action, EventConsumer, IdDigest, LeaseOwner, TraceEvent, TraceFailure, TraceText};
use super::json_line::{JsonLine, JsonList, JsonText, Quantity, time};
use crate::clock::{Micros, Timestamp};
use crate::engine::{self, IdempotencyKey, Op, WorkOutcome};
use crate::protocol::{
    self, COST_MAX, CheckRequest, DescriptorList, FrameSplit, PAIRS_MAX, PERMILLE_MAX, RequestFrame,
    RequestOptions, decode_request, encode_request, is_name, split_frame,
};
use crate::rules::shown;
use crate::server::to_engine_cost;

/// State over the lines: used ids and the latest time.
#[derive(Debug, Default)]
pub(super) struct Jsonl {
    /// The used ids as 128-bit digests; with `IDS_MAX` ids, the probability of a collision is below 10⁻²³.
    ids: HashSet<IdDigest, FixedState>,
    newest: Timestamp,
}

impl Jsonl {
    pub(super) fn line(
        &mut self,
        text: &[u8],
        number: u64,
        stage: &mut impl EventConsumer,
    ) -> Result<(), TraceFailure> {
        let played = self.play(text, number, stage);
        played.unwrap_or_else(|wrong| Err(TraceFailure::Line { number, wrong }))
    }

    /// Reads a line and plays it. The outer error is one of the line, the inner one that of `stage`.
    fn play(
        &mut self,
        text: &[u8],
        number: u64,
        stage: &mut impl EventConsumer,
    ) -> Result<Result<(), TraceFailure>, String> {
        let line: JsonLine<'_> =
            serde_json::from_slice(text).map_err(|error| match AccessLine::read(text) {
                Ok(_) => "a line of an access log\nhelp: --trace-format combined".to_owned(),
                Err(_) => format!("not a line of a trace: {}", json_error(&error)),
            })?;
        let at = self.time(line.t.get())?;
        let (t, id) = (TraceText::Written(line.t), line.id.map(TraceText::Written));
        let mut play = |action: Action<'_>| stage.play(&TraceEvent { line: number, at, t, id, action });
        let op = match line.op.as_deref().unwrap_or("hit") {
            "hit" => Op::Hit,
            "peek" => Op::Peek,
            "acquire" if line.id.is_none() => return Err(missing(&line, "id")),
            "acquire" => Op::Acquire,
            "charge" => {
                session(&line)?;
                self.note_id(&line)?;
                return charge(&line, domain(&line)?, |charge, work| play(Action::Charge(charge, work)));
            }
            op => return Ok(play(other(&line, op)?)),
        };
        let by = LeaseOwner { session: session(&line)?, id: self.note_id(&line)? };
        judge(&line, domain(&line)?, op, |request| play(Action::Judge(request, by)))
    }

    fn time(&mut self, text: &str) -> Result<Timestamp, String> {
        let help = "write seconds from 0 as a decimal of at most 9 places, such as 0.25";
        let at = time(text).ok_or_else(|| format!("`t` is {}: {help}", shown(text)))?;
        if at < self.newest {
            return Err(format!("`t` is {text}, before the line above: sort the trace by time"));
        }
        self.newest = at;
        Ok(at)
    }

    fn note_id(&mut self, line: &JsonLine<'_>) -> Result<Option<IdDigest>, String> {
        let Some(text) = line.id.map(serde_json::value::RawValue::get) else { return Ok(None) };
        let id = IdDigest::of(text);
        // At the bound, new ids are no longer recorded.
        let is_new = if self.ids.len() < IDS_MAX { self.ids.insert(id) } else { !self.ids.contains(&id) };
        if is_new { Ok(Some(id)) } else { Err(format!("id {} was used before", shown(text))) }
    }
}

/// Checks a `hit`, `peek` or `acquire` of a domain and passes it to `play`.
pub(crate) fn judge<T>(
    line: &JsonLine<'_>,
    domain: &str,
    op: Op,
    play: impl FnOnce(engine::Request<'_>) -> T,
) -> Result<T, String> {
    let mut descriptors = DescriptorList::new();
    read_descriptors(line, &mut descriptors)?;
    let units: Vec<(&str, u64)>;
    let asked = match &line.cost {
        None => protocol::CostField::Requests(1),
        Some(Quantity::Requests(number)) => protocol::CostField::Requests(cost_from(*number)?),
        Some(Quantity::Units(costs)) => {
            let read = costs.iter().map(|(unit, number)| Ok((&**unit, cost_from(*number)?)));
            units = read.collect::<Result<_, String>>()?;
            protocol::CostField::Units(units.as_slice().into())
        }
    };
    let (cost, oversized) = to_engine_cost(&asked);
    let priority = line.priority.as_deref();
    let judge =
        CheckRequest { cost: asked, priority, options: options(line), ..CheckRequest::new(0, domain) };
    as_frame(&RequestFrame::Check(Op::Hit, judge), &descriptors)?;
    Ok(play(engine::Request {
        cost,
        oversized,
        priority,
        wait_max: line.max_wait_us.map(Micros),
        queued: line.queued_us.map(Micros),
        idempotency_key: repeat(line),
        ..engine::Request::new(op, domain, of_engine(&descriptors))
    }))
}

/// Checks a `charge` of a domain and passes it to `play`.
pub(crate) fn charge<T>(
    line: &JsonLine<'_>,
    domain: &str,
    play: impl FnOnce(engine::Charge<'_>, Option<IdDigest>) -> T,
) -> Result<T, String> {
    let mut descriptors = DescriptorList::new();
    read_descriptors(line, &mut descriptors)?;
    let units: Vec<(&str, i64)>;
    let (asked, amount) = match line.amount.as_ref().ok_or_else(|| missing(line, "amount"))? {
        Quantity::Requests(number) => {
            let number = amount_of(*number);
            (protocol::AmountField::Requests(number), engine::Amount::Requests(number))
        }
        Quantity::Units(named) => {
            units = named.iter().map(|(unit, number)| (&**unit, amount_of(*number))).collect();
            (protocol::AmountField::Units(units.as_slice().into()), engine::Amount::Units(&units))
        }
    };
    let asked = protocol::ChargeFrame { id: Some(0), domain, amount: asked, options: options(line) };
    as_frame(&RequestFrame::Charge(asked), &descriptors)?;
    let descriptors = of_engine(&descriptors);
    let of = line.of.as_deref().map(|name| engine::RefundReference::IdempotencyKey(name.as_bytes()));
    let of = of.map(|of| engine::RefundBy { user: 0, reference: of });
    let charge = engine::Charge {
        domain,
        descriptors,
        amount,
        idempotency_key: repeat(line),
        refund_of: of,
        trusted: true,
    };
    Ok(play(charge, line.of_id.map(|id| IdDigest::of(id.get()))))
}

fn other<'l>(line: &'l JsonLine<'_>, op: &str) -> Result<Action<'l>, String> {
    Ok(match op {
        "release" => {
            let id = id(line)?;
            let outcome = line.outcome.as_deref().map_or(Ok(WorkOutcome::Error), str::parse);
            let range = "\"ok\", \"error\" or \"dropped\"";
            let outcome = outcome.map_err(|_| out_of_range("outcome", range))?;
            Action::Release(id, outcome)
        }
        "renew" => Action::Renew(id(line)?),
        "signal" => {
            let (pool, name) =
                (name(line, "pool", line.pool.as_ref())?, name(line, "name", line.name.as_ref())?);
            let permille = line.permille.ok_or_else(|| missing(line, "permille"))?;
            let permille = u16::try_from(permille).ok().filter(|permille| *permille <= PERMILLE_MAX);
            let range = "an integer from 0 to 1000";
            let permille = permille.ok_or_else(|| out_of_range("permille", range))?;
            Action::Signal { session: session(line)?, pool, name, permille }
        }
        "hello" => {
            let session = name(line, "session", line.session.as_ref())?;
            let pool = line.pool.as_ref().map_or(Ok(POOL), |pool| name(line, "pool", Some(pool)))?;
            Action::Hello { session, pool, slots: line.slots.unwrap_or_default() }
        }
        "bye" => Action::Bye(name(line, "session", line.session.as_ref())?),
        "reload" => Action::Reload(line.rules.as_deref().ok_or_else(|| missing(line, "rules"))?),
        unknown => return Err(format!("unknown op {}: write {OPS}", shown(unknown))),
    })
}

fn id(line: &JsonLine<'_>) -> Result<IdDigest, String> {
    line.id.map(|id| IdDigest::of(id.get())).ok_or_else(|| missing(line, "id"))
}

fn domain<'l>(line: &'l JsonLine<'_>) -> Result<&'l str, String> {
    line.domain.as_deref().ok_or_else(|| missing(line, "domain"))
}

fn session<'l>(line: &'l JsonLine<'_>) -> Result<Option<&'l str>, String> {
    line.session.as_ref().map(|session| name(line, "session", Some(session))).transpose()
}

/// Checks that a field is present and a valid name.
fn name<'l>(line: &JsonLine<'_>, field: &str, name: Option<&'l JsonText<'_>>) -> Result<&'l str, String> {
    let name = name.ok_or_else(|| missing(line, field))?;
    if is_name(name) { Ok(name) } else { Err(out_of_range(field, NAME)) }
}

fn read_descriptors<'l>(line: &'l JsonLine<'_>, descriptors: &mut DescriptorList<'l>) -> Result<(), String> {
    let written = line.descriptors.as_ref().ok_or_else(|| missing(line, "descriptors"))?;
    for JsonList(texts) in &written.0 {
        let (pairs, odd) = texts.as_chunks();
        if !odd.is_empty() || pairs.len() > PAIRS_MAX {
            return Err(DESCRIPTORS.to_owned());
        }
        // Build the list in place instead of moving its 512 bytes for every line.
        let mut list = ArrayVec::<(&str, &str), PAIRS_MAX>::new_const();
        list.extend(pairs.iter().map(|[key, value]| (&**key, &**value)));
        if !descriptors.push(&list) {
            return Err(DESCRIPTORS.to_owned());
        }
    }
    Ok(())
}

fn of_engine<'d>(descriptors: &'d DescriptorList<'d>) -> engine::Descriptors<'d> {
    engine::Descriptors { attributes: descriptors.attributes(), ends: descriptors.ends() }
}

/// The idempotency key of a line. All lines without a session share one.
fn repeat<'l>(line: &'l JsonLine<'_>) -> Option<IdempotencyKey<'l>> {
    let session = line.session.as_deref().unwrap_or_default().as_bytes();
    line.idem.as_deref().map(|name| IdempotencyKey { session, user: 0, name: name.as_bytes() })
}

fn options<'l>(line: &'l JsonLine<'_>) -> RequestOptions<'l> {
    RequestOptions {
        idem: line.idem.as_deref().map(str::as_bytes),
        of: line.of.as_deref().map(|name| protocol::RefundReference::IdempotencyKey(name.as_bytes())),
        queued_us: line.queued_us,
        max_wait_us: line.max_wait_us,
        all: true,
        ..RequestOptions::default()
    }
}

fn amount_of(number: i64) -> i64 {
    number.clamp(-i64::from(COST_MAX), i64::from(COST_MAX))
}

fn cost_from(number: i64) -> Result<u64, String> {
    u64::try_from(number).map_err(|_| out_of_range("cost", "0 or more"))
}

fn out_of_range(field: &str, range: &str) -> String {
    format!("`{field}` must be {range}")
}

fn missing(line: &JsonLine<'_>, field: &str) -> String {
    let op = line.op.as_deref().unwrap_or("hit");
    format!("{op} needs `{field}`{}", example(field))
}

/// An example of a missing field, where one helps.
fn example(field: &str) -> &'static str {
    match field {
        "descriptors" => ", such as [[\"user\", \"u1\"]]",
        "amount" => ", such as 3, -1 or {\"tokens\": 812}",
        "rules" => ", a directory or file beside the trace",
        "permille" => ", from 0 to 1000",
        _ => "",
    }
}

/// Formats an error of serde_json without its line number, which is always 1 here.
fn json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let suffix = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&suffix) {
        Some(what) => format!("{what} (column {})", error.column()),
        None => text,
    }
}

/// 16 bytes each in a table that may be half empty: about 1 GB.
const IDS_MAX: usize = 32_000_000;

/// The pool of sessions that name none.
const POOL: &str = "default";

const OPS: &str = "hit, peek, acquire, release, renew, charge, signal, hello, bye or reload";

/// Why descriptors are invalid.
pub(crate) const DESCRIPTORS: &str =
    "a descriptor is a flat list of keys and values, at most 16 pairs in each of at most 8";

const NAME: &str = "a name: 1 to 64 bytes without control characters, ':' or '/'";

/// Checks a request as the socket would. An error says why the socket would reject it.
pub(crate) fn as_frame(asked: &RequestFrame<'_>, descriptors: &DescriptorList<'_>) -> Result<(), String> {
    let mut frame = Vec::new();
    encode_request(&mut frame, asked, descriptors).map_err(|wrong| wrong.to_string())?;
    let FrameSplit::Frame { payload, .. } = split_frame(&frame) else { return Ok(()) };
    let decoded = decode_request(payload, &mut DescriptorList::new());
    decoded.map(drop).map_err(|wrong| wrong.to_string())
}
