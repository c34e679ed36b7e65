//! Process-wide settings that are made before any thread starts, and the allocator.

/// Ignores SIGXFSZ, so that a write past RLIMIT_FSIZE fails like one on a full disk instead of ending the process.
pub fn ignore_file_size_signal() {
    // SAFETY: `signal` takes two integers here: SIG_IGN is not a function, so no handler of this process runs. It is
    // called before any thread is started, and nothing else in the process sets a handler for SIGXFSZ.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
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
pub fn trim_heap() {
    // SAFETY: `malloc_trim` takes an integer and changes nothing that is allocated; the allocator locks what it walks.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
