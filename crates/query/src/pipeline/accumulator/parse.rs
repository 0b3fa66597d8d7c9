//! Reading the arguments of accumulators that have several parts.

use bson::{RawBsonRef, RawDocument};

use super::kind::{Kind, Order, Parsed};
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::expression::value::{error, type_name};
use crate::pipeline::sort_key::SortKey;

pub(super) fn count(_: &'static str, argument: RawBsonRef<'_>, context: &Context) -> Parsed {
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

pub(super) fn script(_: &'static str, _: RawBsonRef<'_>, _: &Context) -> Parsed {
    Err(QueryError::new(
        ErrorKind::NotImplemented,
        "the accumulator $accumulator is not implemented yet",
    ))
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

pub(super) fn n_values(name: &'static str, argument: RawBsonRef<'_>, context: &Context) -> Parsed {
    let document = object(name, argument, 5787900)?;
    let (mut input, mut n) = (None, None);
    for (key, value) in document.iter().map_while(Result::ok) {
        match key.as_str() {
            "input" => input = Some(Expression::parse(value, context)?),
            "n" => n = Some(Expression::parse(value, context)?),
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

pub(super) fn top(name: &'static str, argument: RawBsonRef<'_>, context: &Context) -> Parsed {
    let document = object(name, argument, 5788001)?;
    let single = !name.ends_with('N');
    let (mut key, mut output, mut n) = (None, None, None);
    for (option, value) in document.iter().map_while(Result::ok) {
        match (option.as_str(), value) {
            ("sortBy", RawBsonRef::Document(pattern)) => {
                key = Some(SortKey::parse(pattern, context)?);
            }
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
            ("n", value) if !single => n = Some(Expression::parse(value, context)?),
            (other, _) => {
                return error(5788002, format!("Unknown argument to {name} '{other}'"));
            }
        }
    }
    if single {
        n = Some(Expression::parse(RawBsonRef::Int32(1), context)?);
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

pub(super) fn percentile(
    name: &'static str,
    argument: RawBsonRef<'_>,
    context: &Context,
) -> Parsed {
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
