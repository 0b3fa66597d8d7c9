//! The beginning of every entry.

use crate::clock::{self, Clock};

pub const FORMAT: u8 = 4;

/// Up to the operations.
pub(super) const HEADER_BYTES: usize = 21;

/// The header of an entry, read without the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The time of the first operation, as [`clock::to_bits`]; 0 until the entry is sealed.
    pub first_time: u64,
    pub operations: u32,
    pub wall_ms: i64,
}

impl Header {
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let (format, rest) = bytes.split_first()?;
        if *format != FORMAT {
            return None;
        }
        let (first_time, rest) = rest.split_first_chunk()?;
        let (operations, rest) = rest.split_first_chunk()?;
        let (wall_ms, _) = rest.split_first_chunk()?;
        Some(Header {
            first_time: u64::from_le_bytes(*first_time),
            operations: u32::from_le_bytes(*operations),
            wall_ms: i64::from_le_bytes(*wall_ms),
        })
    }

    /// The entry's time: that of its last operation.
    pub fn time(&self) -> u64 {
        let after_first = u64::from(self.operations.max(1)) - 1;
        self.first_time.saturating_add(after_first)
    }
}

/// Gives an entry its times, in place of whatever it had.
pub fn seal(bytes: &mut [u8], clock: &Clock) {
    let Some(header) = Header::read(bytes) else {
        return;
    };
    let first = clock::to_bits(clock.tick_many(header.operations));
    if let Some(place) = bytes.get_mut(1..9) {
        place.copy_from_slice(&first.to_le_bytes());
    }
}
