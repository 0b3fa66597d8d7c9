//! Reading the arguments of accumulators that have several parts.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use super::document_key::DocumentKey;
use super::kind::{Kind, Order, Parsed};
use super::script::Script;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::expression::value::{error, type_name};
use crate::javascript::Functions;
use crate::n_values;

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

pub(super) fn script(_: &'static str, argument: RawBsonRef<'_>, context: &Context) -> Parsed {
    if let RawBsonRef::Array(_) = argument {
        return error(40237, "The $accumulator accumulator is a unary operator");
    }
    let RawBsonRef::Document(document) = argument else {
        return error(
            4_544_703,
            format!(
                "$accumulator expects an object as an argument; found: {}",
                type_name(Some(argument))
            ),
        );
    };
    let (mut init, mut accumulate, mut merge, mut finalize) = (None, None, None, None);
    let (mut init_arguments, mut arguments) = (None, None);
    for (name, value) in document.iter().map_while(Result::ok) {
        match name.as_str() {
            "init" => init = Some(source("init", value, context)?),
            "accumulate" => accumulate = Some(source("accumulate", value, context)?),
            "merge" => merge = Some(source("merge", value, context)?),
            "finalize" => finalize = Some(source("finalize", value, context)?),
            "initArgs" => init_arguments = Some(Expression::parse(value, context)?),
            "accumulateArgs" => arguments = Some(Expression::parse(value, context)?),
            "lang" => check_language(value)?,
            other => {
                return error(
                    4_544_706,
                    format!("$accumulator got an unexpected field: {other}"),
                );
            }
        }
    }
    let missing = |code, name: &str| {
        error(
            code,
            format!("$accumulator missing required argument '{name}'"),
        )
    };
    let Some(init) = init else {
        return missing(4_544_707, "init");
    };
    let Some(accumulate) = accumulate else {
        return missing(4_544_708, "accumulate");
    };
    let Some(merge) = merge else {
        return missing(4_544_709, "merge");
    };
    let Some(arguments) = arguments else {
        return missing(4_544_710, "accumulateArgs");
    };
    let functions = Functions {
        init,
        accumulate,
        merge,
        finalize,
    };
    let script = Script::new(functions, init_arguments, context.javascript.clone());
    Ok((Kind::Script(Arc::new(script)), arguments))
}

/// A function's text: a constant.
fn source(name: &str, value: RawBsonRef<'_>, context: &Context) -> Result<Box<str>, QueryError> {
    let expression = Expression::parse(value, context)?;
    match expression.as_constant() {
        Some(RawBsonRef::String(source) | RawBsonRef::JavaScriptCode(source)) => Ok(source.into()),
        Some(_) => error(
            4_544_702,
            format!("$accumulator '{name}' must be a String or Code"),
        ),
        None => error(
            4_544_701,
            format!("$accumulator '{name}' must be a constant expression"),
        ),
    }
}

fn check_language(value: RawBsonRef<'_>) -> Result<(), QueryError> {
    match value {
        RawBsonRef::String("js") => Ok(()),
        RawBsonRef::String(_) => error(4_544_705, "$accumulator only supports lang: 'js'"),
        other => error(
            4_544_704,
            format!(
                "$accumulator lang must be a string; found: {}",
                type_name(Some(other))
            ),
        ),
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

pub(super) fn n_values(name: &'static str, argument: RawBsonRef<'_>, context: &Context) -> Parsed {
    let document = object(name, argument, n_values::not_object(name))?;
    let (mut input, mut n) = (None, None);
    for (key, value) in document.iter().map_while(Result::ok) {
        match key.as_str() {
            "input" => input = Some(Expression::parse(value, context)?),
            "n" => n = Some(Expression::parse(value, context)?),
            other => {
                return error(
                    n_values::UNKNOWN,
                    format!("Unknown argument for 'n' operator: {other}"),
                );
            }
        }
    }
    let Some(n) = n else {
        return error(n_values::MISSING_N, "Missing value for 'n'");
    };
    let Some(input) = input else {
        return error(n_values::MISSING_INPUT, "Missing value for 'input'");
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
                key = Some(DocumentKey::parse(pattern, context)?);
            }
            ("sortBy", other) if !matches!(other, RawBsonRef::Array(_)) => {
                return error(10065, "invalid parameter: expected an object (sortBy)");
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
