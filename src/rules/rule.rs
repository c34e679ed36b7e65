//! A compiled rule: name, conditions, key, limit and overrides; and the entries of lists and priorities.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::condition::{conditions, joined};
use super::percent::Percent;
use super::source::Span;
use super::words::{quota_fields, span};
use super::{Condition, FleetSettings, KeyPart, Mode, Rows, Scope};
use crate::limit::{Quota, token_bucket};

/// A rule, which is a named limit. Names are unique within a domain.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The name, 1 to 64 bytes; longer for nodes of the descriptor tree.
    pub name: Box<str>,
    /// Its position in the files.
    pub position: Position,
    /// Conditions that must all match.
    pub conditions: Vec<Condition>,
    /// The key attributes, in order; empty for one state for all matching requests.
    pub key: Vec<KeyPart>,
    /// The unit; `None` for requests. The rule does not apply to requests without a cost in its unit.
    pub unit: Option<Box<str>>,
    /// The limit.
    pub limit: Limit,
    /// Limits of particular keys.
    pub overrides: Option<Arc<Overrides>>,
    /// The mode.
    pub mode: Mode,
    /// Whether requests over it are allowed and marked `quota`: a descriptor's `quota_mode`.
    pub is_quota: bool,
    /// The share of the limit, in thousandths, above which allowed requests are marked as near it.
    pub warn_at: Option<u16>,
    /// The time after which a lease expires; set if and only if the rule limits concurrency.
    pub expires: Option<Duration>,
    /// The outcome of a lease that refunds its cost.
    pub refund_on: Option<RefundOn>,
    /// Whether response headers name it.
    pub advertise: bool,
    /// Shown to refused callers.
    pub help: Option<Box<str>>,
    /// The key attributes whose values operators may see.
    pub show_keys: Vec<Box<str>>,
    /// The action if the rule refuses most callers soon after a change.
    pub guard: Guard,
    /// The fleet settings; `None` with `scope: host`.
    pub fleet: Option<FleetSettings>,
}

impl Rule {
    /// Makes an enforced rule without conditions and with one state for all requests.
    pub fn new(name: &str, position: Position, limit: Limit) -> Rule {
        Rule {
            name: name.into(),
            position,
            conditions: Vec::new(),
            key: Vec::new(),
            unit: None,
            limit,
            overrides: None,
            mode: Mode::Enforce,
            is_quota: false,
            warn_at: None,
            expires: None,
            refund_on: None,
            advertise: true,
            help: None,
            show_keys: Vec::new(),
            guard: Guard::Tell,
            fleet: None,
        }
    }

    /// Makes the shadow rule of this rule: the same requests and keys, another limit.
    pub(super) fn candidate(&self, limit: Limit, position: Position) -> Rule {
        Rule {
            name: format!("{}{CANDIDATE}", self.name).into(),
            position,
            limit,
            mode: self.mode.max(Mode::Shadow),
            warn_at: None,
            advertise: false,
            help: None,
            guard: Guard::Tell,
            ..self.clone()
        }
    }

    /// Returns the scope.
    pub fn scope(&self) -> Scope {
        if self.fleet.is_some() { Scope::Fleet } else { Scope::Host }
    }

    /// Whether the rule limits concurrency: it counts work in progress, whatever that costs.
    pub(crate) fn counts_work(&self) -> bool {
        self.expires.is_some()
    }

    /// Returns the fields as texts in the notation of rules files, for comparisons and queries. Those without a value are left
    /// out.
    pub fn fields(&self) -> Vec<RuleField> {
        let fleet = self.fleet.as_ref();
        let shown = (!self.show_keys.is_empty()).then(|| format!("[{}]", self.show_keys.join(", ")));
        let overrides = self.overrides.as_ref().map(|overrides| self.limit.overrides_text(overrides));
        let mut fields =
            vec![("match", conditions(&self.conditions)), ("key", format!("[{}]", joined(&self.key)))];
        fields.extend(self.limit.fields(self.counts_work()));
        fields.extend([
            ("expires", text(self.expires.map(span))),
            ("mode", self.mode.to_string()),
            ("scope", text(fleet.map(|_| <&str>::from(Scope::Fleet)))),
            ("fleet", text(fleet.map(FleetSettings::text))),
            ("max_over", text(fleet.and_then(|fleet| fleet.max_over).map(Percent))),
            ("unit", text(self.unit.as_ref())),
            ("warn_at", text(self.warn_at.map(Percent))),
            ("refund_on", text(self.refund_on.map(|RefundOn::Ok| "ok"))),
            ("advertise", text((!self.advertise).then_some(false))),
            ("show_keys", text(shown)),
            ("guard", text((self.guard == Guard::Shadow).then_some("shadow"))),
            ("overrides", text(overrides)),
            ("help", text(self.help.as_ref())),
        ]);
        fields.retain(|(_, text)| !text.is_empty());
        fields
    }
}

