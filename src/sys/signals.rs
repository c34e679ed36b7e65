//! Ends the process at a second signal, whatever its threads do.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use signal_hook::low_level;

use crate::clock::read_boot_nanos;

/// Ends the process with a code at the second of these signals. The same signal within [`ECHO_MILLIS`] counts once:
/// GNU `timeout` signals its child and then its process group.
///
/// # Errors
/// A handler cannot be installed.
pub fn exit_at_second_signal(signals: &[i32], code: i32) -> io::Result<()> {
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
