//! Joins the fleet: from the settings to the sync task. After any problem the daemon limits on its host.

use std::path::Path;
use std::sync::Arc;

use tracing::{error, info, warn};

use super::helpers::Helpers;
use super::redis_settings::{FleetSecret, RedisSettings, fleet_secret};
use super::restart::RestoredState;
use super::rules_in_force::log_problem;
use super::settings::Settings;
use crate::clock::Clock;
use crate::engine::{Engine, HashKey};
use crate::fleet::identity::Identity;
use crate::fleet::overrides::OverridesDocument;
use crate::fleet::secrets::{OverridesKey, SecretDigest};
use crate::fleet::task::{FleetHandle, StoreMembership, SyncPlan};
use crate::host::read_machine_marks;
use crate::state::{StateFile, read_small, write_whole};
use crate::sys;
use crate::terms::without_number;

/// Joins the fleet of the settings, before there are rules: the engine shares budgets from now on. `None`: the settings
/// name no Redis.
///
/// # Errors
/// Why this daemon cannot join (logged): until it is started again, fleet rules limit on this host alone.
pub(super) fn join(settings: &Settings, taken: &mut RestoredState) -> Result<Option<SyncPlan>, String> {
    let joined = settings.redis.as_ref().map(|redis| join_redis(redis, settings.hosts_at_least, taken));
    joined.transpose().inspect_err(|why| {
        error!(
            "{why}: rules of the fleet limit on this host alone until that is fixed and the daemon restarted"
        );
    })
}

fn join_redis(
    redis: &RedisSettings,
    hosts_at_least: u32,
    taken: &mut RestoredState,
) -> Result<SyncPlan, String> {
    let (secret, problem) = redis.fleet_secret_file.as_deref().map(fleet_secret).unwrap_or_default();
    problem.iter().for_each(log_problem);
    let why = || match &problem {
        Some(problem) => format!("{}: {}", problem.position.file, problem.message),
        None => "no fleet secret: `fleet_secret_files` names none".to_owned(),
    };
    let secret = secret.ok_or_else(why)?;
    let link = redis.link.clone();
    let marks = read_machine_marks(Path::new("/"));
    let (identity, keep) = identity(taken, &marks)?;
    let versions = taken.own_directory().map(|directory| directory.path.join(VERSIONS_FILE));
    let versions = versions.and_then(|path| {
        // What cannot be read is damaged.
        read_small(&path, VERSIONS_BYTES_MAX).or_else(|| path.symlink_metadata().ok().map(|_| Vec::new()))
    });
    let status = taken.engine.join_fleet(hash_key(&secret));
    status.set_hosts_at_least(hosts_at_least);
    let overrides_key = OverridesKey::of_secret(secret.bytes());
    restore_overrides(&overrides_key, taken);
    let secret = SecretDigest::of_secret(secret.bytes());
    Ok(SyncPlan { status, link, identity, marks, secret, overrides_key, versions, keep })
}

/// Starts the sync task. Redis need not be reachable.
pub(super) fn start_sync(
    plan: SyncPlan,
    engine: &Arc<Engine>,
    clock: &Arc<Clock>,
    helpers: &Helpers,
) -> FleetHandle {
    let (fleet, work) = FleetHandle::new(Arc::clone(engine), Arc::clone(clock), plan);
    helpers.add("sync", "fleet rules follow `on_redis_down`", work);
    fleet
}

/// Restores the fleet overrides of the previous process; they hold until Redis has newer ones.
fn restore_overrides(key: &OverridesKey, taken: &mut RestoredState) {
    let path = taken.own_directory().map(|directory| directory.path_of(StateFile::Overrides));
    let Some(kept) = path.and_then(|path| read_small(&path, OVERRIDES_BYTES_MAX)) else { return };
    let Some(document) = OverridesDocument::open(&kept, key) else { return taken.set_overrides_aside() };
    let overrides = document.overrides(taken.clock.now());
    for switch in &overrides.switches {
        info!(by = %switch.by, "still switched on all hosts: {} is {}", switch.target, switch.mode);
    }
    taken.engine.restore_fleet_overrides(overrides);
}

/// Returns the identity and epoch of this host. An identity is reused only if its new epoch is stored before
/// the first command: a repeated sequence number would be taken for a command that was answered.
fn identity(
    taken: &mut RestoredState,
    marks: &[Vec<u8>],
) -> Result<(Identity, Option<StoreMembership>), String> {
    let random = sys::random_bytes().and_then(|host| Ok((host, sys::random_bytes()?)));
    let random = random.map_err(|error| format!("no random numbers: {error}"))?;
    let Some(directory) = taken.own_directory() else { return Ok((Identity::fresh(marks, random), None)) };
    let path = directory.path.join("fleet-identity");
    let kept = read_small(&path, IDENTITY_BYTES_MAX);
    let identity = Identity::next(kept.as_deref(), marks, random);
    if kept.is_some() && identity.is_new() {
        info!("the stored identity of this host is of another machine, or damaged: it gets a new one");
    }
    let (file, versions_file) = (path.clone(), directory.path.join(VERSIONS_FILE));
    let keep: StoreMembership = Arc::new(move |identity, versions| {
        write_whole(&file, identity)?;
        write_whole(&versions_file, versions)
    });
    match write_whole(&path, &identity.to_bytes()) {
        Ok(()) => Ok((identity, Some(keep))),
        Err(error) => {
            let help = "make its directory, writable for the daemon's user: the identity is stored within a minute then";
            warn!(path = %path.display(), error = %without_number(&error), help, "the identity of this host cannot be stored, so a restart would count as another host");
            Ok((Identity::fresh(marks, random), Some(keep)))
        }
    }
}

/// The newest versions of the rules' numbers, beside the identity.
const VERSIONS_FILE: &str = "fleet-versions";

/// The versions of a hundred thousand rules.
const VERSIONS_BYTES_MAX: u64 = 8 << 20;

/// Far more than an identity has.
const IDENTITY_BYTES_MAX: u64 = 1_024;

/// One more than the largest document, so that a larger file is detected.
const OVERRIDES_BYTES_MAX: u64 = 65_537;

/// Derives the hash key; two secrets never yield the same one.
fn hash_key(secret: &FleetSecret) -> HashKey {
    let mut hasher = sha1_smol::Sha1::from(b"tidegate: the keys of a fleet\0");
    hasher.update(secret.bytes());
    let digest = hasher.digest().bytes();
    HashKey::from_bytes(digest.first_chunk().copied().unwrap_or_default())
}
