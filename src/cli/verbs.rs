//! Commands that send one request to the admin socket: `tidegate switch`, `block`, `unblock`, `reset`, `reload` and
//! `healthcheck`.

use std::io::Write;
use std::ops::Not;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

use super::admin_client::AdminArgs;
use super::ask::attribute;
use super::completions::{rules, rules_and_modes};
use super::status::held;
use super::{CliError, CliResult, FormatArgs, span, usage};
use crate::admin::{FOR_S_MAX, SwitchesStatus};
use crate::daemon::log;
use crate::rules::shown;
use crate::terms::Mode;

/// Switches a rule, or everything, to another mode, which overrides the files; without a rule it lists the switches
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = SWITCH_HELP)]
pub(super) struct SwitchArgs {
    /// A rule ([DOMAIN/]RULE), unless --all, and a mode: enforce, shadow or disabled
    #[arg(value_name = "RULE MODE", num_args = 0..=2, add = rules_and_modes())]
    words: Vec<String>,
    /// Everything: no rule is stricter than the mode
    #[arg(long)]
    all: bool,
    /// Go back to the mode in the files
    #[arg(long, conflicts_with = "lasts")]
    clear: bool,
    /// On all hosts that share the Redis of the settings
    #[arg(long)]
    fleet: bool,
    /// For how long [default: until it is cleared]
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    lasts: Option<u64>,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

const SWITCH_HELP: &str = "\
Examples:
  tidegate switch                                lists switches and blocks, with their users
  tidegate switch api/per-user shadow --for 30m  refuses no request; metrics show would-be refusals
  tidegate switch web/workers disabled           not checked at all
  tidegate switch api/per-user --clear           back to the mode of its file
  tidegate switch --all disabled --for 1h        everything is allowed
  tidegate switch api/per-user shadow --fleet    on all hosts that share a Redis, within two seconds

A switch applies from the next decision on, across reloads, and across restarts if there is a state directory. It never \
makes a rule stricter than `mode` of the settings. Of a switch of all hosts and one of this host, the later applies.

Exit codes: 0 done; 1 not done, with the reason; 2 wrong usage.";

/// Refuses one key of a rule for a time
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(after_help = BLOCK_HELP)]
pub(super) struct BlockArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) key: KeyArgs,
    /// For how long
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    #[serde(rename = "for_s")]
    lasts: u64,
    /// On all hosts that share the Redis of the settings
    #[arg(long)]
    #[serde(skip_serializing_if = "Not::not")]
    fleet: bool,
}

/// Frees one key of a rule: of `tidegate block`, and of the rule's own `block`
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(after_help = UNBLOCK_HELP)]
pub(super) struct UnblockArgs {
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) key: KeyArgs,
    /// Of `block --fleet`, on all hosts
    #[arg(long)]
    #[serde(skip_serializing_if = "Not::not")]
    fleet: bool,
}

/// A key of a rule, as the daemon reads it from a request.
#[derive(Clone, Debug, clap::Args, Serialize)]
pub(super) struct KeyArgs {
    /// The rule: [DOMAIN/]RULE
    #[arg(add = rules())]
    rule: String,
    /// The key: every attribute that the rule counts by
    #[arg(value_name = "KEY=VALUE", value_parser = attribute)]
    #[serde(rename = "key")]
    attributes: Vec<(String, String)>,
    /// The digest of the key, which refusals, `top` and `status` show, in place of its attributes
    #[arg(long, value_name = "HEX", conflicts_with = "attributes")]
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) format: FormatArgs,
    #[command(flatten)]
    #[serde(skip)]
    pub(super) admin: AdminArgs,
}

const BLOCK_HELP: &str = "\
Examples:
  tidegate block api/per-user user=u1 --for 1h
  tidegate unblock api/per-user user=u1
  tidegate block api/per-user --digest 8aeccb51a7d1 --for 1h     a caller that `status` shows
  tidegate block api/per-user user=u1 --for 1h --fleet     on all hosts that share a Redis

The key is refused with the exact wait, whatever it has left, as far as the rule enforces.
Exit codes: 0 done; 1 not done, with the reason; 2 wrong usage.";

const UNBLOCK_HELP: &str = "\
Examples:
  tidegate unblock api/per-user user=u1
  tidegate unblock api/per-user user=u1 --fleet     a block of all hosts

Exit codes: 0 done; 1 not done, with the reason; 2 wrong usage.";

pub(super) const RESET_HELP: &str = "\
Example:
  tidegate reset api/per-user user=u1

Exit codes: 0 done; 1 not done, with the reason; 2 wrong usage.";

/// Has the daemon read its rules again, as SIGHUP does, and prints the result
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = RELOAD_HELP)]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

const RELOAD_HELP: &str = "\
Example:
  tidegate check /etc/tidegate/rules && tidegate reload

Exit codes: 0 all rules of the files are in force; 1 some are not, with the reason; 2 wrong usage.";

