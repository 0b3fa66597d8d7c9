//! The page that the harness and a member share. All numbers are 64 bits, in the machine's order.

/// Names the file of the page, to the member.
pub const CONTROL_VARIABLE: &str = "BANYAN_FAULTS_CONTROL";
/// Names the folder whose files lie on the disk that can be full or slow.
pub const DISK_VARIABLE: &str = "BANYAN_FAULTS_DISK";
/// Names the folder that remembers what is not yet synced.
pub const UNDO_VARIABLE: &str = "BANYAN_FAULTS_UNDO";

pub const PAGE_BYTES: usize = 4096;

/// Nanoseconds that the wall clock is ahead (signed).
pub const CLOCK_OFFSET_NS: usize = 0;
/// Bytes that still fit on the disk; negative: no bound.
pub const DISK_BYTES_LEFT: usize = 8;
/// How much longer a sync takes.
pub const SYNC_DELAY_MS: usize = 16;
/// Counts writes that did not fit.
pub const WRITES_REFUSED: usize = 24;
