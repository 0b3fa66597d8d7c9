//! The ways that may serve a query.
//!
//! Every index that can find all matching documents is a candidate, and so is the collection
//! itself where an index may turn out to leave little out. A unique point wins outright; among
//! several others a trial decides ([`crate::trial`]).

use std::sync::Arc;

use banyan_document::key::FieldOrder;
use banyan_document::path::Path;
use banyan_query::bounds::Conjunction;
use banyan_query::canonical::{Order, natural_direction};
use banyan_query::sort::SortPattern;
use banyan_query::{ErrorKind, QueryError};
use banyan_storage::{Collection, Index};
use bson::RawBsonRef;

use super::bounds::{self, IndexBounds};
use super::near::NearSearch;
use super::{Access, Branch, Covering, Solution, Union, min_max, text};
use crate::by_id;
use crate::index_filters::{self, AllowedIndexes};
use crate::partial::is_complete_for;
use crate::request::{DistinctOf, Request};

/// More candidates are not tried.
const CANDIDATES_MAX: usize = 16;
/// So many ranges are merged at most, as in MongoDB: each is read by a scan of its own.
const MERGED_MAX: usize = 200;

/// What may serve a query, the likelier ones first; at least one. An index filter names the only
/// indexes that may.
pub fn solutions(
    collection: Option<&Arc<Collection>>,
    request: &Request<'_>,
    filter: Option<&AllowedIndexes>,
) -> Result<Vec<Solution>, QueryError> {
    let Some(collection) = collection else {
        return Ok(vec![Solution::nothing()]);
    };
    let query = &request.query;
    if let Order::Natural { reverse } = query.order {
        check_natural_hint(request, reverse)?;
    }
    let conjunction = Conjunction::of(&query.filter);
    if query.filter.near().is_some() {
        return near(collection, &conjunction, request, filter).map(|solution| vec![solution]);
    }
    let id = query.filter.id_equality().zip(collection.id_index());
    let by_id = query.skip == 0
        && id.is_some_and(|(id, index)| by_id::serves(index, id, conjunction.collator));
    let solution = |access: Access, sorted: bool| {
        let exact = match &access {
            Access::Index { bounds, .. } => bounds.exact,
            Access::Collection { .. } => asks_nothing(&conjunction),
            _ => false,
        };
        let covering = match &access {
            // A record's `_id` leads to the record.
            Access::Index { bounds, .. } if by_id && bounds.index.is_id() => None,
            // There are no keys beside the documents.
            Access::Index { bounds, .. } if bounds.index.is_clustered() => None,
            Access::Index { bounds, .. } => Some(Arc::new(Covering::of(request, bounds, sorted))),
            _ => None,
        };
        Solution {
            access,
            sorted,
            exact,
            by_id,
            covering,
            distinct: None,
        }
    };
    let sort = query.order.pattern();
    if let Some(text) = text::access(collection, request, &conjunction)? {
        return Ok(vec![solution(Access::Text(Arc::new(text)), sort.is_none())]);
    }
    let has_ends = request.has_ends();
    // A filter outweighs a hint.
    if let Some(hint) = request.hint.filter(|_| filter.is_none() || has_ends) {
        let access = hinted(collection, &conjunction, request, hint)?;
        // No part of such a filter is left for the keys or the documents to be held against.
        if conjunction.never {
            return Ok(vec![Solution::nothing()]);
        }
        let (access, sorted) = orient(access, &query.order);
        return Ok(vec![solution(access, sorted)]);
    }
    if has_ends {
        return Err(match query.order {
            Order::Natural { .. } => ends_of_natural(),
            _ => min_max::hint_required(),
        });
    }
    if conjunction.never {
        return Ok(vec![Solution::nothing()]);
    }
    if let Order::Natural { reverse } = query.order {
        return Ok(vec![solution(
            natural(collection, &conjunction, reverse),
            true,
        )]);
    }
    let planner = Planner {
        collection,
        conjunction: &conjunction,
        sort,
        // A plain `{_id: value}` needs no planner, whatever a filter says.
        filter: filter.filter(|_| !by_id || request.hint.is_some()),
        hinted: None,
    };
    if query.filter.searches() && planner.unindexed_branches() > 1 {
        return Err(QueryError::new(
            ErrorKind::NoQueryExecutionPlans,
            "error processing query: planner returned error :: caused by :: Failed to produce a \
             solution for TEXT under OR - other non-TEXT clauses under OR have to be indexed as well.",
        ));
    }
    if query.filter.searches() {
        text::check_branches(collection, request, &conjunction)?;
    }
    if let Some((bounds, field, reverse)) = planner.distinct_bounds(request) {
        let access = Access::Index {
            bounds: Arc::new(bounds),
            reverse,
        };
        let distinct = Some(field);
        let solution = solution(access, true);
        // Without an order a document of each group is not worth looking for one by one.
        if sort.is_some() || is_of_values(request) || solution.is_covered() {
            return Ok(vec![Solution {
                distinct,
                ..solution
            }]);
        }
    }
    let mut candidates = planner.candidates(request);
    if let Some(at) = candidates.iter().position(|c| c.bounds.is_unique_point()) {
        let Candidate { bounds, sorted, .. } = candidates.swap_remove(at);
        let access = Access::Index {
            bounds: Arc::new(bounds),
            reverse: false,
        };
        // One document is in every order, but may have arrays side by side, which no sort takes.
        return Ok(vec![solution(access, sorted || by_id)]);
    }
    // Stable: of equal ones the older index is tried first.
    candidates.sort_by_key(|candidate| {
        let IndexBounds {
            points, confined, ..
        } = candidate.bounds;
        std::cmp::Reverse((points, confined, candidate.sorted))
    });
    candidates.truncate(CANDIDATES_MAX);
    let mut solutions: Vec<_> = candidates
        .into_iter()
        .map(|candidate| {
            let Candidate {
                bounds,
                reverse,
                sorted,
                merged,
            } = candidate;
            if merged {
                let ranges = bounds.divided().map(Arc::new).collect();
                return Solution {
                    exact: bounds.exact,
                    ..solution(Access::Merge { ranges, reverse }, sorted)
                };
            }
            let bounds = Arc::new(bounds);
            solution(Access::Index { bounds, reverse }, sorted)
        })
        .collect();
    let is_met_by_one = |solution: &Solution| match &solution.access {
        Access::Index { bounds, .. } => {
            let disjunction = conjunction.disjunctions.first();
            let number = disjunction.and_then(|disjunction| disjunction.conjunct);
            number.is_some_and(|number| bounds.met.contains(&number))
        }
        _ => false,
    };
    if !solutions.iter().any(is_met_by_one)
        && let Some((union, sorted)) = planner.union()
    {
        solutions.push(solution(Access::Union(union), sorted));
    }
    // Not beside an index: what matches may lie at the collection's beginning, so that a trial says
    // nothing of the whole scan.
    if solutions.is_empty() {
        let access = Access::Collection { reverse: false };
        solutions.push(solution(access, sort.is_none()));
    }
    Ok(solutions)
}

