//! What an expression that has to be true says about single fields.

use super::field::FieldPath;
use super::node::ExpressionNode;
use crate::comparison::Comparison;

/// Calls `found` for each comparison of a field with what reads no document, under any `$and`.
pub(super) fn collect<'n>(
    node: &'n ExpressionNode,
    found: &mut dyn FnMut(&'n FieldPath, Comparison, &'n ExpressionNode),
) {
    match node {
        ExpressionNode::Special(special) => {
            if let Some((parts, false)) = special.junction() {
                parts.iter().for_each(|part| collect(part, found));
            }
        }
        ExpressionNode::Call(call) => {
            let Some(comparison) = comparison(call.operator) else {
                return;
            };
            match call.arguments.as_slice() {
                [ExpressionNode::Field(path), operand] if !operand.reads_root() => {
                    found(path, comparison, operand);
                }
                [operand, ExpressionNode::Field(path)] if !operand.reads_root() => {
                    found(path, comparison.reversed(), operand);
                }
                _ => {}
            }
        }
        _ => {}
    }
}

pub(super) fn comparison(operator: &str) -> Option<Comparison> {
    Some(match operator {
        "$eq" => Comparison::Eq,
        "$lt" => Comparison::Lt,
        "$lte" => Comparison::Lte,
        "$gt" => Comparison::Gt,
        "$gte" => Comparison::Gte,
        _ => return None,
    })
}
