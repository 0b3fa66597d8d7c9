//! Filters made of values, with no document to parse.

use std::sync::Arc;

use banyan_document::Collator;
use banyan_document::path::Path;
use bson::{RawBson, RawBsonRef};

use super::Filter;
use super::normalise::sorted_values;
use super::tree::{MatchNode, Predicate};
use crate::budget::Budget;
use crate::comparison::Comparison;
use crate::error::QueryError;

impl Filter {
    /// `{path: {$in: values}}`. `None` where that would read one of them as something else.
    pub(crate) fn one_of(
        path: &str,
        values: &[RawBson],
        collator: Option<&Collator>,
        budget: &Budget,
    ) -> Result<Option<Filter>, QueryError> {
        let is_plain = |value: &RawBson| {
            let value = value.as_raw_bson_ref();
            !matches!(
                value,
                RawBsonRef::RegularExpression(_) | RawBsonRef::Undefined
            )
        };
        if path.starts_with('$') || values.is_empty() || !values.iter().all(is_plain) {
            return Ok(None);
        }
        let Ok(path) = Path::parse(path) else {
            return Ok(None);
        };
        let mut values = sorted_values(values.to_vec(), collator, budget)?;
        let predicate = match values.len() {
            1 => Predicate::Compare(Comparison::Eq, values.remove(0)),
            _ => Predicate::In {
                values,
                patterns: Vec::new(),
            },
        };
        let root = MatchNode::Path { path, predicate };
        Ok(Some(Filter {
            root,
            collator: collator.cloned(),
            budget: budget.clone(),
        }))
    }

    /// What all of the filters match, which have this collation.
    pub(crate) fn all_of(
        mut filters: Vec<Arc<Filter>>,
        collator: Option<&Collator>,
        budget: &Budget,
    ) -> Result<Arc<Filter>, QueryError> {
        if filters.len() == 1 {
            return Ok(filters.remove(0));
        }
        let filters = filters.iter().map(|filter| &**filter);
        Filter::conjunction(filters, collator.cloned(), budget).map(Arc::new)
    }
}
