//! Filters made of values, with no document to parse.

use std::sync::Arc;

use banyan_document::path::Path;
use bson::{RawBson, RawBsonRef};

use super::normalise::sort_values;
use super::{Comparison, Filter, Node, Predicate};

impl Filter {
    /// `{path: {$in: values}}`. `None` where that would read one of them as something else.
    pub(crate) fn one_of(path: &str, values: &[RawBson]) -> Option<Filter> {
        let is_plain = |value: &RawBson| {
            let value = value.as_raw_bson_ref();
            !matches!(
                value,
                RawBsonRef::RegularExpression(_) | RawBsonRef::Undefined
            )
        };
        if path.starts_with('$') || values.is_empty() || !values.iter().all(is_plain) {
            return None;
        }
        let path = Path::parse(path).ok()?;
        let mut values = values.to_vec();
        sort_values(&mut values);
        let predicate = match values.len() {
            1 => Predicate::Compare(Comparison::Eq, values.remove(0)),
            _ => Predicate::In {
                values,
                patterns: Vec::new(),
            },
        };
        let root = Node::Path { path, predicate };
        Some(Filter { root })
    }

    /// What all of the filters match.
    pub(crate) fn all_of(mut filters: Vec<Arc<Filter>>) -> Arc<Filter> {
        match filters.len() {
            1 => filters.remove(0),
            _ => Arc::new(Filter::conjunction(filters.iter().map(|filter| &**filter))),
        }
    }
}
