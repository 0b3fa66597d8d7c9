//! The ways that may serve a query.
//!
//! Every index that can find all matching documents is a candidate, and so is the collection
//! itself where an index may turn out to leave little out. A unique point wins outright; among
//! several others a trial decides ([`crate::trial`]).

use std::sync::Arc;

use banyan_document::key::FieldOrder;
use banyan_query::bounds::{Conjunction, implies};
use banyan_query::canonical::natural_direction;
use banyan_query::{Context, ErrorKind, Filter, QueryError};
use banyan_storage::{Collection, Index};
use bson::{RawBsonRef, RawDocument};

use super::bounds::{self, IndexBounds};
use super::{Access, Branch, Query, Solution, number};

/// More candidates are not tried.
const CANDIDATES_MAX: usize = 16;
/// Below so many documents an index that leaves anything out is taken without a trial against the
/// collection.
const SCAN_DOCUMENTS_MIN: u64 = 2_000;

/// What may serve a query, the likelier ones first; at least one.
pub fn solutions(
    collection: Option<&Arc<Collection>>,
    query: &Query<'_>,
) -> Result<Vec<Solution>, QueryError> {
    let Some(collection) = collection else {
        return Ok(vec![Solution::nothing()]);
    };
    let filter = query.filter;
    let conjunction = filter.map_or_else(Conjunction::everything, Conjunction::of);
    let by_id = filter.is_some_and(|filter| filter.id_equality().is_some());
    let solution = |access: Access, sorted: bool| {
        let exact = match &access {
            Access::Index { bounds, .. } => bounds.exact,
            Access::Collection { .. } => conjunction.complete && conjunction.conditions.is_empty(),
            _ => false,
        };
        Solution {
            access,
            sorted,
            exact,
            by_id,
            distinct: false,
        }
    };
    let natural = query.sort.and_then(natural_direction);
    if let Some(hint) = query.hint {
        let access = hinted(collection, &conjunction, query, hint)?;
        let (access, sorted) = orient(access, query.sort, natural);
        return Ok(vec![solution(access, sorted)]);
    }
    if query.min.is_some() || query.max.is_some() {
        return Err(QueryError::new(
            ErrorKind::Location(51173),
            "When using min()/max() a hint of which index to use must be provided",
        ));
    }
    if conjunction.never {
        return Ok(vec![Solution::nothing()]);
    }
    if let Some(reverse) = natural {
        return Ok(vec![solution(Access::Collection { reverse }, true)]);
    }
    if let Some(bounds) = distinct_bounds(collection, &conjunction, query) {
        let access = Access::Index {
            bounds: Arc::new(bounds),
            reverse: false,
        };
        let distinct = true;
        let solution = solution(access, true);
        return Ok(vec![Solution {
            distinct,
            ..solution
        }]);
    }
    let mut candidates = candidates(collection, &conjunction, query.sort);
    if let Some(at) = candidates.iter().position(|c| c.bounds.is_unique_point()) {
        let access = Access::Index {
            bounds: Arc::new(candidates.swap_remove(at).bounds),
            reverse: false,
        };
        return Ok(vec![solution(access, true)]);
    }
    // Stable: of equal ones the older index is tried first.
    candidates.sort_by_key(|candidate| {
        let IndexBounds {
            points, confined, ..
        } = candidate.bounds;
        std::cmp::Reverse((points, confined, candidate.sorted))
    });
    candidates.truncate(CANDIDATES_MAX);
    let in_order = query.sort.is_some() && candidates.iter().any(|candidate| candidate.sorted);
    let mut solutions: Vec<_> = candidates
        .into_iter()
        .map(|candidate| {
            let Candidate {
                bounds,
                reverse,
                sorted,
            } = candidate;
            let bounds = Arc::new(bounds);
            solution(Access::Index { bounds, reverse }, sorted)
        })
        .collect();
    if let Some((parts, sorted)) = union(collection, &conjunction, query.sort) {
        solutions.push(solution(Access::Union(parts), sorted));
    }
    let is_small = collection.documents() < SCAN_DOCUMENTS_MIN;
    if solutions.is_empty() || !is_small && !in_order {
        let access = Access::Collection { reverse: false };
        solutions.push(solution(access, query.sort.is_none()));
    }
    Ok(solutions)
}

/// The bounds of an index that begins with the field whose values are asked for, if they say all
/// that is asked of the documents.
fn distinct_bounds(
    collection: &Collection,
    conjunction: &Conjunction<'_>,
    query: &Query<'_>,
) -> Option<IndexBounds> {
    let path = query.distinct?;
    let asks_nothing = conjunction.complete && conjunction.conditions.is_empty();
    let fits = |index: &&Arc<Index>| {
        let first = index.pattern.fields.first();
        !index.hidden
            && !index.is_multikey()
            && first.is_some_and(|(first, order)| {
                *order != FieldOrder::Hashed && first.to_string() == path
            })
            && is_complete_for(index, conjunction)
    };
    collection.indexes.iter().filter(fits).find_map(|index| {
        if asks_nothing {
            // Documents that a sparse index leaves out have no value there.
            return Some(bounds::whole(index));
        }
        bounds::bounds(index, conjunction).filter(|bounds| bounds.exact)
    })
}

