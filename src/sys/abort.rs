//! Has an abort of this process by itself noted in a file: a broken invariant, or no memory. It prevents nothing.

use std::fs::File;
use std::io;

use signal_hook::low_level::emulate_default_handler;

use crate::clock::boot_nanos;

/// From now on, an abort of this process by itself appends a note to a file before the process ends. An abort by another
/// process, as of a service manager's watchdog, appends nothing.
///
/// # Errors
/// The handler cannot be installed.
pub fn note_aborts(file: File, clock: u128) -> io::Result<()> {
    let own = rustix::process::getpid();
    // SAFETY: the handler only calls what POSIX allows in one: `clock_gettime`, `write` to a descriptor that is never
    // closed (the closure owns it and is never unregistered), `sigaction` and `raise`. It takes no lock and allocates
    // nothing. `si_pid` is set for SIGABRT: it is sent by `kill` or `tgkill` only, and other fields are not read.
    unsafe {
        signal_hook_registry::register_sigaction(libc::SIGABRT, move |info| {
            if info.si_pid() == own.as_raw_nonzero().get() {
                // An end that cannot be noted is not counted.
                let _ = rustix::io::write(&file, &crash_note(boot_nanos(), clock));
            }
            let _ = emulate_default_handler(libc::SIGABRT);
        })?;
    }
    Ok(())
}

/// The note of an end at a time of the boot-time clock that is named by a number.
#[must_use]
pub fn crash_note(nanos: u64, clock: u128) -> [u8; CRASH_NOTE_BYTES] {
    let mut note = [0; CRASH_NOTE_BYTES];
    let (time, of) = note.split_at_mut(size_of::<u64>());
    time.copy_from_slice(&nanos.to_le_bytes());
    of.copy_from_slice(&clock.to_le_bytes());
    note
}

/// The size of a note.
pub const CRASH_NOTE_BYTES: usize = size_of::<u64>() + size_of::<u128>();
