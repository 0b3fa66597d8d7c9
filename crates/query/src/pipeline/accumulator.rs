//! The accumulators of $group: what they are, what they remember, and how a shard hands what it
//! remembers to the router.

mod ranked;
mod state;

use std::collections::BTreeSet;

use bson::{RawBson, RawBsonRef, RawDocument};

use banyan_document::Number;

use super::sort::SortKey;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::expression::value::{error, type_name};

pub(super) use state::State;

/// One accumulated field.
#[derive(Debug)]
pub(super) struct Accumulator {
    pub(super) field: Box<str>,
    pub(super) kind: Kind,
    /// What is accumulated, document by document.
    pub(super) argument: Expression,
}

#[derive(Debug)]
pub(super) enum Kind {
    Sum,
    Avg,
    Min,
    Max,
    First,
    Last,
    Push,
    AddToSet,
    /// Elements of arrays, all of them.
    ConcatArrays,
    /// Elements of arrays, each once.
    SetUnion,
    StdDev {
        sample: bool,
    },
    MergeObjects,
    /// The first or last `n` values.
    Positional {
        n: usize,
        last: bool,
    },
    /// The `n` values that come first in an order; as an array unless there is one.
    Ranked {
        n: usize,
        single: bool,
        order: Order,
    },
    Percentile {
        fractions: Vec<f64>,
        single: bool,
    },
}

#[derive(Debug)]
pub(super) enum Order {
    /// By the value itself; null values do not count.
    Value { descending: bool },
    /// By the document, `$bottom` from the end.
    Document { key: SortKey, reverse: bool },
}

impl Kind {
    /// Adds the paths read beside the argument; false if the whole document is.
    pub(super) fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        if let Kind::Ranked {
            order: Order::Document { key, .. },
            ..
        } = self
        {
            key.dependencies(paths);
        }
        true
    }
}

/// `field: {$op: argument}` of a group specification.
pub(super) fn parse(
    field: &str,
    spec: RawBsonRef<'_>,
    context: &Context,
) -> Result<Accumulator, QueryError> {
    super::group::check_field_name(field)?;
    let first = match spec {
        RawBsonRef::Document(document) => document.iter().next().and_then(Result::ok),
        _ => None,
    };
    let Some((name, argument)) = first else {
        return error(
            40234,
            format!("The field '{field}' must be an accumulator object"),
        );
    };
    if let RawBsonRef::Document(document) = spec
        && document.iter().count() != 1
    {
        return error(
            40238,
            format!("The field '{field}' must specify one accumulator"),
        );
    }
    let (kind, argument) = parse_kind(name.as_str(), argument, context)?;
    Ok(Accumulator {
        field: field.into(),
        kind,
        argument,
    })
}

fn parse_kind(
    name: &str,
    argument: RawBsonRef<'_>,
    context: &Context,
) -> Result<(Kind, Expression), QueryError> {
    let kind = match name {
        "$sum" => Kind::Sum,
        "$avg" => Kind::Avg,
        "$min" => Kind::Min,
        "$max" => Kind::Max,
        "$first" => Kind::First,
        "$last" => Kind::Last,
        "$push" => Kind::Push,
        "$addToSet" => Kind::AddToSet,
        "$concatArrays" => Kind::ConcatArrays,
        "$setUnion" => Kind::SetUnion,
        "$stdDevPop" => Kind::StdDev { sample: false },
        "$stdDevSamp" => Kind::StdDev { sample: true },
        "$mergeObjects" => Kind::MergeObjects,
        "$count" => return count(argument, context),
        "$firstN" | "$lastN" | "$minN" | "$maxN" => return parse_n(name, argument, context),
        "$top" | "$topN" | "$bottom" | "$bottomN" => return parse_top(name, argument, context),
        "$median" | "$percentile" => return parse_percentile(name, argument, context),
        "$accumulator" => {
            return Err(QueryError::new(
                ErrorKind::NotImplemented,
                "the accumulator $accumulator is not implemented yet",
            ));
        }
        _ => return error(15952, format!("unknown group operator '{name}'")),
    };
    if matches!(argument, RawBsonRef::Array(_)) {
        return error(40237, format!("The {name} accumulator is a unary operator"));
    }
    Ok((kind, Expression::parse(argument, context)?))
}

fn count(argument: RawBsonRef<'_>, context: &Context) -> Result<(Kind, Expression), QueryError> {
    match argument {
        RawBsonRef::Document(document) if document.is_empty() => {
            Ok((Kind::Sum, Expression::parse(RawBsonRef::Int32(1), context)?))
        }
        _ => Err(QueryError::new(
            ErrorKind::TypeMismatch,
            "$count takes no arguments, i.e. $count:{}",
        )),
    }
}

fn object<'a>(
    name: &str,
    argument: RawBsonRef<'a>,
    code: u32,
) -> Result<&'a RawDocument, QueryError> {
    match argument {
        RawBsonRef::Document(document) => Ok(document),
        other => error(
            code,
            format!(
                "specification must be an object; found {name} :{}",
                crate::expression::value::show(other)
            ),
        ),
    }
}

