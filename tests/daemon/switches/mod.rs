//! Operators' overrides over real sockets, and their file.

use crate::{daemon, http, wire};
mod kept;
mod office;
mod versions;
