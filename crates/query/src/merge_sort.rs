//! A stable merge sort that counts its work, so that a long one can be ended on the way.

use std::cmp::Ordering;

use crate::budget::Budget;
use crate::error::QueryError;

/// So many items are sorted at once. Even if each is large, that takes milliseconds.
const RUN_ITEMS: usize = 64;
/// So many where none has more than [`LIGHT_BYTES`].
const LIGHT_RUN_ITEMS: usize = 4096;
const LIGHT_BYTES: usize = 64;

/// Sorts `items`; `weight` is how many bytes of an item a comparison may have to look at.
pub(crate) fn sort<T: Copy>(
    mut items: Vec<T>,
    compare: impl Fn(&T, &T) -> Ordering,
    weight: impl Fn(&T) -> usize,
    budget: &Budget,
) -> Result<Vec<T>, QueryError> {
    let run_items = match items.iter().all(|item| weight(item) <= LIGHT_BYTES) {
        true => LIGHT_RUN_ITEMS,
        false => RUN_ITEMS,
    };
    for run in items.chunks_mut(run_items) {
        let bytes: usize = run.iter().map(&weight).sum();
        // Each item is compared about as often as the run's length has bits.
        let comparisons = run.len().ilog2() as usize;
        budget.spend(comparisons * run.len())?;
        budget.spend_bytes(comparisons * bytes)?;
        run.sort_by(&compare);
    }
    let mut width = run_items;
    let mut merged = Vec::with_capacity(items.len());
    while width < items.len() {
        for pair in items.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let (Some(a), Some(b)) = (left.first(), right.first()) {
                budget.spend_bytes(weight(a).min(weight(b)))?;
                // Of equal items the earlier one comes first.
                let side = if compare(a, b).is_le() {
                    &mut left
                } else {
                    &mut right
                };
                if let Some((item, rest)) = side.split_first() {
                    merged.push(*item);
                    *side = rest;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut items, &mut merged);
        merged.clear();
        width *= 2;
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sorts_as_the_standard_one_does() {
        let mut state = 7_u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 40
        };
        for length in [0, 1, 63, 64, 65, 128, 4095, 4097, 8192, 20_001] {
            let items: Vec<(u64, usize)> = (0..length).map(|at| (next() % 50, at)).collect();
            let mut expected = items.clone();
            expected.sort_by_key(|item| item.0);
            for weight in [8, 1000] {
                let compare = |a: &(u64, usize), b: &(u64, usize)| a.0.cmp(&b.0);
                let sorted = sort(items.clone(), compare, |_| weight, &Budget::unlimited());
                assert_eq!(sorted.unwrap(), expected);
            }
        }
    }

    #[test]
    fn it_ends_when_the_budget_does() {
        let items: Vec<u32> = (0..100_000).rev().collect();
        assert!(sort(items, u32::cmp, |_| 0, &Budget::allowance(50_000)).is_err());
    }
}
