//! THE DAEMON: reads settings and rules, starts the modules, watches and reloads files, stops.

mod adapter_settings;
pub(crate) mod file_owners;
mod fleet_start;
mod helpers;
mod last_good;
pub(crate) mod log;
mod log_queue;
mod operator_control;
pub(crate) mod process;
pub mod redis_settings;
mod restart;
mod rules_in_force;
pub mod serve;
mod service_manager;
pub mod settings;
pub(crate) mod settings_file;
mod watch;
mod watching;