/// The name and the text of a field.
pub type RuleField = (&'static str, String);

/// Returns the text of a field, empty if it has no value.
pub(super) fn text(value: Option<impl fmt::Display>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Returns the name of the rule that has a shadow rule of this name.
pub(crate) fn candidate_of(name: &str) -> Option<&str> {
    name.strip_suffix(CANDIDATE)
}

/// The outcome of a lease that refunds its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum RefundOn {
    /// Success: only failures count.
    Ok,
}

/// The action if a rule refuses most callers soon after a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Guard {
    /// A warning.
    #[default]
    Tell,
    /// A warning, and shadow mode for some time.
    Shadow,
}

/// A position in a file; line 0 means the file itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The path as given.
    pub file: Arc<str>,
    /// The span in its text.
    pub span: Span,
}

impl std::ops::Deref for Position {
    type Target = Span;

    fn deref(&self) -> &Span {
        &self.span
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}:{}", self.file, self.column),
        }
    }
}

/// The limit of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Allowances by number, never empty: 0 is the rule's own, others are overrides. `None` is unlimited.
    pub allowances: Vec<Option<Allowance>>,
    /// The cost of a refused request.
    pub refused: RefusedCost,
    /// How long a key stays refused after a refusal.
    pub block: Option<Duration>,
    /// The longest continuous use of the soft part; `None` for no bound.
    pub soft_for: Option<Duration>,
}

/// The allowance of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The quota.
    pub quota: Quota,
    /// The rate in the notation of rules, such as `5/min`, for refused callers; `None` for concurrency.
    pub(crate) rate: Option<Box<str>>,
    /// The treatment of requests beyond the quota.
    pub over: OverTreatment,
    /// How far CHARGE may go below zero, in units of the rule.
    pub max_debt: u32,
}

/// The treatment of requests beyond the quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverTreatment {
    /// Refused.
    Refuse,
    /// Allowed, marked, and charged to the same state, while this larger quota admits it.
    Soft(Box<Quota>),
    /// Allowed, marked, and charged to a second state under this quota, while the pool has capacity.
    Elastic(Box<Quota>),
}

/// The cost of a refused request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum RefusedCost {
    /// Refused requests cost nothing.
    #[default]
    Free,
    /// Refused requests cost as much as allowed ones: frequent retries stay refused. Windows only.
    Counted,
}

impl Limit {
    /// Makes a limit that refuses requests beyond the quota, free of charge.
    pub fn new(quota: Quota) -> Limit {
        Limit { allowances: vec![Some(Allowance::new(quota))], ..Limit::unlimited() }
    }

    pub(crate) fn unlimited() -> Limit {
        Limit { allowances: vec![None], refused: RefusedCost::Free, block: None, soft_for: None }
    }

    /// Returns the allowance of a number; `None` is unlimited.
    #[inline]
    pub fn allowance(&self, number: u32) -> Option<&Allowance> {
        self.allowances.get(number as usize)?.as_ref()
    }

    /// Returns the rule's own quota, `None` if unlimited.
    pub fn quota(&self) -> Option<&Quota> {
        self.allowance(0).map(|allowance| &allowance.quota)
    }

    /// Returns the fields without those of overrides.
    fn fields(&self, limits_concurrency: bool) -> Vec<RuleField> {
        let Limit { allowances: _, refused, block, soft_for } = self;
        let unlimited = || vec![(if limits_concurrency { "max" } else { "rate" }, "unlimited".to_owned())];
        let mut fields = self.allowance(0).map_or_else(unlimited, Allowance::fields);
        fields.extend((*refused == RefusedCost::Counted).then(|| ("refused", "counted".to_owned())));
        fields.extend(block.map(|lasts| ("block", span(lasts))));
        fields.extend(soft_for.map(|lasts| ("over for", span(lasts))));
        fields
    }

