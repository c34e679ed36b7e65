//! THE DAEMON: reads settings and rules, starts the modules, watches and reloads files, stops.

mod adapter_settings;
mod control;
mod disable_file;
pub(crate) mod file_owners;
pub mod fleet_secret;
mod fleet_start;
mod helpers;
mod last_good;
pub(crate) mod log;
mod log_limit;
mod log_queue;
mod operator_control;
mod passed_socket;
pub(crate) mod process_limits;
pub mod redis_settings;
mod restart;
mod rules_in_force;
pub mod serve;
mod service_manager;
pub mod settings;
pub(crate) mod settings_file;
mod signals;
mod watch;
mod watched_paths;
mod watching;
