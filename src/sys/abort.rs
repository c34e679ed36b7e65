//! Records aborts that this process raises itself (a broken invariant, no memory) in a file. It does not prevent them.

use std::fs::File;
use std::io;

use signal_hook::low_level::emulate_default_handler;

use crate::clock::read_boot_nanos;

/// Installs a SIGABRT handler that appends a crash record to a file before the process ends. A SIGABRT sent by another
/// process, such as a service manager's watchdog, appends nothing. `clock` identifies the boot-time clock.
///
/// # Errors
/// The handler cannot be installed.
pub fn record_aborts(file: File, clock: u128) -> io::Result<()> {
    let own = rustix::process::getpid();
    // SAFETY: the handler calls only async-signal-safe functions: `clock_gettime`, `write` to a descriptor that is never
    // closed (the closure owns it and is never unregistered), `sigaction` and `raise`. It takes no lock and allocates
    // nothing. `si_pid` is set for SIGABRT: it is sent by `kill` or `tgkill` only, and other fields are not read.
    unsafe {
        signal_hook_registry::register_sigaction(libc::SIGABRT, move |info| {
            if info.si_pid() == own.as_raw_nonzero().get() {
                // A crash that cannot be recorded is not counted.
                let _ = rustix::io::write(&file, &encode_crash_record(read_boot_nanos(), clock));
            }
            let _ = emulate_default_handler(libc::SIGABRT);
        })?;
    }
    Ok(())
}

/// Encodes the record of a crash: `nanos` of the boot-time clock, then the number that identifies this clock.
#[must_use]
pub fn encode_crash_record(nanos: u64, clock: u128) -> [u8; CRASH_RECORD_BYTES] {
    let mut record = [0; CRASH_RECORD_BYTES];
    let (time_bytes, clock_bytes) = record.split_at_mut(size_of::<u64>());
    time_bytes.copy_from_slice(&nanos.to_le_bytes());
    clock_bytes.copy_from_slice(&clock.to_le_bytes());
    record
}

/// The size of a crash record.
pub const CRASH_RECORD_BYTES: usize = size_of::<u64>() + size_of::<u128>();
