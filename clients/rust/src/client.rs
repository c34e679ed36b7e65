//! The client: asks the daemon over one connection of this process, and decides without it if it must.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use crate::attributes::{Amount, Attributes, check_names, check_units, name_attributes};
use crate::breaker::{Breaker, Change, Permission};
use crate::builder::ClientBuilder;
use crate::check::{Check, OnFailure};
use crate::connection::{Connection, RequestKey};
use crate::decision::{Answer, Decision, Verdict};
use crate::fault::{Fault, Reason};
use crate::reports::{ReportGuard, Reports};
use crate::wire::{Elements, FRAME_BYTES_MAX, Op, Request, Value, is_name, shorten_idem};

/// Asks the daemon of this host. Make one per process and clone it: the first request connects.
#[derive(Clone, Debug)]
pub struct Client(Arc<ClientState>);

/// A client that does not keep its connection open.
#[derive(Debug)]
pub(crate) struct WeakClient(Weak<ClientState>);

/// The state that all clones share.
struct ClientState {
    options: ClientBuilder,
    timeout: Duration,
    session: OnceLock<Vec<u8>>,
    /// The connection in use, and the number of the last one.
    connection: Mutex<(Option<Arc<Connection>>, u64)>,
    /// Held while one caller connects.
    connecting: tokio::sync::Mutex<()>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    breaker: Breaker,
    missed: BTreeMap<Reason, u64>,
    refused: BTreeMap<Reason, u64>,
    /// Decisions and requests that the next request reports.
    unreported: Reports,
    logged: HashSet<String>,
    refuses: bool,
}

/// Counts since the start of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Decisions without the daemon.
    pub missed: BTreeMap<Reason, u64>,
    /// Refusals of invalid and forbidden requests.
    pub refused: BTreeMap<Reason, u64>,
    /// Whether a connection is open.
    pub is_connected: bool,
    /// Whether the breaker is open.
    pub is_breaker_open: bool,
}

impl Client {
    pub(crate) fn from_options(options: ClientBuilder, timeout: Duration) -> Client {
        Client(Arc::new(ClientState {
            options,
            timeout,
            session: OnceLock::new(),
            connection: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            counts: Mutex::default(),
        }))
    }

    /// Makes a client with default options.
    #[must_use]
    pub fn new() -> Client {
        Client::builder().build()
    }

    /// Returns the options of a client.
    #[must_use]
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Asks whether work may start that ends with [`Decision::release`].
    #[must_use = "it is sent when it is awaited"]
    pub fn acquire(&self, domain: impl Into<String>, attributes: impl Into<Attributes>) -> Check {
        Check::new(self, Op::Acquire, domain.into(), attributes.into())
    }

    /// As [`acquire`](Client::acquire), without a lease: for a message, a login attempt.
    #[must_use = "it is sent when it is awaited"]
    pub fn hit(&self, domain: impl Into<String>, attributes: impl Into<Attributes>) -> Check {
        Check::new(self, Op::Hit, domain.into(), attributes.into())
    }

    /// Returns the decision that [`acquire`](Client::acquire) would get; charges nothing.
    #[must_use = "it is sent when it is awaited"]
    pub fn peek(&self, domain: impl Into<String>, attributes: impl Into<Attributes>) -> Check {
        Check::new(self, Op::Peek, domain.into(), attributes.into())
    }

    /// Charges all matching rates after the fact, into debt. False: no rule matched, or the daemon does not answer.
    pub async fn charge(
        &self,
        domain: impl Into<String>,
        attributes: impl Into<Attributes>,
        amount: impl Into<Amount>,
    ) -> bool {
        self.charge_with(domain.into(), attributes.into(), amount.into(), Vec::new()).await
    }

    /// Refunds part of the request that had this idempotency key; `amount` is negative.
    pub async fn refund(
        &self,
        domain: impl Into<String>,
        attributes: impl Into<Attributes>,
        amount: impl Into<Amount>,
        of: &str,
    ) -> bool {
        let of = ("of".to_owned(), Value::Binary(shorten_idem(of).into_bytes()));
        self.charge_with(domain.into(), attributes.into(), amount.into(), vec![of]).await
    }

