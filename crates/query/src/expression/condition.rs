//! Expressions read as conditions: which comparisons have to be true for an expression to be.

use bson::RawBsonRef;

use super::compared::comparison;
use super::field::FieldPath;
use super::node::ExpressionNode;
use crate::comparison::Comparison;

pub(crate) enum Condition<'e> {
    /// `$and`.
    All(Vec<Condition<'e>>),
    /// `$or`.
    Any(Vec<Condition<'e>>),
    /// A path on the left, a constant on the right.
    Compare(&'e FieldPath, Comparison, RawBsonRef<'e>),
    Other,
}

impl<'e> Condition<'e> {
    pub(super) fn of(node: &'e ExpressionNode) -> Condition<'e> {
        match node {
            ExpressionNode::Special(special) => match special.junction() {
                Some((operands, decides)) => {
                    let operands = operands.iter().map(Condition::of).collect();
                    match decides {
                        false => Condition::All(operands),
                        true => Condition::Any(operands),
                    }
                }
                None => Condition::Other,
            },
            ExpressionNode::Call(call) => compared(call.operator, &call.arguments),
            _ => Condition::Other,
        }
    }
}

fn compared<'e>(operator: &str, arguments: &'e [ExpressionNode]) -> Condition<'e> {
    let Some(comparison) = comparison(operator) else {
        return Condition::Other;
    };
    match arguments {
        [ExpressionNode::Field(path), ExpressionNode::Constant(value)] => {
            Condition::Compare(path, comparison, value.as_raw_bson_ref())
        }
        [ExpressionNode::Constant(value), ExpressionNode::Field(path)] => {
            Condition::Compare(path, comparison.reversed(), value.as_raw_bson_ref())
        }
        _ => Condition::Other,
    }
}
