//! The term of every entry, kept as runs: a term begins at an index and lasts until the next.

use crate::machine::Position;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    base: Position,
    /// First index and term of each run, ascending in both.
    runs: Vec<(u64, u64)>,
}

impl Terms {
    pub fn new(base: Position) -> Terms {
        Terms {
            base,
            runs: Vec::new(),
        }
    }

    pub fn base(&self) -> Position {
        self.base
    }

    /// The term at `index`, if it is the base or one of the entries up to `last`.
    pub fn get(&self, index: u64, last: u64) -> Option<u64> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        if index < self.base.index || index > last {
            return None;
        }
        let after = self.runs.partition_point(|&(first, _)| first <= index);
        after
            .checked_sub(1)
            .and_then(|at| self.runs.get(at))
            .map(|&(_, term)| term)
    }

    /// Notes an entry; those at its index and after it are gone. True if the runs changed.
    pub fn push(&mut self, index: u64, term: u64) -> bool {
        let mut changed = false;
        while self.runs.last().is_some_and(|&(first, _)| first >= index) {
            self.runs.pop();
            changed = true;
        }
        if self.runs.last().is_none_or(|&(_, last)| last != term) {
            self.runs.push((index, term));
            changed = true;
        }
        changed
    }

    /// Moves the base forward.
    pub fn cut(&mut self, base: Position) {
        let after = self
            .runs
            .partition_point(|&(first, _)| first <= base.index + 1);
        let keep = after.saturating_sub(1);
        self.runs.drain(..keep);
        if let Some(run) = self.runs.first_mut() {
            run.0 = run.0.max(base.index + 1);
        }
        self.base = base;
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + 16 * self.runs.len());
        out.extend_from_slice(&self.base.index.to_le_bytes());
        out.extend_from_slice(&self.base.term.to_le_bytes());
        for (index, term) in &self.runs {
            out.extend_from_slice(&index.to_le_bytes());
            out.extend_from_slice(&term.to_le_bytes());
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Terms> {
        let (pairs, rest) = bytes.as_chunks::<16>();
        if !rest.is_empty() {
            return None;
        }
        let mut pairs = pairs.iter().map(|pair| {
            let both = u128::from_le_bytes(*pair);
            (both as u64, (both >> 64) as u64)
        });
        let (index, term) = pairs.next()?;
        Some(Terms {
            base: Position { term, index },
            runs: pairs.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Terms {
        let mut terms = Terms::new(Position { term: 1, index: 3 });
        for (index, term) in [(4, 1), (5, 1), (6, 2), (7, 4), (8, 4)] {
            terms.push(index, term);
        }
        terms
    }

    #[test]
    fn looks_up_every_entry() {
        let terms = sample();
        let found: Vec<_> = (2..=9).map(|index| terms.get(index, 8)).collect();
        let expected = [
            None,
            Some(1),
            Some(1),
            Some(1),
            Some(2),
            Some(4),
            Some(4),
            None,
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn an_overwritten_tail_is_forgotten() {
        let mut terms = sample();
        assert!(terms.push(6, 5));
        assert_eq!(terms.get(5, 6), Some(1));
        assert_eq!(terms.get(6, 6), Some(5));
        assert_eq!(terms.get(7, 6), None);
    }

    #[test]
    fn cutting_keeps_what_follows() {
        let mut terms = sample();
        terms.cut(Position { term: 2, index: 6 });
        assert_eq!(terms.get(5, 8), None);
        assert_eq!(terms.get(6, 8), Some(2));
        assert_eq!(terms.get(7, 8), Some(4));
        let mut all = sample();
        all.cut(Position { term: 4, index: 8 });
        assert_eq!(all.get(8, 8), Some(4));
        all.push(9, 4);
        assert_eq!(all.get(9, 9), Some(4));
        assert_eq!(Terms::decode(&all.encode()), Some(all));
    }
}
