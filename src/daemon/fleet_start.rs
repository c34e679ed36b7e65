//! How the daemon comes to share budgets with other hosts: from the settings to the talk with Redis. Whatever is wrong, it
//! starts and limits on its own host.

use std::path::Path;
use std::sync::Arc;

use tracing::{error, info, warn};

use super::fleet_secret::{FleetSecret, fleet_secret};
use super::helpers::Helpers;
use super::redis_settings::RedisSettings;
use super::restart::TakenUp;
use super::rules_in_force::log_problem;
use crate::clock::Clock;
use crate::engine::{Engine, HashKey, Standing};
use crate::fleet::identity::Identity;
use crate::fleet::overrides::{Document, Seal};
use crate::fleet::secrets::Mark;
use crate::fleet::task::{Fleet, Keep, Plan};
use crate::host::machine_marks;
use crate::sys;

/// An engine that shares budgets from now on, and with whom to talk about them.
#[derive(Debug)]
pub(super) struct Joined {
    standing: Arc<Standing>,
    plan: Plan,
}

/// Joins the fleet of the settings, before there are rules. `None`: there is none, or it cannot be joined, which is told.
pub(super) fn join(redis: Option<&RedisSettings>, taken: &mut TakenUp) -> Option<Joined> {
    let redis = redis?;
    let (secret, problem) = redis.fleet_secret_file.as_deref().map(fleet_secret).unwrap_or_default();
    problem.iter().for_each(log_problem);
    let Some(secret) = secret else {
        error!(
            "no fleet secret: rules of the fleet limit on this host alone until `fleet_secret_files` names one"
        );
        return None;
    };
    let link = redis.link_options();
    if let Err(wrong) = link.check() {
        error!(
            "{wrong}: rules of the fleet limit on this host alone until `redis` is mended in the settings"
        );
        return None;
    }
    let marks = machine_marks(Path::new("/"));
    let (identity, keep) = identity(taken, &marks)?;
    let standing = taken.engine.join_fleet(hash_key(&secret));
    let seal = Seal::new(secret.bytes());
    put_back_overrides(&seal, taken);
    let secret = Mark::of_secret(secret.bytes());
    Some(Joined { standing, plan: Plan { link, identity, marks, secret, seal, keep } })
}

impl Joined {
    /// Begins to talk with the others. Redis need not be there.
    pub(super) fn talk(self, engine: &Arc<Engine>, clock: &Arc<Clock>, helpers: &Helpers) -> Option<Fleet> {
        let fleet = Fleet::new(Arc::clone(engine), Arc::clone(clock), self.standing, self.plan);
        let fleet = fleet.inspect_err(|error| warn!(%error, "rules of the fleet go by `on_redis_down`"));
        let (fleet, work) = fleet.ok()?;
        helpers.add("sync", "rules of the fleet go by `on_redis_down`", work);
        Some(fleet)
    }
}

/// The fleet overrides of the process before hold until Redis has newer ones.
fn put_back_overrides(seal: &Seal, taken: &mut TakenUp) {
    let Some(kept) = taken.fleet_overrides().and_then(|file| file.read()) else { return };
    let Some(document) = Document::open(&kept, seal) else { return taken.set_overrides_aside() };
    let overrides = document.overrides(taken.clock.now());
    for switch in &overrides.switches {
        info!(by = %switch.by, "still switched on all hosts: {} is {}", switch.target, switch.mode);
    }
    taken.engine.put_back_fleet_overrides(overrides);
}

/// Who this host is in this life. It is only who it was if this life is kept before anything is said in it: a number that is
/// given twice would be taken for a call that was answered.
fn identity(taken: &mut TakenUp, marks: &[Vec<u8>]) -> Option<(Identity, Option<Keep>)> {
    let drawn = sys::drawn().inspect_err(|error| {
        error!(%error, "no random numbers: rules of the fleet limit on this host alone");
    });
    let random = drawn.ok()?;
    let Some(file) = taken.fleet_identity() else { return Some((Identity::fresh(marks, random), None)) };
    let kept = file.read();
    let identity = Identity::next(kept.as_deref(), marks, random);
    if kept.is_some() && identity.is_new() {
        info!("what is kept of this host's identity is of another machine, or damaged: it takes a new one");
    }
    let keep: Keep = Arc::new(move |bytes| file.write(bytes));
    match keep(&identity.to_bytes()) {
        Ok(()) => Some((identity, Some(keep))),
        Err(error) => {
            warn!(%error, "who this host is cannot be kept: it is somebody new after each restart");
            Some((Identity::fresh(marks, random), None))
        }
    }
}

/// Any bytes make a key; two secrets never make the same one.
fn hash_key(secret: &FleetSecret) -> HashKey {
    let mut hasher = sha1_smol::Sha1::from(b"tidegate: the keys of a fleet\0");
    hasher.update(secret.bytes());
    let digest = hasher.digest().bytes();
    HashKey::from_bytes(digest.first_chunk().copied().unwrap_or_default())
}
