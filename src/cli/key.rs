//! `tidegate block`, `unblock` and `reset`: act on one key of one rule.

use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::CliResult;
use super::admin_client::AdminArgs;
use super::ask::attribute;
use super::switch::{finish, seconds_at_least_one, with};

/// Refuses one key of a rule for a time
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = BLOCK_HELP)]
pub(super) struct BlockArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// For how long
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    lasts: Duration,
    /// On all hosts that share the Redis of the settings
    #[arg(long)]
    fleet: bool,
}

/// Frees one key of a rule: of `tidegate block`, and of the rule's own `block`
#[derive(Clone, Debug, clap::Args)]
pub(super) struct UnblockArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// Of `block --fleet`, on all hosts
    #[arg(long)]
    fleet: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct KeyArgs {
    /// The rule: [DOMAIN/]RULE
    rule: String,
    /// The key: every attribute that the rule counts by
    #[arg(value_name = "KEY=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    #[command(flatten)]
    admin: AdminArgs,
}

const BLOCK_HELP: &str = "\
Examples:
  tidegate block per-user user=u1 --for 1h
  tidegate unblock per-user user=u1
  tidegate block per-user user=u1 --for 1h --fleet     on all hosts that share a Redis

The key is refused with the exact wait, whatever it has left, as far as the rule enforces.
Exit codes: 0 done; 1 not done, with the reason; 2 wrong usage.";

impl KeyArgs {
    fn asked(&self) -> Value {
        json!({"rule": self.rule, "key": self.attributes})
    }

    fn asked_of(&self, fleet: bool) -> Value {
        with(self.asked(), "fleet", fleet.then_some(true))
    }

    pub(super) fn reset(&self, out: &mut dyn Write) -> CliResult {
        finish(&self.admin.client().post("/reset", &self.asked())?, out)
    }
}

impl BlockArgs {
    pub(super) fn run(&self, out: &mut dyn Write) -> CliResult {
        let seconds = seconds_at_least_one(self.lasts)?;
        let asked = with(self.key.asked_of(self.fleet), "for_s", Some(seconds));
        finish(&self.key.admin.client().post("/block", &asked)?, out)
    }
}

impl UnblockArgs {
    pub(super) fn run(&self, out: &mut dyn Write) -> CliResult {
        finish(&self.key.admin.client().post("/unblock", &self.key.asked_of(self.fleet))?, out)
    }
}
