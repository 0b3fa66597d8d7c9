//! A query in one form: what `find` and its relatives ask for, parsed once and normalised.
//!
//! The planner, the executor and `explain` read this; the documents of the request are behind
//! them.

use std::sync::Arc;

use banyan_document::Collator;
use banyan_document::number::Number;
use bson::{RawBsonRef, RawDocument};

use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::filter::Filter;
use crate::metadata::{Metadata, MetadataSet, no_sort};
use crate::projection::Projection;
use crate::sort::SortPattern;
use crate::text::{self, TextContext};

/// A query as it was written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Written<'a> {
    pub filter: Option<&'a RawDocument>,
    pub sort: Option<&'a RawDocument>,
    pub projection: Option<&'a RawDocument>,
    pub skip: u64,
    pub limit: Option<u64>,
}

#[derive(Debug, Clone)]
pub struct CanonicalQuery {
    pub filter: Arc<Filter>,
    pub order: Order,
    pub projection: Option<Arc<Projection>>,
    /// The filter with its conditions in the order in which they are written, for a projection that asks
    /// where in an array the last of them matched.
    pub positions: Option<Arc<Filter>>,
    pub skip: u64,
    pub limit: Option<u64>,
    /// Whether documents need the score of the search.
    pub text_score: TextScore,
    /// What else has to be known of documents.
    pub metadata: MetadataSet,
}

/// What becomes of the scores of a search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TextScore {
    /// Nobody asks for them.
    #[default]
    Unused,
    /// They serve the order or the projection.
    Used,
    /// They go out with the documents.
    Kept,
}

/// The order in which documents are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Any,
    /// That of the collection: `{$natural: 1}`.
    Natural {
        reverse: bool,
    },
    By(SortPattern),
}

impl Default for CanonicalQuery {
    fn default() -> Self {
        CanonicalQuery::of_filter(Arc::new(Filter::all()))
    }
}

impl CanonicalQuery {
    /// All documents that match, in any order.
    pub fn of_filter(filter: Arc<Filter>) -> CanonicalQuery {
        CanonicalQuery {
            filter,
            order: Order::default(),
            projection: None,
            positions: None,
            skip: 0,
            limit: None,
            text_score: TextScore::Unused,
            metadata: MetadataSet::default(),
        }
    }

    /// What a router merges the documents by with those of other shards, if they have an order.
    pub fn merge_order(&self) -> Option<SortPattern> {
        match self.order {
            Order::By(_) => self.order.pattern().cloned(),
            Order::Any => self.filter.near().map(|_| SortPattern::by_distance()),
            Order::Natural { .. } => None,
        }
    }

    pub fn parse(written: &Written<'_>, context: &Context) -> Result<CanonicalQuery, QueryError> {
        let parse_filter = || match written.filter {
            Some(filter) => Filter::of_query(filter, context),
            None => Ok(Filter::all_in(context.collator.clone())),
        };
        let (filter, failure) = context.folding.keeping_failure(parse_filter)?;
        // What stands beside `$natural` is told of before the projection, any other sort after it.
        let natural = written
            .sort
            .filter(|sort| natural_direction(sort).is_some());
        Order::parse(natural, None)?;
        // What a constant of the filter fails with is told after that.
        if let Some(failure) = failure {
            context.folding.failed(failure)?;
        }
        // Conditions find nothing there.
        context.metadata.take();
        let projection = written
            .projection
            .map(|projection| Projection::parse_beside(projection, written.filter, context))
            .transpose()?;
        let projection = projection.filter(|projection| !projection.is_identity());
        let asks = projection.as_ref().is_some_and(Projection::needs_position);
        let positions = written.filter.filter(|_| asks);
        let positions = positions.map(|filter| Filter::as_written(filter, context));
        let mut query = CanonicalQuery {
            filter: Arc::new(filter),
            order: Order::parse_in(written.sort, context)?,
            projection: projection.map(Arc::new),
            positions: positions.transpose()?.map(Arc::new),
            skip: written.skip,
            limit: written.limit,
            text_score: TextScore::Unused,
            metadata: MetadataSet::default(),
        };
        query.metadata = context.metadata.take();
        query.check_metadata()?;
        if context.text.as_ref().is_some_and(TextContext::is_asked) {
            if !query.filter.searches() {
                return Err(text::score_missing());
            }
            query.text_score = TextScore::Used;
        }
        Ok(query)
    }

    /// Whether documents can have what is to be known of them.
    fn check_metadata(&self) -> Result<(), QueryError> {
        if self.metadata.has(Metadata::SortKey) && self.order.pattern().is_none() {
            return Err(no_sort());
        }
        match self.filter.near() {
            Some(_) => Ok(()),
            None => self.metadata.check_places(),
        }
    }

    /// How many documents are wanted, skipped ones included.
    pub fn wanted(&self) -> Option<u64> {
        Some(self.limit?.saturating_add(self.skip))
    }

    /// How strings are compared; `None`: by their bytes.
    pub fn collator(&self) -> Option<&Collator> {
        self.filter.collator()
    }
}

impl Order {
    pub fn parse(
        sort: Option<&RawDocument>,
        collator: Option<&Collator>,
    ) -> Result<Order, QueryError> {
        let Some(sort) = sort.filter(|sort| !sort.is_empty()) else {
            return Ok(Order::Any);
        };
        if let Some(reverse) = natural_direction(sort) {
            return match sort.iter().count() {
                1 => Ok(Order::Natural { reverse }),
                _ => Err(QueryError::new(
                    ErrorKind::BadValue,
                    "$natural sort cannot be set to a value other than -1 or 1, or stand beside \
                     others",
                )),
            };
        }
        SortPattern::parse(sort, collator).map(Order::By)
    }

    /// As [`Order::parse`], of documents that may have scores.
    pub fn parse_in(sort: Option<&RawDocument>, context: &Context) -> Result<Order, QueryError> {
        match sort.filter(|sort| !sort.is_empty()) {
            Some(sort) if natural_direction(sort).is_none() => {
                SortPattern::parse_in(sort, context).map(Order::By)
            }
            sort => Order::parse(sort, context.collator.as_ref()),
        }
    }

    /// What has to be sorted by, if anything.
    pub fn pattern(&self) -> Option<&SortPattern> {
        match self {
            Order::By(pattern) => Some(pattern),
            Order::Any | Order::Natural { .. } => None,
        }
    }
}

/// `{$natural: ±1}`: whether it runs backwards.
pub fn natural_direction(document: &RawDocument) -> Option<bool> {
    let (name, value) = document.iter().next()?.ok()?;
    let backwards = |value: RawBsonRef<'_>| {
        Number::from_raw(value).is_some_and(|number| number.to_i64_saturating() < 0)
    };
    (name.as_str() == "$natural").then(|| backwards(value))
}
