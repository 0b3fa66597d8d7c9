//! How the operating system hands out memory.

use nix::sys::prctl;

/// Has the process, and those that it starts, get memory in pages of the ordinary size.
///
/// A huge page is cleared as a whole when its first byte is touched. What a load takes for messages,
/// log entries and the memtable is touched once, piece after piece, and a piece that needs a new page
/// waited many times as long as one that does not. MongoDB's manual (up to 7.0, "Transparent Huge
/// Pages") has them turned off for the same reason.
///
/// # Errors
/// The system refuses it; nothing has changed then.
pub fn use_ordinary_pages() -> nix::Result<()> {
    prctl::set_thp_disable(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_gets_ordinary_pages_once_it_has_asked_for_them() {
        // A sandbox may forbid it.
        if use_ordinary_pages().is_ok() {
            assert_eq!(prctl::get_thp_disable(), Ok(true));
        }
    }
}
