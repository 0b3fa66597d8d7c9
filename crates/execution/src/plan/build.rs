//! From a way to answer a query to a tree of operators.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::FieldOrder;
use banyan_document::path::Path;
use banyan_query::canonical;
use banyan_query::sort::SortPattern;
use banyan_query::spill::ScoreOrder;
use banyan_query::text::TEXT_SCORE_FIELD;
use banyan_query::{Filter, QueryError};
use banyan_storage::Collection;

use super::covering::Settled;
use super::{Access, Branch, Covering, IndexBounds, Solution, TextAccess, Union};
use crate::operators::{
    CollectionScan, Covered, DistinctScan, DocumentFilters, Eof, Exchange, Fetch, GeoNear,
    IdLookup, IndexScan, KeyDocument, KeyFields, Limit, Or, Projection, RandomScan, Reads,
    ReturnKey, ShardingFilter, Skip, Sort, SortMerge, Stage, TellMetadata, TextMatch, TextOr,
    TextScore,
};
use crate::request::{DistinctOf, Goal, Request};

/// The tree for a solution, from what finds the documents up to what is handed out.
pub fn build(
    collection: Option<&Arc<Collection>>,
    request: &Request<'_>,
    solution: &Solution,
) -> Result<Stage, QueryError> {
    let (mut root, skipped) = find(collection, request, solution);
    if request.query.text_score != canonical::TextScore::Unused
        && !matches!(solution.access, Access::Text(_))
    {
        let matchers = request.query.filter.matchers();
        root = matchers.into_iter().fold(root, |root, matcher| {
            Stage::over(root, TextScore::new(matcher.clone()))
        });
    }
    if let (Access::Sample(_), Some(size)) = (&solution.access, request.sample) {
        let own = match &request.shard_filter {
            Some(filter) => Stage::over(root, ShardingFilter::new(filter.clone())),
            None => root,
        };
        return Ok(Stage::over(own, Limit::new(size)));
    }
    let covered = covered(request, solution);
    let comes = match &solution.access {
        _ if solution.sorted => Comes::Sorted,
        Access::Text(_) if wants_best(request) => Comes::BestFirst,
        _ => Comes::Unsorted,
    };
    Ok(finish_with(root, request, comes, covered, skipped))
}

/// How the documents come that were read from an index's keys, if they were.
fn covered(request: &Request<'_>, solution: &Solution) -> Option<Covered> {
    let covering = solution.covering.as_ref()?;
    let covered = covering.covered.as_ref()?;
    let Access::Index { bounds, .. } = &solution.access else {
        return None;
    };
    let is_field = |path: &String| {
        let mut fields = bounds.layout.fields.iter();
        fields.any(|(known, _)| known.to_string() == *path)
    };
    let is_asked = match &request.query.projection {
        None => true,
        Some(projection) => {
            let paths = projection.included_paths();
            paths.is_some_and(|paths| paths.into_iter().collect::<BTreeSet<_>>() == *covered)
        }
    };
    match is_asked && covered.iter().all(is_field) && covering.filtered.is_subset(covered) {
        true => Some(Covered::Exactly),
        false => Some(Covered::More),
    }
}

/// What happens to the documents that were found, on their way out.
pub fn finish(root: Stage, request: &Request<'_>, sorted: bool, covered: Option<Covered>) -> Stage {
    let comes = match sorted {
        true => Comes::Sorted,
        false => Comes::Unsorted,
    };
    finish_with(root, request, comes, covered, Skipped::No)
}

/// In which order documents are found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comes {
    /// In that which is asked for.
    Sorted,
    /// In that of their scores, by which they are to be sorted first.
    BestFirst,
    Unsorted,
}

/// Whether those that are to be skipped have been, before anything was fetched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Skipped {
    Yes,
    No,
}

