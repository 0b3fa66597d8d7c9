//! The operators of an update and their operands.

use banyan_document::element::{elements, items};
use banyan_document::kind;
use banyan_document::number::Number;
use banyan_document::path::Path;
use bson::{RawBson, RawBsonRef};

use super::array::{Pull, Push, each};
use super::modifier::{BitOperation, Modifier};
use super::show;
use super::tree::identifier;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};

/// An update operator: its name, and what it makes of one `path: operand`.
pub(super) struct Operator {
    name: &'static str,
    pub form: Form,
}

/// Makes a modifier of a path and an operand.
pub(super) type Read = fn(&str, RawBsonRef<'_>, &Context) -> Result<Modifier, QueryError>;

#[derive(Clone, Copy)]
pub(super) enum Form {
    /// Something happens at the path.
    Here(Read),
    /// Something happens at the path, and at another one.
    Rename,
}

const fn here(name: &'static str, read: Read) -> Operator {
    Operator {
        name,
        form: Form::Here(read),
    }
}

/// What an operator does to a document is up to the [`Modifier`] that it makes.
static OPERATORS: &[Operator] = &[
    here("$set", |_, operand, _| Ok(Modifier::Set(operand.into()))),
    here("$setOnInsert", |_, operand, _| {
        Ok(Modifier::SetOnInsert(operand.into()))
    }),
    here("$unset", |_, _, _| Ok(Modifier::Unset)),
    here("$inc", |path, operand, _| {
        number("increment", path, operand).map(Modifier::Increment)
    }),
    here("$mul", |path, operand, _| {
        number("multiply", path, operand).map(Modifier::Multiply)
    }),
    here("$min", |_, operand, _| Ok(Modifier::Min(operand.into()))),
    here("$max", |_, operand, _| Ok(Modifier::Max(operand.into()))),
    here("$currentDate", |_, operand, _| current_date(operand)),
    here("$bit", |_, operand, _| {
        bit_operations(operand).map(Modifier::Bit)
    }),
    Operator {
        name: "$rename",
        form: Form::Rename,
    },
    here("$push", |_, operand, context| {
        Push::parse(operand, context).map(Modifier::Push)
    }),
    here("$addToSet", |_, operand, _| {
        set_items(operand).map(Modifier::AddToSet)
    }),
    here("$pop", |path, operand, _| pop(path, operand)),
    here("$pull", |_, operand, context| {
        Pull::parse(operand, context).map(Modifier::Pull)
    }),
    here("$pullAll", |_, operand, _| match operand {
        RawBsonRef::Array(array) => {
            let values = items(array).map(|item| item.value().into());
            Ok(Modifier::PullAll(values.collect()))
        }
        other => Err(QueryError::bad_value(format!(
            "$pullAll requires an array argument but was given a {}",
            kind::name(&other)
        ))),
    }),
];

impl Operator {
    pub fn by_name(name: &str) -> Option<&'static Operator> {
        OPERATORS.iter().find(|operator| operator.name == name)
    }
}

fn number(verb: &str, path: &str, operand: RawBsonRef<'_>) -> Result<Number, QueryError> {
    Number::from_raw(operand).ok_or_else(|| {
        let shown = show::named(path, operand);
        let message = format!("Cannot {verb} with non-numeric argument: {{{shown}}}");
        QueryError::new(ErrorKind::TypeMismatch, message)
    })
}

fn current_date(operand: RawBsonRef<'_>) -> Result<Modifier, QueryError> {
    let document = match operand {
        RawBsonRef::Boolean(_) => return Ok(Modifier::CurrentDate),
        RawBsonRef::Document(document) => document,
        other => {
            return Err(QueryError::bad_value(format!(
                "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type \
                 expression ({{$type: 'timestamp/date'}}).",
                kind::name(&other)
            )));
        }
    };
    let mut modifier = None;
    for element in elements(document) {
        if element.name() != "$type" {
            return Err(QueryError::bad_value(format!(
                "Unrecognized $currentDate option: {}",
                element.name()
            )));
        }
        modifier = match element.value() {
            RawBsonRef::String("date") => Some(Modifier::CurrentDate),
            RawBsonRef::String("timestamp") => Some(Modifier::CurrentTimestamp),
            _ => None,
        };
    }
    modifier.ok_or_else(|| {
        QueryError::bad_value(
            "The '$type' string field is required to be 'date' or 'timestamp': {$currentDate: \
             {field : {$type: 'date'}}}",
        )
    })
}

