//! Signals of this process: aborts that it raises itself are recorded in a file, a second signal ends it whatever its threads do.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use signal_hook::low_level;

use crate::clock::read_boot_nanos;

/// Ignores SIGXFSZ, so that a write past RLIMIT_FSIZE fails like one on a full disk instead of ending the process; and
/// SIGHUP and SIGUSR1, which would end it until their handlers are there. Unblocks all signals: with SIGTERM blocked by
/// its parent, only SIGKILL would end it.
pub(crate) fn prepare_signals() {
    // SAFETY: a zeroed `sigset_t` is valid memory for `sigemptyset`, which makes it an empty set before it is read; no old
    // mask is written.
    unsafe {
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
    for signal in [libc::SIGXFSZ, libc::SIGHUP, libc::SIGUSR1] {
        // SAFETY: `signal` takes two integers here: SIG_IGN is not a function, so no handler of this process runs. It is
        // called before any thread is started, and before any handler is set.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

/// Ends the process with a code at the second of these signals. The same signal within [`ECHO_MILLIS`] counts once:
/// GNU `timeout` signals its child and then its process group.
pub(crate) fn exit_at_second_signal(signals: &[i32], code: i32) -> io::Result<()> {
    // The time and number of the first signal, in one word.
    let first = Arc::new(AtomicU64::new(0));
    for signal in signals {
        let (first, number) = (Arc::clone(&first), u64::from(signal.unsigned_abs()));
        let handler = move || {
            let now = ((read_boot_nanos() / 1_000_000) << SIGNAL_BITS) | number;
            let Err(begun) = first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) else {
                return;
            };
            let is_echo = (begun ^ now) & SIGNAL_MASK == 0
                && (now >> SIGNAL_BITS).saturating_sub(begun >> SIGNAL_BITS) < ECHO_MILLIS;
            if !is_echo {
                low_level::exit(code);
            }
        };
        // SAFETY: the handler calls only async-signal-safe functions: `clock_gettime` and `_exit`. It uses one atomic,
        // takes no lock and allocates nothing.
        unsafe { low_level::register(*signal, handler) }?;
    }
    Ok(())
}

const SIGNAL_BITS: u32 = 8;
const SIGNAL_MASK: u64 = 0xff;

/// A person takes longer to repeat a signal.
const ECHO_MILLIS: u64 = 100;

/// Installs a SIGABRT handler that appends a crash record to a file before the process ends. A SIGABRT sent by another
/// process, such as a service manager's watchdog, appends nothing. `clock` identifies the boot-time clock.
pub(crate) fn record_aborts(file: File, clock: u128) -> io::Result<()> {
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
            let _ = low_level::emulate_default_handler(libc::SIGABRT);
        })?;
    }
    Ok(())
}

/// Encodes the record of a crash: `nanos` of the boot-time clock, then the number that identifies this clock.
pub(crate) fn encode_crash_record(nanos: u64, clock: u128) -> [u8; CRASH_RECORD_BYTES] {
    let mut record = [0; CRASH_RECORD_BYTES];
    let (time_bytes, clock_bytes) = record.split_at_mut(size_of::<u64>());
    time_bytes.copy_from_slice(&nanos.to_le_bytes());
    clock_bytes.copy_from_slice(&clock.to_le_bytes());
    record
}

pub(crate) const CRASH_RECORD_BYTES: usize = size_of::<u64>() + size_of::<u128>();