/// What is near a point is found by an index over shapes alone.
fn near(
    collection: &Arc<Collection>,
    conjunction: &Conjunction<'_>,
    request: &Request<'_>,
    filter: Option<&AllowedIndexes>,
) -> Result<Solution, QueryError> {
    let query = &request.query;
    if matches!(query.order, Order::Natural { .. }) {
        return Err(QueryError::new(
            ErrorKind::BadValue,
            "geoNear expression not allowed with $natural sort order",
        ));
    }
    let hint = request.hint.filter(|_| filter.is_none());
    if hint
        .and_then(|hint| natural_direction(hint.as_document()?))
        .is_some()
    {
        return Err(QueryError::new(
            ErrorKind::BadValue,
            "geoNear expression not allowed with $natural hint",
        ));
    }
    let is_hinted = |index: &Index| match hint {
        None => true,
        Some(RawBsonRef::String(name)) => index.name == name,
        Some(RawBsonRef::Document(pattern)) => index_filters::has_pattern(index, pattern),
        Some(_) => false,
    };
    let mut indexes = collection.all_indexes().filter(|index| {
        !index.hidden
            && is_hinted(index)
            && filter.is_none_or(|filter| filter.allows(index))
            && is_complete_for(index, conjunction)
    });
    // A field in front of the places has to be confined, unless a hint names the index.
    let is_reached = |index: &Arc<Index>, search: &NearSearch| {
        let first = index.pattern.fields.first();
        hint.is_some()
            || first.is_some_and(|(path, _)| *path == search.path)
            || bounds::confines_first(index, conjunction)
    };
    let search = indexes.find_map(|index| {
        NearSearch::of(index, &query.filter).filter(|search| is_reached(index, search))
    });
    let Some(search) = search else {
        return Err(QueryError::new(
            ErrorKind::NoQueryExecutionPlans,
            "error processing query: planner returned error :: caused by :: unable to find index \
             for $geoNear query",
        ));
    };
    search.check()?;
    Ok(Solution {
        access: Access::Near(Arc::new(search)),
        sorted: query.order.pattern().is_none(),
        exact: true,
        by_id: false,
        covering: None,
        distinct: None,
    })
}

