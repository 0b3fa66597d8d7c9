//! Which way to the documents: the collection from end to end, or ranges of an index. A clustered
//! collection's own order counts as an index, of which ranges of the collection are read.
//!
//! - [`bounds`] puts what a filter says about single paths (`banyan_query::bounds`) together into
//!   ranges of one index: [`confined`] for a field, [`ranges`] for all of them, [`min_max`] between
//!   two given keys; [`bounds_checker`] says where keys lie next to them;
//! - [`choose`] names the ways that may serve, [`sample`] the one that draws records at random;
//! - [`near`] searches for what is near a point;
//! - [`text`] looks up the terms of a search;
//! - [`covering`] says what of the query the keys of an index answer;
//! - `build` makes a tree of operators of one;
//! - [`explain`] tells the outcome in MongoDB's words.
//!
//! A plan is only a shortcut: whatever it visits is still matched against the whole filter, unless
//! the bounds say exactly what the filter says.

pub mod bounds;
pub mod bounds_checker;
#[cfg(test)]
mod bounds_tests;
mod build;
pub mod choose;
mod confined;
#[cfg(test)]
mod covered_tests;
pub mod covering;
pub mod explain;
pub mod min_max;
pub mod near;
#[cfg(test)]
mod near_tests;
pub mod ranges;
pub mod sample;
#[cfg(test)]
mod sample_tests;
pub mod summary;
#[cfg(test)]
mod tests;
pub mod text;
#[cfg(test)]
mod text_tests;

use std::ops::RangeInclusive;
use std::sync::Arc;

use banyan_document::number::Number;
use bson::{RawBsonRef, RawDocument};

pub use banyan_query::canonical::natural_direction;
pub use bounds::{AskedShape, IndexBounds};
pub(crate) use build::{build, finish};
pub use choose::solutions;
pub use covering::Covering;
pub use ranges::ScanRange;
pub use text::TextAccess;

/// How the documents are found.
#[derive(Debug, Clone)]
pub enum Access {
    /// There is nothing to find: the collection does not exist.
    Nothing,
    Collection {
        reverse: bool,
    },
    Index {
        bounds: Arc<IndexBounds>,
        reverse: bool,
    },
    /// A record is taken once.
    Union(Union),
    /// Ranges of one index, each of which has its documents in the order that is asked for.
    Merge {
        ranges: Vec<Arc<IndexBounds>>,
        reverse: bool,
    },
    /// What is near a point, in rings around it.
    Near(Arc<near::NearSearch>),
    /// The terms of a search, looked up in a text index.
    Text(Arc<TextAccess>),
    /// Records at random, out of this range of ids.
    Sample(RangeInclusive<u64>),
}

/// The branches of an `$or`, each with the index that finds its documents.
#[derive(Debug, Clone)]
pub struct Union {
    pub branches: Vec<Branch>,
    /// Which of the filter's conjuncts every document that is found has met: the `$or`, if the
    /// bounds of each branch say all that it says.
    pub met: Option<usize>,
}

/// A branch of an `$or`, with the index that finds its documents.
#[derive(Debug, Clone)]
pub struct Branch {
    pub bounds: Arc<IndexBounds>,
    pub reverse: bool,
}

/// A way to answer a query.
#[derive(Debug, Clone)]
pub struct Solution {
    pub access: Access,
    /// Whether the documents come in the order that was asked for.
    pub sorted: bool,
    /// Whether the bounds say all that the filter says, so that no document need be matched.
    pub exact: bool,
    /// A plain `{_id: value}`.
    pub by_id: bool,
    /// What an index's keys leave to do; `None`: there is no one index.
    pub covering: Option<Arc<Covering>>,
    /// Of an index whose keys give one document for each value of a field: the field's place in the
    /// keys.
    pub distinct: Option<usize>,
}

impl Solution {
    pub fn nothing() -> Solution {
        Solution {
            access: Access::Nothing,
            sorted: true,
            exact: true,
            by_id: false,
            covering: None,
            distinct: None,
        }
    }

    /// How many records will be looked at where so many documents are wanted; `None`: nobody knows.
    pub(crate) fn records_at_most(&self, wanted: Option<u64>) -> Option<u64> {
        // Then every key that is read is a document that is wanted, and no sort waits for the last.
        let wanted = wanted.filter(|_| self.exact && self.sorted);
        match &self.access {
            Access::Nothing => Some(0),
            Access::Index { bounds, .. } if bounds.is_unique_point() => Some(1),
            Access::Index { bounds, .. } => wanted.filter(|_| bounds.keys_are_records()),
            Access::Merge { ranges, .. } => {
                let wanted = wanted.filter(|_| ranges.iter().all(|range| range.keys_are_records()));
                // A range that gives documents is read ahead.
                wanted.map(|wanted| wanted.saturating_mul(2).saturating_add(ranges.len() as u64))
            }
            _ => None,
        }
    }

    pub fn is_collection_scan(&self) -> bool {
        matches!(self.access, Access::Collection { .. })
    }

    /// Whether no document is read.
    pub fn is_covered(&self) -> bool {
        let covering = self.covering.as_ref();
        covering.is_some_and(|covering| covering.covered.is_some())
    }

    /// What a unit of work costs, next to one of a scan of the collection.
    pub(crate) fn work_cost(&self) -> f64 {
        match &self.access {
            Access::Nothing | Access::Collection { .. } | Access::Sample(_) => 1.0,
            Access::Index { bounds, .. } if bounds.index.is_clustered() => 1.0,
            Access::Index { .. } if self.is_covered() => 1.0,
            Access::Index { .. }
            | Access::Union(_)
            | Access::Merge { .. }
            | Access::Near(_)
            | Access::Text(_) => KEY_AND_RECORD_COST,
        }
    }
}

/// A key costs a step of a scan, and a record read at random.
const KEY_AND_RECORD_COST: f64 = 3.0;

/// A number of any type as an integer, towards zero; what is out of range stops at the range's end.
pub(crate) fn number(value: RawBsonRef<'_>) -> Option<i64> {
    Some(Number::from_raw(value)?.to_i64_saturating())
}

/// The value of a filter that asks for one `_id` and nothing else, before it is parsed.
pub fn id_lookup(filter: &RawDocument) -> Option<RawBsonRef<'_>> {
    let mut elements = filter.iter_elements();
    let first = elements.next()?.ok()?;
    if first.key().as_str() != "_id" || elements.next().is_some() {
        return None;
    }
    match first.value().ok()? {
        RawBsonRef::RegularExpression(_) | RawBsonRef::Array(_) | RawBsonRef::Undefined => None,
        RawBsonRef::Document(document) => {
            let operators = document
                .iter_elements()
                .next()
                .is_some_and(|first| first.is_ok_and(|f| f.key().as_str().starts_with('$')));
            (!operators).then_some(RawBsonRef::Document(document))
        }
        value => Some(value),
    }
}
