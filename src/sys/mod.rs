//! THE KERNEL: the system calls that no crate offers safely. All `unsafe` of the project is here, each with its proof.
#![allow(unsafe_code)]

mod abort;
mod passed;
mod process;
mod random;
mod readiness;
mod scheduler;
mod startup;

pub use abort::{CRASH_RECORD_BYTES, encode_crash_record, record_aborts};
pub use passed::{Passed, passed_descriptors};
pub use process::{peer_pid, peer_pidfd, pidfd_open};
pub use random::drawn;
pub use readiness::{ProcessExit, register};
pub use scheduler::{SHORT_SLICE, ask_for_short_slice, give_way, slice};
pub use startup::{give_large_pieces_back, outlive_file_size_limit};
