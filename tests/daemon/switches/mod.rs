//! Operators' overrides over real sockets, and their file.

mod commands;
mod kept;
