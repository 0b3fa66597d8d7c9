//! Which cells were searched, where a search goes on with more and more of them.

/// Cells that were searched: ranges, both ends inside, in order and apart.
#[derive(Debug, Default)]
pub struct SearchedCells(Vec<(i64, i64)>);

impl SearchedCells {
    /// Takes in ranges that are in order and apart: what of them is new, in the same way.
    pub fn add(&mut self, ranges: &[(i64, i64)]) -> Vec<(i64, i64)> {
        let mut new = Vec::new();
        for &(low, high) in ranges {
            let first = self.0.partition_point(|known| known.1 < low);
            let known = self.0.get(first..).unwrap_or_default();
            // Where what is not known begins; `None`: nothing comes behind it.
            let mut at = Some(low);
            for known in known.iter().take_while(|known| known.0 <= high) {
                let Some(from) = at else { break };
                if from < known.0 {
                    new.push((from, known.0 - 1));
                }
                at = known.1.checked_add(1);
            }
            if let Some(from) = at.filter(|from| *from <= high) {
                new.push((from, high));
            }
        }
        self.0.extend(ranges);
        self.0.sort_unstable();
        self.0.dedup_by(|next, last| {
            let joins = next.0 <= last.1.saturating_add(1);
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What is new is what was added and not known before.
        #[test]
        fn nothing_is_searched_twice_or_missed(
            rounds in proptest::collection::vec(
                proptest::collection::btree_set(0..40_i64, 0..12), 1..6,
            ),
            is_last in any::<bool>(),
        ) {
            let mut searched = SearchedCells::default();
            let mut known = std::collections::BTreeSet::new();
            // At the end of all numbers nothing overflows.
            let shift = if is_last { i64::MAX - 39 } else { i64::MIN };
            for round in rounds {
                let mut ranges: Vec<(i64, i64)> = Vec::new();
                for cell in round.iter().map(|cell| cell + shift) {
                    match ranges.last_mut() {
                        Some(last) if last.1 + 1 == cell => last.1 = cell,
                        _ => ranges.push((cell, cell)),
                    }
                }
                let new: Vec<i64> = searched.add(&ranges).into_iter()
                    .flat_map(|(low, high)| low..=high)
                    .collect();
                let expected: Vec<i64> = round.iter().map(|cell| cell + shift)
                    .filter(|cell| known.insert(*cell))
                    .collect();
                prop_assert_eq!(new, expected);
            }
        }
    }
}
