//! Checks of the parts of a `shed` entry, one by one.

use std::time::Duration;

use crate::rules::de::Mapping;
use crate::rules::file::{BrakeFields, QueueAgeFields, WorkersFields};
use crate::rules::percent::{Percent, WHOLE_SHARE};
use crate::rules::shed::{BrakeRule, QueueAge, Workers};
use crate::rules::source::Report;

pub(super) fn queue_age(own: &QueueAgeFields, mapping: Mapping<'_>, report: &mut Report<'_>) -> QueueAge {
    let default = QueueAge::default();
    let queue_age = QueueAge {
        mode: own.mode.unwrap_or_default(),
        others: own.others.map_or(default.others, |others| others.0),
        critical: own.critical.map_or(default.critical, |critical| critical.0),
    };
    if queue_age.critical < queue_age.others {
        let at = mapping.at(if own.critical.is_some() { "critical" } else { "others" });
        let mend = "let `critical` be the longer of the two";
        report.warning(at, "the most important is refused sooner than the others", mend);
    }
    queue_age
}

pub(super) fn workers(own: &WorkersFields, mapping: Mapping<'_>, report: &mut Report<'_>) -> Option<Workers> {
    let default = Workers::default();
    let exact = own.stripe_exact.unwrap_or_default();
    let workers = Workers {
        mode: own.mode.unwrap_or_default(),
        good: own.good.map_or(default.good, |good| good.0),
        bad: own.bad.map_or(default.bad, |bad| bad.0),
        after: own.after.map_or(default.after, |after| after.0),
        full: own.full.map_or(default.full, |full| full.0),
        leak: own.leak.map_or(if exact { (0, 1) } else { default.leak }, |leak| leak.0),
        shed_critical: own.shed_critical.unwrap_or_default(),
        stripe_exact: exact,
    };
    if exact && own.leak.is_some() {
        let mend = "leave one of the two out: as it was published it has none";
        report.error(
            mapping.at("leak"),
            "`stripe_exact: true` and a `leak`: only one of them can hold",
            mend,
        );
        return None;
    }
    if workers.good >= workers.bad {
        let at = mapping.at(if own.bad.is_some() { "bad" } else { "good" });
        let [good, bad] = [workers.good, workers.bad].map(|share| Percent(u32::from(share)));
        let mend = "the host recovers below `good` and sheds above `bad`: leave room in between";
        report.error(at, format!("`good: {good}` is not below `bad: {bad}`"), mend);
        return None;
    }
    if workers.bad == WHOLE_SHARE {
        let message = "`bad: 100%`: no pool is busier than that, so nothing is refused";
        report.warning(mapping.at("bad"), message, "write less, such as 80%");
    }
    if workers.full < FULL_CALM {
        let mend = "write at least 60s; 120s is known to be calm";
        report.warning(mapping.at("full"), "shedding that turns up in less than 60s may swing", mend);
    }
    Some(workers)
}

/// Checks the brake. Without bands they are empty, to be settled later.
pub(super) fn brake(own: &BrakeFields, report: &mut Report<'_>) -> Option<BrakeRule> {
    let bands = own.bands.as_deref().unwrap_or_default();
    if let Some([_, band]) =
        bands.windows(2).find(|pair| matches!(pair, [one, two] if one.value.0 > two.value.0))
    {
        let mend = "start with the least important, whose share is the smallest";
        report.error(band.at, "`bands` go down: what is more important may use less", mend);
        return None;
    }
    let bands = bands.iter().map(|band| band.value.0).collect();
    Some(BrakeRule { mode: own.mode.unwrap_or_default(), bands })
}

/// Below this value the loop is stable with a small margin only.
const FULL_CALM: Duration = Duration::from_secs(60);
