//! Answers the HTTP requests of one connection.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use ring::hmac;
use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tidegate_client::Reason;

use super::bodies::{ChargeBody, CheckBody, ReleaseBody};
use super::decision::HttpDecision;
use super::exchange::{self, HttpSessions, SessionName, WireAnswer};
use super::link::SharedLink;
use super::{AdapterProtocol, AdapterState, AnswerKind, STATUS_HEADER, bodies};
use crate::protocol::{Code, Op};

/// The client of a connection.
#[derive(Clone, Debug)]
pub(super) struct AdapterPeer {
    /// The user that the kernel reports; over TCP that of the daemon.
    pub(super) user: u32,
    /// Over TCP, the token that each request must carry.
    pub(super) token: Option<Arc<Token>>,
    /// Whether it has sent the token.
    pub(super) is_known: Arc<AtomicBool>,
}

/// The digest of the token of `token_file`.
#[derive(Debug)]
pub(super) struct Token {
    key: hmac::Key,
    tag: hmac::Tag,
}

#[derive(Debug)]
pub(super) struct HttpHandler {
    pub(super) state: Arc<AdapterState>,
    pub(super) peer: AdapterPeer,
    link: SharedLink,
}

type HttpReply = Response<Full<Bytes>>;

/// A request that is not passed on: its status and message.
pub(super) struct BadRequest(pub(super) StatusCode, pub(super) String);

impl AdapterPeer {
    /// Whether a request with this token may be answered.
    pub(super) fn may_ask(&self, given: Option<&[u8]>) -> bool {
        let is_right = |token: &Arc<Token>| given.is_some_and(|given| token.is(given));
        let may_ask = self.token.as_ref().is_none_or(is_right);
        self.is_known.fetch_or(may_ask, Ordering::Relaxed);
        may_ask
    }
}

impl Token {
    /// Reads the file, without white space around the token. The error is the reason, without the path.
    pub(super) fn read(path: &Path) -> Result<Token, String> {
        // Opening a named pipe does not wait, and a device may never end.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
        let mut text = String::new();
        file.and_then(|file| file.take(TOKEN_BYTES_MAX + 1).read_to_string(&mut text))
            .map_err(|error| error.to_string())?;
        let token = text.trim();
        if token.len() < TOKEN_BYTES_MIN {
            return Err(format!("a token has at least {TOKEN_BYTES_MIN} bytes"));
        }
        if text.len() as u64 > TOKEN_BYTES_MAX {
            return Err(format!("a file of a token has at most {TOKEN_BYTES_MAX} bytes"));
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &ring::rand::SystemRandom::new());
        let key = key.map_err(|_| "no random numbers".to_owned())?;
        let tag = hmac::sign(&key, token.as_bytes());
        Ok(Token { key, tag })
    }

    /// Compares in a time that does not depend on the token.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        hmac::verify(&self.key, given, self.tag.as_ref()).is_ok()
    }
}

impl HttpHandler {
    pub(super) fn new(state: Arc<AdapterState>, peer: AdapterPeer) -> HttpHandler {
        HttpHandler { state, peer, link: SharedLink::default() }
    }

    pub(super) async fn answer(&self, request: Request<Incoming>) -> HttpReply {
        self.route(request).await.unwrap_or_else(|bad| self.reject(bad))
    }

    /// Counts and logs a request that is not passed on, and answers it.
    pub(super) fn reject(&self, BadRequest(status, message): BadRequest) -> HttpReply {
        self.state.counters.count(AnswerKind::Rejected);
        // serde has the value before that.
        let expected = message.rfind(", expected ").map_or(0, |comma| comma + ", ".len());
        self.state.report_unjudged(message.get(expected..).unwrap_or_default());
        json_reply(status, &json!({"error": message}))
    }

