//! What a filter says of values that have to be there. A document that meets the filter once parts of
//! it were taken away meets this before as well.

use bson::RawBson;

use super::Filter;
use super::divide::Part;
use super::tree::{MatchNode, Predicate};
use crate::budget::Budget;
use crate::error::QueryError;

impl Filter {
    /// `None`: it says nothing of the kind.
    pub(crate) fn of_present_values(&self, budget: &Budget) -> Result<Option<Part>, QueryError> {
        let Some(node) = present(&self.root) else {
            return Ok(None);
        };
        Part::of(vec![node], self.collator(), budget).map(Some)
    }
}

fn present(node: &MatchNode) -> Option<MatchNode> {
    match node {
        MatchNode::And(children) => {
            let mut parts: Vec<_> = children.iter().filter_map(present).collect();
            match parts.len() {
                0 => None,
                1 => parts.pop(),
                _ => Some(MatchNode::And(parts)),
            }
        }
        // One that is left out may be the one that is met.
        MatchNode::Or(children) => {
            let parts: Option<Vec<_>> = children.iter().map(present).collect();
            parts.filter(|parts| !parts.is_empty()).map(MatchNode::Or)
        }
        MatchNode::Path { path, predicate } if !path.has_position() => Some(MatchNode::Path {
            path: path.clone(),
            predicate: of_present(predicate)?,
        }),
        _ => None,
    }
}

fn of_present(predicate: &Predicate) -> Option<Predicate> {
    let is_met = match predicate {
        Predicate::Compare(_, value) => is_whole(value),
        Predicate::In { values, .. } => values.iter().all(is_whole),
        Predicate::Regex(_) | Predicate::Type(_) | Predicate::Mod { .. } | Predicate::Bits(_) => {
            true
        }
        Predicate::ElemMatchObject(node) => {
            return Some(Predicate::ElemMatchObject(Box::new(present(node)?)));
        }
        Predicate::ElemMatchValue(node) => {
            return Some(Predicate::ElemMatchValue(Box::new(present(node)?)));
        }
        _ => false,
    };
    is_met.then(|| predicate.clone())
}

/// Whether nothing can be taken away from a value but itself, and what equals it or lies on one side of
/// it has to be there.
fn is_whole(value: &RawBson) -> bool {
    !matches!(
        value,
        RawBson::Null
            | RawBson::Undefined
            | RawBson::MinKey
            | RawBson::MaxKey
            | RawBson::Array(_)
            | RawBson::Document(_)
    )
}
