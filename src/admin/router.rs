//! The table of all paths, and the short pages. Routes an HTTP request to its page or verb and checks that the client may
//! use it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, StatusCode};
use serde_json::{Map, Value, json};
use tokio::sync::{Semaphore, oneshot};

use super::answer::{self, HttpAnswer};
use super::fleet::{FleetPage, FleetReading};
use super::status::DaemonStatus;
use super::switches::everything_everywhere;
use super::verbs::{self, VerbResult};
use super::warnings::errors_in_rules;
use super::{AdminState, metrics, recording, status_page};
use crate::engine::{RuleName, SwitchOrigin, SwitchView, Target};
use crate::rules::{NamedItem, NamedKind};
use crate::server::SocketFile;

/// The client of a connection, by the rights it has.
#[derive(Clone, Copy, Debug)]
pub(super) enum HttpClient {
    /// An operator, over the admin socket, by the uid that the kernel reports: may use every path.
    Operator(SwitchOrigin),
    /// A client of the metrics port: may use the paths that show no callers and change nothing.
    Anybody,
}

pub(super) async fn answer(
    admin: &Arc<AdminState>,
    client: HttpClient,
    request: Request<Incoming>,
) -> HttpAnswer {
    let path = request.uri().path();
    if matches!(client, HttpClient::Operator(_))
        && let Some(socket) = misdirected(admin, &request)
    {
        return answer::misdirected(&socket.path);
    }
    let action = ROUTES.iter().find(|route| route.path == path).map(|route| route.action);
    match (client, action) {
        (_, Some(RouteAction::Public(page))) | (HttpClient::Operator(_), Some(RouteAction::Page(page))) => {
            match *request.method() {
                Method::GET | Method::HEAD => page(admin),
                _ => answer::wrong_method("GET"),
            }
        }
        (HttpClient::Operator(by), Some(RouteAction::Verb(verb))) => match *request.method() {
            Method::POST => carry_out(Arc::clone(admin), by, verb, request).await,
            _ => answer::wrong_method("POST"),
        },
        (HttpClient::Operator(_), None) => {
            answer::error(StatusCode::NOT_FOUND, "no such path: GET / lists the paths")
        }
        (HttpClient::Anybody, _) => {
            let message = "here are /metrics, /healthz and /readyz: the rest is on the admin socket";
            answer::error(StatusCode::NOT_FOUND, message)
        }
    }
}

/// The socket of this daemon, where the command means the daemon of another one.
fn misdirected<'d>(admin: &'d AdminState, request: &Request<Incoming>) -> Option<&'d SocketFile> {
    let meant = request.headers().get(SocketFile::HEADER)?;
    let served = admin.socket.identity().map(SocketFile::token);
    served.is_none_or(|served| meant.as_bytes() != served.as_bytes()).then_some(&admin.socket)
}

