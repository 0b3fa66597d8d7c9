//! The choice among indexes.
//!
//! Every index that can find all matching documents is a candidate. A unique point wins outright;
//! otherwise each candidate's keys are counted, up to a bound, and the cheapest wins, where a plan
//! that has to sort pays for it, and one in the right order only pays for what is wanted.

use std::sync::Arc;

use banyan_document::key::FieldOrder;
use banyan_query::bounds::{Conjunction, implies};
use banyan_query::{Context, ErrorKind, Filter, QueryError};
use banyan_storage::{Collection, Index, Snapshot};
use bson::{RawBsonRef, RawDocument};

use super::bounds::{self, IndexBounds, ScanRange};
use super::{Access, Plan, Query, number};
use crate::error;

/// A trial looks at no more keys of an index than this.
const TRIAL_KEYS: u64 = 512;

pub fn choose(
    collection: Option<&Arc<Collection>>,
    snapshot: &Snapshot,
    query: &Query<'_>,
) -> Result<Plan, QueryError> {
    let Some(collection) = collection else {
        return Ok(Plan::nothing());
    };
    let filter = query.filter;
    let conjunction = filter.map_or_else(Conjunction::everything, Conjunction::of);
    let by_id = filter.is_some_and(|filter| filter.id_equality().is_some());
    let plan = |access: Access, sorted: bool, rejected: Vec<Access>| {
        let exact = match &access {
            Access::Index { bounds, .. } => bounds.exact,
            Access::Collection { .. } => conjunction.complete && conjunction.conditions.is_empty(),
            _ => false,
        };
        let collection = Some(collection.clone());
        Plan {
            collection,
            access,
            sorted,
            exact,
            by_id,
            rejected,
        }
    };
    let natural = query.sort.and_then(natural_direction);
    if let Some(hint) = query.hint {
        let access = hinted(collection, &conjunction, query, hint)?;
        let (access, sorted) = orient(access, query.sort, natural);
        return Ok(plan(access, sorted, Vec::new()));
    }
    if query.min.is_some() || query.max.is_some() {
        return Err(QueryError::new(
            ErrorKind::Location(51173),
            "When using min()/max() a hint of which index to use must be provided",
        ));
    }
    if conjunction.never {
        return Ok(plan(Access::Nothing, true, Vec::new()));
    }
    if let Some(reverse) = natural {
        return Ok(plan(Access::Collection { reverse }, true, Vec::new()));
    }
    let candidates = candidates(collection, &conjunction, query.sort);
    if let Some(at) = candidates.iter().position(|c| c.bounds.is_unique_point()) {
        let access = Access::Index {
            bounds: candidates[at].bounds.clone(),
            reverse: false,
        };
        return Ok(plan(access, true, Vec::new()));
    }
    let options = weigh(collection, snapshot, query, &conjunction, candidates)?;
    let mut options = options.into_iter();
    let Some((_, access, sorted)) = options.next() else {
        return Ok(Plan::nothing());
    };
    let rejected = options
        .map(|(_, access, _)| access)
        .filter(|access| !matches!(access, Access::Collection { .. }))
        .collect();
    Ok(plan(access, sorted, rejected))
}

/// An access, what it costs, and whether its records come in the order that is wanted.
type Weighed = (f64, Access, bool);

/// The candidates, and what goes without any of them, the cheapest first.
fn weigh(
    collection: &Arc<Collection>,
    snapshot: &Snapshot,
    query: &Query<'_>,
    conjunction: &Conjunction<'_>,
    candidates: Vec<Candidate>,
) -> Result<Vec<Weighed>, QueryError> {
    let union = union(collection, conjunction);
    let scan = Candidate::scan(collection, query.sort.is_none());
    let mut options: Vec<Weighed> = Vec::new();
    let single = candidates.len() == 1 && union.is_none();
    for candidate in candidates {
        let cost = if single && candidate.bounds.is_selective() {
            0.0
        } else {
            candidate.cost(snapshot, collection, query)?
        };
        let Candidate {
            bounds,
            reverse,
            sorted,
        } = candidate;
        options.push((cost, Access::Index { bounds, reverse }, sorted));
    }
    if let Some(parts) = union {
        let mut keys = 0;
        for part in &parts {
            keys += count_keys(snapshot, part)?;
        }
        let cost = keys as f64 * 2.0 + sort_cost(keys as f64, query.sort.is_some());
        options.push((cost, Access::Union(parts), query.sort.is_none()));
    }
    // Without anything that narrows the search, the collection itself is the way.
    options.push((
        scan.full_cost(query),
        Access::Collection { reverse: false },
        scan.sorted,
    ));
    options.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(options)
}

