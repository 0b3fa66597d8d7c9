//! $cmp $eq $gt $gte $lt $lte $ne: MongoDB's order over all types, missing below null

use std::cmp::Ordering;

use bson::RawBsonRef;

use super::env::Env;
use super::node::Arguments;
use super::operator::Operator;
use super::value::Value;
use crate::error::QueryError;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::fixed("$cmp", 2, |args, env| {
        let order = env.compare_values(args.get(0), args.get(1));
        Ok(Some(RawBsonRef::Int32(order as i32)))
    }),
    Operator::fixed("$eq", 2, |args, env| test(args, env, Ordering::is_eq)),
    Operator::fixed("$gt", 2, |args, env| test(args, env, Ordering::is_gt)),
    Operator::fixed("$gte", 2, |args, env| test(args, env, Ordering::is_ge)),
    Operator::fixed("$lt", 2, |args, env| test(args, env, Ordering::is_lt)),
    Operator::fixed("$lte", 2, |args, env| test(args, env, Ordering::is_le)),
    Operator::fixed("$ne", 2, |args, env| test(args, env, Ordering::is_ne)),
];

fn test<'a>(
    args: &Arguments<'a>,
    env: &Env<'a>,
    test: fn(Ordering) -> bool,
) -> Result<Value<'a>, QueryError> {
    let order = env.compare_values(args.get(0), args.get(1));
    Ok(Some(RawBsonRef::Boolean(test(order))))
}
