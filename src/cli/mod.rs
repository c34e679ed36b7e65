//! One file per command.

pub mod check;
pub mod settings;
mod settings_file;
