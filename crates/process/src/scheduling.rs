//! Which threads give way to which, where the operating system is told more than a priority.

use std::io;
use std::time::Duration;

use nix::libc;

/// Linux takes slices of at most this length.
const SLICE_MAX: Duration = Duration::from_millis(100);

/// Has the calling thread give way to every thread of an ordinary slice that wakes up, and keeps its
/// share of the processors: what it loses at once it is given later.
///
/// Without it a thread that has just begun to run is left alone for a slice of its own, and who wakes
/// up meanwhile waits for milliseconds (Linux's EEVDF scheduler, `PREEMPT_SHORT`). A nice value does
/// not change that, and the idle class would give it no share at all on a busy machine. Kernels before
/// 6.12 know no slices of single threads, and change nothing.
///
/// # Errors
/// The system refuses it.
pub fn give_way() -> io::Result<()> {
    let size = u32::try_from(size_of::<libc::sched_attr>()).map_err(io::Error::other)?;
    let no_flags: libc::c_uint = 0;
    // SAFETY: all fields are integers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes to the attributes, which are as large.
    let read = unsafe {
        let attributes = std::ptr::from_mut(&mut attributes);
        libc::syscall(libc::SYS_sched_getattr, 0, attributes, size, no_flags)
    };
    succeeded(read)?;
    attributes.size = size;
    attributes.sched_runtime = u64::try_from(SLICE_MAX.as_nanos()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `size` bytes of the attributes, and changes nothing but how the calling
    // thread is scheduled.
    let written = unsafe {
        let attributes = std::ptr::from_ref(&attributes);
        libc::syscall(libc::SYS_sched_setattr, 0, attributes, no_flags)
    };
    succeeded(written)
}

fn succeeded(returned: libc::c_long) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_give_way_again_and_again() {
        // A sandbox may forbid it; whatever it says, the thread goes on.
        let [first, second] = [give_way(), give_way()].map(|outcome| outcome.is_ok());
        assert_eq!(first, second);
    }
}
