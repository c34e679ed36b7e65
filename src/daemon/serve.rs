//! `tidegate serve`: the daemon. It starts even with bad rules, whose domains then have no limits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

#[cfg(feature = "test-hooks")]
use clap::{ArgAction::Set, builder::BoolishValueParser};
use sd_notify::NotifyState;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::fleet_start;
use super::helpers::Helpers;
use super::log_queue::LogQueue;
use super::operator_control::{Daemon, SwitchesStore};
use super::restart::RestoredState;
use super::rules_in_force::{RulesInForce, log_problem};
use super::service_manager::ServiceManager;
use super::settings::{Settings, file_or_installed};
use super::{file_owners, log, process, restart, watch};
use crate::adapters::{self, AdapterCounters, AdapterProtocol};
use crate::admin::{self, AdminSocket, AdminState, ChangeLedger, Listeners};
use crate::clock::Clock;
use crate::engine::{Engine, MAPPED_BYTES_MIN};
use crate::fleet::task::FleetHandle;
use crate::host::{SignalSampler, SignalSink};
use crate::rules::{Library, Problem};
use crate::server::{self, BindError, DomainAccess, Listener, PoolAccess, ThreadHealth};
use crate::state::{BOOT_ID_FILE, SnapshotKeeper, WRITE_EVERY};
use crate::sys;
use crate::terms::without_number;

/// Runs the daemon in the foreground until SIGTERM or SIGINT, which drain it
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The settings; without it /etc/tidegate/tidegate.yaml if there is one
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen, instead of `socket.path` of the settings; the admin socket is beside it, unless --config names
    /// settings that say where
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// A directory of rules or one file, instead of `rules` of the settings
    #[arg(long, value_name = "DIR")]
    pub rules: Option<PathBuf>,
    /// Decision threads, instead of `threads` of the settings
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1_024))]
    pub threads: Option<u16>,
    /// Options for tests
    #[cfg_attr(feature = "test-hooks", command(flatten))]
    #[cfg_attr(not(feature = "test-hooks"), arg(skip))]
    pub hooks: TestHooks,
}

/// Options for tests and benchmarks. Without the feature `test-hooks` they have their defaults, and the command refuses them.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "test-hooks", derive(clap::Args))]
pub struct TestHooks {
    /// Whether decision threads ask the kernel (6.12 or later) for short scheduler slices
    #[cfg_attr(feature = "test-hooks", arg(long, value_parser = BoolishValueParser::new(), action = Set, default_value = "on", hide = true))]
    pub scheduler_slice: bool,
    /// The file that names this boot: another one simulates a reboot
    #[cfg_attr(feature = "test-hooks", arg(long, default_value = BOOT_ID_FILE, hide = true))]
    pub boot_id: PathBuf,
    /// How often the tables are written, in milliseconds
    #[cfg_attr(feature = "test-hooks", arg(long, default_value_t = WRITE_EVERY_MILLIS, hide = true))]
    pub write_state_every: u64,
}

