//! What an `$expr` implies about single paths, for planners: comparisons of a path with a constant,
//! joined by `$and` and `$or`.

use banyan_document::path::Path;
use bson::RawBsonRef;

use super::tree::{MatchNode, Predicate};
use crate::expression::{Condition, Expression};

/// A necessary condition, if there is one. `None`: nothing is known.
pub(super) fn implied(expression: &Expression) -> Option<MatchNode> {
    of(&expression.condition())
}

fn of(condition: &Condition<'_>) -> Option<MatchNode> {
    match condition {
        Condition::All(operands) => {
            let known: Vec<_> = operands.iter().filter_map(of).collect();
            (!known.is_empty()).then_some(MatchNode::And(known))
        }
        // One branch that is not known may be the one that holds.
        Condition::Any(operands) if operands.is_empty() => None,
        Condition::Any(operands) => operands
            .iter()
            .map(of)
            .collect::<Option<_>>()
            .map(MatchNode::Or),
        Condition::Compare(path, comparison, value) => {
            if matches!(value, RawBsonRef::Array(_) | RawBsonRef::Undefined) {
                return None;
            }
            Some(MatchNode::Path {
                path: Path::parse(&path.to_string()).ok()?,
                predicate: Predicate::ExprCompare(*comparison, (*value).into()),
            })
        }
        Condition::Other => None,
    }
}
