//! $and $or $not

use bson::{RawBson, RawBsonRef};

use super::env::Env;
use super::node::{ExpressionNode, Special};
use super::operator::Operator;
use super::parse::{NO_LIMIT, Parser};
use super::value::{Value, is_true};
use crate::error::QueryError;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::special("$and", |value, parser| {
        junction("$and", false, value, parser)
    }),
    Operator::fixed("$not", 1, |args, _| {
        Ok(Some(RawBsonRef::Boolean(!is_true(args.get(0)))))
    }),
    Operator::special("$or", |value, parser| junction("$or", true, value, parser)),
];

/// $and and $or: the first operand that decides ends the evaluation.
#[derive(Debug)]
struct Junction {
    operands: Vec<ExpressionNode>,
    decides: bool,
}

fn junction(
    name: &str,
    decides: bool,
    value: RawBsonRef<'_>,
    parser: &mut Parser<'_>,
) -> Result<ExpressionNode, QueryError> {
    let operands = parser.arguments(name, 0, NO_LIMIT, value)?;
    let is_decisive = |operand: &ExpressionNode| match operand {
        ExpressionNode::Constant(value) => is_true(Some(value.as_raw_bson_ref())) == decides,
        ExpressionNode::Missing => !decides,
        _ => false,
    };
    // Wherever it stands: the others are not evaluated then.
    if !parser.is_as_written() && operands.iter().any(is_decisive) {
        return Ok(ExpressionNode::constant(RawBson::Boolean(decides)));
    }
    Ok(ExpressionNode::special(Junction { operands, decides }))
}

impl Special for Junction {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        for operand in &self.operands {
            if is_true(operand.evaluate(env)?) == self.decides {
                return Ok(Some(RawBsonRef::Boolean(self.decides)));
            }
        }
        Ok(Some(RawBsonRef::Boolean(!self.decides)))
    }

    fn operands(&self, visit: &mut dyn FnMut(&ExpressionNode)) {
        self.operands.iter().for_each(visit);
    }

    fn junction(&self) -> Option<(&[ExpressionNode], bool)> {
        Some((&self.operands, self.decides))
    }
}
