//! The daemon as a service: its units, a passed socket, messages to the service manager, its permissions.
//! Uses real systemd tools if installed, and prints skipped tests.

mod activation;
mod doctor;
mod manager;
mod notify;
mod secrets;
mod tools;
mod units;
