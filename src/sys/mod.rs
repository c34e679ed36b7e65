//! THE KERNEL: the system calls that no crate offers safely. All `unsafe` of the project is here, each with its proof.
#![allow(unsafe_code)]

mod abort;
mod passed;
mod process;
mod random;
mod readiness;
mod scheduler;
mod signals;
mod startup;

pub use abort::{CRASH_RECORD_BYTES, encode_crash_record, record_aborts};
pub use passed::{PassedDescriptor, take_passed_descriptors};
pub use process::{peer_pid, peer_pidfd, pidfd_open};
pub use random::random_bytes;
pub use readiness::{ProcessExit, read_socket, register_socket};
pub use scheduler::{SHORT_SLICE, lower_priority, read_slice, request_short_slice};
pub use signals::exit_at_second_signal;
pub use startup::{ignore_file_size_signal, return_freed_memory, trim_heap};
