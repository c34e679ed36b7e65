//! `tidegate switch`: switches a rule, or all rules, to another mode than that of the files.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

use super::admin_client::AdminArgs;
use super::{CliError, CliResult, usage};
use crate::admin::{ActiveSwitchesStatus, SwitchesStatus};
use crate::daemon::log;

/// Switches a rule, or everything, to another mode, which overrides the files; without a rule it lists the switches
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// A rule ([DOMAIN/]RULE), unless --all, and a mode: enforce, shadow or disabled
    #[arg(value_name = "RULE MODE", num_args = 0..=2)]
    words: Vec<String>,
    /// Everything: no rule is stricter than the mode
    #[arg(long)]
    all: bool,
    /// Go back to the mode in the files
    #[arg(long)]
    clear: bool,
    /// On all hosts that share the Redis of the settings
    #[arg(long)]
    fleet: bool,
    /// For how long [default: until it is cleared]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    lasts: Option<Duration>,
    #[command(flatten)]
    admin: AdminArgs,
}

const HELP: &str = "\
Examples:
  tidegate switch                                what is switched and blocked, and who did it
  tidegate switch per-user shadow --for 30m      it refuses no request; metrics show whom it would refuse
  tidegate switch web/workers disabled           it is not judged at all
  tidegate switch per-user --clear               back to what its file says
  tidegate switch --all disabled --for 1h        everything is allowed
  tidegate switch per-user shadow --fleet        on all hosts that share a Redis, within two seconds

It holds for the next decision, over reloads, and over restarts where there is a state directory.
Nothing is ever stricter than `mode` of the settings. Of what is said to all hosts and to one, the later holds.

Exit codes: 0 done; 1 not done, with the reason; 2 wrong usage.";

pub(super) fn run(args: &Args, out: &mut dyn Write) -> CliResult {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let asked = match (words.as_slice(), args.all, args.clear) {
        ([], false, false) if args.lasts.is_none() && !args.fleet => return list(args, out),
        ([rule, mode], false, false) => json!({"rule": rule, "mode": mode}),
        ([mode], true, false) => json!({"all": true, "mode": mode}),
        ([rule], false, true) => json!({"rule": rule, "clear": true}),
        ([], true, true) => json!({"all": true, "clear": true}),
        _ => {
            let forms = "write `switch RULE MODE`, `switch --all MODE`, `switch RULE --clear` or `switch`";
            return Err(usage(forms));
        }
    };
    let seconds = args.lasts.map(seconds_at_least_one).transpose()?;
    let asked = with(asked, "fleet", args.fleet.then_some(true));
    let asked = with(asked, "for_s", seconds);
    finish(&args.admin.client().post("/switch", &asked)?, out)
}

/// Adds a field if it has a value: an older daemon refuses a field that it does not know.
pub(super) fn with(mut asked: Value, field: &str, value: Option<impl Into<Value>>) -> Value {
    if let (Some(fields), Some(value)) = (asked.as_object_mut(), value) {
        fields.insert(field.to_owned(), value.into());
    }
    asked
}

/// Rounds up to whole seconds; `None` for zero.
pub(super) fn whole_seconds(lasts: Duration) -> Option<u64> {
    let seconds = lasts.as_secs().saturating_add(u64::from(lasts.subsec_nanos() > 0));
    (seconds > 0).then_some(seconds)
}

/// Rounds `--for` up to whole seconds.
pub(super) fn seconds_at_least_one(lasts: Duration) -> Result<u64, CliError> {
    whole_seconds(lasts).ok_or_else(|| usage("--for takes at least one second"))
}

/// Prints the daemon's reply to a command.
pub(super) fn finish(done: &Value, out: &mut dyn Write) -> CliResult {
    writeln!(out, "{}", done.get("said").and_then(Value::as_str).unwrap_or_default())?;
    if let Some(warning) = done.get("warning").and_then(Value::as_str) {
        log::plainly(&format!("tidegate: {warning}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &Args, out: &mut dyn Write) -> CliResult {
    let found: SwitchesStatus = args.admin.client().get_json("/switches")?;
    let held = held(found.off, &found.held);
    if held.is_empty() {
        writeln!(out, "nothing is switched and no key is blocked by hand")?;
    }
    held.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    found.warnings.iter().try_for_each(|warning| writeln!(out, "warning   {warning}"))?;
    let mut changes = found.changes.iter().take(CHANGES_SHOWN);
    changes.try_for_each(|change| writeln!(out, "{}  {}: {}", change.at, change.by, change.what))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the active switches and blocks, one line each.
pub(super) fn held(off: bool, held: &ActiveSwitchesStatus) -> Vec<String> {
    let mut lines = Vec::new();
    if off {
        lines.push("EVERYTHING IS ALLOWED: a file called `disable` says so".to_owned());
    }
    let until = |until: &Option<String>| until.as_ref().map(|at| format!(" until {at}")).unwrap_or_default();
    let on_all_hosts = |fleet: bool| if fleet { " on all hosts" } else { "" };
    for switch in &held.switches {
        let (rule, mode, holds) =
            (switch.rule.as_deref().unwrap_or("everything"), &switch.mode, &switch.holds);
        let without = match &switch.written {
            Some(written) => format!("without it: {written}"),
            None => "no rule is called so now: it waits".to_owned(),
        };
        let milder = match (switch.is_last, holds == mode) {
            (Some(false), _) => "; what was said later holds".to_owned(),
            (_, true) => String::new(),
            (_, false) => format!("; the daemon's mode makes it {holds}"),
        };
        let (until, by, fleet) = (until(&switch.until), &switch.by, on_all_hosts(switch.fleet));
        lines.push(format!("switched  {rule}: {mode}{fleet}{until}, by {by} ({without}){milder}"));
    }
    for block in &held.blocks {
        let (rule, key, by) = (&block.rule, block.text.as_ref().unwrap_or(&block.key), &block.by);
        let (fleet, until) = (on_all_hosts(block.fleet), until(&block.until));
        lines.push(format!("blocked   {rule}: {key}{fleet}{until}, by {by}"));
    }
    lines
}

/// As many as fit on a screen; `GET /switches` has more.
const CHANGES_SHOWN: usize = 10;