/// The documents of the records that the input names, and of as few as will do: those that are to be
/// skipped are, if nothing decides about them later.
fn fetch(
    mut input: Stage,
    collection: &Arc<Collection>,
    filters: DocumentFilters,
    request: &Request<'_>,
    sorted: bool,
) -> (Stage, Skipped) {
    let filter = &filters.all;
    let query = &request.query;
    let is_sorted = sorted || query.order.pattern().is_none();
    let mut skipped = Skipped::No;
    if query.skip > 0 && filter.is_none() && request.shard_filter.is_none() && is_sorted {
        input = Stage::over(input, Skip::new(query.skip));
        skipped = Skipped::Yes;
    }
    let is_of_keys = request.return_key && request.merge_order.is_none();
    if is_of_keys && filter.is_none() && request.shard_filter.is_none() && is_sorted {
        return (input, skipped);
    }
    let mut fetch = Fetch::with(collection.clone(), filters);
    let is_decided_by_filter = request.min.is_none() && request.max.is_none();
    let is_clustered = collection.clustered_index.is_some();
    // Scripts run one after the other.
    let calls_script = query.filter.calls_script();
    if request.wanted().is_none() && is_decided_by_filter && !is_clustered && !calls_script {
        fetch = fetch.reading_ahead(query.filter.clone());
    }
    (Stage::over(input, fetch), skipped)
}

fn finish_with(
    mut root: Stage,
    request: &Request<'_>,
    comes: Comes,
    covered: Option<Covered>,
    skipped: Skipped,
) -> Stage {
    if let Some(filter) = &request.shard_filter {
        root = Stage::over(root, ShardingFilter::new(filter.clone()));
    }
    let query = &request.query;
    let sort = query.order.pattern().filter(|_| comes != Comes::Sorted);
    if let Some(pattern) = sort {
        let sort = Sort::new(pattern.clone(), query.wanted(), &request.budget);
        let sort = match comes {
            Comes::BestFirst => sort.of_best_first(),
            Comes::Sorted | Comes::Unsorted => sort,
        };
        root = Stage::over(root, sort);
    }
    if query.skip > 0 && skipped == Skipped::No {
        root = Stage::over(root, Skip::new(query.skip));
    }
    if request.return_key {
        root = Stage::over(root, ReturnKey::new(request.merge_order.clone()));
    }
    if let Some(limit) = query.limit.filter(|_| sort.is_none()) {
        root = Stage::over(root, Limit::new(limit));
    }
    if request.return_key {
        return root;
    }
    if !query.metadata.is_empty() {
        let told = TellMetadata::new(query.metadata, query.order.pattern().cloned());
        root = Stage::over(root, told);
    }
    let output = request.output();
    match covered {
        Some(covered) if request.goal == Goal::Documents => {
            Stage::over(root, Projection::covered(output, covered))
        }
        _ if output.is_identity() => root,
        _ => Stage::over(root, Projection::new(output)),
    }
}

/// What finds the documents that match.
fn find(
    collection: Option<&Arc<Collection>>,
    request: &Request<'_>,
    solution: &Solution,
) -> (Stage, Skipped) {
    let Some(collection) = collection else {
        return (Stage::new(Eof), Skipped::No);
    };
    let filter = Some(&request.query.filter).filter(|filter| !solution.exact && !filter.is_empty());
    let filter = filter.cloned();
    let root = match &solution.access {
        Access::Nothing => Stage::new(Eof),
        Access::Sample(ids) => Stage::new(RandomScan::new(collection.id, ids.clone())),
        Access::Collection { reverse } => {
            let scan = CollectionScan::new(collection.id, *reverse, filter).of_capped(collection);
            let matches = scan.has_filter();
            let scan = Stage::new(scan.of_size(collection.documents(), collection.bytes()));
            match matches {
                true => Stage::over(scan, Exchange::default()),
                false => scan,
            }
        }
        Access::Index { bounds, reverse } => {
            return from_index(collection, request, solution, bounds, *reverse);
        }
        Access::Near(search) => {
            let near = GeoNear::new(
                collection.clone(),
                search.clone(),
                request.wanted(),
                &request.budget,
            );
            Stage::new(near.telling(request.near.clone()))
        }
        Access::Union(union) => return from_union(collection, request, solution, union),
        Access::Merge { ranges, reverse } => {
            from_ranges(collection, request, solution, ranges, *reverse)
        }
        Access::Text(text) => from_text(collection, request, text),
    };
    (root, Skipped::No)
}