    async fn route(&self, request: Request<Incoming>) -> Result<HttpReply, BadRequest> {
        if !self.peer.may_ask(request.headers().get(TOKEN_HEADER).map(HeaderValue::as_bytes)) {
            let message = "over TCP a request needs the token of `token_file` in the header Tidegate-Token";
            return Err(BadRequest(StatusCode::UNAUTHORIZED, message.to_owned()));
        }
        let path = request.uri().path();
        let known = ROUTES.iter().find(|(known, _)| *known == path);
        let Some((_, methods)) = known else {
            let paths = ROUTES.map(|(path, _)| path).join(", ");
            return Err(BadRequest(StatusCode::NOT_FOUND, format!("no such path; help: {paths}")));
        };
        if !methods.contains(request.method()) {
            let allowed = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
            let message = format!("this path takes {allowed}");
            let mut reply = self.reject(BadRequest(StatusCode::METHOD_NOT_ALLOWED, message));
            insert(&mut reply, ALLOW.as_str(), &allowed);
            return Ok(reply);
        }
        match path {
            "/v1/auth" => self.auth(&request).await,
            "/v1/openapi.json" => Ok(bytes_reply(StatusCode::OK, bodies::DOCUMENT.clone())),
            "/v1/hit" => self.check(Op::Hit, request).await,
            "/v1/acquire" => self.check(Op::Acquire, request).await,
            "/v1/peek" => self.check(Op::Peek, request).await,
            "/v1/charge" => {
                let session = self.session(&request)?;
                let body: ChargeBody = read(request).await?;
                self.check_domain(&body.domain)?;
                self.finish(session, body.frame().map_err(invalid)?).await
            }
            _ => {
                let session = self.named_session(&request, "release")?;
                let body: ReleaseBody = read(request).await?;
                self.finish(session, body.frame().map_err(invalid)?).await
            }
        }
    }

    async fn check(&self, op: Op, request: Request<Incoming>) -> Result<HttpReply, BadRequest> {
        let session = match op {
            Op::Acquire => self.named_session(&request, "acquire")?,
            Op::Hit | Op::Peek => self.session(&request)?,
        };
        let decision = self.decide(op, session, &read(request).await?).await?;
        Ok(json_reply(StatusCode::OK, &decision))
    }

    pub(super) async fn decide(
        &self,
        op: Op,
        session: Option<SessionName>,
        body: &CheckBody,
    ) -> Result<HttpDecision, BadRequest> {
        self.check_domain(&body.domain)?;
        let frame = body.frame(op).map_err(invalid)?;
        self.judge(session, frame, refused).await
    }

    /// Sends a request whose reply is a decision, and counts it; `refuse` answers an ERROR.
    async fn judge(
        &self,
        session: Option<SessionName>,
        frame: Vec<u8>,
        refuse: impl Fn(Code, String) -> Result<HttpDecision, BadRequest>,
    ) -> Result<HttpDecision, BadRequest> {
        let decision = match self.ask(session, frame).await {
            Ok(WireAnswer::Decision(decision)) => *decision,
            Ok(WireAnswer::Error(code, message)) => refuse(code, message)?,
            Ok(WireAnswer::Done(_)) => HttpDecision::without_daemon(Reason::Protocol),
            Err(reason) => HttpDecision::without_daemon(reason),
        };
        self.state.counters.count(match &decision {
            HttpDecision { degraded: true, .. } => AnswerKind::Degraded,
            HttpDecision { allowed: true, .. } => AnswerKind::Allowed,
            _ => AnswerKind::Refused,
        });
        Ok(decision)
    }

    /// Sends a request whose reply is DONE.
    async fn finish(&self, session: Option<SessionName>, frame: Vec<u8>) -> Result<HttpReply, BadRequest> {
        let reason = match self.ask(session, frame).await {
            Ok(WireAnswer::Done(ok)) => {
                self.state.counters.count(AnswerKind::Done);
                return Ok(json_reply(StatusCode::OK, &json!({"ok": ok, "degraded": false, "reason": null})));
            }
            Ok(WireAnswer::Error(code, message)) => refused(code, message)?.reason,
            Ok(WireAnswer::Decision(_)) => Some(Reason::Protocol.name()),
            Err(reason) => Some(reason.name()),
        };
        self.state.counters.count(AnswerKind::Degraded);
        Ok(json_reply(StatusCode::OK, &json!({"ok": false, "degraded": true, "reason": reason})))
    }

