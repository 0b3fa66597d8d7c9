//! Which way to the documents: the collection from end to end, or ranges of an index.
//!
//! - [`bounds`] puts what a filter says about single paths (`banyan_query::bounds`) together into
//!   ranges of one index;
//! - [`choose`] weighs the indexes, with a look at how many keys each would visit;
//! - [`explain`] tells the outcome in MongoDB's words.
//!
//! A plan is only a shortcut: whatever it visits is still matched against the whole filter, unless
//! the bounds say exactly what the filter says.

pub mod bounds;
pub mod choose;
pub mod explain;
pub mod summary;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use banyan_document::number::Number;
use banyan_query::Filter;
use banyan_storage::Collection;
use bson::{RawBsonRef, RawDocument};

pub use bounds::{IndexBounds, ScanRange};
pub use choose::{choose, natural_direction};

/// What a plan is made for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Query<'a> {
    pub filter: Option<&'a Filter>,
    /// Validated already: paths with 1 or -1.
    pub sort: Option<&'a RawDocument>,
    /// The name of an index, its key pattern, or `{$natural: ±1}`.
    pub hint: Option<RawBsonRef<'a>>,
    /// How many documents are wanted, skipped ones included.
    pub wanted: Option<u64>,
    /// `min` and `max`: the ends of a hinted index.
    pub min: Option<&'a RawDocument>,
    pub max: Option<&'a RawDocument>,
}

/// How the documents are found.
#[derive(Debug, Clone)]
pub enum Access {
    /// There is nothing to find: the collection does not exist.
    Nothing,
    Collection {
        reverse: bool,
    },
    Index {
        bounds: IndexBounds,
        reverse: bool,
    },
    /// The parts of an `$or`, each with its own index; a record is taken once.
    Union(Vec<IndexBounds>),
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub collection: Option<Arc<Collection>>,
    pub access: Access,
    /// Whether the documents come in the order that was asked for.
    pub sorted: bool,
    /// Whether the bounds say all that the filter says, so that no document need be matched.
    pub exact: bool,
    /// A plain `{_id: value}`.
    pub by_id: bool,
    pub rejected: Vec<Access>,
}

impl Plan {
    pub fn nothing() -> Plan {
        Plan {
            collection: None,
            access: Access::Nothing,
            sorted: true,
            exact: true,
            by_id: false,
            rejected: Vec::new(),
        }
    }

    /// Whether at most a handful of records will be looked at, so that it can be done in place.
    pub fn is_point(&self) -> bool {
        match &self.access {
            Access::Nothing => true,
            Access::Index { bounds, .. } => bounds.is_unique_point(),
            _ => false,
        }
    }
}

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
