//! The daemon as a service: the units, a socket that is passed, what a service manager is told, what it may and may not
//! see. Real tools of systemd where they are there; what is skipped says so.

use crate::{daemon, wire};
mod activation;
mod doctor;
mod manager;
mod secrets;
mod telling;
mod tools;
mod two;
mod units;
