//! What the allocator does with large pieces that are given back.

/// Asks the allocator to take every piece of 64 KiB or more from the kernel and to return it as soon as it is freed.
///
/// A table that has grown frees the one it was; kept for later use, those old tables would stay resident, two bytes
/// for every key. By itself glibc raises this bound with the first large piece that is freed.
pub fn give_large_pieces_back() {
    // SAFETY: `mallopt` takes two integers and keeps no reference. It is called before any thread is started, so no
    // allocation is under way while it changes the allocator's parameters.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}

#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 64 << 10;