    /// Answers a proxy: 204, or the refusal as its caller receives it.
    async fn auth(&self, request: &Request<Incoming>) -> Result<HttpReply, BadRequest> {
        let AdapterProtocol::Http(Some(auth)) = &self.state.protocol else {
            let message = "the settings have no `adapters.http.auth`".to_owned();
            return Err(BadRequest(StatusCode::NOT_FOUND, message));
        };
        let always_403 = match request.uri().query() {
            None => false,
            Some("refusal=403") => true,
            Some(_) => return Err(invalid("the only query here is `refusal=403`".to_owned())),
        };
        let attributes = auth.attributes.iter().filter_map(|(name, header)| {
            // A proxy appends its own value to those of its client.
            let value = request.headers().get_all(header).iter().next_back()?;
            Some((name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        });
        let frame = CheckBody::hit(&auth.domain, attributes.collect()).frame(Op::Hit).map_err(invalid)?;
        let mut decision = self.judge(None, frame, |code, _| Ok(unjudged(code))).await?;
        decision.answer.domain = Some(auth.domain.to_string());
        Ok(auth_reply(&decision, always_403))
    }

    pub(super) fn check_domain(&self, domain: &str) -> Result<(), BadRequest> {
        if self.state.opens(domain, &self.peer) {
            return Ok(());
        }
        let field = self.state.protocol.names().1;
        let message = format!("this domain is not open over TCP; help: add it to `adapters.{field}.domains`");
        Err(BadRequest(StatusCode::FORBIDDEN, message))
    }

    fn session(&self, request: &Request<Incoming>) -> Result<Option<SessionName>, BadRequest> {
        let name = request.headers().get(SESSION_HEADER);
        name.map(|name| HttpSessions::enter(&self.state, self.peer.user, name.as_bytes())).transpose()
    }

    fn named_session(
        &self,
        request: &Request<Incoming>,
        op: &str,
    ) -> Result<Option<SessionName>, BadRequest> {
        let session = self.session(request)?;
        if session.is_none() {
            let help =
                "send a random text that this process keeps; its leases end 60 s after its last request";
            return Err(invalid(format!("{op} needs the header Tidegate-Session; help: {help}")));
        }
        Ok(session)
    }

    /// Asks a decision thread. A connection has one request at a time.
    async fn ask(&self, session: Option<SessionName>, frame: Vec<u8>) -> Result<WireAnswer, Reason> {
        let name = self.state.protocol.names().1;
        let open = || exchange::open(&self.state.connector, name, self.peer.user, session);
        let answers = self.link.exchange(session, open, &[(REQUEST_ID, frame)]).await?;
        answers.into_iter().next().ok_or(Reason::Protocol)
    }
}

async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, BadRequest> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let body = match tokio::time::timeout(BODY_PATIENCE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = format!("a body has at most {BODY_BYTES_MAX} bytes");
            return Err(BadRequest(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        Ok(Err(error)) => return Err(invalid(format!("the body cannot be read: {error}"))),
        Err(_) => {
            let message = "the body did not arrive in time".to_owned();
            return Err(BadRequest(StatusCode::REQUEST_TIMEOUT, message));
        }
    };
    // serde would read an array as the fields in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(invalid("a body is an object of JSON; help: {\"domain\": \"api\"}".to_owned()));
    }
    serde_json::from_slice(&body).map_err(|error| invalid(error.to_string()))
}

pub(super) fn invalid(message: String) -> BadRequest {
    BadRequest(StatusCode::BAD_REQUEST, message)
}

/// The answer to an ERROR: its message if the request is at fault, else a degraded decision.
fn refused(code: Code, message: String) -> Result<HttpDecision, BadRequest> {
    match code {
        Code::Invalid => Err(invalid(message)),
        Code::Quota => Err(BadRequest(StatusCode::SERVICE_UNAVAILABLE, message)),
        Code::NotAllowed | Code::Forbidden => Err(BadRequest(StatusCode::FORBIDDEN, message)),
        _ => Ok(unjudged(code)),
    }
}

/// The decision after an ERROR: a refusal if the request is at fault, else a degraded one.
fn unjudged(code: Code) -> HttpDecision {
    HttpDecision::without_daemon(match code {
        Code::Invalid => Reason::Invalid,
        Code::Quota => Reason::Quota,
        Code::NotAllowed => Reason::NotAllowed,
        Code::Forbidden => Reason::Forbidden,
        _ => Reason::Protocol,
    })
}

fn auth_reply(decision: &HttpDecision, always_403: bool) -> HttpReply {
    let mut reply = if decision.allowed {
        let mut reply = HttpReply::default();
        *reply.status_mut() = StatusCode::NO_CONTENT;
        reply
    } else {
        let status = if always_403 { 403 } else { decision.status };
        let mut reply = HttpReply::new(Full::from(decision.answer.problem()));
        *reply.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN);
        insert(&mut reply, CONTENT_TYPE.as_str(), "application/problem+json");
        insert(&mut reply, STATUS_HEADER, &decision.status.to_string());
        reply
    };
    insert(&mut reply, CACHE_CONTROL.as_str(), "no-store");
    for (name, value) in &decision.headers {
        insert(&mut reply, name, value);
    }
    if let Some(reason) = decision.reason.filter(|_| decision.degraded) {
        insert(&mut reply, DEGRADED_HEADER, reason);
    }
    reply
}

fn json_reply(status: StatusCode, body: &impl Serialize) -> HttpReply {
    let mut bytes = serde_json::to_vec(body).unwrap_or_default();
    bytes.push(b'\n');
    bytes_reply(status, bytes.into())
}

fn bytes_reply(status: StatusCode, json: Bytes) -> HttpReply {
    let mut reply = HttpReply::new(Full::new(json));
    *reply.status_mut() = status;
    insert(&mut reply, CONTENT_TYPE.as_str(), "application/json");
    insert(&mut reply, CACHE_CONTROL.as_str(), "no-store");
    reply
}

/// Inserts a header; the name of a rule may hold characters that no header has.
fn insert(reply: &mut HttpReply, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
        reply.headers_mut().insert(name, value);
    }
}

