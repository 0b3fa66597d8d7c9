//! Which way a range is read.

use std::ops::Bound;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

impl Direction {
    /// Whether a key lies before the end of a range: its upper bound, or its lower one where it is read
    /// backward.
    #[inline]
    pub(super) fn is_before(self, key: &[u8], end: &Bound<Vec<u8>>) -> bool {
        match (self, end) {
            (_, Bound::Unbounded) => true,
            (Direction::Forward, Bound::Included(end)) => key <= end.as_slice(),
            (Direction::Forward, Bound::Excluded(end)) => key < end.as_slice(),
            (Direction::Backward, Bound::Included(end)) => key >= end.as_slice(),
            (Direction::Backward, Bound::Excluded(end)) => key > end.as_slice(),
        }
    }
}