    fn overrides_text(&self, overrides: &Overrides) -> String {
        let Overrides { list, rows, file: _ } = overrides;
        let listed = list.iter().map(|(asked, number)| {
            let of_allowance = |allowance: &Allowance| {
                let fields = allowance.fields().into_iter().filter(|(field, _)| *field != "algorithm");
                fields.map(|(field, text)| format!("{field} {text}")).collect::<Vec<_>>().join(" ")
            };
            let numbers = self.allowance(*number).map_or_else(|| "unlimited".to_owned(), of_allowance);
            format!("{} {numbers}", conditions(asked))
        });
        let rows = (!rows.is_empty()).then(|| {
            let allowances = self.allowances.iter().skip(1).map(|one| one.as_ref().map(Allowance::fields));
            format!("{} rows ({})", rows.len(), rows.fingerprint(allowances.collect::<Vec<_>>()))
        });
        listed.chain(rows).collect::<Vec<_>>().join("; ")
    }
}

impl From<token_bucket::TokenBucketQuota> for Limit {
    fn from(quota: token_bucket::TokenBucketQuota) -> Limit {
        Limit::new(Quota::TokenBucket(quota))
    }
}

impl Allowance {
    /// Makes an allowance that refuses requests beyond the quota, and lets CHARGE go one limit below zero.
    pub(crate) fn new(quota: Quota) -> Allowance {
        let max_debt = quota.limit();
        let rate = (!matches!(quota, Quota::Concurrency(_))).then(|| quota.format_rate().into());
        Allowance { quota, rate, over: OverTreatment::Refuse, max_debt }
    }

    fn fields(&self) -> Vec<RuleField> {
        let Allowance { quota, rate: _, over, max_debt } = self;
        let mut fields = quota_fields(quota);
        match over {
            OverTreatment::Refuse => {}
            OverTreatment::Soft(larger) => fields.push(("over", format!("soft, {} in all", larger.limit()))),
            OverTreatment::Elastic(second) => {
                fields.push(("over", format!("elastic, {}", second.format_rate())));
            }
        }
        fields.extend((*max_debt != quota.limit()).then(|| ("max_debt", max_debt.to_string())));
        fields
    }
}

/// The overrides of one rule. They select the allowance of its [`Limit`] for a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Conditions and allowance numbers in file order; the first match counts.
    pub list: Vec<(Vec<Condition>, u32)>,
    /// Exact keys, transformed like those of requests, and their allowance numbers.
    pub rows: Rows,
    /// The table of the rows, as the rule names it.
    pub file: Option<Box<str>>,
}

/// One entry. Names are unique among the entries and rules of a domain.
#[derive(Clone, Debug)]
pub struct ListedEntry {
    /// The name, 1 to 64 bytes.
    pub name: Box<str>,
    /// Its position in the files.
    pub position: Position,
    /// The result for a matching request.
    pub kind: ListKind,
    /// Conditions that must all match.
    pub conditions: Vec<Condition>,
    /// The mode. In shadow, an entry of `deny` refuses nothing, and one of `exempt` still exempts.
    pub mode: Mode,
    /// Shown to the denied caller.
    pub help: Option<Box<str>>,
}

impl ListedEntry {
    /// Returns the fields as [`Rule::fields`] does.
    pub(super) fn fields(&self) -> Vec<RuleField> {
        let ListedEntry { name: _, position: _, kind, conditions: asked, mode, help } = self;
        let mut fields = vec![
            ("list", <&str>::from(kind).to_owned()),
            ("match", conditions(asked)),
            ("mode", mode.to_string()),
            ("help", text(help.as_ref())),
        ];
        fields.retain(|(_, text)| !text.is_empty());
        fields
    }
}

/// The result for a matching request. Ordered by precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ListKind {
    /// Allowed without further checks.
    Exempt,
    /// Refused without further checks.
    Deny,
}

/// Priorities from the highest to the lowest.
#[derive(Clone, Debug, Default)]
pub struct Priorities {
    /// Their names; empty if the domain has none.
    pub names: Vec<Box<str>>,
    /// In file order; the first match counts. A request without a match has the last of `names`.
    pub prioritize: Vec<Prioritize>,
}

/// One entry of `prioritize`.
#[derive(Clone, Debug)]
pub struct Prioritize {
    /// Its position in the files.
    pub position: Position,
    /// Conditions that must all match.
    pub conditions: Vec<Condition>,
    /// The index of its priority in [`Priorities::names`].
    pub priority: usize,
}

/// The suffix of a shadow rule's name.
const CANDIDATE: &str = "@candidate";
