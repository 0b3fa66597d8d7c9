//! An expression over parts of a document: its fields are those of the part, which is `$$CURRENT`,
//! while `$$ROOT` stays the whole document.

use bson::{RawBsonRef, RawDocument};

use super::arena::Arena;
use super::env::Env;
use super::value::Value;
use super::{Expression, parser};
use crate::context::Context;
use crate::error::QueryError;
use crate::variables::Variables;

#[derive(Clone, Debug)]
pub struct PartExpression {
    expression: Expression,
    /// The slot of the part.
    current: usize,
}

impl PartExpression {
    pub fn parse(value: RawBsonRef<'_>, context: &Context) -> Result<PartExpression, QueryError> {
        let mut parser = parser(context);
        let current = parser.new_slot();
        let node = parser.scoped(&[("CURRENT", current)], value)?;
        Ok(PartExpression {
            expression: Expression::of(node, value, &parser, context),
            current,
        })
    }

    /// As it was written.
    pub fn source(&self) -> RawBsonRef<'_> {
        self.expression.source()
    }

    /// See [`Expression::bind`].
    pub fn bind(&self, outer: &Variables) -> PartExpression {
        PartExpression {
            expression: self.expression.bind(outer),
            current: self.current,
        }
    }

    pub fn evaluate<'a>(
        &'a self,
        root: &'a RawDocument,
        part: &'a RawDocument,
        arena: &'a Arena,
    ) -> Result<Value<'a>, QueryError> {
        let expression = &self.expression;
        let env = Env::new(arena.root(root), &expression.budget)
            .with_collator(expression.collator.as_ref())
            .with_outer(&expression.outer)
            .bind_all(self.current, &[Some(RawBsonRef::Document(part))]);
        expression.node.evaluate(&env)
    }
}
