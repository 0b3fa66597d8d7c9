//! The tables of operators: how each is written, and what runs it.

use std::collections::HashMap;
use std::sync::LazyLock;

use bson::RawBsonRef;

use super::env::Env;
use super::node::Node;
use super::parse::Parser;
use super::value::Value;
use crate::error::QueryError;

/// Runs an operator over its evaluated arguments.
pub(super) type Run = for<'a> fn(&Arguments<'a>, &Env<'a>) -> Result<Value<'a>, QueryError>;

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
    Special(fn(RawBsonRef<'_>, &mut Parser<'_>) -> Result<Node, QueryError>),
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

pub(super) const NO_LIMIT: usize = usize::MAX;

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
        parse: fn(RawBsonRef<'_>, &mut Parser<'_>) -> Result<Node, QueryError>,
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

/// Evaluated arguments; those of named forms in the order of their parameters.
pub(super) struct Arguments<'a> {
    pub operator: &'static str,
    pub values: Vec<Value<'a>>,
    /// Bit `i` is set if argument `i` was written at all.
    pub given: u32,
}

impl<'a> Arguments<'a> {
    pub fn get(&self, index: usize) -> Value<'a> {
        self.values.get(index).copied().flatten()
    }

    pub fn is_given(&self, index: usize) -> bool {
        self.given >> index & 1 == 1
    }

    pub fn any_nullish(&self) -> bool {
        self.values
            .iter()
            .any(|value| super::value::is_nullish(*value))
    }
}

static TABLE: LazyLock<HashMap<&'static str, &'static Operator>> = LazyLock::new(|| {
    let families: [&'static [Operator]; 18] = [
        super::accumulate::OPERATORS,
        super::arithmetic::OPERATORS,
        super::array::OPERATORS,
        super::binding::OPERATORS,
        super::bits::OPERATORS,
        super::boolean::OPERATORS,
        super::comparison::OPERATORS,
        super::conditional::OPERATORS,
        super::convert::OPERATORS,
        super::date::OPERATORS,
        super::date_format::OPERATORS,
        super::literal::OPERATORS,
        super::object::OPERATORS,
        super::regex_match::OPERATORS,
        super::set::OPERATORS,
        super::string::OPERATORS,
        super::transcendental::OPERATORS,
        NOT_IMPLEMENTED,
    ];
    families
        .into_iter()
        .flatten()
        .map(|operator| (operator.name, operator))
        .collect()
});

/// What MongoDB has and this server cannot do yet, apart from what the families list themselves.
const NOT_IMPLEMENTED: &[Operator] = &[
    Operator::missing("$encStrContains"),
    Operator::missing("$encStrEndsWith"),
    Operator::missing("$encStrNormalizedEq"),
    Operator::missing("$encStrStartsWith"),
    Operator::missing("$function"),
    Operator::missing("$meta"),
];

pub(super) fn find(name: &str) -> Option<&'static Operator> {
    TABLE.get(name).copied()
}

/// Whether `name` (with its `$`) is an expression operator.
pub(crate) fn is_operator(name: &str) -> bool {
    TABLE.contains_key(name)
}
