//! From a way to answer a query to a tree of operators.

use std::sync::Arc;

use banyan_query::QueryError;
use banyan_query::filter::Filter;
use banyan_storage::Collection;

use super::{Access, Branch, IndexBounds, Solution};
use crate::operators::{
    CollectionScan, DistinctScan, Eof, Fetch, IdLookup, IndexScan, Limit, Operator, Or,
    ProjectionDefault, ShardingFilter, Skip, Sort, SortMerge,
};
use crate::request::{Goal, Request};

/// The tree for a solution, from what finds the documents up to what is handed out.
pub fn build(
    collection: Option<&Arc<Collection>>,
    request: &Request<'_>,
    solution: &Solution,
) -> Result<Box<dyn Operator>, QueryError> {
    let root = find(collection, request, solution)?;
    Ok(finish(root, request, solution.sorted))
}

/// What happens to the documents that were found, on their way out.
pub fn finish(
    mut root: Box<dyn Operator>,
    request: &Request<'_>,
    sorted: bool,
) -> Box<dyn Operator> {
    if let Some(filter) = &request.shard_filter {
        root = Box::new(ShardingFilter::new(root, filter.clone()));
    }
    let query = &request.query;
    let sort = query.order.pattern().filter(|_| !sorted);
    if let Some(pattern) = sort {
        let memory = request.sort_memory.clone();
        root = Box::new(Sort::new(root, pattern.clone(), query.wanted(), memory));
    }
    if query.skip > 0 {
        root = Box::new(Skip::new(root, query.skip));
    }
    if let Some(limit) = query.limit.filter(|_| sort.is_none()) {
        root = Box::new(Limit::new(root, limit));
    }
    if query.projection.is_some() || request.show_record_id {
        root = Box::new(ProjectionDefault::new(root, request.output()));
    }
    root
}

/// What finds the documents that match.
fn find(
    collection: Option<&Arc<Collection>>,
    request: &Request<'_>,
    solution: &Solution,
) -> Result<Box<dyn Operator>, QueryError> {
    let Some(collection) = collection else {
        return Ok(Box::new(Eof::default()));
    };
    let filter = Some(&request.query.filter).filter(|filter| !solution.exact && !filter.is_empty());
    let filter = filter.cloned();
    Ok(match &solution.access {
        Access::Nothing => Box::new(Eof::default()),
        Access::Collection { reverse } => {
            Box::new(CollectionScan::new(collection.id, *reverse, filter))
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
) -> Result<Box<dyn Operator>, QueryError> {
    if solution.by_id && bounds.index.is_id() {
        let point = bounds.ranges.first().and_then(|range| range.point.clone());
        if let Some(key) = point.filter(|_| bounds.ranges.len() == 1) {
            let index = bounds.index.clone();
            return Ok(Box::new(IdLookup::new(collection.clone(), index, key)));
        }
    }
    let alone = filter.is_none() && request.shard_filter.is_none();
    match request.goal {
        Goal::Count if alone => {
            let scan = IndexScan::new(bounds.clone(), reverse, true);
            return Ok(Box::new(scan.counting()));
        }
        Goal::Count | Goal::Documents => {}
    }
    if solution.distinct
        && request.shard_filter.is_none()
        && let Some(scan) = DistinctScan::new(collection.clone(), bounds.clone())
    {
        return Ok(Box::new(scan));
    }
    let scan = IndexScan::new(bounds.clone(), reverse, filter.is_none());
    Ok(Box::new(Fetch::new(
        Box::new(scan),
        collection.clone(),
        filter,
    )))
}

/// The bounds of a branch say nothing of the other conditions, so every document is matched.
fn from_union(
    collection: &Arc<Collection>,
    request: &Request<'_>,
    solution: &Solution,
    branches: &[Branch],
) -> Result<Box<dyn Operator>, QueryError> {
    let scan = |branch: &Branch| -> Box<dyn Operator> {
        let bounds = branch.bounds.clone();
        Box::new(IndexScan::new(bounds, branch.reverse, false))
    };
    let filter = Some(request.query.filter.clone());
    let pattern = request.query.order.pattern();
    let Some(pattern) = pattern.filter(|_| solution.sorted) else {
        let scans = branches.iter().map(scan).collect();
        let union = Box::new(Or::new(scans));
        return Ok(Box::new(Fetch::new(union, collection.clone(), filter)));
    };
    let fetches = branches.iter().map(|branch| -> Box<dyn Operator> {
        let fetch = Fetch::new(scan(branch), collection.clone(), filter.clone());
        Box::new(fetch)
    });
    Ok(Box::new(SortMerge::new(fetches.collect(), pattern.clone())))
}
