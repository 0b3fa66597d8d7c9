//! The row of an operator in a table: how it is written, and what runs it.

use bson::RawBsonRef;

use super::node::{ExpressionNode, Run};
use super::parse::{NO_LIMIT, Parser, malformed};
use super::value::error;
use crate::error::{ErrorKind, QueryError};

#[derive(Debug)]
pub(super) struct Operator {
    pub name: &'static str,
    pub form: Form,
}

#[derive(Debug)]
pub(super) enum Form {
    /// `{$op: [a, b]}`, or `{$op: a}` for one argument that is not an array.
    Positional { min: usize, max: usize, run: Run },
    /// `{$op: {name: a, other: b}}`.
    Named {
        parameters: &'static [Parameter],
        run: Run,
        codes: NamedCodes,
    },
    /// Parses itself: binds variables, stops early, or prepares something.
    Special(fn(RawBsonRef<'_>, &mut Parser<'_>) -> Result<ExpressionNode, QueryError>),
    /// MongoDB has it and this server does not yet.
    NotImplemented,
}

#[derive(Debug)]
pub(super) struct Parameter {
    pub name: &'static str,
    pub required: bool,
}

/// The codes of a named form's parse errors: not an object, an unknown name, a missing one.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedCodes {
    pub not_object: u32,
    pub unknown: u32,
    pub missing: u32,
}

impl Operator {
    pub const fn fixed(name: &'static str, arity: usize, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional {
                min: arity,
                max: arity,
                run,
            },
        }
    }

    pub const fn ranged(name: &'static str, min: usize, max: usize, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional { min, max, run },
        }
    }

    pub const fn variadic(name: &'static str, run: Run) -> Operator {
        Operator {
            name,
            form: Form::Positional {
                min: 0,
                max: NO_LIMIT,
                run,
            },
        }
    }

    pub const fn special(
        name: &'static str,
        parse: fn(RawBsonRef<'_>, &mut Parser<'_>) -> Result<ExpressionNode, QueryError>,
    ) -> Operator {
        Operator {
            name,
            form: Form::Special(parse),
        }
    }

    pub const fn missing(name: &'static str) -> Operator {
        Operator {
            name,
            form: Form::NotImplemented,
        }
    }

    /// Reads what is written behind the name.
    pub fn parse(
        &self,
        value: RawBsonRef<'_>,
        parser: &mut Parser<'_>,
    ) -> Result<ExpressionNode, QueryError> {
        match &self.form {
            Form::Positional { min, max, run } => {
                let arguments = parser.arguments(self.name, *min, *max, value)?;
                Ok(ExpressionNode::call(self.name, *run, arguments, u32::MAX))
            }
            Form::Named {
                parameters,
                run,
                codes,
            } => {
                let (arguments, given) = named(self.name, parameters, *codes, value, parser)?;
                Ok(ExpressionNode::call(self.name, *run, arguments, given))
            }
            Form::Special(parse) => parse(value, parser),
            Form::NotImplemented => Err(QueryError::new(
                ErrorKind::NotImplemented,
                format!("the expression {} is not implemented yet", self.name),
            )),
        }
    }
}

pub(super) const fn required(name: &'static str) -> Parameter {
    Parameter {
        name,
        required: true,
    }
}

pub(super) const fn optional(name: &'static str) -> Parameter {
    Parameter {
        name,
        required: false,
    }
}

/// `{name: operand, ...}` into the parameters' order, and which of them were given.
fn named(
    operator: &str,
    parameters: &[Parameter],
    codes: NamedCodes,
    value: RawBsonRef<'_>,
    parser: &mut Parser<'_>,
) -> Result<(Vec<ExpressionNode>, u32), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(
            codes.not_object,
            format!("{operator} only supports an object as its argument"),
        );
    };
    let mut arguments = vec![ExpressionNode::Missing; parameters.len()];
    let mut given = 0;
    for element in document.iter() {
        let (name, value) = element.map_err(malformed)?;
        let Some(index) = parameters.iter().position(|p| p.name == name.as_str()) else {
            return error(
                codes.unknown,
                format!("Unrecognized argument to {operator}: {name}"),
            );
        };
        arguments[index] = parser.operand(value)?;
        given |= 1 << index;
    }
    for (index, parameter) in parameters.iter().enumerate() {
        if parameter.required && given >> index & 1 == 0 {
            return error(
                codes.missing,
                format!("Missing '{}' parameter to {operator}", parameter.name),
            );
        }
    }
    Ok((arguments, given))
}
