//! Counts in the words of `explain`.

/// Counts are shown as 32-bit integers.
pub fn clamp(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