impl Default for TestHooks {
    fn default() -> TestHooks {
        TestHooks {
            scheduler_slice: true,
            boot_id: BOOT_ID_FILE.into(),
            write_state_every: WRITE_EVERY_MILLIS,
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve --rules config/rules --socket /tmp/tidegate.sock
  tidegate serve --config /etc/tidegate/tidegate.yaml

Exit codes: 0 after SIGTERM or SIGINT; 1 when it cannot start, with the reason, or after a second \
signal, which ends it at once; 2 wrong usage; 75 when another tidegate has the socket or the admin \
socket; 101 after a panic.";

/// Runs the command. Standard error carries the log.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    sys::return_freed_memory(MAPPED_BYTES_MIN);
    process::forbid_core_dumps();
    // Before the first line of the log, which may be a file of the largest size allowed.
    sys::prepare_signals();
    let (settings, problems) = match settings(args) {
        Ok(loaded) => loaded,
        Err(problems) => {
            log::before_start(problems.iter().map(|problem| problem.render(false)));
            return ExitCode::FAILURE;
        }
    };
    let queue = log::start(settings.log);
    problems.iter().for_each(log_problem);
    file_owners::warn_of_settings(file_or_installed(args.config.as_deref()), &settings);
    // The hook has reported the panic. The state behind it is not touched again.
    let code = match catch_unwind(AssertUnwindSafe(|| serve(args, &settings, &queue))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            error!("{}", failure.0);
            failure.1.into()
        }
        Err(payload) => {
            restart::note_crash();
            std::mem::forget(payload);
            EXIT_PANICKED.into()
        }
    };
    queue.flush(log::LAST_LINES_MAX);
    code
}

fn settings(args: &Args) -> Result<(Settings, Vec<Problem>), Vec<Problem>> {
    let (mut settings, problems) = Settings::load(file_or_installed(args.config.as_deref()))?;
    if let Some(path) = &args.socket {
        settings.listen_at(path, args.config.is_some());
    }
    if let Some(rules) = &args.rules {
        settings.rules.clone_from(rules);
    }
    // Texts name the path to commands that run elsewhere.
    settings.rules = std::path::absolute(&settings.rules).unwrap_or(settings.rules);
    if let Some(threads) = args.threads {
        settings.threads = usize::from(threads);
    }
    Ok((settings, problems))
}

fn serve(args: &Args, settings: &Settings, queue: &Arc<LogQueue>) -> Result<(), ServeFailure> {
    let listener = listen(settings)?;
    let listeners = operator_listeners(settings)?;
    let mut taken = RestoredState::take_up(settings, &args.hooks.boot_id)?;
    let (engine, clock) = (Arc::clone(&taken.engine), Arc::clone(&taken.clock));
    let (ledger, state) = (Arc::new(ChangeLedger::default()), Arc::clone(&taken.record));
    let switches = Arc::new(SwitchesStore::start(&engine, &clock, &ledger, taken.switches(), &state));
    let joined = fleet_start::join(settings, &mut taken);
    let every = Duration::from_millis(args.hooks.write_state_every);
    let after_crash_loop = Arc::clone(&taken.is_after_crash_loop);
    let rules = start_rules(settings, &mut taken, every);
    process::allow_open_files(settings.connections.max);
    let helpers = Helpers::default();
    let fleet_failure = joined.as_ref().err().map(|why| why.as_str().into());
    let fleet = joined.ok().flatten().map(|plan| fleet_start::start_sync(plan, &engine, &clock, &helpers));
    let _sampler = take_readings(&engine, &clock, &helpers);
    switches.watch(&settings.socket.path, &helpers);
    let keeper = taken.keep(every, &helpers);
    write_log(queue, &helpers);
    let pulse = Arc::new(ThreadHealth::new(settings.threads));
    let runtime = runtime(&pulse)?;
    let manager = ServiceManager::start(&pulse, &clock, &helpers);
    let options = server_options(args, settings, &pulse, fleet.as_ref());
    let served = runtime.block_on(async {
        let shutdown = CancellationToken::new();
        let record = rules.record();
        let adapters: [Arc<AdapterCounters>; 3] = Default::default();
        let reload_signal = watch::watch(rules, manager.clone(), Arc::clone(&pulse), &helpers)?;
        let admin_state = AdminState {
            engine: Arc::clone(&engine),
            clock: Arc::clone(&clock),
            server: Arc::clone(&options.telemetry),
            snapshots: state,
            fleet: fleet.as_ref().map(|fleet| Arc::clone(&fleet.counters)),
            fleet_failure,
            control: Arc::new(Daemon {
                record,
                reload_signal: reload_signal.clone(),
                switches,
                fleet: fleet.as_ref().map(|fleet| fleet.overrides.clone()),
                log: Arc::clone(queue),
                helpers: helpers.clone(),
                after_crash_loop,
                shutdown: shutdown.clone(),
                pulse: Arc::clone(&pulse),
                clock: Arc::clone(&clock),
                socket: Arc::clone(listener.file()),
            }),
            socket: Arc::clone(listener.file()),
            ledger,
            history: Arc::default(),
            recorder: Arc::clone(&options.recorder),
            adapters: adapters.clone(),
            metrics_failure: Arc::default(),
        };
        let notifier = tokio::spawn(notify_service_manager(manager.clone(), pulse, shutdown.clone()));
        process::watch_signals(&shutdown, reload_signal, admin_state.clone())?;
        let (admin_opened, admin_stop) = add_admin(admin_state, listeners, &helpers);
        // Decision threads start first, in case threads are scarce.
        let server = server::start(&engine, &clock, options).map_err(|error| no_thread(&error))?;
        add_adapters(settings, &server, &clock, adapters, &shutdown, &helpers);
        start_helpers(&helpers, &admin_opened, fleet.as_ref());
        info!(socket = %listener.path().display(), threads = settings.threads, mode = %settings.mode, "serving");
        let served = server.run(listener, shutdown.clone()).await.map_err(ServeFailure::from);
        shutdown.cancel();
        // It only notifies the end of serving, and waits for nothing.
        let _ = notifier.await;
        admin_stop.cancel();
        helpers.await_end(&["admin", "http", "resp", "envoy"]);
        served
    });
    runtime.shutdown_background();
    served.map(|()| end(&helpers, fleet, keeper, &manager))
}

fn operator_listeners(settings: &Settings) -> Result<Listeners, ServeFailure> {
    let admin = AdminSocket::first(settings.admin_socket()).map_err(|taken| {
        let help = "stop the other daemon, or name another path as `admin.socket` in the settings";
        ServeFailure(format!("the admin socket is taken: {taken}\nhelp: {help}"), EXIT_TAKEN)
    })?;
    Ok(Listeners { admin, metrics: settings.metrics })
}

/// Makes the runtime of the accepting thread.
fn runtime(pulse: &Arc<ThreadHealth>) -> std::io::Result<Runtime> {
    let (parking, unparking) = (Arc::clone(pulse), Arc::clone(pulse));
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || parking.set_accepting_parked(true))
        .on_thread_unpark(move || unparking.set_accepting_parked(false))
        .build()
}

