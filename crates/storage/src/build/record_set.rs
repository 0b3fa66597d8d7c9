//! A set of record ids. Neighbours that are numbers share a bitmap, as they are given out one after
//! the other.

use std::collections::{HashMap, HashSet};

use crate::record_id::RecordId;

const WORDS: usize = 8;
const CHUNK: u64 = 64 * WORDS as u64;

#[derive(Debug, Clone, Default)]
pub(super) struct RecordSet {
    chunks: HashMap<u64, [u64; WORDS]>,
    /// Those that are no numbers.
    others: HashSet<RecordId>,
}

fn place(record: u64) -> (u64, usize, u64) {
    let within = record % CHUNK;
    let word = usize::try_from(within / 64).unwrap_or_default();
    (record / CHUNK, word, 1 << (within % 64))
}

impl RecordSet {
    pub(super) fn insert(&mut self, record: &RecordId) {
        let Some(number) = record.as_number() else {
            self.others.insert(record.clone());
            return;
        };
        let (chunk, word, bit) = place(number);
        self.chunks.entry(chunk).or_default()[word] |= bit;
    }

    pub(super) fn absorb(&mut self, other: RecordSet) {
        for (chunk, words) in other.chunks {
            let known = self.chunks.entry(chunk).or_default();
            for (known, word) in known.iter_mut().zip(words) {
                *known |= word;
            }
        }
        self.others.extend(other.others);
    }

    pub(super) fn remove(&mut self, record: &RecordId) {
        let Some(number) = record.as_number() else {
            self.others.remove(record);
            return;
        };
        let (chunk, word, bit) = place(number);
        if let Some(words) = self.chunks.get_mut(&chunk) {
            words[word] &= !bit;
            if words.iter().all(|word| *word == 0) {
                self.chunks.remove(&chunk);
            }
        }
    }

    pub(super) fn contains(&self, record: &RecordId) -> bool {
        let Some(number) = record.as_number() else {
            return self.others.contains(record);
        };
        let (chunk, word, bit) = place(number);
        self.chunks
            .get(&chunk)
            .is_some_and(|words| words[word] & bit != 0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.others.is_empty()
    }

    /// One of them.
    pub(super) fn any(&self) -> Option<RecordId> {
        let Some((chunk, words)) = self.chunks.iter().next() else {
            return self.others.iter().next().cloned();
        };
        let (at, word) = words.iter().enumerate().find(|(_, word)| **word != 0)?;
        let number = chunk * CHUNK + at as u64 * 64 + u64::from(word.trailing_zeros());
        Some(RecordId::number(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn id(number: u64) -> RecordId {
        match number % 3 {
            0 => RecordId::bytes(&number.to_be_bytes()),
            _ => RecordId::number(number),
        }
    }

    #[test]
    fn it_holds_what_was_put_in_and_not_taken_out() {
        let mut set = RecordSet::default();
        let mut model = BTreeSet::new();
        let mut seed = 1_u64;
        for _ in 0..5000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            let record = id((seed >> 33) % 2000);
            if seed >> 63 == 0 {
                set.insert(&record);
                model.insert(record);
            } else {
                set.remove(&record);
                model.remove(&record);
            }
            assert_eq!(set.is_empty(), model.is_empty());
            assert!(set.any().is_none_or(|any| model.contains(&any)));
        }
        for record in (0..2000).map(id) {
            assert_eq!(set.contains(&record), model.contains(&record));
        }
    }
}
