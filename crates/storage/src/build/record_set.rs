//! A set of record ids. Neighbours share a bitmap, as ids are given out one after the other.

use std::collections::HashMap;

use crate::keys::RecordId;

const WORDS: usize = 8;
const CHUNK: u64 = 64 * WORDS as u64;

#[derive(Debug, Default)]
pub(super) struct RecordSet {
    chunks: HashMap<u64, [u64; WORDS]>,
}

fn place(record: RecordId) -> (u64, usize, u64) {
    let within = record % CHUNK;
    let word = usize::try_from(within / 64).unwrap_or_default();
    (record / CHUNK, word, 1 << (within % 64))
}

impl RecordSet {
    pub(super) fn insert(&mut self, record: RecordId) {
        let (chunk, word, bit) = place(record);
        self.chunks.entry(chunk).or_default()[word] |= bit;
    }

    pub(super) fn remove(&mut self, record: RecordId) {
        let (chunk, word, bit) = place(record);
        if let Some(words) = self.chunks.get_mut(&chunk) {
            words[word] &= !bit;
            if words.iter().all(|word| *word == 0) {
                self.chunks.remove(&chunk);
            }
        }
    }

    pub(super) fn contains(&self, record: RecordId) -> bool {
        let (chunk, word, bit) = place(record);
        self.chunks
            .get(&chunk)
            .is_some_and(|words| words[word] & bit != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// One of them.
    pub(super) fn any(&self) -> Option<RecordId> {
        let (chunk, words) = self.chunks.iter().next()?;
        let (at, word) = words.iter().enumerate().find(|(_, word)| **word != 0)?;
        Some(chunk * CHUNK + at as u64 * 64 + u64::from(word.trailing_zeros()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_holds_what_was_put_in_and_not_taken_out() {
        let mut set = RecordSet::default();
        let mut model = BTreeSet::new();
        let mut seed = 1_u64;
        for _ in 0..5000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            let record = (seed >> 33) % 2000;
            if seed >> 63 == 0 {
                set.insert(record);
                model.insert(record);
            } else {
                set.remove(record);
                model.remove(&record);
            }
            assert_eq!(set.is_empty(), model.is_empty());
            assert!(set.any().is_none_or(|any| model.contains(&any)));
        }
        for record in 0..2000 {
            assert_eq!(set.contains(record), model.contains(&record));
        }
    }
}
