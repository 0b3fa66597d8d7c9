//! A part of all keys, as ranges: what a statement that goes to several shards has been run for,
//! and what it still has to be run for when chunks have moved meanwhile.

use bson::{RawArrayBuf, RawBsonRef, RawDocument, rawdoc};

use crate::chunk::{ChunkError, ChunkRange};
use crate::routing::RoutingTable;
use crate::shard_key::{ShardKeyPattern, show};

/// In order, apart from each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    ranges: Vec<ChunkRange>,
}

impl Coverage {
    /// What a shard owns.
    pub fn of_shard(table: &RoutingTable, shard: &str) -> Coverage {
        let chunks = table.chunks_of(shard);
        Coverage::joined(chunks.map(|chunk| chunk.range.clone()).collect())
    }

    fn joined(mut ranges: Vec<ChunkRange>) -> Coverage {
        ranges.sort_by(|a, b| a.min.encoded().cmp(b.min.encoded()));
        let mut joined: Vec<ChunkRange> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.min <= last.max => {
                    if last.max < range.max {
                        last.max = range.max;
                    }
                }
                _ => joined.push(range),
            }
        }
        Coverage { ranges: joined }
    }

    pub fn add(&mut self, mut other: Coverage) {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.append(&mut other.ranges);
        *self = Coverage::joined(ranges);
    }

    /// What is in both.
    pub fn and(&self, other: &Coverage) -> Coverage {
        let mut ranges = Vec::new();
        let (mut ours, mut theirs) = (self.ranges.iter(), other.ranges.iter());
        let (mut own, mut their) = (ours.next(), theirs.next());
        while let (Some(a), Some(b)) = (own, their) {
            let min = if a.min < b.min { &b.min } else { &a.min };
            let max = if a.max < b.max { &a.max } else { &b.max };
            if min < max {
                ranges.push(ChunkRange {
                    min: min.clone(),
                    max: max.clone(),
                });
            }
            if a.max < b.max {
                own = ours.next();
            } else {
                their = theirs.next();
            }
        }
        Coverage { ranges }
    }

    /// What is in this one alone.
    pub fn without(&self, other: &Coverage) -> Coverage {
        let mut ranges = Vec::new();
        let mut theirs = other.ranges.iter().peekable();
        for own in &self.ranges {
            let mut min = own.min.clone();
            while let Some(their) = theirs.peek().filter(|their| their.min < own.max) {
                if min < their.min {
                    ranges.push(ChunkRange {
                        min: min.clone(),
                        max: their.min.clone(),
                    });
                }
                if min < their.max {
                    min = their.max.clone();
                }
                if own.max < their.max {
                    // It may reach into the next one of ours.
                    break;
                }
                theirs.next();
            }
            if min < own.max {
                ranges.push(ChunkRange {
                    min,
                    max: own.max.clone(),
                });
            }
        }
        Coverage { ranges }
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Of how many ranges it consists.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        let after = self
            .ranges
            .partition_point(|range| range.min.encoded() <= key);
        let before = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        before.is_some_and(|range| range.contains(key))
    }

    /// As it is written in a request.
    pub fn to_array(&self) -> RawArrayBuf {
        let ranges = self.ranges.iter().map(|range| {
            rawdoc! {
                "min": range.min.document().to_owned(),
                "max": range.max.document().to_owned(),
            }
        });
        RawArrayBuf::from_iter(ranges)
    }

    /// Reads what [`Coverage::to_array`] has written.
    pub fn parse(pattern: &ShardKeyPattern, array: RawBsonRef<'_>) -> Result<Self, ChunkError> {
        let wrong = |field| ChunkError::Field("range".to_owned(), field);
        let mut ranges = Vec::new();
        for range in array.as_array().ok_or_else(|| wrong("ranges"))? {
            let range = range.ok().and_then(|range| range.as_document());
            let range: &RawDocument = range.ok_or_else(|| wrong("ranges"))?;
            let bound = |name| {
                let wrong = |_| ChunkError::Field(show(range), name);
                range.get_document(name).map_err(wrong)
            };
            ranges.push(ChunkRange::parse(pattern, bound("min")?, bound("max")?)?);
        }
        Ok(Coverage::joined(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern() -> ShardKeyPattern {
        ShardKeyPattern::parse(&rawdoc! { "k": 1 }).unwrap()
    }

    fn of(bounds: &[(i32, i32)]) -> Coverage {
        let pattern = pattern();
        let range = |&(min, max): &(i32, i32)| {
            ChunkRange::parse(&pattern, &rawdoc! { "k": min }, &rawdoc! { "k": max }).unwrap()
        };
        Coverage::joined(bounds.iter().map(range).collect())
    }

    fn has(coverage: &Coverage, k: i32) -> bool {
        let mut key = Vec::new();
        pattern().encode(&rawdoc! { "k": k }, &mut key).unwrap();
        coverage.contains(&key)
    }

    #[test]
    fn sets_of_ranges_behave_as_sets_of_keys() {
        let some: [&[(i32, i32)]; 7] = [
            &[],
            &[(0, 40)],
            &[(0, 10), (10, 20)],
            &[(5, 15), (30, 35)],
            &[(2, 3), (7, 8), (12, 33)],
            &[(39, 41)],
            &[(10, 12), (14, 16), (18, 30)],
        ];
        for one in some.map(of) {
            for other in some.map(of) {
                let (both, alone) = (one.and(&other), one.without(&other));
                let mut either = one.clone();
                either.add(other.clone());
                for k in -1..45 {
                    let (a, b) = (has(&one, k), has(&other, k));
                    assert_eq!(has(&both, k), a && b, "{one:?} {other:?} {k}");
                    assert_eq!(has(&alone, k), a && !b, "{one:?} {other:?} {k}");
                    assert_eq!(has(&either, k), a || b, "{one:?} {other:?} {k}");
                }
                assert_eq!(alone.is_empty(), one.and(&other) == one);
            }
        }
        assert_eq!(of(&[(0, 10), (10, 20)]).len(), 1);
    }

    #[test]
    fn it_is_read_as_it_was_written() {
        let coverage = of(&[(5, 15), (30, 35)]);
        let array = coverage.to_array();
        let read = Coverage::parse(&pattern(), RawBsonRef::Array(&array)).unwrap();
        assert_eq!(read, coverage);
        assert!(Coverage::parse(&pattern(), RawBsonRef::Int32(1)).is_err());
        let reversed = RawArrayBuf::from_iter([rawdoc! { "min": { "k": 5 }, "max": { "k": 1 } }]);
        assert!(Coverage::parse(&pattern(), RawBsonRef::Array(&reversed)).is_err());
    }
}
