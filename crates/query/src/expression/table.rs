//! All operators by name.

use std::collections::HashMap;
use std::sync::LazyLock;

use bson::RawBsonRef;

use super::node::ExpressionNode;
use super::operator::Operator;
use super::parse::Parser;
use super::{
    accumulate, arithmetic, array, binding, bits, boolean, comparison, conditional, convert, date,
    function, literal, meta, object, regex_match, set, string, transcendental,
};
use crate::error::{ErrorKind, QueryError};

static TABLE: LazyLock<HashMap<&'static str, &'static Operator>> = LazyLock::new(|| {
    let families: [&'static [Operator]; 21] = [
        accumulate::OPERATORS,
        arithmetic::OPERATORS,
        array::OPERATORS,
        binding::OPERATORS,
        bits::OPERATORS,
        boolean::OPERATORS,
        comparison::OPERATORS,
        conditional::OPERATORS,
        convert::OPERATORS,
        date::arithmetic::OPERATORS,
        date::parts::OPERATORS,
        date::text::OPERATORS,
        function::OPERATORS,
        literal::OPERATORS,
        meta::OPERATORS,
        object::OPERATORS,
        regex_match::OPERATORS,
        set::OPERATORS,
        string::OPERATORS,
        transcendental::OPERATORS,
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
];

/// Reads `{$name: value}`.
pub(super) fn parse(
    name: &str,
    value: RawBsonRef<'_>,
    parser: &mut Parser<'_>,
) -> Result<ExpressionNode, QueryError> {
    match TABLE.get(name) {
        Some(operator) => operator.parse(value, parser),
        None => Err(QueryError::new(
            ErrorKind::InvalidPipelineOperator,
            format!("Unrecognized expression '{name}'"),
        )),
    }
}

/// Whether `name` (with its `$`) is an expression operator.
pub(crate) fn is_operator(name: &str) -> bool {
    TABLE.contains_key(name)
}
