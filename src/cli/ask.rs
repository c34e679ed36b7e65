//! `tidegate hit` and `tidegate peek`: one request from a shell.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::client::{Client, ClientFailure, default_socket, retry_unread};
use super::completions::domains;
use super::{CliError, CliResult, FormatArgs, span, usage};
use crate::clock::Micros;
use crate::daemon::log;
use crate::engine::UNIT_REQUESTS;
use crate::protocol::{
    COST_MAX, CheckRequest, Code, CostField, DecisionReply, DescriptorList, LimitEntry, NoteKind, Op,
    PAIRS_MAX, RequestFrame, RequestOptions, Verdict, WireReply, shorten_value,
};
use crate::terms::count;

/// The arguments of every command that asks one request
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RequestArgs {
    /// The domain of the request
    #[arg(add = domains())]
    pub(super) domain: String,
    #[command(flatten)]
    pub(super) subject: SubjectArgs,
    /// Where the daemon listens [default: $TIDEGATE_SOCKET, else the user's own, else /run/tidegate/tidegate.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How long to wait for an answer
    #[arg(long, default_value = "1s", value_parser = span)]
    pub(super) timeout: Duration,
    /// The decision when the daemon does not answer
    #[arg(long, value_enum, default_value_t)]
    pub(super) on_failure: OnFailure,
}

/// What a request is about
#[derive(Clone, Debug, clap::Args)]
pub(super) struct SubjectArgs {
    /// Attributes of the request, in order: its first descriptor; an empty value counts as absent
    #[arg(value_name = "KEY=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// Another descriptor of the request, for descriptor trees; may be given several times
    #[arg(long, value_name = "KEY=VALUE,…", value_parser = descriptor)]
    descriptor: Vec<Arc<[(String, String)]>>,
    /// Its cost: in requests, or in another unit; may be given once for each unit [default: 1]
    #[arg(long, value_name = "[UNIT=]N", value_parser = cost, allow_hyphen_values = true)]
    #[arg(default_value = "1", hide_default_value = true)]
    pub(super) cost: Vec<(&'static str, u64)>,
    /// Its priority, by a name of the rules
    #[arg(long, value_name = "NAME")]
    pub(super) priority: Option<String>,
}

impl SubjectArgs {
    /// Returns the attributes in as many descriptors as needed, then the others. Fails for too many, or two costs in one unit.
    pub(super) fn descriptors(&self) -> Result<DescriptorList<'_>, CliError> {
        let mut units = BTreeSet::new();
        if let Some((unit, _)) = self.cost.iter().find(|(unit, _)| !units.insert(unit)) {
            return Err(usage(format!("--cost is given twice in {unit}: give one cost for each unit")));
        }
        let mut descriptors = DescriptorList::new();
        let first = self.attributes.chunks(PAIRS_MAX);
        for list in first.chain(self.descriptor.iter().map(|list| &**list)) {
            let pairs: Vec<_> = list.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            if !descriptors.push(&pairs) {
                return Err(usage("at most 8 descriptors, and at most 16 attributes in each"));
            }
        }
        Ok(descriptors)
    }
}

#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    request: RequestArgs,
    /// List every limit that matched
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: FormatArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OnFailure {
    /// Go on: a limiter must not stop the work that it limits (exit code 0)
    #[default]
    Allow,
    /// Refuse (exit code 69)
    Refuse,
}

const EXAMPLES: &str = "\
Examples:
  tidegate hit api user=u1 method=POST path=/v1/charges
  tidegate peek api user=u1 --all
  if tidegate hit mail to=\"$TO\"; then sendmail \"$TO\"; fi

Of a rule with a queue, `hit` returns when the request may start; with --json at once, and `retry_us` says when.
Exit codes: 0 allowed; 75 refused, try again later; 69 no answer, with --on-failure refuse; \
2 wrong usage. Without an answer the work is allowed, and standard error says so.";

impl RequestArgs {
    pub(super) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }

    pub(super) fn check(&self, id: u64) -> CheckRequest<'_> {
        CheckRequest {
            cost: match self.subject.cost.as_slice() {
                [(UNIT_REQUESTS, number)] => CostField::Requests(*number),
                costs => CostField::Units(costs.into()),
            },
            priority: self.subject.priority.as_deref(),
            ..CheckRequest::new(id, &self.domain)
        }
    }

    /// Returns the outcome of a request that failed, as clients decide.
    pub(super) fn undecided(&self, failure: ClientFailure) -> Result<Undecided, CliError> {
        let reason = failure.to_string();
        match failure {
            ClientFailure::TooLarge(_) => Err(usage(reason)),
            ClientFailure::Refused { code: Code::Invalid, message } => Err(usage(message)),
            ClientFailure::Refused { code, .. } if code.refuses() => {
                Ok(Undecided { verdict: Verdict::Shed.name(), degraded: false, reason, code: EX_TEMPFAIL })
            }
            _ => Ok(self.on_failure.undecided(reason)),
        }
    }
}

