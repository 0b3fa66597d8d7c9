//! $literal $const $rand $sampleRate: values that are not read from anywhere

use bson::RawBsonRef;

use banyan_document::number::Number;

use super::env::Env;
use super::node::{ExpressionNode, Special};
use super::operator::Operator;
use super::parse::Parser;
use super::value::{Value, error};
use crate::error::QueryError;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::special("$const", |value, _| {
        Ok(ExpressionNode::constant(value.into()))
    }),
    Operator::special("$literal", |value, _| {
        Ok(ExpressionNode::constant(value.into()))
    }),
    Operator::special("$rand", rand),
    Operator::special("$sampleRate", sample_rate),
];

#[derive(Debug)]
enum Random {
    /// A double from [0, 1).
    Double,
    /// True for this share of the evaluations.
    Below(f64),
}

fn rand(value: RawBsonRef<'_>, _: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    let empty = match value {
        RawBsonRef::Document(document) => document.is_empty(),
        RawBsonRef::Array(array) => array.is_empty(),
        _ => false,
    };
    if !empty {
        return error(3040501, "$rand does not currently accept arguments");
    }
    Ok(ExpressionNode::special(Random::Double))
}

fn sample_rate(value: RawBsonRef<'_>, _: &mut Parser<'_>) -> Result<ExpressionNode, QueryError> {
    match Number::from_raw(value).map(Number::to_f64) {
        Some(rate) if (0.0..=1.0).contains(&rate) => {
            Ok(ExpressionNode::special(Random::Below(rate)))
        }
        _ => error(
            crate::error::ErrorKind::BadValue.code() as u32,
            "numeric argument to $sampleRate must be in [0, 1]",
        ),
    }
}

impl Special for Random {
    fn evaluate<'a>(&'a self, _: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let random: f64 = rand::random();
        Ok(Some(match self {
            Random::Double => RawBsonRef::Double(random),
            Random::Below(rate) => RawBsonRef::Boolean(random < *rate),
        }))
    }

    fn operands(&self, _: &mut dyn FnMut(&ExpressionNode)) {}

    fn is_random(&self) -> bool {
        true
    }

    fn deterministic(&self) -> bool {
        false
    }
}