/// Asks whether the daemon is ready for work, for the health check of a container
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HEALTH_HELP)]
pub(super) struct HealthArgs {
    /// Ask only whether it lives, whatever its rules say
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

const HEALTH_HELP: &str = "\
Example:
  HEALTHCHECK CMD [\"tidegate\", \"healthcheck\"]

Exit codes: 0 it is; 1 it is not, with the reasons; 2 wrong usage.";

impl SwitchArgs {
    pub(super) fn run(&self, out: &mut dyn Write) -> CliResult {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let mut parameters = match (words.as_slice(), self.all, self.clear) {
            ([], false, false) if self.lasts.is_none() && !self.fleet => return self.list(out),
            ([rule, mode], false, false) => json!({"rule": rule, "mode": self::mode(mode)?}),
            ([mode], true, false) => json!({"all": true, "mode": self::mode(mode)?}),
            ([rule], false, true) => json!({"rule": rule, "clear": true}),
            ([], true, true) => json!({"all": true, "clear": true}),
            _ => {
                let forms =
                    "write `switch RULE MODE`, `switch --all MODE`, `switch RULE --clear` or `switch`";
                return Err(usage(forms));
            }
        };
        if let Some(fields) = parameters.as_object_mut() {
            // An older daemon refuses a field that it does not know.
            fields.extend(self.fleet.then(|| ("fleet".to_owned(), true.into())));
            fields.extend(self.lasts.map(|seconds| ("for_s".to_owned(), seconds.into())));
        }
        carry_out(&self.admin, self.format, "/switch", &parameters, out)
    }

    fn list(&self, out: &mut dyn Write) -> CliResult {
        let found: SwitchesStatus = self.admin.client().get_json("/switches")?;
        self.format.print(
            out,
            || &found,
            |out| {
                let held = held(found.off_line(), &found.held);
                if held.is_empty() {
                    writeln!(out, "nothing is switched and no key is blocked by hand")?;
                }
                held.iter().try_for_each(|line| writeln!(out, "{line}"))?;
                found.warnings.iter().try_for_each(|warning| writeln!(out, "warning   {warning}"))?;
                let mut changes = found.changes.iter().take(CHANGES_SHOWN);
                changes.try_for_each(|change| writeln!(out, "{}  {}: {}", change.at, change.by, change.what))
            },
        )?;
        Ok(ExitCode::SUCCESS)
    }
}

impl KeyArgs {
    pub(super) fn carry_out(
        &self,
        path: &str,
        parameters: &impl Serialize,
        out: &mut dyn Write,
    ) -> CliResult {
        carry_out(&self.admin, self.format, path, &json!(parameters), out)
    }
}

impl ReloadArgs {
    pub(super) fn run(&self, out: &mut dyn Write) -> CliResult {
        let done: Value = self.admin.client().post("/reload", &json!({}))?;
        if self.format.is_json() {
            writeln!(out, "{done}")?;
            return Ok(ExitCode::SUCCESS);
        }
        let changes = done.get("changes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if changes.is_empty() {
            writeln!(out, "the files are in force: nothing has changed since they were last read")?;
        }
        for change in changes.iter().filter_map(Value::as_str) {
            writeln!(out, "{change}")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl HealthArgs {
    pub(super) fn run(&self, out: &mut dyn Write) -> CliResult {
        let answered = self.admin.client().get(if self.live { "/healthz" } else { "/readyz" })?;
        let is_healthy = answered.status == 200;
        if self.format.is_json() {
            let lines: Vec<&str> = answered.body.lines().collect();
            writeln!(out, "{}", json!({"healthy": is_healthy, "lines": lines}))?;
        } else {
            out.write_all(answered.body.as_bytes())?;
        }
        Ok(if is_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Sends a verb, and prints the daemon's reply.
fn carry_out(
    admin: &AdminArgs,
    format: FormatArgs,
    path: &str,
    parameters: &Value,
    out: &mut dyn Write,
) -> CliResult {
    let done: Value = admin.client().post(path, parameters)?;
    if format.is_json() {
        writeln!(out, "{done}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{}", done.get("said").and_then(Value::as_str).unwrap_or_default())?;
    if let Some(warning) = done.get("warning").and_then(Value::as_str) {
        log::plainly(&format!("tidegate: not on disk: {warning}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn mode(text: &str) -> Result<Mode, CliError> {
    text.parse().map_err(|_| usage(format!("no mode {}: write enforce, shadow or disabled", shown(text))))
}

/// Parses a span and rounds it up to whole seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let span = span(text)?;
    match span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0)) {
        seconds @ ..=FOR_S_MAX => Ok(seconds),
        _ => Err("--for takes at most 366 days: write what lasts longer into the files".to_owned()),
    }
}

/// As many as fit on a screen; `GET /switches` has more.
const CHANGES_SHOWN: usize = 10;
