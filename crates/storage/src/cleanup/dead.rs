//! The ids of which nothing is left that anyone reads.

use std::collections::BTreeMap;

use crate::keys::ID_BYTES;

/// More ranges than that are not remembered; the tables between them are cleaned key by key.
const RANGES_MAX: usize = 10_000;

/// Ids of dropped collections and indexes, as ranges without gaps. Ids are given out once, and to
/// either a collection or an index: keys between two of one range belong to nobody.
#[derive(Debug, Default)]
pub(super) struct DeadIds {
    /// First and last.
    ranges: BTreeMap<u32, u32>,
}

impl DeadIds {
    pub(super) fn insert(&mut self, id: u32) {
        if self.around(id, id).is_some() {
            return;
        }
        let (mut first, mut last) = (id, id);
        if let Some((&before, &end)) = self.ranges.range(..id).next_back()
            && end.checked_add(1) == Some(id)
        {
            first = before;
        }
        if let Some(next) = id.checked_add(1)
            && let Some(end) = self.ranges.remove(&next)
        {
            last = end;
        }
        self.ranges.insert(first, last);
        if self.ranges.len() > RANGES_MAX {
            self.ranges.pop_first();
        }
    }

    pub(super) fn remove(&mut self, id: u32) {
        let Some((first, last)) = self.around(id, id) else {
            return;
        };
        self.ranges.remove(&first);
        if first < id {
            self.ranges.insert(first, id - 1);
        }
        if id < last {
            self.ranges.insert(id + 1, last);
        }
    }

    /// The range that `first` and `last` and all between them belong to.
    pub(super) fn around(&self, first: u32, last: u32) -> Option<(u32, u32)> {
        let (&begin, &end) = self.ranges.range(..=first).next_back()?;
        (last <= end).then_some((begin, end))
    }

    /// The range that all keys from `min` to `max` belong to.
    pub(super) fn around_keys(&self, min: &[u8], max: &[u8]) -> Option<(u32, u32)> {
        let id = |key: &[u8]| {
            key.first_chunk::<ID_BYTES>()
                .copied()
                .map(u32::from_be_bytes)
        };
        self.around(id(min)?, id(max)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_range_and_a_removed_id_parts_it() {
        let mut dead = DeadIds::default();
        for id in [3, 5, 9, 4, 5] {
            dead.insert(id);
        }
        assert_eq!(dead.around(3, 5), Some((3, 5)));
        assert_eq!(dead.around(5, 9), None, "7 may be alive");
        assert_eq!(dead.around(2, 3), None);
        dead.remove(4);
        assert_eq!(dead.around(3, 3), Some((3, 3)));
        assert_eq!(dead.around(4, 4), None);
        assert_eq!(dead.around(5, 5), Some((5, 5)));
        dead.remove(7);
        for id in [u32::MAX, u32::MAX - 1, 0] {
            dead.insert(id);
        }
        let end = (u32::MAX - 1, u32::MAX);
        assert_eq!(dead.around(u32::MAX, u32::MAX), Some(end));
        assert_eq!(dead.around(0, 0), Some((0, 0)));
    }

    #[test]
    fn keys_are_covered_by_the_ids_that_they_begin_with() {
        let mut dead = DeadIds::default();
        dead.insert(258);
        assert_eq!(
            dead.around_keys(&[0, 0, 1, 2], &[0, 0, 1, 2, 255]),
            Some((258, 258))
        );
        assert_eq!(dead.around_keys(&[0, 0, 1, 2], &[0, 0, 1, 3]), None);
        assert_eq!(dead.around_keys(&[0, 0, 1], &[0, 0, 1, 2]), None);
    }
}
