//! What a limit on the size of files does to whoever writes past it.

/// Lets a write past RLIMIT_FSIZE fail like one on a full disk, instead of ending the process.
pub fn outlive_file_size_limit() {
    // SAFETY: `signal` takes two integers here: SIG_IGN is no function, so none of ours ever runs in a handler. It is
    // called before any thread is started, and nothing else in the process asks for SIGXFSZ.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