/// The number of values to keep. It must not depend on the documents.
fn parse_count_n(
    name: &str,
    value: RawBsonRef<'_>,
    context: &Context,
) -> Result<usize, QueryError> {
    let expression = Expression::parse(value, context)?;
    let Some(value) = expression.as_constant() else {
        return Err(QueryError::new(
            ErrorKind::NotImplemented,
            format!("{name} with an 'n' that is not constant is not implemented yet"),
        ));
    };
    let Some(number) = Number::from_raw(value) else {
        return error(
            5787902,
            format!(
                "Value for 'n' must be of integral type, but found {}",
                crate::expression::value::show(value)
            ),
        );
    };
    match number.to_i64_exact() {
        None => error(
            5787903,
            format!(
                "Value for 'n' must be of integral type, but found {}",
                crate::expression::value::show(value)
            ),
        ),
        Some(n) if n <= 0 => error(5787908, format!("'n' must be greater than 0, found {n}")),
        Some(n) => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
    }
}

fn parse_n(
    name: &str,
    argument: RawBsonRef<'_>,
    context: &Context,
) -> Result<(Kind, Expression), QueryError> {
    let document = object(name, argument, 5787900)?;
    let (mut input, mut n) = (None, None);
    for (key, value) in document.iter().map_while(Result::ok) {
        match key.as_str() {
            "input" => input = Some(Expression::parse(value, context)?),
            "n" => n = Some(parse_count_n(name, value, context)?),
            other => {
                return error(
                    5787901,
                    format!("Unknown argument for 'n' operator: {other}"),
                );
            }
        }
    }
    let Some(n) = n else {
        return error(5787906, "Missing value for 'n'");
    };
    let Some(input) = input else {
        return error(5787907, "Missing value for 'input'");
    };
    let kind = match name {
        "$firstN" => Kind::Positional { n, last: false },
        "$lastN" => Kind::Positional { n, last: true },
        _ => {
            let order = Order::Value {
                descending: name == "$maxN",
            };
            Kind::Ranked {
                n,
                single: false,
                order,
            }
        }
    };
    Ok((kind, input))
}

fn parse_top(
    name: &str,
    argument: RawBsonRef<'_>,
    context: &Context,
) -> Result<(Kind, Expression), QueryError> {
    let document = object(name, argument, 5788001)?;
    let single = !name.ends_with('N');
    let (mut key, mut output, mut n) = (None, None, None);
    for (option, value) in document.iter().map_while(Result::ok) {
        match (option.as_str(), value) {
            ("sortBy", RawBsonRef::Document(pattern)) => key = Some(SortKey::parse(pattern)?),
            ("sortBy", other) => {
                return error(
                    5788604,
                    format!(
                        "expected 'sortBy' to already be an object in the arguments to {name}, \
                         found {}",
                        type_name(Some(other))
                    ),
                );
            }
            ("output", value) => output = Some(Expression::parse(value, context)?),
            ("n", value) if !single => n = Some(parse_count_n(name, value, context)?),
            (other, _) => {
                return error(5788002, format!("Unknown argument to {name} '{other}'"));
            }
        }
    }
    if single {
        n = Some(1);
    }
    let Some(n) = n else {
        return error(5788003, "Missing value for 'n'");
    };
    let Some(output) = output else {
        return error(5788004, "Missing value for 'output'");
    };
    let Some(key) = key else {
        return error(5788005, "Missing value for 'sortBy'");
    };
    let order = Order::Document {
        key,
        reverse: name.starts_with("$bottom"),
    };
    Ok((Kind::Ranked { n, single, order }, output))
}

fn parse_percentile(
    name: &str,
    argument: RawBsonRef<'_>,
    context: &Context,
) -> Result<(Kind, Expression), QueryError> {
    let document = object(name, argument, 7436100)?;
    let single = name == "$median";
    let (mut input, mut fractions) = (None, single.then(|| vec![0.5]));
    let mut method = false;
    for (option, value) in document.iter().map_while(Result::ok) {
        match (option.as_str(), value) {
            ("input", value) => input = Some(Expression::parse(value, context)?),
            ("p", RawBsonRef::Array(array)) if !single => {
                fractions = Some(crate::expression::parse_fractions(array)?);
            }
            ("method", RawBsonRef::String("approximate")) => method = true,
            ("method", _) => {
                return Err(QueryError::new(
                    ErrorKind::BadValue,
                    "Currently only 'approximate' can be used as percentile 'method'.",
                ));
            }
            (other, _) => {
                return error(
                    40415,
                    format!("BSON field '{name}.{other}' is an unknown field."),
                );
            }
        }
    }
    let missing = |field: &str| {
        error(
            40414,
            format!("BSON field '{name}.{field}' is missing but a required field"),
        )
    };
    let Some(input) = input else {
        return missing("input");
    };
    let Some(fractions) = fractions else {
        return missing("p");
    };
    if !method {
        return missing("method");
    }
    Ok((Kind::Percentile { fractions, single }, input))
}

/// Null, where there is no value to give.
fn null() -> RawBson {
    RawBson::Null
}
