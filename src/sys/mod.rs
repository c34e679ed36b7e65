//! THE KERNEL: the few calls no crate offers safely. The only `unsafe`, each with its proof.
#![allow(unsafe_code)]

mod abort;
mod file_size;
mod memory;
mod passed;
mod process;
mod process_end;
mod random;
mod readable;
mod scheduler;

pub use abort::{CRASH_NOTE_BYTES, crash_note, note_aborts};
pub use file_size::outlive_file_size_limit;
pub use memory::give_large_pieces_back;
pub use passed::{Passed, passed_descriptors};
pub use process::{peer_pid, peer_pidfd, pidfd_open};
pub use process_end::ProcessEnd;
pub use random::drawn;
pub use readable::register;
pub use scheduler::{SHORT_SLICE, ask_for_short_slice, give_way, slice};