    /// Reports a utilization of this process, from 0 to 1, without waiting; the daemon drops it after 3 s.
    pub fn signal(&self, name: &str, utilization: f64) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 0 to 1 000")]
        let permille = (utilization.clamp(0.0, 1.0) * 1e3).round() as u64;
        let texts = [self.0.options.pool_name(), name].map(|text| Value::Text(text.to_owned()));
        let elements = Elements::new(&[&texts[..], &[Value::Unsigned(permille)]].concat());
        if let Some(connection) = self.connection().filter(|_| is_name(name)) {
            connection.send_silent(self, Op::Signal, &elements, None);
        }
    }

    /// Pings the daemon. False: it does not answer, the breaker is open, or the client is off.
    pub async fn check(&self) -> bool {
        self.done(Op::Ping, Elements::new(&[])).await
    }

    /// Returns the counts since the start.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let is_connected = self.connection().is_some();
        let counts = crate::lock(&self.0.counts);
        Stats {
            missed: counts.missed.clone(),
            refused: counts.refused.clone(),
            is_connected,
            is_breaker_open: counts.breaker.is_open(),
        }
    }

    /// Closes the connection; leases end 5 s later. The client may be used again.
    pub fn close(&self) {
        if let Some(connection) = crate::lock(&self.0.connection).0.take() {
            connection.end(self, None, false);
        }
    }

    /// Decides a request.
    pub(crate) async fn decide(&self, request: Result<Request, Fault>, on_failure: OnFailure) -> Decision {
        let began = Instant::now();
        let is_peek = request.as_ref().is_ok_and(|request| request.op == Op::Peek);
        crate::lock(&self.0.counts).refuses |= on_failure == OnFailure::Refuse;
        if let Some(off) = &self.0.options.off {
            self.log_once("TIDEGATE_DISABLE", || {
                format!("TIDEGATE_DISABLE is \"{off:.40}\": nothing is limited")
            });
        }
        let decision = match request {
            _ if self.0.options.is_disabled => Decision::without_daemon(Verdict::Allow, Reason::Disabled),
            Ok(request) => match self.ask_reporting(&request, began).await {
                Ok(decision) => self.decided(&request, decision),
                Err(fault) if fault.reason.is_refusal() => self.refuse(&fault),
                Err(fault) => self.degrade(&request, fault.reason, on_failure),
            },
            Err(fault) => self.refuse(&fault),
        };
        if let Some(observer) = self.0.options.on_decision.as_ref().filter(|_| !is_peek) {
            let told = catch_unwind(AssertUnwindSafe(|| observer(&decision, began.elapsed())));
            if told.is_err() {
                let text = "on_decision panicked: the decision is not affected";
                self.log_once(text, || text.to_owned());
            }
        }
        decision
    }

    fn decided(&self, request: &Request, mut decision: Decision) -> Decision {
        if let Some((_, reason)) = decision.notes.iter().find(|(kind, _)| kind == "unmatched") {
            let domain = &request.domain;
            self.log_once(&format!("no {reason} of {domain}"), || match &**reason {
                "domain" => format!("the rules have no domain {domain:?}; its requests are not limited"),
                _ => format!(
                    "no rule of the domain {domain:?} matches a request {}: it is not limited; `tidegate why {domain} …` says why",
                    name_attributes(&request.descriptors)
                ),
            });
        }
        if !decision.is_allowed() {
            decision.domain = Some(request.domain.clone());
        }
        if let Some(fallback) = &self.0.options.fallback {
            fallback.remember(request, &decision, Instant::now());
        }
        decision
    }

    /// Refuses an invalid or forbidden request, whatever the daemon does.
    fn refuse(&self, fault: &Fault) -> Decision {
        *crate::lock(&self.0.counts).refused.entry(fault.reason).or_default() += 1;
        let text = format!("{}; such requests are refused ({})", fault.text, fault.reason);
        self.log_once(&text, || text.clone());
        Decision::without_daemon(Verdict::Shed, fault.reason)
    }

    fn degrade(&self, request: &Request, reason: Reason, on_failure: OnFailure) -> Decision {
        let mut counts = crate::lock(&self.0.counts);
        *counts.missed.entry(reason).or_default() += 1;
        *counts.unreported.missed.entry(reason).or_default() += 1;
        drop(counts);
        let fallback = self.0.options.fallback.as_ref();
        fallback.and_then(|fallback| fallback.decide(request, Instant::now())).unwrap_or_else(|| {
            let is_refused = on_failure == OnFailure::Refuse;
            Decision::without_daemon(if is_refused { Verdict::Shed } else { Verdict::Allow }, reason)
        })
    }

    /// Asks for a decision, with the reports that no request carried yet.
    async fn ask_reporting(&self, request: &Request, began: Instant) -> Result<Decision, Fault> {
        let mut elements = request.elements()?;
        let mut guard = ReportGuard { client: self, reports: self.take_reports(elements.bytes.len()) };
        if !guard.reports.is_empty() {
            let options = [&request.options[..], &guard.reports.options()].concat();
            elements = Request { options, ..request.clone() }.elements()?;
        }
        match self.ask(request.op, &elements, began + self.0.timeout).await {
            Answer::Decision(decision) => {
                guard.reports = Reports::default();
                Ok(*decision)
            }
            Answer::Done(_) => Err(Fault::protocol("the daemon sent an unexpected frame")),
            Answer::Fault(fault) => Err(fault),
        }
    }

    /// Takes the reports for a request that has room for them: a larger one might lose a value.
    fn take_reports(&self, bytes: usize) -> Reports {
        let mut counts = crate::lock(&self.0.counts);
        if bytes < FRAME_BYTES_MAX / 4 { std::mem::take(&mut counts.unreported) } else { Reports::default() }
    }

    async fn charge_with(
        &self,
        domain: String,
        attributes: Attributes,
        Amount(cost): Amount,
        options: Vec<(String, Value)>,
    ) -> bool {
        let checked = check_names([&*domain].into_iter()).and_then(|()| check_units(&cost));
        let request = checked.and_then(|()| attributes.checked()).and_then(|descriptors| {
            Request { op: Op::Charge, domain, descriptors, cost, priority: None, options }.elements()
        });
        match request {
            Ok(elements) => self.done(Op::Charge, elements).await,
            Err(fault) => {
                self.refuse(&fault);
                false
            }
        }
    }

    /// Sends a request whose reply is DONE; returns its `ok`.
    pub(crate) async fn done(&self, op: Op, elements: Elements) -> bool {
        if self.0.options.is_disabled {
            return false;
        }
        match self.ask(op, &elements, Instant::now() + self.0.timeout).await {
            Answer::Done(ok) => ok,
            Answer::Fault(fault) if fault.reason.is_refusal() => {
                self.refuse(&fault);
                false
            }
            Answer::Decision(_) | Answer::Fault(_) => false,
        }
    }

    /// Asks unless the breaker is open; after its pause one caller probes.
    async fn ask(&self, op: Op, elements: &Elements, deadline: Instant) -> Answer {
        let permission = crate::lock(&self.0.counts).breaker.permission(Instant::now());
        match permission {
            Permission::Send => {}
            Permission::Stopped => {
                return Answer::Fault(Fault::new("the daemon did not answer before", Reason::Breaker));
            }
            Permission::Probe => match self.exchange(Op::Ping, &Elements::new(&[]), deadline).await {
                Answer::Fault(fault) => return Answer::Fault(fault),
                _ => crate::lock(&self.0.counts).breaker.probed(),
            },
        }
        self.exchange(op, elements, deadline).await
    }

    /// Exchanges a request and its reply. One that the daemon did not read is sent again, once; while the daemon has no room,
    /// until the deadline.
    async fn exchange(&self, op: Op, elements: &Elements, deadline: Instant) -> Answer {
        let began = Instant::now();
        let mut is_repeated = false;
        loop {
            let answer = match self.open(deadline).await {
                Ok(connection) => self.exchange_on(&connection, op, elements, deadline).await,
                Err(fault) => {
                    if !fault.is_own && fault.reason != Reason::Timeout {
                        self.settle(Some(&fault), began);
                    }
                    Answer::Fault(fault)
                }
            };
            let is_in_time = Instant::now() < deadline;
            match &answer {
                Answer::Fault(fault) if fault.is_full && is_in_time => tokio::time::sleep(ROOM_PERIOD).await,
                Answer::Fault(fault) if fault.is_unread && !is_repeated && is_in_time => is_repeated = true,
                Answer::Fault(fault) if !fault.is_kept => {
                    if fault.is_full || (fault.is_unread && is_repeated) {
                        self.settle(Some(fault), began);
                    }
                    return answer;
                }
                _ => {
                    if let Answer::Fault(fault) = &answer
                        && !fault.reason.is_refusal()
                    {
                        let text = format!("{}; such requests {}", fault.text, self.consequence());
                        self.log_once(&text, || text.clone());
                    }
                    if op != Op::Ping {
                        self.settle(None, began);
                    }
                    return answer;
                }
            }
        }
    }

    async fn exchange_on(
        &self,
        connection: &Arc<Connection>,
        op: Op,
        elements: &Elements,
        deadline: Instant,
    ) -> Answer {
        // Requests in flight have a deadline, so places become free, unless the application holds futures without a poll.
        let queued = Instant::now();
        let Ok(_place) = timeout_at(queued + self.0.timeout * QUEUED_TIMEOUTS_MAX, connection.place()).await
        else {
            return Answer::Fault(Fault {
                is_own: true,
                ..Fault::new("too many requests wait", Reason::Timeout)
            });
        };
        let deadline = deadline + queued.elapsed();
        let mut in_flight = match connection.send(self, op, elements, Instant::now()) {
            Ok(in_flight) => in_flight,
            Err(fault) => return Answer::Fault(fault),
        };
        if let Ok(answer) = timeout_at(deadline, &mut in_flight.reply).await {
            return answer
                .unwrap_or_else(|_| Answer::Fault(Fault::new("the client was closed", Reason::Unreachable)));
        }
        // A reply that is there counts, also if this process overslept.
        connection.read(self);
        if let Ok(answer) = in_flight.reply.try_recv() {
            return answer;
        }
        let late = Instant::now().saturating_duration_since(deadline);
        let fault = Fault::new("the daemon did not answer in time", Reason::Timeout);
        let fault = Fault { is_own: late > self.0.timeout / 2, ..fault };
        connection.end(self, Some(&fault), false);
        in_flight.reply.try_recv().unwrap_or(Answer::Fault(fault))
    }

    /// Returns the connection in use, or a new one.
    async fn open(&self, deadline: Instant) -> Result<Arc<Connection>, Fault> {
        let usable = || self.connection().filter(|connection| connection.is_usable());
        if let Some(connection) = usable() {
            return Ok(connection);
        }
        let own = || Fault { is_own: true, ..Fault::new("another request connects", Reason::Timeout) };
        let _connecting = timeout_at(deadline, self.0.connecting.lock()).await.map_err(|_| own())?;
        if let Some(connection) = usable() {
            return Ok(connection);
        }
        let number = crate::lock(&self.0.connection).1 + 1;
        let session = self.0.session.get_or_init(|| {
            let random = RandomState::new();
            (0..2_u64).flat_map(|part| random.hash_one(part).to_be_bytes()).collect()
        });
        let (path, hello) = (self.0.options.path(), self.0.options.hello(session, number));
        let opened = Connection::open(&path, number, &hello, deadline).await?;
        let connection = Arc::new(opened);
        *crate::lock(&self.0.connection) = (Some(Arc::clone(&connection)), number);
        tokio::spawn(Arc::clone(&connection).run(WeakClient(Arc::downgrade(&self.0))));
        Ok(connection)
    }

    /// The connection that is open, if any.
    fn connection(&self) -> Option<Arc<Connection>> {
        crate::lock(&self.0.connection).0.clone().filter(|connection| connection.is_open())
    }

    /// Ends a grant: on its connection, on another one that is open, or with the next request.
    pub(crate) fn release(&self, granted_on: &Connection, elements: &Elements, key: RequestKey) {
        let is_sent = granted_on.send_silent(self, Op::Release, elements, Some(key))
            || self
                .connection()
                .is_some_and(|other| other.send_silent(self, Op::Release, elements, Some(key)));
        if !is_sent {
            self.report_abandoned([key].into_iter());
        }
    }

    pub(crate) fn report_abandoned(&self, keys: impl Iterator<Item = RequestKey>) {
        self.report_again(Reports { abandoned: keys.collect(), ..Reports::default() });
    }

    pub(crate) fn report_again(&self, reports: Reports) {
        crate::lock(&self.0.counts).unreported.add(reports);
    }

    /// Counts a reply (`None`) or a failure, and logs changes of state.
    pub(crate) fn settle(&self, fault: Option<&Fault>, began: Instant) {
        #[allow(clippy::cast_precision_loss, reason = "it is a chance")]
        let chance = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
        let mut counts = crate::lock(&self.0.counts);
        let change = counts.breaker.settle(fault, began, Instant::now(), chance);
        let missed: u64 = counts.missed.values().sum();
        drop(counts);
        match (change, fault) {
            (Some(Change::Fails), Some(fault)) => {
                self.log(&format!("{}; requests {}", fault.text, self.consequence()));
            }
            (Some(Change::AnswersAgain), _) => {
                let noun = if missed == 1 { "request" } else { "requests" };
                self.log(&format!("the daemon answers again; {missed} {noun} so far decided without it"));
            }
            _ => {}
        }
    }

    /// The fate of requests while the daemon does not answer.
    fn consequence(&self) -> &'static str {
        match (&self.0.options.fallback, crate::lock(&self.0.counts).refuses) {
            (Some(_), _) => "are limited by the fallback",
            (None, true) => "with OnFailure::Refuse get status 503, others are not limited",
            (None, false) => "are not limited",
        }
    }

    fn log_once(&self, key: &str, text: impl Fn() -> String) {
        let mut counts = crate::lock(&self.0.counts);
        if counts.logged.len() >= LOGGED_MAX || !counts.logged.insert(key.to_owned()) {
            return;
        }
        drop(counts);
        self.log(&text());
    }

    pub(crate) fn log(&self, text: &str) {
        match &self.0.options.logger {
            // A panic there is of the application, and decides nothing.
            Some(logger) => drop(catch_unwind(AssertUnwindSafe(|| logger(text)))),
            None => tracing::warn!(target: "tidegate", "{text}"),
        }
    }
}

impl Default for Client {
    fn default() -> Client {
        Client::new()
    }
}

impl WeakClient {
    pub(crate) fn upgrade(&self) -> Option<Client> {
        self.0.upgrade().map(Client)
    }
}

impl Drop for ClientState {
    fn drop(&mut self) {
        let (connection, _) = self.connection.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        connection.take().iter().for_each(|connection| connection.close());
    }
}

impl fmt::Debug for ClientState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("socket", &self.options.socket).finish_non_exhaustive()
    }
}

/// Timeouts that a request waits in the queue for a place.
const QUEUED_TIMEOUTS_MAX: u32 = 10;

/// Between attempts while the daemon takes no further connection.
const ROOM_PERIOD: Duration = Duration::from_millis(1);

/// Texts that were logged once.
const LOGGED_MAX: usize = 100;