fn bit_operations(operand: RawBsonRef<'_>) -> Result<Vec<(BitOperation, Number)>, QueryError> {
    let RawBsonRef::Document(document) = operand else {
        return Err(QueryError::bad_value(format!(
            "The $bit modifier is not compatible with a {}. You must pass in an embedded \
             document: {{$bit: {{field: {{and/or/xor: #}}}}",
            kind::name(&operand)
        )));
    };
    let mut operations = Vec::new();
    for element in elements(document) {
        let operation = match element.name() {
            "and" => BitOperation::And,
            "or" => BitOperation::Or,
            "xor" => BitOperation::Xor,
            name => {
                return Err(QueryError::bad_value(format!(
                    "The $bit modifier only supports 'and', 'or', and 'xor', not '{name}' which \
                     is an unknown operator: {{{}}}",
                    show::element(&element)
                )));
            }
        };
        match Number::from_raw(element.value()) {
            Some(number @ (Number::Int32(_) | Number::Int64(_))) => {
                operations.push((operation, number));
            }
            _ => {
                return Err(QueryError::bad_value(format!(
                    "The $bit modifier field must be an Integer(32/64 bit); a '{}' is not \
                     supported here: {{{}}}",
                    kind::name(&element.value()),
                    show::element(&element)
                )));
            }
        }
    }
    if operations.is_empty() {
        return Err(QueryError::bad_value(
            "You must pass in at least one bitwise operation. The format is: {$bit: \
                        {field: {and/or/xor: #}}",
        ));
    }
    Ok(operations)
}

/// The path to which a `$rename` moves a field.
pub(super) fn rename_target<'a>(
    path: &str,
    operand: RawBsonRef<'a>,
) -> Result<&'a str, QueryError> {
    let RawBsonRef::String(target) = operand else {
        let shown = show::named(path, operand);
        return Err(QueryError::bad_value(format!(
            "The 'to' field for $rename must be a string: {shown}"
        )));
    };
    match target.contains('\0') {
        true => Err(QueryError::bad_value(
            "The 'to' field for $rename cannot contain an embedded null byte",
        )),
        false => Ok(target),
    }
}

/// What happens at the path to which a `$rename` moves the field at `path`.
pub(super) fn rename_to(path: &str, target: &str) -> Result<Modifier, QueryError> {
    let shown = show::named(path, RawBsonRef::String(target));
    for (which, path) in [("source", path), ("destination", target)] {
        let dynamic = |part: &str| part == "$" || identifier(part).is_some();
        if path.split('.').skip(1).any(dynamic) {
            return Err(QueryError::bad_value(format!(
                "The {which} field for $rename may not be dynamic: {path}"
            )));
        }
    }
    let empty = |_| {
        let message = "An empty update path is not valid.";
        QueryError::new(ErrorKind::EmptyFieldName, message)
    };
    let (from, to) = (
        Path::parse(path).map_err(empty)?,
        Path::parse(target).map_err(empty)?,
    );
    if from == to {
        return Err(QueryError::bad_value(format!(
            "The source and target field for $rename must differ: {shown}"
        )));
    }
    if from.is_prefix_of(&to) || to.is_prefix_of(&from) {
        return Err(QueryError::bad_value(format!(
            "The source and target field for $rename must not be on the same path: {shown}"
        )));
    }
    Ok(Modifier::RenameTo(from))
}

fn set_items(operand: RawBsonRef<'_>) -> Result<Vec<RawBson>, QueryError> {
    let Some((each, document)) = each(operand) else {
        return Ok(vec![operand.into()]);
    };
    let RawBsonRef::Array(array) = each else {
        let message = format!(
            "The argument to $each in $addToSet must be an array but it was of type {}",
            kind::name(&each)
        );
        return Err(QueryError::new(ErrorKind::TypeMismatch, message));
    };
    if elements(document).count() > 1 {
        return Err(QueryError::bad_value(format!(
            "Found unexpected fields after $each in $addToSet: {}",
            show::document(document)
        )));
    }
    Ok(items(array).map(|item| item.value().into()).collect())
}

fn pop(path: &str, operand: RawBsonRef<'_>) -> Result<Modifier, QueryError> {
    let error = |message| Err(QueryError::new(ErrorKind::FailedToParse, message));
    let shown = show::named(path, operand);
    let Some(number) = Number::from_raw(operand) else {
        return error(format!("Expected a number in: {shown}"));
    };
    match number.to_i64_exact() {
        Some(1) => Ok(Modifier::PopLast),
        Some(-1) => Ok(Modifier::PopFirst),
        Some(other) => error(format!("$pop expects 1 or -1, found: {other}")),
        None => error(format!("Expected an integer: {shown}")),
    }
}