/// Starts the helper threads and waits up to [`OPEN_MAX`] for the admin socket, which commands expect, and for Redis.
fn start_helpers(helpers: &Helpers, admin_opened: &Receiver<()>, fleet: Option<&FleetHandle>) {
    if helpers.start() {
        let _ = admin_opened.recv_timeout(OPEN_MAX);
        fleet.into_iter().for_each(FleetHandle::await_contact);
    }
    tokio::spawn(helpers.clone().keep_starting());
    #[cfg(all(debug_assertions, feature = "test-hooks"))]
    super::helpers::crash_if_requested();
}

/// Saves and shares the state after the last decision. Each step has its own time limit.
fn end(
    helpers: &Helpers,
    fleet: Option<FleetHandle>,
    keeper: Option<SnapshotKeeper>,
    manager: &ServiceManager,
) {
    // The decision threads have ended: if threads were scarce, the one that writes the tables can start now.
    helpers.start_one("state");
    // Borrowed tokens are of use to other hosts, and are not in the tables.
    fleet.into_iter().for_each(FleetHandle::finish);
    if !keeper.is_none_or(SnapshotKeeper::finish) {
        warn!("the tables could not be written at the end: the next daemon starts from the last snapshot");
    }
    info!("drained: every request received was answered");
    manager.finish();
}

fn start_rules(settings: &Settings, taken: &mut RestoredState, every: Duration) -> RulesInForce {
    let library = Library::new(&settings.rules).scoped(settings.scopes());
    let kept = (taken.last_good_rules(), taken.proof(every));
    let rules = RulesInForce::start(&taken.engine, &taken.clock, library, kept, settings.redis.is_some());
    if rules.is_good() {
        settings.domains_without_rules(&rules.domains()).for_each(log_problem);
    }
    rules
}

fn server_options(
    args: &Args,
    settings: &Settings,
    pulse: &Arc<ThreadHealth>,
    fleet: Option<&FleetHandle>,
) -> server::ServerOptions {
    server::ServerOptions {
        threads: settings.threads,
        connections: settings.connections,
        access: DomainAccess::new(
            settings.domains.iter().map(|domain| (domain.name.clone(), domain.uids.clone())),
            settings.domains.iter().filter(|domain| domain.trusts_refunds).map(|domain| domain.name.clone()),
        ),
        pools: PoolAccess::new(settings.pools.iter().cloned()),
        telemetry: Arc::default(),
        request_short_slices: args.hooks.scheduler_slice,
        thread_health: Arc::clone(pulse),
        remote_checker: fleet.map(|fleet| Arc::clone(&fleet.remote_checker)),
        recorder: Arc::default(),
    }
}

/// Listens on the passed socket, else on one of our own.
fn listen(settings: &Settings) -> Result<Listener, ServeFailure> {
    let wanted = &settings.socket.path;
    if let Some(listener) = process::passed_listener()? {
        if listener.path() != wanted {
            let (passed, wanted) = (listener.path().display(), wanted.display());
            warn!(%passed, %wanted, "the socket that was passed is elsewhere than `socket.path`: it is the one that counts");
        }
        return Ok(listener);
    }
    make_directory_of(wanted)?;
    Ok(Listener::bind(wanted, settings.socket.mode, group_of(settings)?)?)
}

