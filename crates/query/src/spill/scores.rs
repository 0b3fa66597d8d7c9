//! Sums of scores by what has them, where there may be more of these than fit into memory.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Merge, Runs, Spilled, damaged};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::memory::{Holding, consumer};

/// What is found by several terms, and the sum of the scores that these give it. Keys are written in
/// such a way that their bytes have their order.
pub struct Scores<K> {
    places: HashMap<K, usize>,
    /// In the order in which they were found.
    found: Vec<(K, f64)>,
    runs: Runs,
    holding: Holding,
    budget: Budget,
}

/// In which order they come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreOrder {
    /// That in which they were found, if they fitted into memory.
    Any,
    BestFirst,
}

/// Each key once, with its whole score.
pub struct Scored<K>(Source<K>);

enum Source<K> {
    Memory {
        found: std::vec::IntoIter<(K, f64)>,
        /// As long as they are there, they count.
        _holding: Holding,
    },
    Sums(Sums),
    /// By scores.
    Sorted(Merge),
}

impl<K: Spilled + Clone + Ord + Hash> Scores<K> {
    /// What a key takes: twice, as tables grow by doubling.
    const KEY_BYTES: usize = 2 * (2 * size_of::<K>() + size_of::<usize>() + size_of::<f64>());

    pub fn new(budget: &Budget) -> Scores<K> {
        Scores {
            places: HashMap::new(),
            found: Vec::new(),
            runs: Runs::new(budget, None),
            holding: budget.holding(&consumer::TEXT),
            budget: budget.clone(),
        }
    }

    pub fn add(&mut self, key: K, score: f64) -> Result<(), QueryError> {
        if let Some(place) = self.places.get(&key) {
            if let Some((_, sum)) = self.found.get_mut(*place) {
                *sum += score;
            }
            return Ok(());
        }
        self.places.insert(key.clone(), self.found.len());
        self.found.push((key, score));
        match self.holding.fits_more(Self::KEY_BYTES) {
            true => Ok(()),
            false => self.spill(),
        }
    }

    /// How many keys there are. One that was found again after it had gone to disk counts twice.
    pub fn count(&self) -> u64 {
        self.found.len() as u64 + self.runs.written.records
    }

    #[cold]
    fn spill(&mut self) -> Result<(), QueryError> {
        if !self.budget.may_spill() {
            return Err(self.holding.exceeded());
        }
        self.places.clear();
        self.found
            .sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let (found, budget) = (&mut self.found, &self.budget);
        let mut bytes = Vec::new();
        self.runs.write(|writer| {
            for (key, score) in found.drain(..) {
                bytes.clear();
                key.write(&mut bytes);
                budget.spend_bytes(bytes.len())?;
                writer.push(&bytes, |out| out.extend_from_slice(&score.to_le_bytes()))?;
            }
            Ok(())
        })?;
        self.holding.set(0)
    }

    /// Nothing more will be found.
    pub fn finish(mut self, order: ScoreOrder) -> Result<Scored<K>, QueryError> {
        if self.runs.written.runs == 0 {
            let mut found = self.found;
            if order == ScoreOrder::BestFirst {
                found.sort_by(|(_, one), (_, other)| other.total_cmp(one));
            }
            return Ok(Scored(Source::Memory {
                found: found.into_iter(),
                _holding: self.holding,
            }));
        }
        if !self.found.is_empty() {
            self.spill()?;
        }
        let sums = Sums(self.runs.merge()?);
        match order {
            ScoreOrder::Any => Ok(Scored(Source::Sums(sums))),
            ScoreOrder::BestFirst => {
                let sorted = by_score(sums, &mut self.holding, &self.budget)?;
                Ok(Scored(Source::Sorted(sorted)))
            }
        }
    }
}

/// The keys of runs, each with the sum of its scores.
struct Sums(Merge);

impl Sums {
    /// The sum of the first key, whose bytes are put into `key`.
    fn next(&mut self, key: &mut Vec<u8>) -> Result<Option<f64>, QueryError> {
        let Some((first, _)) = self.0.top() else {
            return Ok(None);
        };
        key.clear();
        key.extend_from_slice(first);
        let mut sum = 0.0;
        while let Some((same, score)) = self.0.top()
            && same == key.as_slice()
        {
            sum += f64::from_le_bytes(score.try_into().map_err(|_| damaged())?);
            self.0.advance()?;
        }
        Ok(Some(sum))
    }
}

