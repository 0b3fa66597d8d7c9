//! The windows of the documents of a partition, and which documents lie in them.
//!
//! MongoDB finds the window of one document after the other and evaluates the input of a function
//! for what comes into it: of a document that no window has, no expression is evaluated, and where
//! one has no window, that is told once the windows before have been looked at.

use std::ops::Range;

use super::function::Values;
use super::partition::Partition;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::memory::Holding;

/// The windows up to the first document that has none.
pub(super) struct Ranges {
    found: Vec<Range<usize>>,
    /// Why the document behind them has none.
    failure: Option<QueryError>,
}

impl Ranges {
    pub fn find(
        count: usize,
        mut window_of: impl FnMut(usize) -> Result<Range<usize>, QueryError>,
    ) -> Ranges {
        let mut found = Vec::with_capacity(count);
        for at in 0..count {
            match window_of(at) {
                Ok(range) => found.push(range),
                Err(failure) => return Ranges::failed(found, failure),
            }
        }
        Ranges {
            found,
            failure: None,
        }
    }

    pub fn failed(found: Vec<Range<usize>>, failure: QueryError) -> Ranges {
        Ranges {
            found,
            failure: Some(failure),
        }
    }

    pub fn found(&self) -> &[Range<usize>] {
        &self.found
    }

    /// All of them, if no document lacks one.
    pub fn complete(self) -> Result<Vec<Range<usize>>, QueryError> {
        self.failure.map_or(Ok(self.found), Err)
    }

    /// Which documents lie in a window.
    pub fn covered(&self, count: usize) -> Vec<bool> {
        // How many windows begin and end with each document.
        let mut changes = vec![0_i64; count + 1];
        for range in self.found.iter().filter(|range| !range.is_empty()) {
            for (at, change) in [(range.start, 1), (range.end, -1)] {
                if let Some(sum) = changes.get_mut(at) {
                    *sum += change;
                }
            }
        }
        let mut open = 0;
        let covered = changes.iter().take(count).map(|change| {
            open += change;
            open > 0
        });
        covered.collect()
    }

    /// Which documents are the first of a window.
    pub fn first(&self, count: usize) -> Vec<bool> {
        self.marked(count, |range| range.start)
    }

    /// Which documents are the last of a window.
    pub fn last(&self, count: usize) -> Vec<bool> {
        self.marked(count, |range| range.end - 1)
    }

    fn marked(&self, count: usize, place: impl Fn(&Range<usize>) -> usize) -> Vec<bool> {
        let mut marked = vec![false; count];
        for range in self.found.iter().filter(|range| !range.is_empty()) {
            if let Some(mark) = marked.get_mut(place(range)) {
                *mark = true;
            }
        }
        marked
    }

    /// The values of an expression for the documents that are wanted, and all windows.
    pub fn with_inputs(
        self,
        partition: &Partition<'_>,
        expression: &Expression,
        wanted: &[bool],
        holding: &mut Holding,
    ) -> Result<(Vec<Range<usize>>, Values), QueryError> {
        let outcomes = partition.outcomes(expression, wanted, holding)?;
        let inputs = outcomes.into_iter().collect::<Result<_, _>>()?;
        Ok((self.complete()?, inputs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_windows() {
        let windows = [1..2, 3..3, 1..4, 5..6];
        let ranges = Ranges::find(4, |at| Ok(windows[at].clone()));
        let covered = [false, true, true, true, false, true, false];
        assert_eq!(ranges.covered(7), covered);
        let first = [false, true, false, false, false, true, false];
        assert_eq!(ranges.first(7), first);
        let last = [false, true, false, true, false, true, false];
        assert_eq!(ranges.last(7), last);
    }
}