async fn carry_out(
    admin: Arc<AdminState>,
    by: SwitchOrigin,
    verb: Verb,
    request: Request<Incoming>,
) -> HttpAnswer {
    let body = match read(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let done = move || {
        let done = verbs::object(&body).and_then(|object| verb(&admin, by, &object));
        done.unwrap_or_else(|refusal| answer::error(refusal.status, refusal.message))
    };
    on_a_thread(done).await.unwrap_or_else(|failure| failure)
}

/// Runs blocking work on its own thread. The runtime's blocking pool panics if it cannot spawn a thread.
async fn on_a_thread(work: impl FnOnce() -> HttpAnswer + Send + 'static) -> Result<HttpAnswer, HttpAnswer> {
    static AT_ONCE: Semaphore = Semaphore::const_new(VERBS_AT_ONCE);
    let failed = |_| answer::error(StatusCode::INTERNAL_SERVER_ERROR, FAILED);
    let permit = AT_ONCE.acquire().await.map_err(|_| failed(()))?;
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("admin-verb".into()).spawn(move || {
        let _ = sender.send(work());
        drop(permit);
    });
    if let Err(error) = thread {
        let message = format!("no thread can be had for this: {error}; help: raise TasksMax of the unit");
        return Err(answer::error(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    receiver.await.map_err(|_| failed(()))
}

async fn read(request: Request<Incoming>) -> Result<Bytes, HttpAnswer> {
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    match tokio::time::timeout(BODY_PATIENCE, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => {
            let is_too_long = error.is::<http_body_util::LengthLimitError>();
            let status = if is_too_long { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
            Err(answer::error(status, format!("the request cannot be read: {error}")))
        }
        Err(_) => Err(answer::error(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time")),
    }
}

/// Verbs block on reading rules and on writing files; operators are few.
const VERBS_AT_ONCE: usize = 4;

const FAILED: &str = "it failed: the log says why";

/// Request bodies are short; the longest part is the attributes of one key.
const BODY_BYTES_MAX: usize = 64 * 1_024;

/// A few words need no longer on a socket of this host.
const BODY_PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Route {
    pub(super) path: &'static str,
    /// A description for people, of paths to look at.
    what: &'static str,
    pub(super) action: RouteAction,
}

#[derive(Clone, Copy)]
pub(super) enum RouteAction {
    /// A page without callers, so that the metrics port may serve it. Makes it, without waiting for anything.
    Public(fn(&AdminState) -> HttpAnswer),
    /// A page for operators alone.
    Page(fn(&AdminState) -> HttpAnswer),
    Verb(Verb),
}

/// Carries out a request, with its JSON object. It may block: it runs on its own thread.
pub(super) type Verb = fn(&AdminState, SwitchOrigin, &Value) -> VerbResult;

impl RouteAction {
    pub(super) fn is_verb(self) -> bool {
        matches!(self, RouteAction::Verb(_))
    }
}

/// Returns the pages other than the first one, with their descriptions.
pub(super) fn others() -> impl Iterator<Item = (&'static str, &'static str)> {
    let pages = ROUTES.iter().filter(|route| route.path != "/" && !route.action.is_verb());
    pages.map(|route| (route.path, route.what))
}

/// Where the pages are: to look at them changes nothing.
pub fn paths() -> impl Iterator<Item = &'static str> {
    ROUTES.iter().filter(|route| !route.action.is_verb()).map(|route| route.path)
}

/// It answers, so it lives.
fn healthz(_: &AdminState) -> HttpAnswer {
    answer::text(StatusCode::OK, "ok\n")
}

/// Whether work should be sent here: the reasons against it, a line each.
fn readyz(admin: &AdminState) -> HttpAnswer {
    let rules = admin.control.rules();
    let errors = (!rules.good).then(|| errors_in_rules(&rules.path));
    let mut reasons: Vec<String> = errors.iter().filter(|_| rules.lacks_limits).cloned().collect();
    reasons.extend(admin.control.unready());
    if reasons.is_empty() {
        // Work may be sent here all the same.
        let fleet = FleetReading::take(admin, admin.clock.now().at);
        let notes = [errors, fleet.forged_warning(), everything_everywhere(admin)];
        let notes: String = notes.into_iter().flatten().map(|note| format!("note: {note}\n")).collect();
        return answer::text(StatusCode::OK, format!("ready\n{notes}"));
    }
    answer::text(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n")
}

fn status(admin: &AdminState) -> HttpAnswer {
    answer::value(StatusCode::OK, &DaemonStatus::read(admin))
}

fn fleet(admin: &AdminState) -> HttpAnswer {
    answer::value(StatusCode::OK, &FleetPage::read(admin))
}

fn switches(admin: &AdminState) -> HttpAnswer {
    answer::value(StatusCode::OK, &super::switches::switches(admin))
}

/// Lists the rules in force, each with its location in the files, its mode and its fields.
fn rules(admin: &AdminState) -> HttpAnswer {
    let record = admin.control.rules();
    let in_force = admin.engine.in_force();
    let mut by_domain: HashMap<&str, Vec<Value>> = HashMap::new();
    let switches = [admin.engine.switches(), admin.engine.fleet_switches()].concat();
    in_force
        .each()
        .for_each(|rule| by_domain.entry(rule.domain).or_default().push(rule_entry(&rule, &switches)));
    let sha = |name: &str| record.domains.iter().find(|domain| *domain.name == *name).map(|known| &known.sha);
    let domains = in_force.domains().map(|domain| {
        let rules = by_domain.remove(domain.name()).unwrap_or_default();
        json!({"name": domain.name(), "sha": sha(domain.name()), "rules": rules})
    });
    let page = json!({"path": record.path, "good": record.good, "domains": domains.collect::<Vec<_>>()});
    answer::value(StatusCode::OK, &page)
}

fn rule_entry(rule: &NamedItem<'_>, switches: &[SwitchView]) -> Value {
    let mut says = Map::new();
    if let NamedKind::Rule(_, limit) = rule.kind {
        says.extend(limit.fields().into_iter().map(|(field, text)| (field.to_owned(), text.into())));
        // A switch replaces the written mode.
        let target = Target::Rule(RuleName { domain: rule.domain.into(), rule: rule.name.into() });
        let switch = switches.iter().find(|view| view.is_last && view.switch.target == target);
        says.extend(switch.map(|view| ("mode".to_owned(), view.switch.mode.name().into())));
    }
    json!({
        "name": rule.name,
        "kind": kind(&rule.kind),
        "mode": rule.mode.name(),
        "at": format!("{}:{}", rule.position.file, rule.position.line),
        "says": says,
    })
}

fn kind(kind: &NamedKind<'_>) -> &'static str {
    match kind {
        NamedKind::Rule(_, rule) if rule.counts_work() => "concurrency",
        NamedKind::Rule(..) => "limit",
        NamedKind::Listed(list) => list.into(),
        NamedKind::Shedder => "shed",
    }
}

const fn route(path: &'static str, what: &'static str, action: RouteAction) -> Route {
    Route { path, what, action }
}

const fn verb(path: &'static str, verb: Verb) -> Route {
    Route { path, what: "", action: RouteAction::Verb(verb) }
}

pub(super) const ROUTES: &[Route] = &[
    route("/", "how it is, for people", RouteAction::Page(status_page::render_page)),
    route("/metrics", "for Prometheus", RouteAction::Public(metrics::metrics)),
    route("/healthz", "whether the daemon lives", RouteAction::Public(healthz)),
    route("/status", "how it is, as JSON", RouteAction::Page(status)),
    route("/fleet", "how it stands with the other hosts, as JSON", RouteAction::Page(fleet)),
    route("/rules", "the rules in force, as JSON", RouteAction::Page(rules)),
    route("/switches", "switches and blocks in force, and their origin", RouteAction::Page(switches)),
    route("/readyz", "whether work should be sent here", RouteAction::Public(readyz)),
    verb("/reload", verbs::reload),
    verb("/switch", verbs::switch::switch),
    verb("/block", verbs::key::block),
    verb("/unblock", verbs::key::unblock),
    verb("/reset", verbs::key::reset),
    verb("/fleet/key", verbs::key::fleet_key),
    verb("/why", verbs::why::why),
    verb("/record", recording::begin),
];