struct Candidate {
    bounds: IndexBounds,
    reverse: bool,
    sorted: bool,
}

/// The indexes that help with the filter or with the order.
fn candidates(
    collection: &Collection,
    conjunction: &Conjunction<'_>,
    sort: Option<&RawDocument>,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for index in &collection.indexes {
        if index.hidden || !is_complete_for(index, conjunction) {
            continue;
        }
        let Some(bounds) = bounds::bounds(index, conjunction) else {
            continue;
        };
        let order = sort.and_then(|sort| order_of(&bounds, sort));
        if bounds.is_selective() || order.is_some() {
            let reverse = order.unwrap_or(false);
            let sorted = sort.is_none() || order.is_some();
            candidates.push(Candidate {
                bounds,
                reverse,
                sorted,
            });
        }
    }
    candidates
}

/// Whether a partial index holds every document that matches.
fn is_complete_for(index: &Index, conjunction: &Conjunction<'_>) -> bool {
    let Some(partial) = &index.partial_filter else {
        return true;
    };
    let needed = index.extension(|| Filter::parse(partial, &Context::default()).ok());
    match needed.as_deref() {
        Some(Some(needed)) => implies(conjunction, needed),
        _ => false,
    }
}

/// An `$or` each of whose branches has an index, and whether all of them come in the order that is
/// asked for.
fn union(
    collection: &Collection,
    conjunction: &Conjunction<'_>,
    sort: Option<&RawDocument>,
) -> Option<(Vec<Branch>, bool)> {
    let branches = conjunction.disjunctions.first()?;
    let mut parts = Vec::with_capacity(branches.len());
    let mut sorted = true;
    for branch in branches {
        let (order, bounds) = collection
            .indexes
            .iter()
            .filter(|index| !index.hidden && is_complete_for(index, branch))
            .filter_map(|index| bounds::bounds(index, branch))
            .filter(IndexBounds::is_selective)
            .map(|bounds| (sort.and_then(|sort| order_of(&bounds, sort)), bounds))
            .max_by_key(|(order, bounds)| {
                let point = bounds.is_unique_point();
                (point, order.is_some(), bounds.points, bounds.confined)
            })?;
        sorted &= order.is_some() || bounds.is_unique_point();
        parts.push(Branch {
            bounds: Arc::new(bounds),
            reverse: order.unwrap_or(false),
        });
    }
    (!parts.is_empty()).then_some((parts, sorted || sort.is_none()))
}

/// Whether the keys inside the bounds come in the order asked for: `Some(reverse)`.
pub fn order_of(bounds: &IndexBounds, sort: &RawDocument) -> Option<bool> {
    // A record with several keys would come at the first of those inside the bounds, which need
    // not be the one that sorts it.
    if bounds.multikey && bounds.is_selective() {
        return None;
    }
    let fields = &bounds.index.pattern.fields;
    let mut direction = None;
    let mut at = 0;
    for (name, value) in sort.iter().flatten() {
        let descending = number(value)? < 0;
        loop {
            let (path, order) = fields.get(at)?;
            at += 1;
            if *order == FieldOrder::Hashed {
                return None;
            }
            if path.to_string() == name.as_str() {
                let reverse = descending != (*order == FieldOrder::Descending);
                if at <= bounds.points {
                    // One value only: any direction will do.
                    break;
                }
                if *direction.get_or_insert(reverse) != reverse {
                    return None;
                }
                break;
            }
            // A field that is confined to one value can be passed over.
            if at > bounds.points {
                return None;
            }
        }
    }
    Some(direction.unwrap_or(false))
}

/// Gives an access the direction that its sort asks for, if it can have it.
fn orient(access: Access, sort: Option<&RawDocument>, natural: Option<bool>) -> (Access, bool) {
    let Some(sort) = sort else {
        return (access, true);
    };
    match access {
        Access::Index { bounds, reverse } => match order_of(&bounds, sort) {
            Some(reverse) => (Access::Index { bounds, reverse }, true),
            None => (Access::Index { bounds, reverse }, false),
        },
        Access::Collection { .. } if natural.is_some() => (
            Access::Collection {
                reverse: natural.unwrap_or(false),
            },
            true,
        ),
        other => (other, false),
    }
}