fn is_of_values(request: &Request<'_>) -> bool {
    let distinct = request.distinct.as_ref();
    distinct.is_some_and(|distinct| distinct.of == DistinctOf::Values)
}

/// Whether every document matches.
fn asks_nothing(conjunction: &Conjunction<'_>) -> bool {
    conjunction.complete && conjunction.conditions.is_empty()
}

struct Candidate {
    bounds: IndexBounds,
    reverse: bool,
    sorted: bool,
    /// Its ranges are sorted, each by itself.
    merged: bool,
}

/// What decides which indexes help.
struct Planner<'p> {
    collection: &'p Arc<Collection>,
    conjunction: &'p Conjunction<'p>,
    sort: Option<&'p SortPattern>,
    filter: Option<&'p AllowedIndexes>,
    /// The only index that may serve.
    hinted: Option<&'p Arc<Index>>,
}

impl<'p> Planner<'p> {
    /// The indexes that may be used and hold every document that meets a conjunction.
    fn indexes(
        &self,
        conjunction: &'p Conjunction<'p>,
    ) -> impl Iterator<Item = &'p Arc<Index>> + use<'p> {
        let (filter, hinted) = (self.filter, self.hinted);
        self.collection.all_indexes().filter(move |index| {
            !index.hidden
                && hinted.is_none_or(|hinted| hinted.id == index.id)
                && filter.is_none_or(|filter| filter.allows(index))
                && is_complete_for(index, conjunction)
        })
    }

