//! Random numbers that are the same for a seed on every machine and with every version.

/// SplitMix64: small, and good enough to choose cases.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of case `number` under `seed`.
    pub fn new(seed: u64, number: u64) -> Self {
        // Mixed twice: else the stream of one case would be that of the case before, a step on.
        let mut by_seed = Self(seed);
        let mut by_number = Self(by_seed.draw() ^ number);
        by_number.draw();
        Self(by_number.draw())
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        (self.draw() % count as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.draw() % (high - low + 1) as u64) as i64
    }

    pub fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// One of the choices, by their weights.
    pub fn weighted<'a, T>(&mut self, choices: &'a [(usize, T)]) -> &'a T {
        let total: usize = choices.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(total);
        for (weight, choice) in choices {
            if at < *weight {
                return choice;
            }
            at -= weight;
        }
        unreachable!("the weights add up to the total")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_stream() {
        let draw = |seed, number| {
            let mut random = Random::new(seed, number);
            [random.draw(), random.draw(), random.draw()]
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn neighbours_share_nothing() {
        let draw = |number| {
            let mut random = Random::new(1, number);
            (0..50).map(|_| random.draw()).collect::<Vec<_>>()
        };
        let (one, two) = (draw(1), draw(2));
        assert!(!one.iter().any(|drawn| two.contains(drawn)));
    }

    #[test]
    fn weights_decide() {
        let mut random = Random::new(1, 1);
        for _ in 0..100 {
            assert_eq!(*random.weighted(&[(0, "never"), (3, "always")]), "always");
        }
    }
}