/// Notifies the service manager when the daemon serves, and when it stops.
async fn notify_service_manager(
    manager: ServiceManager,
    pulse: Arc<ThreadHealth>,
    shutdown: CancellationToken,
) {
    tokio::select! {
        () = pulse.wait_until_serving() => manager.notify(&[NotifyState::Ready]),
        () = shutdown.cancelled() => {}
    }
    shutdown.cancelled().await;
    manager.notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Without the sampler, pools are judged by their busy slots alone.
fn take_readings(engine: &Arc<Engine>, clock: &Arc<Clock>, helpers: &Helpers) -> SignalSampler {
    let readings: Arc<dyn SignalSink> = Arc::<Engine>::clone(engine);
    let (sampler, work) = SignalSampler::new(readings, Arc::clone(clock));
    helpers.add("sampler", "there are no readings of the machine", work);
    sampler
}

/// Until the thread runs, each thread writes its lines as far as standard error accepts without waiting.
fn write_log(queue: &Arc<LogQueue>, helpers: &Helpers) {
    let queue = Arc::clone(queue);
    helpers.add("log", "lines of the log may be dropped", move || queue.write_for_ever());
}

/// Without this thread there is no admin socket; decisions continue.
fn add_admin(
    state: AdminState,
    listeners: Listeners,
    helpers: &Helpers,
) -> (Receiver<()>, CancellationToken) {
    let ((tell_opened, opened), stop) = (sync_channel(1), CancellationToken::new());
    let work = admin::work(state, listeners, tell_opened, stop.clone());
    helpers.add("admin", "there is no admin socket and no metrics", work);
    (opened, stop)
}

/// Adds the thread of each adapter that the settings name.
fn add_adapters(
    settings: &Settings,
    server: &server::Server,
    clock: &Arc<Clock>,
    [http, resp, envoy]: [Arc<AdapterCounters>; 3],
    shutdown: &CancellationToken,
    helpers: &Helpers,
) {
    for (protocol, endpoint) in &settings.adapters {
        let name = protocol.names().1;
        let counters = match protocol {
            AdapterProtocol::Http(_) => &http,
            AdapterProtocol::Resp => &resp,
            AdapterProtocol::Envoy => &envoy,
        };
        let mut endpoint = endpoint.clone();
        endpoint.mode = settings.socket.mode;
        endpoint.group = group_of(settings).unwrap_or_else(|error| {
            warn!("{error}: the socket of `adapters.{name}` has the group of the daemon");
            None
        });
        let (protocol, counters) = (protocol.clone(), Arc::clone(counters));
        let (connector, clock, stop) = (server.connector(), Arc::clone(clock), shutdown.clone());
        let limits = settings.connections;
        let work = adapters::work(protocol, endpoint, limits, connector, clock, counters, stop);
        helpers.add(name, "an adapter is not served", work);
    }
}

/// Makes the directory of a socket if it is missing, but none of its parents.
fn make_directory_of(socket: &Path) -> Result<(), String> {
    let Some(directory) = socket.parent().filter(|path| !path.as_os_str().is_empty() && !path.exists())
    else {
        return Ok(());
    };
    std::fs::create_dir(directory).map_err(|error| {
        format!(
            "{}: cannot make the directory of the socket: {}\nhelp: name a socket in another directory: --socket PATH",
            directory.display(),
            without_number(&error)
        )
    })
}

fn group_of(settings: &Settings) -> Result<Option<u32>, String> {
    settings.socket.group_number().map_err(|wrong| format!("{}\nhelp: {}", wrong.message, wrong.help))
}

fn no_thread(error: &std::io::Error) -> String {
    format!(
        "cannot start a single decision thread: {error}; help: raise TasksMax of the unit, or `ulimit -u`"
    )
}

/// Why the daemon does not start, with its help, and the exit code.
#[derive(Debug)]
struct ServeFailure(String, u8);

impl From<String> for ServeFailure {
    fn from(message: String) -> ServeFailure {
        ServeFailure(message, 1)
    }
}

impl From<std::io::Error> for ServeFailure {
    fn from(error: std::io::Error) -> ServeFailure {
        format!("cannot start: {error}").into()
    }
}

impl From<BindError> for ServeFailure {
    /// Says how to end the daemon that has the path.
    fn from(error: BindError) -> ServeFailure {
        let (code, help) = match &error {
            BindError::Locked { pid, .. } => {
                let pid = pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
                let help = format!(
                    "\nhelp: to replace it: kill {pid} (under systemd: systemctl restart tidegate); or name another path: --socket PATH"
                );
                (EXIT_TAKEN, help)
            }
            BindError::InUse { .. } => {
                let help = "\nhelp: `ss -xlp` names the process: end it, or name another path: --socket PATH";
                (EXIT_TAKEN, help.to_owned())
            }
            BindError::NotASocket { .. } => {
                (1, "\nhelp: remove it, or name another path: --socket PATH".to_owned())
            }
            _ => (1, String::new()),
        };
        ServeFailure(format!("{error}{help}"), code)
    }
}

const OPEN_MAX: Duration = Duration::from_secs(1);

/// `EX_TEMPFAIL` of sysexits.h: a start may succeed once the other daemon has stopped.
const EXIT_TAKEN: u8 = 75;

/// The exit code of a Rust program that panicked.
const EXIT_PANICKED: u8 = 101;

const WRITE_EVERY_MILLIS: u64 = WRITE_EVERY.as_secs() * 1_000;