impl Args {
    /// Asks one request and prints the decision. With `waits` it returns when a paced request
    /// may start, but for JSON, whose reader learns when.
    pub(super) fn run(&self, op: Op, waits: bool, out: &mut dyn Write) -> CliResult {
        let descriptors = self.request.subject.descriptors()?;
        if let Some(undecided) = disabled() {
            return self.print_undecided(&undecided, out);
        }
        let socket = self.request.socket();
        let answered = retry_unread(|| {
            let mut client = Client::connect(&socket, self.request.timeout)?;
            let options = RequestOptions { all: self.all, ..RequestOptions::default() };
            let judge = CheckRequest { options, ..self.request.check(client.next_id()) };
            client.ask(&RequestFrame::Check(op, judge), &descriptors, |reply| {
                (self.print(reply, out), paced_wait(reply))
            })
        });
        match answered {
            Ok((printed, wait)) => {
                if waits && !self.format.is_json() {
                    out.flush()?;
                    std::thread::sleep(wait);
                }
                printed
            }
            Err(failure) => self.print_undecided(&self.request.undecided(failure)?, out),
        }
    }

    fn print(&self, reply: &WireReply<'_>, out: &mut dyn Write) -> CliResult {
        let WireReply::Decision(decision) = reply else {
            return self.print_undecided(&self.request.on_failure.undecided(OTHER_REPLY.to_owned()), out);
        };
        if self.format.is_json() {
            writeln!(out, "{}", to_json(decision))?;
        } else {
            print_text(decision, out)?;
        }
        let granted = matches!(decision.verdict, Verdict::Allow | Verdict::Wait);
        Ok(if granted { ExitCode::SUCCESS } else { ExitCode::from(EX_TEMPFAIL) })
    }

    fn print_undecided(&self, undecided: &Undecided, out: &mut dyn Write) -> CliResult {
        if self.format.is_json() {
            writeln!(out, "{}", json!(undecided))?;
        } else {
            log::plainly(&undecided.to_string());
        }
        Ok(ExitCode::from(undecided.code))
    }
}

/// How long a request must wait before it starts.
fn paced_wait(reply: &WireReply<'_>) -> Duration {
    match reply {
        WireReply::Decision(DecisionReply { verdict: Verdict::Wait, retry_us: Some(wait), .. }) => {
            Duration::from_micros(*wait)
        }
        _ => Duration::ZERO,
    }
}

/// The outcome of a request without a decision of the daemon.
#[derive(Debug, Serialize)]
pub(super) struct Undecided {
    verdict: &'static str,
    /// Whether there was no answer; else an ERROR refuses the request.
    degraded: bool,
    reason: String,
    #[serde(skip)]
    pub(super) code: u8,
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let without = if self.degraded { "without an answer: " } else { "" };
        write!(f, "tidegate: {}, {without}{}", self.verdict, self.reason)
    }
}

impl OnFailure {
    pub(super) fn undecided(self, reason: String) -> Undecided {
        let (verdict, code) = match self {
            OnFailure::Allow => ("allow", 0),
            OnFailure::Refuse => ("refuse", EX_UNAVAILABLE),
        };
        Undecided { verdict, degraded: true, reason, code }
    }
}

/// Returns the outcome if `TIDEGATE_DISABLE=1` is set: then no request is sent.
pub(super) fn disabled() -> Option<Undecided> {
    let is_set = std::env::var("TIDEGATE_DISABLE").is_ok_and(|value| value == "1");
    is_set.then(|| OnFailure::Allow.undecided("TIDEGATE_DISABLE=1".to_owned()))
}

/// Parses `user=u1`. A long value is shortened as every client does.
pub(super) fn attribute(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE"))?;
    Ok((key.into(), shorten_value(value).into()))
}

/// Parses `user=u1,path=/x`. Values with commas fit only the first descriptor: one argument per attribute.
fn descriptor(text: &str) -> Result<Arc<[(String, String)]>, String> {
    if text.is_empty() {
        return Ok(Arc::default());
    }
    text.split(',').map(attribute).collect()
}

