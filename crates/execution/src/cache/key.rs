//! What an entry of the plan cache is found by.

use std::fmt;

use banyan_query::{CanonicalQuery, PlanCacheShape};

use crate::plan::{Access, IndexBounds, Solution};

/// The shape of a query and the plans that may serve it. Which indexes hold all documents that
/// match, where they are partial or sparse, which find strings as the query compares them, and which
/// give the order, is a part of it: another value for which other indexes serve has another key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PlanCacheKey {
    shape: PlanCacheShape,
    /// Without the scan of the collection, in alphabetical order.
    plans: Vec<PlanName>,
}

/// A plan among those for a query: the index, or the indexes, that it reads.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PlanName {
    Collection,
    Index(String),
    Union(Vec<String>),
}

impl PlanName {
    pub fn of(solution: &Solution) -> PlanName {
        match &solution.access {
            Access::Nothing | Access::Collection { .. } | Access::Sample(_) => PlanName::Collection,
            Access::Index { bounds, .. } => PlanName::Index(scanned(bounds)),
            Access::Merge { ranges, .. } => {
                let first = ranges.first();
                PlanName::Index(first.map(|bounds| scanned(bounds)).unwrap_or_default())
            }
            Access::Near(search) => PlanName::Index(search.index.name.clone()),
            Access::Text(text) => PlanName::Index(text.index.name.clone()),
            Access::Union(union) => {
                let names = union.branches.iter();
                PlanName::Union(names.map(|branch| scanned(&branch.bounds)).collect())
            }
        }
    }

    fn names(&self) -> &[String] {
        match self {
            PlanName::Collection => &[],
            PlanName::Index(name) => std::slice::from_ref(name),
            PlanName::Union(names) => names,
        }
    }
}

/// What of an index a plan reads: that of a wildcard index has a plan for each path.
fn scanned(bounds: &IndexBounds) -> String {
    let name = &bounds.index.name;
    match &bounds.layout.prefix {
        Some(prefix) => {
            let below = if prefix.with_below { "\0" } else { "" };
            format!("{name}\0{}{below}", prefix.paths.join("\0"))
        }
        None => name.clone(),
    }
}

impl PlanCacheKey {
    pub fn of<'s>(
        query: &CanonicalQuery,
        solutions: impl IntoIterator<Item = &'s Solution>,
    ) -> PlanCacheKey {
        PlanCacheKey::new(query, solutions.into_iter().map(PlanName::of))
    }

    pub fn new(query: &CanonicalQuery, plans: impl Iterator<Item = PlanName>) -> PlanCacheKey {
        let mut plans: Vec<_> = plans.collect();
        plans.retain(|plan| *plan != PlanName::Collection);
        plans.sort_unstable();
        PlanCacheKey {
            shape: query.shape(),
            plans,
        }
    }

    pub fn is_of(&self, shape: &PlanCacheShape) -> bool {
        self.shape == *shape
    }

    /// `queryHash`.
    pub fn shape(&self) -> &PlanCacheShape {
        &self.shape
    }

    /// That of the shape where no index serves, as in MongoDB.
    pub fn hash(&self) -> u32 {
        let mut hash = self.shape.hash();
        for (number, plan) in self.plans.iter().enumerate() {
            let place = number.to_le_bytes();
            let names = plan
                .names()
                .iter()
                .flat_map(|name| [name.as_bytes(), b"\0"]);
            let bytes = std::iter::once(place.as_slice()).chain(names).flatten();
            hash = bytes.fold(hash, |hash, byte| {
                (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
            });
        }
        hash
    }
}

/// The hash as `planCacheKey` shows it.
impl fmt::Display for PlanCacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}", self.hash())
    }
}
