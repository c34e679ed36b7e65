//! What a decision thread asks of the scheduler, and what it is given.

use std::io;
use std::time::Duration;

/// Asks that the calling thread be given short slices, 0.1 ms: on a busy CPU it then runs soon after it wakes,
/// instead of after the others' full slices (p99 2.7 ms → 0.05 ms). It gets no more CPU for it than its share.
///
/// Unprivileged. Kernels before 6.12 ignore the wish.
///
/// # Errors
/// What the kernel says, for instance under a filter of system calls. Nothing is lost but the speed.
pub fn ask_for_short_slice() -> io::Result<()> {
    // As it is: the kernel takes all of these at once, and grants no thread a better one without a privilege.
    let nice = rustix::process::getpriority_process(None)?;
    ask(&Attributes { nice, runtime_nanos: SLICE_NANOS, ..Attributes::default() })
}

/// Asks that the calling thread give way to all others that want the CPU: it then has a tenth of what they have.
///
/// # Errors
/// What the kernel says, for instance under a filter of system calls.
pub fn give_way() -> io::Result<()> {
    let nice = rustix::process::getpriority_process(None)?.max(NICE);
    ask(&Attributes { nice, ..Attributes::default() })
}

fn ask(attributes: &Attributes) -> io::Result<()> {
    let size = u32::try_from(size_of::<Attributes>()).unwrap_or_default();
    let attributes = Attributes { size, policy: SCHED_OTHER, ..*attributes };
    // SAFETY: the kernel reads `size` bytes at the pointer, which is exactly the initialised, live `attributes`,
    // and keeps no reference to it. 0 is the calling thread; no flags.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The slice that the calling thread has. Zero: the kernel does not tell, for it knows no slices of a thread's own, as before
/// 6.12.
///
/// # Errors
/// What the kernel says, for instance under a filter of system calls.
pub fn slice() -> io::Result<Duration> {
    let mut attributes = Attributes::default();
    let size = size_of::<Attributes>();
    // SAFETY: the kernel writes at most `size` bytes at the pointer, which is exactly the live `attributes`, every pattern of
    // whose bits is valid, and keeps no reference to it. 0 is the calling thread; no flags.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::from_nanos(attributes.runtime_nanos))
}

/// `struct sched_attr` of linux/sched/types.h in its first version, which every kernel since 3.14 reads.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// For SCHED_OTHER since 6.12: the slice.
    runtime_nanos: u64,
    deadline_nanos: u64,
    period_nanos: u64,
}

/// Weighs 110 where others weigh 1 024.
const NICE: i32 = 10;

const SCHED_OTHER: u32 = 0;

/// The shortest slice that the kernel grants.
const SLICE_NANOS: u64 = 100_000;

/// What is asked for.
pub const SHORT_SLICE: Duration = Duration::from_nanos(SLICE_NANOS);

#[cfg(test)]
mod tests {
    use rustix::process::{getpriority_process, setpriority_process};

    use super::ask_for_short_slice;

    #[test]
    fn who_started_the_daemon_with_another_nice_value_keeps_it() {
        let thread = std::thread::spawn(|| {
            // On Linux each thread has its own.
            setpriority_process(None, 7).unwrap();
            ask_for_short_slice().unwrap();
            getpriority_process(None).unwrap()
        });
        assert_eq!(thread.join().unwrap(), 7);
    }
}
