//! From a way to answer a query to a tree of operators.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::Collection;

use super::{Access, Branch, IndexBounds, Solution};
use crate::operators::{
    CollectionScan, DistinctScan, Eof, Fetch, IdLookup, IndexScan, Limit, Or, ProjectionDefault,
    ShardingFilter, Skip, Sort, SortMerge, Stage,
};
use crate::request::{Goal, Request};

/// The tree for a solution, from what finds the documents up to what is handed out.
pub fn build(
    collection: Option<&Arc<Collection>>,
    request: &Request<'_>,
    solution: &Solution,
) -> Result<Stage, QueryError> {
    let root = find(collection, request, solution)?;
    Ok(finish(root, request, solution.sorted))
}

/// What happens to the documents that were found, on their way out.
pub fn finish(mut root: Stage, request: &Request<'_>, sorted: bool) -> Stage {
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
    if query.projection.is_some() || request.show_record_id {
        root = Stage::over(root, ProjectionDefault::new(request.output()));
    }
    root
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
        Access::Collection { reverse } => {
            Stage::new(CollectionScan::new(collection.id, *reverse, filter))
        }
        Access::Index { bounds, reverse } => {
            return from_index(collection, request, solution, bounds, *reverse, filter);
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
    filter: Option<Arc<Filter>>,
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
    let alone = filter.is_none() && request.shard_filter.is_none();
    match request.goal {
        Goal::Count if alone => {
            let scan = IndexScan::new(bounds.clone(), reverse, true);
            return Ok(Stage::new(scan.counting()));
        }
        Goal::Count | Goal::Documents => {}
    }
    if solution.distinct
        && request.shard_filter.is_none()
        && let Some(scan) = DistinctScan::new(collection.clone(), bounds.clone())
    {
        return Ok(Stage::new(scan));
    }
    let scan = IndexScan::new(bounds.clone(), reverse, filter.is_none());
    Ok(Stage::over(
        Stage::new(scan),
        Fetch::new(collection.clone(), filter),
    ))
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