const ROUTES: [(&str, &[Method]); 7] = [
    ("/v1/hit", &[Method::POST]),
    ("/v1/acquire", &[Method::POST]),
    ("/v1/release", &[Method::POST]),
    ("/v1/peek", &[Method::POST]),
    ("/v1/charge", &[Method::POST]),
    ("/v1/auth", &[Method::GET, Method::POST]),
    ("/v1/openapi.json", &[Method::GET]),
];

pub(super) fn deadline() -> Duration {
    // A busy machine must not decide a test.
    #[cfg(all(debug_assertions, feature = "test-hooks"))]
    if std::env::var_os("TIDEGATE_DEBUG_PATIENT").is_some() {
        return Duration::from_secs(10);
    }
    DEADLINE
}

/// The id of every request: a connection has one in flight.
pub(super) const REQUEST_ID: u64 = 1;

/// The default of every client.
const DEADLINE: Duration = Duration::from_millis(20);

/// The headers of a request, which applications pass on as attributes, have 16 to 64 KiB in most servers, and JSON may take
/// six bytes for each of theirs. Callers choose these, so that a smaller bound would let them pass.
pub(super) const BODY_BYTES_MAX: usize = 512 * 1_024;

/// A body on a socket of this host is there at once.
pub(super) const BODY_PATIENCE: Duration = Duration::from_secs(2);

const TOKEN_BYTES_MIN: usize = 16;

/// A page; anything larger is a wrong file.
const TOKEN_BYTES_MAX: u64 = 4_096;

const TOKEN_HEADER: &str = "tidegate-token";
const SESSION_HEADER: &str = "tidegate-session";
const DEGRADED_HEADER: &str = "tidegate-degraded";
