//! $replaceRoot and $replaceWith

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use super::execute::{Flow, Next, Start, Step};
use super::stage::Stage;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::{check_depth, describe, error, type_name};
use crate::expression::{Arena, Expression};

#[derive(Debug)]
pub struct ReplaceRoot {
    expression: Expression,
    /// What error messages call the result.
    called: &'static str,
}

impl ReplaceRoot {
    pub fn expression(&self) -> &Expression {
        &self.expression
    }
}

pub(super) fn parse_root(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(
            40229,
            format!(
                "expected an object as specification for $replaceRoot stage, got {}",
                type_name(Some(value))
            ),
        );
    };
    let mut new_root = None;
    for (name, value) in document.iter().map_while(Result::ok) {
        match name.as_str() {
            "newRoot" => new_root = Some(value),
            other => {
                return error(
                    40415,
                    format!("BSON field '$replaceRoot.{other}' is an unknown field."),
                );
            }
        }
    }
    let Some(new_root) = new_root else {
        return error(
            40414,
            "BSON field '$replaceRoot.newRoot' is missing but a required field",
        );
    };
    let expression = Expression::parse(new_root, context)?;
    let called = "'newRoot' expression ";
    out.push(Stage::ReplaceRoot(Arc::new(ReplaceRoot {
        expression,
        called,
    })));
    Ok(())
}

pub(super) fn parse_with(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Stage>,
) -> Result<(), QueryError> {
    let expression = Expression::parse(value, context)?;
    let called = "'replacement document' ";
    out.push(Stage::ReplaceRoot(Arc::new(ReplaceRoot {
        expression,
        called,
    })));
    Ok(())
}

pub(super) struct ReplaceStep {
    expression: Expression,
    called: &'static str,
    arena: Arena,
}

impl ReplaceStep {
    pub(super) fn new(replace: &ReplaceRoot, start: &Start<'_>) -> ReplaceStep {
        ReplaceStep {
            expression: replace.expression.bind(start.variables),
            called: replace.called,
            arena: Arena::new(),
        }
    }
}

impl Step for ReplaceStep {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        self.arena.reset();
        match self.expression.evaluate(document, &self.arena)? {
            Some(RawBsonRef::Document(result)) => {
                check_depth(RawBsonRef::Document(result))?;
                next.push(result)
            }
            other => error(
                40228,
                format!(
                    "{} must evaluate to an object, but resulting value was: {}. Type of \
                     resulting value: '{}'. Input document: {}",
                    self.called,
                    describe(other),
                    type_name(other),
                    describe(Some(RawBsonRef::Document(document)))
                ),
            ),
        }
    }
}
