//! `opLatencies`: how long operations took, as sums and as histograms.

use std::time::Duration;

use super::counter::Counter;

/// Where the buckets of a histogram begin, in microseconds.
const BOUNDS: [u64; 51] = bounds();

/// MongoDB's: powers of two, with one more between two of them from 2 ms to 2 s.
const fn bounds() -> [u64; 51] {
    let mut bounds = [0; 51];
    let (mut at, mut power) = (1, 2);
    while at < bounds.len() {
        bounds[at] = power;
        at += 1;
        if power >= 1 << 11 && power <= 1 << 20 {
            bounds[at] = power / 2 * 3;
            at += 1;
        }
        power *= 2;
    }
    bounds
}

/// What kind of operation a latency is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationClass {
    Read,
    Write,
    Command,
}

#[derive(Default)]
pub struct Latencies {
    pub reads: Latency,
    pub writes: Latency,
    pub commands: Latency,
}

impl Latencies {
    pub fn note(&self, class: OperationClass, took: Duration) {
        self.of(class).note(took);
    }

    pub fn of(&self, class: OperationClass) -> &Latency {
        match class {
            OperationClass::Read => &self.reads,
            OperationClass::Write => &self.writes,
            OperationClass::Command => &self.commands,
        }
    }
}

/// How long operations of one kind took.
pub struct Latency {
    micros: Counter,
    operations: Counter,
    buckets: [Counter; BOUNDS.len()],
}

impl Default for Latency {
    fn default() -> Self {
        Latency {
            micros: Counter::default(),
            operations: Counter::default(),
            buckets: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl Latency {
    pub fn note(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.add(micros);
        self.operations.add(1);
        self.buckets[bucket_of(micros)].add(1);
    }
}

/// The same for somebody who has many of them and a lock around each: buckets that are empty take no
/// room.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SparseLatency {
    micros: u64,
    operations: u64,
    /// Places among the bounds, and how many operations each bucket holds.
    buckets: Vec<(u8, u64)>,
}

impl SparseLatency {
    pub fn note(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = u8::try_from(bucket_of(micros)).unwrap_or(u8::MAX);
        self.add(micros, 1, &[(bucket, 1)]);
    }

    pub fn merge(&mut self, other: &SparseLatency) {
        self.add(other.micros, other.operations, &other.buckets);
    }

    fn add(&mut self, micros: u64, operations: u64, buckets: &[(u8, u64)]) {
        self.micros = self.micros.saturating_add(micros);
        self.operations = self.operations.saturating_add(operations);
        for (bucket, count) in buckets {
            match self.buckets.iter_mut().find(|(known, _)| known == bucket) {
                Some((_, known)) => *known = known.saturating_add(*count),
                None => self.buckets.push((*bucket, *count)),
            }
        }
    }

    pub fn sum(&self) -> LatencySum {
        use super::counter::long;
        let bound = |bucket: u8| BOUNDS.get(usize::from(bucket)).copied().unwrap_or(0);
        let buckets = self.buckets.iter();
        let mut histogram: Vec<(i64, i64)> = buckets
            .map(|(bucket, count)| (long(bound(*bucket)), long(*count)))
            .collect();
        histogram.sort_unstable();
        LatencySum {
            micros: long(self.micros),
            operations: long(self.operations),
            histogram,
        }
    }
}

/// The last bucket that begins at or below this.
fn bucket_of(micros: u64) -> usize {
    // The first bound is 0.
    BOUNDS.partition_point(|bound| *bound <= micros) - 1
}

/// Several of them, added up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencySum {
    pub micros: i64,
    pub operations: i64,
    /// Where each bucket that holds something begins, and how many it holds.
    pub histogram: Vec<(i64, i64)>,
}

impl LatencySum {
    pub fn of<'a>(parts: impl Iterator<Item = &'a Latency>) -> LatencySum {
        let mut sum = LatencySum {
            micros: 0,
            operations: 0,
            histogram: Vec::new(),
        };
        let mut buckets = [0; BOUNDS.len()];
        for part in parts {
            sum.micros += part.micros.get();
            sum.operations += part.operations.get();
            for (bucket, count) in buckets.iter_mut().zip(&part.buckets) {
                *bucket += count.get();
            }
        }
        let filled = BOUNDS.iter().zip(buckets).filter(|(_, count)| *count > 0);
        sum.histogram = filled
            .map(|(bound, count)| (super::counter::long(*bound), count))
            .collect();
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_begin_where_mongodb_has_them() {
        assert_eq!(
            BOUNDS[..13],
            [0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072]
        );
        assert_eq!(BOUNDS[13..18], [4096, 6144, 8192, 12288, 16384]);
        assert_eq!(
            BOUNDS[28..34],
            [
                786_432, 1_048_576, 1_572_864, 2_097_152, 4_194_304, 8_388_608
            ]
        );
        assert_eq!(BOUNDS[50], 1 << 40);
    }

    #[test]
    fn a_latency_lies_in_the_bucket_that_begins_at_or_below_it() {
        let latency = Latency::default();
        for micros in [0, 1, 2, 2047, 2048, 3071, 3072, u64::MAX] {
            latency.note(Duration::from_micros(micros));
        }
        let sum = LatencySum::of([&latency].into_iter());
        assert_eq!(sum.operations, 8);
        let small = &sum.histogram[..5];
        assert_eq!(small, [(0, 2), (2, 1), (1024, 1), (2048, 2), (3072, 1)]);
    }

    #[test]
    fn sparse_or_not_the_sums_are_the_same() {
        let (dense, mut first, mut second) = (
            Latency::default(),
            SparseLatency::default(),
            SparseLatency::default(),
        );
        for (place, micros) in [9, 0, 70_000, 3, 9, 5_000].into_iter().enumerate() {
            let took = Duration::from_micros(micros);
            dense.note(took);
            match place % 2 {
                0 => first.note(took),
                _ => second.note(took),
            }
        }
        first.merge(&second);
        assert_eq!(first.sum(), LatencySum::of([&dense].into_iter()));
    }
}
