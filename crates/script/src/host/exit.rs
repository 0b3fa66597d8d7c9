//! How the process ends.

/// The exit status that says that V8 ran out of memory.
pub const EXIT_OUT_OF_MEMORY: i32 = 86;
/// It was started by hand, or could not start.
pub(super) const EXIT_MISUSED: i32 = 87;

/// Ends the process without running destructors: V8 may be in the middle of anything.
pub(super) fn exit(status: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(status) }
}
