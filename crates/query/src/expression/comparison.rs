//! $cmp $eq $gt $gte $lt $lte $ne: MongoDB's order over all types, missing below null

use std::cmp::Ordering;

use bson::RawBsonRef;

use super::operator::{Arguments, Operator};
use super::value::Value;
use crate::error::QueryError;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::fixed("$cmp", 2, |args, _| {
        Ok(Some(RawBsonRef::Int32(
            compare_values(args.get(0), args.get(1)) as i32,
        )))
    }),
    Operator::fixed("$eq", 2, |args, _| test(args, Ordering::is_eq)),
    Operator::fixed("$gt", 2, |args, _| test(args, Ordering::is_gt)),
    Operator::fixed("$gte", 2, |args, _| test(args, Ordering::is_ge)),
    Operator::fixed("$lt", 2, |args, _| test(args, Ordering::is_lt)),
    Operator::fixed("$lte", 2, |args, _| test(args, Ordering::is_le)),
    Operator::fixed("$ne", 2, |args, _| test(args, Ordering::is_ne)),
];

/// The order of values; a missing one counts as undefined.
pub(crate) fn compare_values(a: Value<'_>, b: Value<'_>) -> Ordering {
    banyan_document::compare(
        a.unwrap_or(RawBsonRef::Undefined),
        b.unwrap_or(RawBsonRef::Undefined),
    )
}

fn test<'a>(args: &Arguments<'a>, test: fn(Ordering) -> bool) -> Result<Value<'a>, QueryError> {
    Ok(Some(RawBsonRef::Boolean(test(compare_values(
        args.get(0),
        args.get(1),
    )))))
}