fn hinted(
    collection: &Arc<Collection>,
    conjunction: &Conjunction<'_>,
    query: &Query<'_>,
    hint: RawBsonRef<'_>,
) -> Result<Access, QueryError> {
    let index = match hint {
        RawBsonRef::String(name) => collection.index(name),
        RawBsonRef::Document(pattern) => {
            if let Some(reverse) = natural_direction(pattern) {
                return Ok(Access::Collection { reverse });
            }
            collection
                .indexes
                .iter()
                .find(|index| has_pattern(index, pattern))
        }
        _ => {
            return Err(QueryError::new(
                ErrorKind::FailedToParse,
                "Hint must be a string or an object",
            ));
        }
    };
    let Some(index) = index.filter(|index| !index.hidden) else {
        return Err(QueryError::new(
            ErrorKind::BadValue,
            "error processing query: planner returned error :: caused by :: hint provided does \
             not correspond to an existing index",
        ));
    };
    if query.min.is_some() || query.max.is_some() {
        let bounds = bounds::between(index, query.min, query.max)?;
        return Ok(Access::Index {
            bounds: Arc::new(bounds),
            reverse: false,
        });
    }
    // A sparse or partial index is used as told, even if it misses documents.
    let bounds = bounds::bounds(index, conjunction).unwrap_or_else(|| bounds::whole(index));
    Ok(Access::Index {
        bounds: Arc::new(bounds),
        reverse: false,
    })
}

fn has_pattern(index: &Index, pattern: &RawDocument) -> bool {
    index
        .spec
        .get_document("key")
        .is_ok_and(|key| banyan_document::compare::compare_documents(key, pattern).is_eq())
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_storage::IndexDefinition;
    use bson::{RawDocumentBuf, rawdoc};

    fn order(
        key: RawDocumentBuf,
        multikey: bool,
        filter: RawDocumentBuf,
        sort: RawDocumentBuf,
    ) -> Option<bool> {
        let spec = rawdoc! { "v": 2, "key": key, "name": "index" };
        let index = Index::parse(&IndexDefinition { id: 7, spec }, multikey).unwrap();
        let filter = Filter::parse(&filter, &Context::default()).unwrap();
        let bounds = bounds::bounds(&Arc::new(index), &Conjunction::of(&filter)).unwrap();
        order_of(&bounds, &sort)
    }

    #[test]
    fn an_index_gives_its_order_and_the_opposite_one() {
        let key = rawdoc! { "a": 1, "b": -1 };
        let order = |sort| order(key.clone(), false, rawdoc! {}, sort);
        assert_eq!(order(rawdoc! { "a": 1 }), Some(false));
        assert_eq!(order(rawdoc! { "a": -1 }), Some(true));
        assert_eq!(order(rawdoc! { "a": 1, "b": -1 }), Some(false));
        assert_eq!(order(rawdoc! { "a": -1, "b": 1 }), Some(true));
        assert_eq!(order(rawdoc! { "a": 1, "b": 1 }), None);
        assert_eq!(order(rawdoc! { "b": 1 }), None);
    }

    #[test]
    fn fields_with_one_value_are_passed_over() {
        let key = rawdoc! { "a": 1, "b": 1 };
        assert_eq!(
            order(key.clone(), false, rawdoc! { "a": 1 }, rawdoc! { "b": -1 }),
            Some(true)
        );
        let range = rawdoc! { "a": { "$gt": 1 } };
        assert_eq!(order(key.clone(), false, range, rawdoc! { "b": 1 }), None);
        let several = rawdoc! { "a": { "$in": [1, 2] } };
        assert_eq!(order(key, false, several, rawdoc! { "b": 1 }), None);
    }

    #[test]
    fn arrays_inside_bounds_come_in_no_useful_order() {
        let key = rawdoc! { "a": 1 };
        let range = rawdoc! { "a": { "$gt": 1 } };
        assert_eq!(order(key.clone(), true, range, rawdoc! { "a": 1 }), None);
        assert_eq!(
            order(key, true, rawdoc! {}, rawdoc! { "a": 1 }),
            Some(false)
        );
    }

    #[test]
    fn a_partial_index_serves_filters_that_imply_its_own() {
        let spec = rawdoc! {
            "v": 2, "key": { "a": 1 }, "name": "index",
            "partialFilterExpression": { "b": { "$gt": 5 } },
        };
        let index = Index::parse(&IndexDefinition { id: 7, spec }, false).unwrap();
        let complete = |filter: RawDocumentBuf| {
            let filter = Filter::parse(&filter, &Context::default()).unwrap();
            is_complete_for(&index, &Conjunction::of(&filter))
        };
        assert!(complete(rawdoc! { "b": 6 }));
        assert!(complete(rawdoc! { "b": { "$gt": 7 } }));
        assert!(complete(rawdoc! { "b": { "$gt": 5 } }));
        assert!(!complete(rawdoc! { "b": { "$gte": 5 } }));
        assert!(!complete(rawdoc! { "b": 5 }));
        assert!(!complete(rawdoc! { "a": 1 }));
    }
}
