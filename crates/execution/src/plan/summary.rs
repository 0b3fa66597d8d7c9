//! A plan in a line, as `currentOp` and the log of slow operations show it.

use std::fmt;
use std::sync::Arc;

use banyan_storage::Index;
use banyan_storage::index::ID_INDEX_NAME;

use super::{Access, Solution, number};
use crate::cache::PlanName;

/// Cheap to make for every query; text only when somebody reads it.
#[derive(Debug, Default)]
pub enum Summary {
    #[default]
    Nothing,
    Scan,
    Sample,
    ById(Arc<Index>),
    Index(Arc<Index>),
    /// A document for each value of a field.
    Distinct(Arc<Index>),
    /// A part of a clustered collection.
    Clustered(Arc<Index>),
    Union(Vec<Arc<Index>>),
    Near(Arc<Index>),
    /// A search for so many terms.
    Text(Arc<Index>, usize),
}

impl Summary {
    /// The plan's name in the plan cache.
    pub fn name(&self) -> PlanName {
        match self {
            Summary::Nothing | Summary::Scan | Summary::Sample => PlanName::Collection,
            Summary::ById(_) => PlanName::Index(ID_INDEX_NAME.to_owned()),
            Summary::Index(index)
            | Summary::Distinct(index)
            | Summary::Clustered(index)
            | Summary::Near(index)
            | Summary::Text(index, _) => PlanName::Index(index.name.clone()),
            Summary::Union(indexes) => {
                PlanName::Union(indexes.iter().map(|index| index.name.clone()).collect())
            }
        }
    }

    /// The indexes that it uses.
    pub fn indexes(&self) -> &[Arc<Index>] {
        match self {
            Summary::Nothing | Summary::Scan | Summary::Sample => &[],
            Summary::ById(index)
            | Summary::Index(index)
            | Summary::Distinct(index)
            | Summary::Clustered(index)
            | Summary::Near(index)
            | Summary::Text(index, _) => std::slice::from_ref(index),
            Summary::Union(indexes) => indexes,
        }
    }

    pub fn of(solution: &Solution) -> Summary {
        match &solution.access {
            Access::Nothing => Summary::Nothing,
            Access::Sample(_) => Summary::Sample,
            Access::Text(text) => Summary::Text(text.index.clone(), text.terms.len()),
            Access::Collection { .. } => Summary::Scan,
            Access::Index { bounds, .. } if solution.by_id && bounds.index.is_id() => {
                Summary::ById(bounds.index.clone())
            }
            Access::Index { bounds, .. } if solution.distinct.is_some() => {
                Summary::Distinct(bounds.index.clone())
            }
            Access::Index { bounds, .. } if !bounds.index.is_clustered() => {
                Summary::Index(bounds.index.clone())
            }
            Access::Index { bounds, .. } if bounds.is_whole_collection() => Summary::Scan,
            Access::Index { bounds, .. } => Summary::Clustered(bounds.index.clone()),
            Access::Near(search) => Summary::Near(search.index.clone()),
            Access::Merge { ranges, .. } => {
                Summary::Union(ranges.iter().map(|bounds| bounds.index.clone()).collect())
            }
            Access::Union(union) => {
                let branches = union.branches.iter();
                Summary::Union(branches.map(|branch| branch.bounds.index.clone()).collect())
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Summary::Nothing => f.write_str("EOF"),
            Summary::Scan => f.write_str("COLLSCAN"),
            Summary::Sample => f.write_str("MULTI_ITERATOR"),
            Summary::ById(_) => f.write_str("IDHACK"),
            Summary::Index(index) => index_scan(index, f),
            Summary::Distinct(index) => scan_of("DISTINCT_SCAN", index, f),
            Summary::Near(index) => scan_of("GEO_NEAR_2DSPHERE", index, f),
            Summary::Text(_, 0) => f.write_str("EOF"),
            Summary::Text(index, terms) => {
                for at in 0..*terms {
                    f.write_str(if at == 0 { "" } else { ", " })?;
                    index_scan(index, f)?;
                }
                Ok(())
            }
            Summary::Clustered(_) => f.write_str("CLUSTERED_IXSCAN"),
            Summary::Union(indexes) => {
                for (at, index) in indexes.iter().enumerate() {
                    f.write_str(if at == 0 { "" } else { ", " })?;
                    match index.is_clustered() {
                        true => f.write_str("CLUSTERED_IXSCAN")?,
                        false => scan_of("IXSCAN", index, f)?,
                    }
                }
                Ok(())
            }
        }
    }
}

fn index_scan(index: &Index, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match index.is_clustered() {
        true => f.write_str("CLUSTERED_IXSCAN"),
        false => scan_of("IXSCAN", index, f),
    }
}

fn scan_of(stage: &str, index: &Index, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{stage} {{ ")?;
    let pattern = index.spec.get_document("key").ok();
    let fields = pattern.into_iter().flat_map(|p| p.iter().flatten());
    for (at, (name, direction)) in fields.enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        write!(f, "{separator}{name}: ")?;
        match number(direction) {
            Some(direction) => write!(f, "{direction}")?,
            None => write!(f, "{:?}", direction.as_str().unwrap_or("?"))?,
        }
    }
    f.write_str(" }")
}