/// Sorts sums in runs.
fn by_score(mut sums: Sums, holding: &mut Holding, budget: &Budget) -> Result<Merge, QueryError> {
    let mut runs = Runs::new(budget, None);
    let mut held: Vec<([u8; 8], Vec<u8>)> = Vec::new();
    let mut key = Vec::new();
    loop {
        let sum = sums.next(&mut key)?;
        if let Some(sum) = sum {
            held.push((descending(sum), key.clone()));
            let bytes = 2 * size_of::<([u8; 8], Vec<u8>)>() + key.len();
            if holding.fits_more(bytes) {
                continue;
            }
        }
        held.sort_by_key(|(score, _)| *score);
        runs.write(|writer| {
            for (score, key) in held.drain(..) {
                budget.spend_bytes(key.len())?;
                writer.push(&score, |out| out.extend_from_slice(&key))?;
            }
            Ok(())
        })?;
        holding.set(0)?;
        if sum.is_none() {
            return runs.merge();
        }
    }
}

/// Bytes in the order of scores, the greatest first.
fn descending(score: f64) -> [u8; 8] {
    let bits = score.to_bits();
    let ascending = match bits >> 63 {
        0 => bits | 1 << 63,
        _ => !bits,
    };
    (!ascending).to_be_bytes()
}

fn ascending(bytes: [u8; 8]) -> f64 {
    let ascending = !u64::from_be_bytes(bytes);
    f64::from_bits(match ascending >> 63 {
        0 => !ascending,
        _ => ascending & !(1 << 63),
    })
}

impl<K: Spilled> Scored<K> {
    fn take(&mut self) -> Result<Option<(K, f64)>, QueryError> {
        let read = |bytes: &[u8]| K::read(bytes).ok_or_else(damaged);
        match &mut self.0 {
            Source::Memory { found, .. } => Ok(found.next()),
            Source::Sums(sums) => {
                let mut key = Vec::new();
                let sum = sums.next(&mut key)?;
                sum.map(|sum| Ok((read(&key)?, sum))).transpose()
            }
            Source::Sorted(merge) => {
                let Some((score, key)) = merge.top() else {
                    return Ok(None);
                };
                let score = ascending(score.try_into().map_err(|_| damaged())?);
                let found = (read(key)?, score);
                merge.advance()?;
                Ok(Some(found))
            }
        }
    }
}

impl<K: Spilled> Iterator for Scored<K> {
    type Item = Result<(K, f64), QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.take().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::spilling;
    use super::*;

    impl Spilled for u64 {
        fn write(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.to_be_bytes());
        }

        fn read(bytes: &[u8]) -> Option<u64> {
            Some(u64::from_be_bytes(bytes.try_into().ok()?))
        }
    }

    fn found(budget: &Budget, order: ScoreOrder) -> Vec<(u64, f64)> {
        let mut scores: Scores<u64> = Scores::new(budget);
        for number in 0..5000_u64 {
            let key = number * 7 % 1000;
            scores.add(key, (key % 13) as f64 / 4.0 - 1.0).unwrap();
        }
        scores.finish(order).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn scores_on_disk_are_those_in_memory() {
        let limited = |bytes| spilling(&[("internalQueryMaxBlockingSortMemoryUsageBytes", bytes)]);
        let (large, small) = (limited(1 << 20), limited(10_000));
        let sorted = |mut all: Vec<(u64, f64)>| {
            all.sort_by_key(|(key, _)| *key);
            all
        };
        let expected = sorted(found(&large, ScoreOrder::Any));
        assert_eq!(expected.len(), 1000);
        assert_eq!(sorted(found(&small, ScoreOrder::Any)), expected);
        let best_first = found(&small, ScoreOrder::BestFirst);
        assert!(best_first.is_sorted_by(|(_, one), (_, other)| one >= other));
        assert_eq!(sorted(best_first), expected);
    }

    #[test]
    fn scores_keep_their_order_in_bytes() {
        let scores = [f64::INFINITY, 2.5, 1.0, 0.0, -0.0, -1.0, f64::NEG_INFINITY];
        let bytes = scores.map(descending);
        assert!(bytes.is_sorted());
        assert_eq!(
            bytes.map(ascending).map(f64::to_bits),
            scores.map(f64::to_bits)
        );
    }
}
