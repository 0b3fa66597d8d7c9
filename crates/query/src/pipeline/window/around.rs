//! What the functions of a `$setWindowFields` may refer to, which stands beside them.

use bson::RawBsonRef;

use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::Expression;
use crate::expression::value::error;

/// What a function may refer to.
pub(super) struct Around<'a> {
    /// The fields of `sortBy`, if it is given, be it without any.
    pub order: Option<Vec<(&'a str, i64)>>,
    pub context: &'a Context,
}

impl Around<'_> {
    /// Whether there is a `sortBy`. One without fields leaves the documents in the order in which
    /// they come.
    pub fn has_order(&self) -> bool {
        self.order.is_some()
    }

    /// The path of `sortBy` if it is a single one, as an expression.
    pub fn position(&self) -> Result<Option<Expression>, QueryError> {
        let Some([(name, _)]) = self.order.as_deref() else {
            return Ok(None);
        };
        let field = format!("${name}");
        Expression::parse(RawBsonRef::String(&field), self.context).map(Some)
    }
}

/// Fails unless `sortBy` has exactly one field.
pub(super) fn require_single_order(
    name: &str,
    code: u32,
    around: &Around<'_>,
) -> Result<(), QueryError> {
    if around.order.as_ref().is_some_and(|order| order.len() == 1) {
        return Ok(());
    }
    error(
        code,
        format!(
            "{name} must be specified with a top level sortBy expression with exactly one element"
        ),
    )
}

pub(super) fn failed(message: impl Into<String>) -> QueryError {
    QueryError::new(ErrorKind::FailedToParse, message)
}
