//! $bitAnd $bitOr $bitXor $bitNot

use bson::RawBsonRef;

use super::arithmetic::NULL;
use super::env::Env;
use super::node::Arguments;
use super::operator::Operator;
use super::value::{Value, is_nullish, type_name};
use crate::error::{ErrorKind, QueryError};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::variadic("$bitAnd", |args, _| fold(args, -1, |a, b| a & b)),
    Operator::fixed("$bitNot", 1, not),
    Operator::variadic("$bitOr", |args, _| fold(args, 0, |a, b| a | b)),
    Operator::variadic("$bitXor", |args, _| fold(args, 0, |a, b| a ^ b)),
];

type Result<T> = std::result::Result<T, QueryError>;

fn not_integer<'a>(operator: &str, value: Value<'_>) -> Result<Value<'a>> {
    Err(QueryError::new(
        ErrorKind::TypeMismatch,
        format!(
            "{operator} only supports int and long operands, not {}",
            type_name(value)
        ),
    ))
}

fn fold<'a>(args: &Arguments<'a>, start: i64, f: fn(i64, i64) -> i64) -> Result<Value<'a>> {
    let (mut bits, mut long) = (start, false);
    for value in &args.values {
        match *value {
            Some(RawBsonRef::Int32(v)) => bits = f(bits, i64::from(v)),
            Some(RawBsonRef::Int64(v)) => {
                bits = f(bits, v);
                long = true;
            }
            other if is_nullish(other) => return NULL,
            other => return not_integer(args.operator, other),
        }
    }
    // Without a long among them the operands were sign-extended, and so is the result.
    Ok(Some(if long {
        RawBsonRef::Int64(bits)
    } else {
        RawBsonRef::Int32(bits as i32)
    }))
}

fn not<'a>(args: &Arguments<'a>, _: &Env<'a>) -> Result<Value<'a>> {
    match args.get(0) {
        Some(RawBsonRef::Int32(v)) => Ok(Some(RawBsonRef::Int32(!v))),
        Some(RawBsonRef::Int64(v)) => Ok(Some(RawBsonRef::Int64(!v))),
        other if is_nullish(other) => NULL,
        other => not_integer(args.operator, other),
    }
}
