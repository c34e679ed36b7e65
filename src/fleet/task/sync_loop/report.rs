//! Logs and the published view of the sync task.

use super::SyncLoop;
use crate::clock::Now;
use tracing::{info, warn};

impl SyncLoop {
    /// Logs whether borrowed tokens were returned at the end, for operators who miss tokens.
    pub(super) fn log_end(&self, is_all_confirmed: bool) {
        let lapsed = self.member.sync().counts().lapsed;
        if !self.member.has_budgets() {
            return;
        }
        if is_all_confirmed {
            info!(lapsed, "borrowed tokens were returned");
        } else {
            info!(lapsed, "Redis did not answer at the end: borrowed tokens expire there");
        }
    }

    /// Publishes the view and logs warnings.
    pub(super) fn publish_view(&mut self, now: Now) {
        let is_needed = self.member.has_budgets() || self.keeps_reserve;
        if self.overrides.warns(now.at) {
            warn!(
                "FORGED FLEET OVERRIDES in Redis are ignored: the fleet secret of this host does not authenticate them. help: find out who \
                 writes to tg:{{tm}}:overrides"
            );
        }
        let sync = self.member.sync();
        let counts = sync.counts();
        let view = &mut self.view;
        let passed = now.at.since(self.published.at).as_millis().max(1);
        let cells = u128::from(counts.cells - self.published_cells) * 1_000 / passed;
        // An average over about a second: a quarter of the new value.
        let before = u128::from(view.cells_per_second);
        view.cells_per_second = u64::try_from((before * 3 + cells) / 4).unwrap_or(u64::MAX);
        view.host = sync.host();
        view.is_needed = is_needed;
        view.secret = self.plan.secret;
        view.is_linked = self.status.is_redis_reachable();
        view.hosts = self.status.hosts();
        view.round_trip = sync.round_trip();
        view.counts = counts;
        view.overrides = self.overrides.view(now.at);
        view.remote_checks = self.member.remote_checks().counts();
        view.keys = sync.keys() + self.member.permits().keys();
        view.versions = self.member.versions().collect();
        view.tallies = sync.tallies(now.at).chain(self.member.permits().tallies(now.at)).collect();
        if let Some(servers) = &self.servers {
            view.nodes = servers.nodes();
            view.errors = servers.errors();
        }
        (self.published, self.published_cells) = (now, counts.cells);
        self.counters.tell(view.clone());
    }
}