    /// The bounds of an index with the field of whose values one document each is enough, the place
    /// of the field, and whether the index is read backwards. The bounds say all that is asked of
    /// the documents, and only fields that are confined to one value come before the field, so that
    /// equal values lie together.
    fn distinct_bounds(&self, request: &Request<'_>) -> Option<(IndexBounds, usize, bool)> {
        let distinct = request.distinct.as_ref();
        let distinct = distinct.filter(|_| request.shard_filter.is_none())?;
        if request.query.limit.is_some() || request.query.skip > 0 {
            return None;
        }
        let asks_nothing = asks_nothing(self.conjunction);
        let of_index = |index: &Arc<Index>| -> Option<(IndexBounds, usize, bool)> {
            // It has no keys but its documents' ids: there is nothing to jump over.
            // Documents without a shape have no keys in an index over shapes.
            if index.is_clustered() || index.pattern.has_geo_field() {
                return None;
            }
            let of_values = distinct.of == DistinctOf::Values;
            let bounds = match asks_nothing {
                // Documents that a sparse index leaves out have no value there.
                true if index.sparse && !of_values => return None,
                true => bounds::whole(index, self.conjunction.collator)?,
                false => {
                    let mut candidates = bounds::candidates(index, self.conjunction);
                    candidates.find(|bounds| bounds.exact)?
                }
            };
            let fields = &bounds.layout.fields;
            let named = |(known, _): &(Path, FieldOrder)| known.to_string() == distinct.path;
            let at = fields.iter().position(named)?;
            let (known, order) = &fields[at];
            let is_alone = bounds.layout.prefix.is_none() && at <= bounds.points;
            // Equal values share a key only if they are equal to the query as well.
            let is_in_order = bounds.in_order.get(at) == Some(&true);
            let is_served = match bounds.arrays.are_on(known) {
                // What is said of fields behind those of the ranges is not looked at.
                _ if !bounds.later.fields.is_empty() => false,
                false => true,
                // Each item has a key. Of a document that matches all are wanted, and others may
                // lie elsewhere; and no key tells what an item's position leads to.
                true => {
                    of_values
                        && asks_nothing
                        && at == 0
                        && index.pattern.collator.is_none()
                        && !known.has_position()
                }
            };
            if !order.is_of_values() || !is_alone || !is_in_order || !is_served {
                return None;
            }
            // Of equal keys the one of the record that was inserted first comes first.
            let natural = (at + 1 == fields.len() && !bounds.multikey).then_some(false);
            let by_order = || match self.sort {
                Some(sort) => order_of(&bounds, sort),
                None => natural,
            };
            let reverse = match distinct.of {
                DistinctOf::Values | DistinctOf::Groups => false,
                DistinctOf::First => by_order()?,
                DistinctOf::Last => !by_order()?,
            };
            Some((bounds, at, reverse))
        };
        let mut indexes = self.indexes(self.conjunction);
        indexes.find_map(of_index)
    }

    /// The indexes that help with the filter or with the order.
    fn candidates(&self, request: &Request<'_>) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let may_help =
            |index: &&Arc<Index>| self.sort.is_some() || may_narrow(index, self.conjunction);
        for index in self.indexes(self.conjunction).filter(may_help) {
            for bounds in bounds::candidates(index, self.conjunction) {
                let order = self.sort.and_then(|sort| order_of(&bounds, sort));
                if !bounds.is_selective() && order.is_none() {
                    continue;
                }
                // Where all documents are wanted, all cores may sort them, and one alone merges.
                let is_few = request.wanted().is_some() && request.distinct.is_none();
                let merged = match self.sort {
                    Some(sort) if order.is_none() && is_few => order_of_ranges(&bounds, sort),
                    _ => None,
                };
                let order = order.or(merged);
                let reverse = order.unwrap_or(false);
                let sorted = self.sort.is_none() || order.is_some();
                candidates.push(Candidate {
                    bounds,
                    reverse,
                    sorted,
                    merged: merged.is_some(),
                });
            }
        }
        candidates
    }

    /// How many branches of the `$or` no index helps with.
    fn unindexed_branches(&self) -> usize {
        let mut count = 0;
        let disjunction = self.conjunction.disjunctions.first();
        for branch in disjunction.into_iter().flat_map(|found| &found.branches) {
            let mut bounds = self
                .indexes(branch)
                .filter(|index| may_narrow(index, branch))
                .flat_map(|index| bounds::candidates(index, branch));
            count += usize::from(!bounds.any(|bounds| bounds.is_selective()));
        }
        count
    }

