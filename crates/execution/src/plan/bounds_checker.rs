//! Where the keys that a scan comes to lie next to the bounds of an index: inside, or how far the
//! next key is that may be.
//!
//! A scan goes through all ranges in one direction. Inside a range, keys may lie outside of the
//! intervals of later fields: where that is so for a field, no key is inside before its next
//! interval, or before another value of the field in front of it.

use std::ops::Bound;
use std::sync::Arc;

use banyan_document::key::{KeyReader, Unreadable};
use banyan_storage::keys::successor;
use banyan_storage::{IndexKey, KeyRange};

use super::{IndexBounds, ScanRange};

/// Follows a scan through the bounds.
pub struct BoundsChecker {
    bounds: Arc<IndexBounds>,
    reverse: bool,
    /// How many ranges lie behind.
    passed: usize,
}

/// Where a key lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    Inside,
    Outside(NextInside),
    /// Nothing inside comes any more.
    Behind,
}

/// The first keys that may be inside again, as seen from one that is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextInside {
    /// Those of the present range.
    Range,
    /// Those that do not share so many first bytes.
    Other(usize),
    /// Those that share so many first bytes and have a value of this interval in this later field.
    Interval {
        shared: usize,
        field: usize,
        interval: usize,
    },
}

impl BoundsChecker {
    pub fn new(bounds: Arc<IndexBounds>, reverse: bool) -> BoundsChecker {
        BoundsChecker {
            bounds,
            reverse,
            passed: 0,
        }
    }

    /// The present range, by its place. `None`: all lie behind.
    fn place(&self) -> Option<usize> {
        place(self.bounds.ranges.len(), self.passed, self.reverse)
    }

    /// The present range is done with.
    pub fn pass_range(&mut self) {
        self.passed += 1;
    }

    /// The present range.
    pub fn present(&self) -> Option<&ScanRange> {
        self.bounds.ranges.get(self.place()?)
    }

    /// From the beginning of the present range on: all that may be inside.
    pub fn rest(&self) -> Option<KeyRange> {
        let ranges = &self.bounds.ranges;
        let present = &ranges.get(self.place()?)?.range;
        Some(match self.reverse {
            false => KeyRange {
                lower: present.lower.clone(),
                upper: ranges.last()?.range.upper.clone(),
            },
            true => KeyRange {
                lower: ranges.first()?.range.lower.clone(),
                upper: present.upper.clone(),
            },
        })
    }

    /// Where the next key of the scan lies.
    #[inline]
    pub fn check(&mut self, key: &IndexKey) -> Result<Checked, Unreadable> {
        let ranges = &self.bounds.ranges;
        // The scan itself ends with the bounds.
        if ranges.len() > 1 {
            loop {
                let place = place(ranges.len(), self.passed, self.reverse);
                let Some(range) = place.and_then(|place| ranges.get(place)) else {
                    return Ok(Checked::Behind);
                };
                let KeyRange { lower, upper } = &range.range;
                let (is_above, is_below) = (is_above(key, upper), is_below(key, lower));
                match if self.reverse { is_below } else { is_above } {
                    true => self.passed += 1,
                    false if is_above || is_below => {
                        return Ok(Checked::Outside(NextInside::Range));
                    }
                    false => break,
                }
            }
        }
        match self.bounds.later.fields.is_empty() {
            true => Ok(Checked::Inside),
            false => self.check_later(key),
        }
    }

    fn check_later(&self, key: &IndexKey) -> Result<Checked, Unreadable> {
        let IndexBounds { layout, later, .. } = &*self.bounds;
        let mut reader = KeyReader::new(key, key.types());
        let mut orders = layout.fields.iter().map(|(_, order)| *order);
        for order in orders.by_ref().take(later.first) {
            reader.skip(order)?;
        }
        for (field, intervals) in later.fields.iter().enumerate() {
            let shared = reader.position();
            let rest = key.get(shared..).ok_or(Unreadable)?;
            // No encoding begins another one: what follows the value makes no difference.
            let ends_before = |upper: &Option<Vec<u8>>| {
                let upper = upper.as_deref();
                upper.is_some_and(|upper| upper <= rest)
            };
            let at = intervals.partition_point(|(_, upper)| ends_before(upper));
            let is_inside = match intervals.get(at) {
                Some((lower, _)) => lower.as_slice() <= rest,
                None => intervals.is_empty(),
            };
            if !is_inside {
                let next = match self.reverse {
                    false => Some(at).filter(|at| *at < intervals.len()),
                    true => at.checked_sub(1),
                };
                return Ok(Checked::Outside(match next {
                    Some(interval) => NextInside::Interval {
                        shared,
                        field,
                        interval,
                    },
                    None => NextInside::Other(shared),
                }));
            }
            if field + 1 < later.fields.len() {
                reader.skip(orders.next().ok_or(Unreadable)?)?;
            }
        }
        Ok(Checked::Inside)
    }

    /// What is left of the bounds from the next keys on that may be inside. `None`: nothing.
    pub fn rest_from(&mut self, key: &IndexKey, next: NextInside) -> Option<KeyRange> {
        let target = match next {
            NextInside::Range => return self.rest(),
            NextInside::Other(shared) => {
                let shared = key.get(..shared)?.to_vec();
                match self.reverse {
                    false => successor(shared)?,
                    true => shared,
                }
            }
            NextInside::Interval {
                shared,
                field,
                interval,
            } => {
                let interval = self.bounds.later.fields.get(field)?.get(interval)?;
                let end = match self.reverse {
                    false => &interval.0,
                    // A key can only lie above an interval that ends.
                    true => interval.1.as_ref()?,
                };
                [key.get(..shared)?, end].concat()
            }
        };
        if !self.reverse {
            // It may lie behind the range, even behind some of the next ones.
            while is_above(&target, &self.present()?.range.upper) {
                self.passed += 1;
            }
        }
        let rest = self.rest()?;
        Some(match self.reverse {
            false if is_below(&target, &rest.lower) => rest,
            false => KeyRange {
                lower: Bound::Included(target),
                ..rest
            },
            true => KeyRange {
                upper: Bound::Excluded(target),
                ..rest
            },
        })
    }
}

/// Which of so many ranges comes next.
fn place(count: usize, passed: usize, reverse: bool) -> Option<usize> {
    match reverse {
        false => Some(passed).filter(|place| *place < count),
        true => count.checked_sub(passed + 1),
    }
}

fn is_above(key: &[u8], upper: &Bound<Vec<u8>>) -> bool {
    match upper {
        Bound::Included(upper) => key > upper.as_slice(),
        Bound::Excluded(upper) => key >= upper.as_slice(),
        Bound::Unbounded => false,
    }
}

fn is_below(key: &[u8], lower: &Bound<Vec<u8>>) -> bool {
    match lower {
        Bound::Included(lower) => key < lower.as_slice(),
        Bound::Excluded(lower) => key <= lower.as_slice(),
        Bound::Unbounded => false,
    }
}
