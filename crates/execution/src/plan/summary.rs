//! A plan in a line, as `currentOp` and the log of slow operations show it.

use std::fmt;
use std::sync::Arc;

use banyan_storage::Index;

use super::{Access, Solution, number};

/// Cheap to make for every query; text only when somebody reads it.
#[derive(Debug, Default)]
pub enum Summary {
    #[default]
    Nothing,
    Scan,
    ById,
    Indexes(Vec<Arc<Index>>),
}

impl Summary {
    pub fn of(solution: &Solution) -> Summary {
        match &solution.access {
            Access::Nothing => Summary::Nothing,
            Access::Collection { .. } => Summary::Scan,
            Access::Index { bounds, .. } if solution.by_id && bounds.index.is_id() => Summary::ById,
            Access::Index { bounds, .. } => Summary::Indexes(vec![bounds.index.clone()]),
            Access::Union(parts) => {
                Summary::Indexes(parts.iter().map(|part| part.bounds.index.clone()).collect())
            }
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Summary::Nothing => f.write_str("EOF"),
            Summary::Scan => f.write_str("COLLSCAN"),
            Summary::ById => f.write_str("IDHACK"),
            Summary::Indexes(indexes) => {
                for (at, index) in indexes.iter().enumerate() {
                    let separator = if at == 0 { "" } else { ", " };
                    write!(f, "{separator}IXSCAN {{ ")?;
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
                    f.write_str(" }")?;
                }
                Ok(())
            }
        }
    }
}