    /// An `$or` each of whose branches has an index, and whether all of them come in the order that
    /// is asked for.
    fn union(&self) -> Option<(Union, bool)> {
        let disjunction = self.conjunction.disjunctions.first()?;
        let mut parts = Vec::with_capacity(disjunction.branches.len());
        let mut sorted = true;
        for branch in &disjunction.branches {
            let (order, bounds) = self
                .indexes(branch)
                .filter(|index| may_narrow(index, branch))
                .flat_map(|index| bounds::candidates(index, branch))
                .filter(IndexBounds::is_selective)
                .map(|bounds| (self.sort.and_then(|sort| order_of(&bounds, sort)), bounds))
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
        let is_exact = parts.iter().all(|part| part.bounds.exact);
        let union = Union {
            met: disjunction.conjunct.filter(|_| is_exact),
            branches: parts,
        };
        (!union.branches.is_empty()).then_some((union, sorted || self.sort.is_none()))
    }
}

/// Whether there may be bounds of an index that leave anything out: something has to be said of its
/// first field.
fn may_narrow(index: &Index, conjunction: &Conjunction<'_>) -> bool {
    let pattern = &index.pattern;
    let first = pattern.fields.first().map(|(path, _)| path);
    let mut conditions = conjunction.conditions.iter();
    index.sparse
        || pattern.is_wildcard()
        || pattern.has_geo_field()
        || !conjunction.disjunctions.is_empty()
        || conditions.any(|condition| Some(&*condition.path) == first)
}

/// Whether the keys inside the bounds come in the order asked for: `Some(reverse)`.
pub fn order_of(bounds: &IndexBounds, sort: &SortPattern) -> Option<bool> {
    order_behind(bounds, bounds.points, sort)
}

/// The same where so many leading fields have one value.
fn order_behind(bounds: &IndexBounds, points: usize, sort: &SortPattern) -> Option<bool> {
    let fields = &bounds.layout.fields;
    let mut direction = None;
    let mut at = 0;
    for (wanted, order) in sort.fields() {
        let descending = *order == FieldOrder::Descending;
        loop {
            let (path, order) = fields.get(at)?;
            at += 1;
            if !order.is_of_values() {
                return None;
            }
            if path == wanted {
                if bounds.in_order.get(at - 1) != Some(&true) || !has_own_order(bounds, at - 1) {
                    return None;
                }
                let reverse = descending != (*order == FieldOrder::Descending);
                if at <= points {
                    // One value only: any direction will do.
                    break;
                }
                if *direction.get_or_insert(reverse) != reverse {
                    return None;
                }
                break;
            }
            // A field that is confined to one value can be passed over.
            if at > points {
                return None;
            }
        }
    }
    Some(direction.unwrap_or(false))
}

/// The same of the keys in each of the ranges, where these are few.
fn order_of_ranges(bounds: &IndexBounds, sort: &SortPattern) -> Option<bool> {
    let is_few = (2..=MERGED_MAX).contains(&bounds.ranges.len());
    if !is_few || bounds.index.is_clustered() || bounds.layout.prefix.is_some() {
        return None;
    }
    order_behind(bounds, bounds.points_each, sort)
}

/// Whether a record's first key inside the bounds is the one that sorts it by this field. One with
/// an array there has several keys, and bounds may leave some of them out.
fn has_own_order(bounds: &IndexBounds, field: usize) -> bool {
    let fields = &bounds.layout.fields;
    let (path, arrays) = (&fields[field].0, &bounds.arrays);
    let is_confined = |field: usize| bounds.confines.get(field) == Some(&true);
    let mut others = fields.iter().enumerate();
    !arrays.are_on(path)
        || !is_confined(field)
            && !others.any(|(at, (other, _))| is_confined(at) && arrays.are_shared(other, path))
}

/// Gives an access the direction that its sort asks for, if it can have it.
fn orient(access: Access, order: &Order) -> (Access, bool) {
    match (access, order) {
        (Access::Collection { .. }, Order::Natural { reverse }) => {
            (Access::Collection { reverse: *reverse }, true)
        }
        (Access::Index { bounds, reverse }, Order::By(sort)) => match order_of(&bounds, sort) {
            Some(reverse) => (Access::Index { bounds, reverse }, true),
            None => (Access::Index { bounds, reverse }, false),
        },
        (access, Order::By(_)) => (access, false),
        (access, Order::Any | Order::Natural { .. }) => (access, true),
    }
}

/// The collection in the order of its records: if it is clustered, the part that the filter leaves.
fn natural(collection: &Arc<Collection>, conjunction: &Conjunction<'_>, reverse: bool) -> Access {
    let index = collection.clustered_index.as_ref();
    let bounds = index.and_then(|index| bounds::candidates(index, conjunction).next());
    match bounds.filter(IndexBounds::is_selective) {
        Some(bounds) => Access::Index {
            bounds: Arc::new(bounds),
            reverse,
        },
        None => Access::Collection { reverse },
    }
}

/// What is wanted in the order of the records is not looked for in that of an index, nor in the other
/// direction.
fn check_natural_hint(request: &Request<'_>, reverse: bool) -> Result<(), QueryError> {
    let Some(hint) = request.hint else {
        return Ok(());
    };
    let direction = hint.as_document().and_then(natural_direction);
    let message = match direction {
        Some(hinted) if hinted == reverse => return Ok(()),
        Some(_) => "$natural hint must be in the same direction as $natural sort order",
        None => "index hint not allowed with $natural sort order",
    };
    Err(QueryError::new(ErrorKind::BadValue, message))
}

fn ends_of_natural() -> QueryError {
    QueryError::new(
        ErrorKind::NoQueryExecutionPlans,
        "error processing query: planner returned error :: caused by :: min and max are \
         incompatible with $natural",
    )
}

fn hinted(
    collection: &Arc<Collection>,
    conjunction: &Conjunction<'_>,
    request: &Request<'_>,
    hint: RawBsonRef<'_>,
) -> Result<Access, QueryError> {
    let index = match hint {
        RawBsonRef::String(name) => collection.all_indexes().find(|index| index.name == name),
        RawBsonRef::Document(pattern) => {
            if pattern.get("$natural").is_ok_and(|order| order.is_some()) {
                if request.has_ends() {
                    return Err(ends_of_natural());
                }
                return match (pattern.iter().count(), natural_direction(pattern)) {
                    (1, Some(reverse)) => Ok(natural(collection, conjunction, reverse)),
                    _ => Err(QueryError::new(
                        ErrorKind::BadValue,
                        "a $natural hint stands alone",
                    )),
                };
            }
            let mut matching = collection
                .all_indexes()
                .filter(|index| index_filters::has_pattern(index, pattern));
            let found = matching.next();
            // They differ in their collations.
            if matching.next().is_some() {
                return Err(QueryError::new(
                    ErrorKind::Location(27),
                    "error processing query: planner returned error :: caused by :: Hint matched \
                     multiple indexes, must hint by index name",
                ));
            }
            found
        }
        _ => {
            return Err(QueryError::new(
                ErrorKind::FailedToParse,
                "Hint must be a string or an object",
            ));
        }
    };
    let may_be = |index: &&Arc<Index>| request.hidden_too || !index.hidden;
    let Some(index) = index.filter(may_be) else {
        return Err(QueryError::new(
            ErrorKind::BadValue,
            "error processing query: planner returned error :: caused by :: hint provided does \
             not correspond to an existing index",
        ));
    };
    if request.has_ends() {
        let bounds = min_max::between(index, request.min, request.max, conjunction.collator)?;
        return Ok(Access::Index {
            bounds: Arc::new(bounds),
            reverse: false,
        });
    }
    // A sparse or partial index is used as told, even if it misses documents. MongoDB does not do so with
    // one over many paths.
    let serves = !index.pattern.is_wildcard() || is_complete_for(index, conjunction);
    let bounds = bounds::candidates(index, conjunction)
        .next()
        .filter(|_| serves);
    if bounds.is_none() && index.pattern.is_wildcard() {
        let planner = Planner {
            collection,
            conjunction,
            sort: None,
            filter: None,
            hinted: Some(index),
        };
        if let Some((union, _)) = planner.union() {
            return Ok(Access::Union(union));
        }
    }
    let Some(bounds) = bounds.or_else(|| bounds::whole(index, conjunction.collator)) else {
        return Err(QueryError::new(
            ErrorKind::NoQueryExecutionPlans,
            "error processing query: planner returned error :: caused by :: $hint: refusing to \
             build whole-index solution, because it's a wildcard index",
        ));
    };
    Ok(Access::Index {
        bounds: Arc::new(bounds),
        reverse: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_query::{Context, Filter};
    use banyan_storage::{ArrayPaths, IndexDefinition};
    use bson::{RawDocumentBuf, rawdoc};

    fn order(
        key: RawDocumentBuf,
        arrays: &[&str],
        filter: RawDocumentBuf,
        sort: RawDocumentBuf,
    ) -> Option<bool> {
        let spec = rawdoc! { "v": 2, "key": key, "name": "index" };
        let index = {
            let arrays = ArrayPaths::of(&arrays.iter().map(|path| Box::from(*path)).collect());
            Index::parse(&IndexDefinition { id: 7, spec }, arrays).unwrap()
        };
        let filter = Filter::parse(&filter, &Context::default()).unwrap();
        let index = Arc::new(index);
        let bounds = bounds::candidates(&index, &Conjunction::of(&filter))
            .next()
            .unwrap();
        order_of(&bounds, &SortPattern::parse(&sort, None).unwrap())
    }

    #[test]
    fn an_index_gives_its_order_and_the_opposite_one() {
        let key = rawdoc! { "a": 1, "b": -1 };
        let order = |sort| order(key.clone(), &[], rawdoc! {}, sort);
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
            order(key.clone(), &[], rawdoc! { "a": 1 }, rawdoc! { "b": -1 }),
            Some(true)
        );
        let range = rawdoc! { "a": { "$gt": 1 } };
        assert_eq!(order(key.clone(), &[], range, rawdoc! { "b": 1 }), None);
        let several = rawdoc! { "a": { "$in": [1, 2] } };
        assert_eq!(order(key, &[], several, rawdoc! { "b": 1 }), None);
    }

    #[test]
    fn arrays_inside_bounds_come_in_no_useful_order() {
        let key = rawdoc! { "a": 1 };
        let range = rawdoc! { "a": { "$gt": 1 } };
        assert_eq!(order(key.clone(), &["a"], range, rawdoc! { "a": 1 }), None);
        assert_eq!(
            order(key, &["a"], rawdoc! {}, rawdoc! { "a": 1 }),
            Some(false)
        );
    }

    #[test]
    fn an_array_beside_the_sort_does_not_disturb_it() {
        let order = |key, sort| order(key, &["a"], rawdoc! { "a": 5, "b": { "$gt": 1 } }, sort);
        let key = rawdoc! { "a": 1, "b": 1 };
        assert_eq!(order(key.clone(), rawdoc! { "b": -1 }), Some(true));
        assert_eq!(order(key, rawdoc! { "a": 1, "b": 1 }), None);
        let behind = rawdoc! { "b": 1, "a": 1 };
        assert_eq!(order(behind, rawdoc! { "b": 1 }), Some(false));
    }

    #[test]
    fn a_partial_index_serves_filters_that_imply_its_own() {
        let spec = rawdoc! {
            "v": 2, "key": { "a": 1 }, "name": "index",
            "partialFilterExpression": { "b": { "$gt": 5 } },
        };
        let index = Index::parse(&IndexDefinition { id: 7, spec }, ArrayPaths::default()).unwrap();
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
