//! THE KERNEL: the system calls that no crate offers safely. All `unsafe` of the project is here, each with its proof.
#![allow(unsafe_code)]

mod process;
mod readiness;
mod scheduler;
mod signals;

pub(crate) use process::{PassedDescriptor, peer_pid, peer_pidfd, take_passed_descriptors};
pub(crate) use readiness::{ProcessExit, read_socket, register_socket};
pub(crate) use scheduler::lower_priority;
pub use scheduler::{SHORT_SLICE, read_slice, request_short_slice};
pub(crate) use signals::{
    CRASH_RECORD_BYTES, encode_crash_record, exit_at_second_signal, prepare_signals, record_aborts,
};

/// Returns `BYTES` random bytes of the kernel.
pub(crate) fn random_bytes<const BYTES: usize>() -> std::io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}

/// Makes the allocator map blocks of `mapped_bytes_min` or more, and unmap them as soon as they are freed.
///
/// A table that grows frees its previous block. Kept in the heap, these blocks would stay resident, two bytes for every
/// key. glibc by default raises this threshold with the first large block that is freed.
pub fn return_freed_memory(mapped_bytes_min: usize) {
    let threshold = libc::c_int::try_from(mapped_bytes_min).unwrap_or(libc::c_int::MAX);
    // SAFETY: `mallopt` takes two integers and keeps no reference. It is called before any thread is started, so no
    // allocation is under way while it changes the allocator's parameters.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, threshold);
    }
}

/// Returns the free pages of the heap to the kernel.
///
/// Reading rules takes several times their size, in small blocks between those that stay: without this, two readings of
/// 100 000 rules hold 740 MB where 300 are in use.
pub(crate) fn trim_heap() {
    // SAFETY: `malloc_trim` takes an integer and changes nothing that is allocated; the allocator locks what it walks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
