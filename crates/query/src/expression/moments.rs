//! Mean and spread of numbers that pass by once.

/// Count, mean and sum of squared distances from it, kept by Welford's method.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Moments {
    count: i64,
    mean: f64,
    squares: f64,
}

impl Moments {
    pub(crate) fn add(&mut self, value: f64) {
        self.count += 1;
        let distance = value - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (value - self.mean);
    }

    pub(crate) fn merge(&mut self, other: &Moments) {
        if other.count == 0 {
            return;
        }
        // Nothing is computed with the mean of nothing: the square of a distance from it may overflow.
        if self.count == 0 {
            *self = *other;
            return;
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let distance = other.mean - self.mean;
        self.count += other.count;
        self.mean += distance * b / (a + b);
        self.squares += other.squares + distance * distance * a * b / (a + b);
    }

    /// The standard deviation, of a population or of a sample of one.
    pub(crate) fn deviation(&self, sample: bool) -> Option<f64> {
        let degrees = if sample { self.count - 1 } else { self.count };
        (degrees > 0).then(|| (self.squares / degrees as f64).sqrt())
    }

    /// Bytes that `from_bytes` reads: how a shard hands its part to the router.
    pub(crate) fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.mean.to_le_bytes());
        bytes[16..].copy_from_slice(&self.squares.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Moments> {
        let bytes: &[u8; 24] = bytes.try_into().ok()?;
        let part = |at: usize| bytes[at..at + 8].try_into().ok();
        Some(Moments {
            count: i64::from_le_bytes(part(0)?),
            mean: f64::from_le_bytes(part(8)?),
            squares: f64::from_le_bytes(part(16)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_merged_into_nothing_stays_as_it_is() {
        let mut far = Moments::default();
        for _ in 0..3 {
            far.add(1e300);
        }
        let mut merged = Moments::default();
        merged.merge(&Moments::default());
        merged.merge(&far);
        merged.merge(&Moments::default());
        assert_eq!(merged.deviation(true), Some(0.0));
        assert_eq!(merged.mean.to_bits(), far.mean.to_bits());
    }
}
