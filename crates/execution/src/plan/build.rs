//! From a way to answer a query to a tree of operators.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_query::QueryError;
use banyan_storage::Collection;

use super::{Access, Branch, Covering, IndexBounds, Solution};
use crate::operators::{
    CollectionScan, Covered, DistinctScan, Eof, Exchange, Fetch, IdLookup, IndexScan, KeyDocument, Limit, Or,
    Projection, RandomScan, Reads, ShardingFilter, Skip, Sort, SortMerge, Stage,
};
use crate::request::{DistinctOf, Goal, Request};

/// The tree for a solution, from what finds the documents up to what is handed out.
pub fn build(
    collection: Option<&Arc<Collection>>,
    request: &Request<'_>,
    solution: &Solution,
) -> Result<Stage, QueryError> {
    let root = find(collection, request, solution)?;
    if let (Access::Sample(_), Some(size)) = (&solution.access, request.sample) {
        let own = match &request.shard_filter {
            Some(filter) => Stage::over(root, ShardingFilter::new(filter.clone())),
            None => root,
        };
        return Ok(Stage::over(own, Limit::new(size)));
    }
    Ok(finish(
        root,
        request,
        solution.sorted,
        covered(request, solution),
    ))
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
pub fn finish(
    mut root: Stage,
    request: &Request<'_>,
    sorted: bool,
    covered: Option<Covered>,
) -> Stage {
    if let Some(filter) = &request.shard_filter {
        root = Stage::over(root, ShardingFilter::new(filter.clone()));
    }
    let query = &request.query;
    let sort = query.order.pattern().filter(|_| !sorted);
    if let Some(pattern) = sort {
        let sort = Sort::new(pattern.clone(), query.wanted(), &request.budget);
        root = Stage::over(root, sort);
    }
    if query.skip > 0 {
        root = Stage::over(root, Skip::new(query.skip));
    }
    if let Some(limit) = query.limit.filter(|_| sort.is_none()) {
        root = Stage::over(root, Limit::new(limit));
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
) -> Result<Stage, QueryError> {
    let Some(collection) = collection else {
        return Ok(Stage::new(Eof));
    };
    let filter = Some(&request.query.filter).filter(|filter| !solution.exact && !filter.is_empty());
    let filter = filter.cloned();
    Ok(match &solution.access {
        Access::Nothing => Stage::new(Eof),
        Access::Sample(ids) => Stage::new(RandomScan::new(collection.id, ids.clone())),
        Access::Collection { reverse } => {
            let scan = CollectionScan::new(collection.id, *reverse, filter);
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
        Access::Union(branches) => from_union(collection, request, solution, branches)?,
    })
}

fn from_index(
    collection: &Arc<Collection>,
    request: &Request<'_>,
    solution: &Solution,
    bounds: &Arc<IndexBounds>,
    reverse: bool,
) -> Result<Stage, QueryError> {
    if bounds.index.is_clustered() {
        let shown = Some(&request.query.filter).filter(|filter| !filter.is_empty());
        let scan = CollectionScan::new(collection.id, reverse, shown.cloned());
        return Ok(Stage::new(scan.within(bounds.clone(), solution.exact)));
    }
    if solution.by_id && bounds.index.is_id() {
        let point = bounds.ranges.first().and_then(|range| range.point.clone());
        if let Some(key) = point.filter(|_| bounds.ranges.len() == 1) {
            let index = bounds.index.clone();
            return Ok(Stage::new(IdLookup::new(collection.clone(), index, key)));
        }
    }
    let covering = match &solution.covering {
        Some(covering) => covering.clone(),
        None => Arc::new(Covering::of(request, bounds, solution.sorted)),
    };
    if let Some(field) = solution.distinct {
        let is_on_arrays = bounds.arrays.are_on(&bounds.layout.fields[field].0);
        let reads = match &covering.covered {
            _ if is_on_arrays => Reads::Items,
            Some(paths) => Reads::Keys(KeyDocument::new(bounds, paths)),
            None => Reads::Records,
        };
        let fetches = matches!(reads, Reads::Records);
        let distinct = request.distinct.as_ref();
        let of_values = distinct.is_none_or(|distinct| distinct.of == DistinctOf::Values);
        let scan = DistinctScan::new(bounds.clone(), reverse, field, reads);
        let scan = Stage::new(match of_values {
            true => scan,
            false => scan.with_missing(),
        });
        return Ok(match fetches {
            true => Stage::over(scan, Fetch::new(collection.clone(), None)),
            false => scan,
        });
    }
    let is_exact = covering.residual.is_none();
    let mut scan = IndexScan::new(bounds.clone(), reverse, is_exact);
    let mut paths = covering.filtered.clone();
    if let Some(filter) = &covering.key_filter {
        scan = scan.filtering(filter.clone(), &paths);
    }
    if let Some(covered) = &covering.covered {
        paths.extend(covered.iter().cloned());
        return Ok(Stage::new(match paths.is_empty() {
            true => scan.counting(request.goal == Goal::Documents),
            false => scan.covering(&paths),
        }));
    }
    let fetch = Fetch::new(collection.clone(), covering.residual.clone());
    Ok(Stage::over(Stage::new(scan), fetch))
}

/// The bounds of a branch say nothing of the other conditions, so every document is matched.
fn from_union(
    collection: &Arc<Collection>,
    request: &Request<'_>,
    solution: &Solution,
    branches: &[Branch],
) -> Result<Stage, QueryError> {
    let scan = |branch: &Branch| -> Stage {
        let bounds = branch.bounds.clone();
        if bounds.index.is_clustered() {
            let scan = CollectionScan::new(collection.id, branch.reverse, None);
            return Stage::new(scan.within(bounds, false));
        }
        Stage::new(IndexScan::new(bounds, branch.reverse, false))
    };
    let filter = Some(request.query.filter.clone());
    let pattern = request.query.order.pattern();
    let Some(pattern) = pattern.filter(|_| solution.sorted) else {
        let scans = branches.iter().map(scan).collect();
        let union = Stage::over_all(scans, Or::default());
        return Ok(Stage::over(union, Fetch::new(collection.clone(), filter)));
    };
    let fetch = |branch| {
        let fetch = Fetch::new(collection.clone(), filter.clone());
        Stage::over(scan(branch), fetch)
    };
    let fetches = branches.iter().map(fetch).collect();
    Ok(Stage::over_all(fetches, SortMerge::new(pattern.clone())))
}