/// Parses `3` or `tokens=3`. The unit is leaked: a process has one request.
fn cost(text: &str) -> Result<(&'static str, u64), String> {
    let (unit, number) = text.split_once('=').unwrap_or((UNIT_REQUESTS, text));
    match number.parse::<u32>() {
        Ok(cost) => Ok((unit.to_owned().leak(), cost.into())),
        Err(_) => Err(format!("`{number}` is not a number from 0 to {COST_MAX}")),
    }
}

pub(super) fn print_text(decision: &DecisionReply<'_>, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{}", decision.verdict.name())?;
    match (decision.rule, decision.limit, decision.remaining) {
        (Some(rule), Some(limit), Some(remaining)) => {
            write!(out, "  {rule}: {} of {} left", count(remaining), count(limit))?;
        }
        (Some(rule), ..) => write!(out, "  {rule}")?,
        _ => {
            let none = "no enforced rule with a limit matches; `tidegate why` says why";
            write!(out, "  {}", not_limited(decision).unwrap_or(none))?;
        }
    }
    match (decision.verdict, decision.retry_us, decision.reset_us) {
        (Verdict::Allow, _, Some(reset)) if reset > 0 => write!(out, ", one more in {}", Micros(reset))?,
        (Verdict::Wait, Some(wait), _) => write!(out, ", start in {}", Micros(wait))?,
        (Verdict::Limit | Verdict::Shed, Some(retry), _) => {
            write!(out, ", try again in {}", Micros(retry))?;
        }
        (Verdict::Limit, None, _) => write!(out, ", the cost is above the limit: never")?,
        _ => {}
    }
    writeln!(out)?;
    if let Some(help) = decision.help.filter(|_| decision.verdict != Verdict::Allow) {
        writeln!(out, "help   {help}")?;
    }
    if decision.blocked {
        writeln!(out, "note   this caller is blocked")?;
    }
    for (kind, rule) in decision.notes {
        let meaning = match kind {
            NoteKind::Shadow => "in shadow, would have refused",
            NoteKind::ShadowRule => "its candidate would have refused",
            NoteKind::Over => "passed above its quota",
            NoteKind::Near => "near its limit",
            NoteKind::Quota => "passed above its quota",
            NoteKind::Unmatched => continue,
        };
        writeln!(out, "note   {rule}: {meaning}")?;
    }
    for entry in decision.all.unwrap_or_default() {
        let LimitEntry { rule, limit, remaining, reset_us, .. } = *entry;
        write!(out, "rule   {rule}: {} of {} left", count(remaining), count(limit))?;
        match reset_us {
            0 => writeln!(out, ", full")?,
            reset => writeln!(out, ", full in {}", Micros(reset))?,
        }
    }
    Ok(())
}

/// Says that no rule matches the request at all.
pub(super) fn not_limited(decision: &DecisionReply<'_>) -> Option<&'static str> {
    let (_, reason) = decision.notes.iter().find(|(kind, _)| *kind == NoteKind::Unmatched)?;
    Some(match *reason {
        "domain" => "NOT LIMITED: no domain of this name has rules in force; `tidegate why DOMAIN` says why",
        _ => "not limited: no rule limits it; `tidegate why DOMAIN KEY=VALUE` says why not",
    })
}

fn to_json(decision: &DecisionReply<'_>) -> Value {
    let notes: Vec<&str> = decision.notes.iter().flat_map(|(kind, rule)| [kind.name(), *rule]).collect();
    let entry = |of: &LimitEntry<'_>| json!([of.rule, of.limit, of.window_us, of.remaining, of.reset_us]);
    let all = decision.all.map(|all| all.iter().map(entry).collect::<Vec<_>>());
    json!({
        "verdict": decision.verdict.name(),
        "rule": decision.rule,
        "limit": decision.limit,
        "window_us": decision.window_us,
        "remaining": decision.remaining,
        "reset_us": decision.reset_us,
        "retry_us": decision.retry_us,
        "notes": notes,
        "all": all,
        "help": decision.help,
        "rate": decision.rate,
        "blocked": decision.blocked,
        "digest": decision.digest,
        "degraded": false,
    })
}

pub(super) const OTHER_REPLY: &str = "a reply to another request";

/// `EX_TEMPFAIL` of sysexits.h: try again later.
pub(super) const EX_TEMPFAIL: u8 = 75;

/// `EX_UNAVAILABLE` of sysexits.h: a service is unavailable.
pub(super) const EX_UNAVAILABLE: u8 = 69;
