//! One rule set that plays a trace, and the data for its report, if wanted.

use std::sync::Arc;

use super::course::StepCounts;
use super::event::LeaseOwner;
use super::places::RuleIndexes;
use super::player::{NotPlayed, Player};
use super::refused::RefusedCallers;
use super::spread::DemandSpread;
use crate::clock::Timestamp;
use crate::engine::{Decision, Op, Request, Totals};
use crate::rules::Domain;

pub(crate) struct ReplaySide {
    pub(super) player: Player,
    watch: Option<Box<ReportWatch>>,
    at: Timestamp,
}

/// The data for a report.
#[derive(Debug, Default)]
pub(crate) struct ReportWatch {
    rules: Vec<Arc<Domain>>,
    pub(super) places: RuleIndexes,
    pub(super) course: StepCounts,
    pub(super) spread: DemandSpread,
    pub(crate) refused: RefusedCallers,
}

/// The results of one rule set.
pub(crate) struct ReportSet<'s> {
    pub(super) name: &'s str,
    pub(crate) totals: Totals,
    pub(crate) watch: &'s ReportWatch,
    pub(crate) player: &'s Player,
}

impl ReplaySide {
    pub(crate) fn new(player: Player, is_watched: bool) -> ReplaySide {
        let mut side = ReplaySide { player, watch: None, at: Timestamp::ORIGIN };
        if is_watched {
            let mut watch = Box::<ReportWatch>::default();
            watch.number(side.player.rules());
            side.watch = Some(watch);
        }
        side
    }

    pub(super) fn advance(&mut self, at: Timestamp) {
        self.at = at;
        if let Some(watch) = &mut self.watch {
            watch.course.reach(at, || self.player.totals());
        }
        self.player.advance(at);
    }

    /// Decides a request as [`Player::judge`] does.
    pub(super) fn judge(
        &mut self,
        request: &Request<'_>,
        by: &LeaseOwner<'_>,
    ) -> Result<Option<Decision<'_>>, NotPlayed> {
        let decision = self.player.judge(request, by)?;
        if let (Some(watch), Some(decision), true) = (&mut self.watch, &decision, request.op != Op::Peek) {
            watch.note(request, decision, self.at);
        }
        Ok(decision)
    }

    pub(super) fn reload(&mut self, rules: Vec<Arc<Domain>>) {
        if let Some(watch) = &mut self.watch {
            watch.number(&rules);
        }
        self.player.reload(rules);
    }

    /// Ends the replay and returns the data for a report under this name; `None` if none was collected.
    pub(crate) fn told<'s>(&'s mut self, name: &'s str) -> Option<ReportSet<'s>> {
        let totals = self.player.totals();
        let watch = self.watch.as_mut()?;
        watch.course.end(&totals);
        Some(ReportSet { name, totals, watch, player: &self.player })
    }
}

impl ReportWatch {
    fn number(&mut self, rules: &[Arc<Domain>]) {
        self.places.number(rules);
        self.spread.number(rules, &self.places);
        self.refused.number(rules, &self.places);
        self.rules = rules.to_vec();
    }

    fn note(&mut self, request: &Request<'_>, decision: &Decision<'_>, at: Timestamp) {
        let places = self.places.of(request.domain);
        self.spread.note(places, decision, at);
        if decision.checks().any(|check| !check.passes)
            && let Some(domain) = self.rules.iter().find(|domain| domain.name() == request.domain)
        {
            self.refused.note(places, domain, request, decision);
        }
    }
}

/// Rules whose callers are recorded: as many as have counts of their own.
pub(super) const RULES_MAX: usize = 512;