struct Candidate {
    bounds: IndexBounds,
    reverse: bool,
    sorted: bool,
}

/// A collection scan, for comparison.
struct Scan {
    documents: f64,
    sorted: bool,
}

impl Candidate {
    fn scan(collection: &Collection, sorted: bool) -> Scan {
        Scan {
            documents: collection.documents() as f64,
            sorted,
        }
    }

    fn cost(
        &self,
        snapshot: &Snapshot,
        collection: &Collection,
        query: &Query<'_>,
    ) -> Result<f64, QueryError> {
        let mut keys = if self.bounds.is_selective() {
            count_keys(snapshot, &self.bounds)? as f64
        } else {
            collection.documents() as f64
        };
        if keys >= TRIAL_KEYS as f64 {
            // Past the trial's end, wider bounds are taken to hold a larger part.
            let share = 0.5_f64.powi(i32::try_from(2 * self.bounds.points).unwrap_or(8))
                * if self.bounds.confined > self.bounds.points {
                    0.5
                } else {
                    1.0
                };
            keys = keys.max(collection.documents() as f64 * share);
        }
        // In the right order, reading stops as soon as enough is found.
        if (self.sorted || query.sort.is_none())
            && let Some(wanted) = query.wanted
            && self.bounds.exact
        {
            keys = keys.min(wanted as f64);
        } else if self.sorted
            && query.sort.is_some()
            && let Some(wanted) = query.wanted
        {
            keys = keys.min((wanted as f64) * 16.0);
        }
        // A key costs a step of the scan and a record read at random.
        Ok(keys * 2.0 + sort_cost(keys, query.sort.is_some() && !self.sorted))
    }
}

impl Scan {
    fn full_cost(&self, query: &Query<'_>) -> f64 {
        // At least something, so that any index which narrows the search wins a small collection.
        1.0 + self.documents + sort_cost(self.documents, query.sort.is_some()) + {
            // An index's bounds are better news than they look: documents keep coming.
            if query.filter.is_some_and(|filter| !filter.is_empty()) {
                TRIAL_KEYS as f64
            } else {
                0.0
            }
        }
    }
}

fn sort_cost(documents: f64, needed: bool) -> f64 {
    if needed {
        documents * (documents + 2.0).log2() * 0.5
    } else {
        0.0
    }
}

/// The number of keys inside the bounds, as far as a trial goes.
fn count_keys(snapshot: &Snapshot, bounds: &IndexBounds) -> Result<u64, QueryError> {
    let mut keys = 0;
    for ScanRange { range, point } in &bounds.ranges {
        if point.is_some() && bounds.index.unique {
            keys += 1;
            continue;
        }
        for entry in snapshot.scan_index(&bounds.index, range.clone(), false) {
            entry.map_err(error::storage)?;
            keys += 1;
            if keys >= TRIAL_KEYS {
                return Ok(keys);
            }
        }
        if keys >= TRIAL_KEYS {
            break;
        }
    }
    Ok(keys)
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

/// An `$or` each of whose branches has an index.
fn union(collection: &Collection, conjunction: &Conjunction<'_>) -> Option<Vec<IndexBounds>> {
    let branches = conjunction.disjunctions.first()?;
    let mut parts = Vec::with_capacity(branches.len());
    for branch in branches {
        let best = collection
            .indexes
            .iter()
            .filter(|index| !index.hidden && is_complete_for(index, branch))
            .filter_map(|index| bounds::bounds(index, branch))
            .filter(IndexBounds::is_selective)
            .max_by_key(|bounds| (bounds.is_unique_point(), bounds.points, bounds.confined))?;
        parts.push(best);
    }
    (!parts.is_empty()).then_some(parts)
}

/// `{$natural: ±1}`: whether it runs backwards.
pub fn natural_direction(document: &RawDocument) -> Option<bool> {
    let (name, value) = document.iter().next()?.ok()?;
    (name.as_str() == "$natural").then(|| number(value).is_some_and(|n| n < 0))
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
            bounds,
            reverse: false,
        });
    }
    // A sparse or partial index is used as told, even if it misses documents.
    let bounds = bounds::bounds(index, conjunction).unwrap_or_else(|| bounds::whole(index));
    Ok(Access::Index {
        bounds,
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