fn from_index(
    collection: &Arc<Collection>,
    request: &Request<'_>,
    solution: &Solution,
    bounds: &Arc<IndexBounds>,
    reverse: bool,
) -> (Stage, Skipped) {
    if bounds.index.is_clustered() {
        let shown = Some(&request.query.filter).filter(|filter| !filter.is_empty());
        let scan = CollectionScan::new(collection.id, reverse, shown.cloned());
        let scan = scan.within(bounds.clone(), solution.exact);
        return (Stage::new(scan), Skipped::No);
    }
    if solution.by_id && bounds.index.is_id() {
        let point = bounds.ranges.first().and_then(|range| range.point.clone());
        if let Some(key) = point.filter(|_| bounds.ranges.len() == 1) {
            let mut lookup = IdLookup::new(collection.clone(), bounds.index.clone(), key);
            if request.return_key {
                lookup = lookup.returning(KeyFields::new(&bounds.index, &bounds.layout));
            }
            return (Stage::new(lookup), Skipped::No);
        }
    }
    let covering = match &solution.covering {
        Some(covering) => covering.clone(),
        None => Arc::new(Covering::of(request, bounds, solution.sorted)),
    };
    if let Some(field) = solution.distinct {
        let is_on_arrays = bounds.arrays.are_on(&bounds.layout.fields[field].0);
        let distinct = request.distinct.as_ref();
        let of_values = distinct.is_none_or(|distinct| distinct.of == DistinctOf::Values);
        let reads = match &covering.covered {
            _ if is_on_arrays => Reads::Values,
            Some(_) if of_values => Reads::Values,
            Some(paths) => Reads::Keys(KeyDocument::new(bounds, paths)),
            None => Reads::Records,
        };
        let fetches = matches!(reads, Reads::Records);
        let scan = DistinctScan::new(bounds.clone(), reverse, field, reads, !of_values);
        let scan = Stage::new(scan);
        let found = match fetches {
            true => Stage::over(scan, Fetch::new(collection.clone(), None)),
            false => scan,
        };
        return (found, Skipped::No);
    }
    let is_exact = covering.residual.is_none();
    let mut scan = IndexScan::new(bounds.clone(), reverse, is_exact);
    if request.wants_keys() {
        scan = scan.returning_keys();
    }
    let mut paths = covering.filtered.clone();
    if let Some(filter) = &covering.key_filter {
        scan = scan.filtering(filter.clone(), &paths);
    }
    if let Some(covered) = &covering.covered {
        paths.extend(covered.iter().cloned());
        let scan = match paths.is_empty() {
            true => scan.counting(request.goal == Goal::Documents),
            false => scan.covering(&paths),
        };
        return (Stage::new(scan), Skipped::No);
    }
    let mut filters = DocumentFilters::of(covering.residual.clone());
    if let Some(Settled(rest)) = &covering.settled {
        scan = scan.testing_cells();
        filters.settled = rest.clone();
    }
    let scan = Stage::new(scan);
    fetch(scan, collection, filters, request, solution.sorted)
}

/// Whether a few documents are wanted, those with the best scores.
fn wants_best(request: &Request<'_>) -> bool {
    let pattern = request.query.order.pattern();
    let first = pattern.and_then(|pattern| pattern.fields().first());
    let is_by_score = first.is_some_and(|(path, order)| {
        path.head() == TEXT_SCORE_FIELD && *order == FieldOrder::Descending
    });
    is_by_score && request.query.wanted().is_some()
}

/// The records that have one of the terms, and of their documents those that match.
fn from_text(collection: &Arc<Collection>, request: &Request<'_>, text: &Arc<TextAccess>) -> Stage {
    let is_scored = request.query.text_score != canonical::TextScore::Unused;
    let scan = |bounds: &Arc<IndexBounds>| {
        // The best come first.
        let scan = IndexScan::new(bounds.clone(), true, false);
        // A search tells no keys, which score documents and nothing else.
        Stage::new(match is_scored {
            true => scan.returning_keys(),
            false => scan,
        })
    };
    let mut scans: Vec<Stage> = text.terms.iter().map(scan).collect();
    let found = match scans.pop() {
        None => Stage::new(Eof),
        Some(only) if scans.is_empty() && !is_scored => only,
        Some(last) => {
            scans.push(last);
            match is_scored {
                true => {
                    let order = match wants_best(request) {
                        true => ScoreOrder::BestFirst,
                        false => ScoreOrder::Any,
                    };
                    Stage::over_all(scans, TextOr::new(order, &request.budget))
                }
                false => Stage::over_all(scans, Or::default()),
            }
        }
    };
    let fetch = Fetch::new(collection.clone(), None).of_what_may_be_gone();
    // Where documents have scores, MongoDB reads them as it adds those up.
    let fetched = Stage::over(found, fetch.shown(!is_scored));
    let matched = Stage::over(fetched, TextMatch::new(text.clone(), is_scored));
    match request
        .query
        .filter
        .part(|number, _| number != text.conjunct)
    {
        None => matched,
        rest => Stage::over(matched, Fetch::new(collection.clone(), rest.map(Arc::new))),
    }
}

