//! Windows that slide: what a window has gathered is gone on with, without what has left it.
//!
//! Nothing is subtracted, so that no rounding adds up. The documents of a window are in two parts:
//! of each suffix of the first part it is known what it comes to, and of the second part as a
//! whole. Once the first part is used up, the second one becomes it: a document is put together
//! with others about twice, however large the windows are.

use std::ops::Range;

use crate::budget::Budget;
use crate::error::QueryError;
use crate::memory::Holding;

/// Whether no window begins or ends before the one before it.
pub(super) fn slides(ranges: &[Range<usize>]) -> bool {
    let mut pairs = ranges.iter().zip(ranges.iter().skip(1));
    pairs.all(|(a, b)| a.start <= b.start && a.end <= b.end)
}

/// What is gathered of single documents and put together.
pub(super) trait Gather {
    type Part: Copy;

    /// Of a document.
    fn one(&self, at: usize) -> Self::Part;

    /// Of documents and those behind them.
    fn join(&self, earlier: Self::Part, later: Self::Part) -> Self::Part;
}

pub(super) struct Sliding<G: Gather> {
    gather: G,
    /// Of the documents from each one to `middle`, the last one first.
    suffixes: Vec<G::Part>,
    middle: usize,
    /// Of the documents from `middle` to `end`.
    rest: Option<G::Part>,
    end: usize,
}

impl<G: Gather> Sliding<G> {
    pub fn new(gather: G) -> Sliding<G> {
        Sliding {
            gather,
            suffixes: Vec::new(),
            middle: 0,
            rest: None,
            end: 0,
        }
    }

    pub fn gather(&self) -> &G {
        &self.gather
    }

    /// What a window comes to that slides on from the one before; `None` if it is empty.
    pub fn go_to(
        &mut self,
        range: Range<usize>,
        budget: &Budget,
        holding: &mut Holding,
    ) -> Result<Option<G::Part>, QueryError> {
        while self.end < range.end {
            budget.spend(1)?;
            let one = self.gather.one(self.end);
            self.rest = Some(match self.rest {
                None => one,
                Some(rest) => self.gather.join(rest, one),
            });
            self.end += 1;
        }
        if range.is_empty() {
            return Ok(None);
        }
        if range.start >= self.middle {
            self.turn(range.start, budget, holding)?;
        }
        self.suffixes
            .truncate(self.middle.saturating_sub(range.start));
        Ok(match (self.suffixes.last(), self.rest) {
            (Some(suffix), Some(rest)) => Some(self.gather.join(*suffix, rest)),
            (Some(part), None) => Some(*part),
            (None, rest) => rest,
        })
    }

    /// Makes the second part the first one, from `start` on.
    fn turn(
        &mut self,
        start: usize,
        budget: &Budget,
        holding: &mut Holding,
    ) -> Result<(), QueryError> {
        let held = self.suffixes.capacity() * size_of::<G::Part>();
        self.suffixes.clear();
        let mut suffix = None;
        for at in (start..self.end).rev() {
            budget.spend(1)?;
            let one = self.gather.one(at);
            let joined = suffix.map_or(one, |suffix| self.gather.join(one, suffix));
            self.suffixes.push(joined);
            suffix = Some(joined);
        }
        let holds = self.suffixes.capacity() * size_of::<G::Part>();
        holding.add(holds.saturating_sub(held))?;
        (self.middle, self.rest) = (self.end, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::consumer;

    /// The documents' places, in their order.
    struct Places;

    impl Gather for Places {
        type Part = (usize, usize);

        fn one(&self, at: usize) -> (usize, usize) {
            (at, at + 1)
        }

        fn join(&self, earlier: (usize, usize), later: (usize, usize)) -> (usize, usize) {
            assert_eq!(earlier.1, later.0);
            (earlier.0, later.1)
        }
    }

    #[test]
    fn each_window_has_all_of_its_documents_in_order() {
        let budget = Budget::unlimited();
        let mut holding = budget.holding(&consumer::WINDOW);
        for (before, behind) in [(0, 0), (1, 1), (3, 0), (0, 5), (-2, 4), (9, 9), (-3, -2)] {
            let range = |at: i64| {
                let place = |at: i64| at.clamp(0, 40) as usize;
                place(at - before)..place(at + behind + 1).max(place(at - before))
            };
            let ranges: Vec<_> = (0..40).map(range).collect();
            assert!(slides(&ranges));
            let mut sliding = Sliding::new(Places);
            for range in ranges {
                let found = sliding.go_to(range.clone(), &budget, &mut holding).unwrap();
                let expected = (!range.is_empty()).then_some((range.start, range.end));
                assert_eq!(found, expected);
            }
        }
        assert!(!slides(&[0..3, 1..2]));
    }
}