/// The bounds of a branch say nothing of the other conditions, which are matched with the documents.
fn from_union(
    collection: &Arc<Collection>,
    request: &Request<'_>,
    solution: &Solution,
    union: &Union,
) -> (Stage, Skipped) {
    let filter = match union.met {
        Some(met) => request.query.filter.part(|number, _| number != met),
        None => Some((*request.query.filter).clone()),
    };
    let filter = filter.map(Arc::new);
    let scan = |branch: &Branch| -> Stage {
        let bounds = branch.bounds.clone();
        if bounds.index.is_clustered() {
            let scan = CollectionScan::new(collection.id, branch.reverse, None);
            return Stage::new(scan.within(bounds, false));
        }
        index_scan(request, bounds, branch.reverse, union.met.is_some())
    };
    let scans = union.branches.iter().map(scan);
    let pattern = request.query.order.pattern();
    let Some(pattern) = pattern.filter(|_| solution.sorted) else {
        let union = Stage::over_all(scans.collect(), Or::default());
        let filters = DocumentFilters::of(filter);
        return fetch(union, collection, filters, request, solution.sorted);
    };
    (
        merge(scans, collection, &filter, Some(pattern)),
        Skipped::No,
    )
}

fn index_scan(
    request: &Request<'_>,
    bounds: Arc<IndexBounds>,
    reverse: bool,
    is_exact: bool,
) -> Stage {
    keyed(request, IndexScan::new(bounds, reverse, is_exact))
}

/// A scan that hands on its keys where they are asked for.
fn keyed(request: &Request<'_>, scan: IndexScan) -> Stage {
    Stage::new(match request.wants_keys() {
        true => scan.returning_keys(),
        false => scan,
    })
}

/// The documents of scans that are each in the order that is asked for, if one is.
fn merge(
    scans: impl Iterator<Item = Stage>,
    collection: &Arc<Collection>,
    filter: &Option<Arc<Filter>>,
    pattern: Option<&SortPattern>,
) -> Stage {
    let fetched = |scan| Stage::over(scan, Fetch::new(collection.clone(), filter.clone()));
    let fetched = scans.map(fetched).collect();
    match pattern {
        Some(pattern) => Stage::over_all(fetched, SortMerge::new(pattern.clone())),
        None => Stage::over_all(fetched, Or::default()),
    }
}

/// The documents of ranges that are each in order, merged.
fn from_ranges(
    collection: &Arc<Collection>,
    request: &Request<'_>,
    solution: &Solution,
    ranges: &[Arc<IndexBounds>],
    reverse: bool,
) -> Stage {
    let met = ranges.first().map_or(&[][..], |bounds| &bounds.met);
    let filter = match solution.exact {
        true => None,
        false => {
            let filter = &request.query.filter;
            filter
                .part(|number, _| !met.contains(&number))
                .map(Arc::new)
        }
    };
    let is_left_out = solution.exact || !met.is_empty();
    let pattern = request.query.order.pattern();
    // The order is in the keys, unless it is also one of what differs from range to range.
    let is_confined = |path: &Path| {
        ranges.iter().any(|bounds| {
            let mut fields = bounds.layout.fields.iter().take(bounds.points);
            fields.any(|(confined, _)| confined == path)
        })
    };
    let merged = pattern.filter(|pattern| {
        let mut fields = pattern.fields().iter();
        !fields.any(|(path, _)| is_confined(path))
    });
    let scan = |bounds: &Arc<IndexBounds>| IndexScan::new(bounds.clone(), reverse, is_left_out);
    let Some(order) = merged else {
        let scans = ranges.iter().map(|bounds| keyed(request, scan(bounds)));
        return merge(scans, collection, &filter, pattern);
    };
    let scans = ranges
        .iter()
        .map(|bounds| keyed(request, scan(bounds).merged_by_rest()));
    let merge = SortMerge::new(order.clone()).by_keys(reverse);
    let merged = Stage::over_all(scans.collect(), merge);
    // Records are held back unread. In a later state they have to match all that is asked for: nothing
    // tells whether they still have their keys.
    let whole = Some(&request.query.filter).filter(|filter| !filter.is_empty());
    let fetch = Fetch::new(collection.clone(), whole.cloned());
    Stage::over(merged, fetch.of_what_may_be_gone())
}
