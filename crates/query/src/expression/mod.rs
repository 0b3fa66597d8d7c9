//! Aggregation expressions: parsed once into a typed tree, evaluated over raw documents.
//!
//! Read `parse.rs` first: an operand is a constant, a field path, a variable, an object, an array
//! or an operator. Operators are rows (`operator.rs`) in tables, one table per family
//! (`arithmetic.rs`, `array.rs`, ...). Most are plain functions over evaluated arguments; those
//! that bind variables, stop early or prepare constants are forms of their own (`Form`).
//! `table.rs` finds them by name and is handed to the parser: nothing below it knows which
//! operators there are.
//!
//! A value is a `RawBsonRef` or missing. What an operator computes (strings, arrays, documents)
//! goes into an arena that lives as long as one evaluation, so that values are plain references
//! and nothing is decoded into maps: `arena.rs` holds it and the root, `env.rs` the variables.

mod accumulate;
mod arena;
mod arithmetic;
mod array;
mod binding;
mod bits;
mod boolean;
mod compared;
mod comparison;
mod computed;
mod condition;
mod conditional;
mod convert;
mod date;
mod env;
pub(crate) mod field;
mod function;
mod literal;
mod meta;
pub(crate) mod moments;
mod node;
mod object;
mod operator;
mod parse;
mod part;
mod regex_match;
mod set;
mod string;
pub(crate) mod sum;
mod table;
mod transcendental;
pub mod value;

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_document::Collator;
use bson::{RawBson, RawBsonRef, RawDocument};

use crate::budget::Budget;
use crate::comparison::Comparison;
use crate::context::Context;
use crate::error::QueryError;
use crate::variables::Variables;

pub use arena::{Arena, Root};
pub(crate) use arena::{byte_len, check_size};
pub(crate) use computed::ComputedFields;
pub(crate) use condition::Condition;
pub use env::Env;
pub use field::FieldPath;
pub use part::PartExpression;
pub use value::Value;

pub(crate) use accumulate::{parse_fractions, percentile};
pub(crate) use node::ExpressionNode;
pub(crate) use object::merge_documents;
pub(crate) use parse::{Parser, check_variable_name, malformed};
pub(crate) use table::is_operator;

/// A parser of expressions with all operators.
pub(crate) fn parser(context: &Context) -> Parser<'_> {
    Parser::new(context, table::parse)
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Expression {
    node: ExpressionNode,
    source: Arc<Source>,
    /// What evaluating may use.
    budget: Budget,
    /// How strings are compared; without one, by their bytes.
    collator: Option<Collator>,
    /// The values of the variables of `$lookup` stages around.
    outer: Variables,
}

#[derive(Debug)]
struct Source {
    /// As it was written.
    written: RawBson,
    /// How many fields of the document it reads.
    reads: u32,
}

impl Expression {
    pub fn parse(value: RawBsonRef<'_>, context: &Context) -> Result<Expression, QueryError> {
        let mut parser = parser(context);
        let node = parser.operand(value)?;
        Ok(Expression::of(node, value, &parser, context))
    }

    /// The same where MongoDB writes it anew before it runs it.
    pub(crate) fn parse_rewritten(
        value: RawBsonRef<'_>,
        context: &Context,
    ) -> Result<Expression, QueryError> {
        let mut parser = parser(context).rewritten();
        let node = parser.operand(value)?;
        Ok(Expression::of(node, value, &parser, context))
    }

    /// What the parser has made of a value.
    fn of(
        node: ExpressionNode,
        written: RawBsonRef<'_>,
        parser: &Parser<'_>,
        context: &Context,
    ) -> Expression {
        Expression {
            node,
            source: Arc::new(Source {
                written: written.into(),
                reads: parser.reads(),
            }),
            budget: context.budget.clone(),
            collator: context.collator.clone(),
            outer: Variables::default(),
        }
    }

    /// How it compares strings; `None`: by their bytes.
    pub(crate) fn collator(&self) -> Option<&Collator> {
        self.collator.as_ref()
    }

    /// As it was written.
    pub fn source(&self) -> RawBsonRef<'_> {
        self.source.written.as_raw_bson_ref()
    }

    /// The expression with these values for the variables of the `$lookup` stages around it.
    pub fn bind(&self, outer: &Variables) -> Expression {
        Expression {
            node: self.node.clone(),
            source: self.source.clone(),
            budget: self.budget.clone(),
            collator: self.collator.clone(),
            outer: outer.clone(),
        }
    }

    /// The expression over documents in which these fields are not computed yet. `None` if it has
    /// to find them there.
    pub(crate) fn with_computed(&self, computed: &mut ComputedFields<'_>) -> Option<Expression> {
        let placed = self.node.with_computed(self.source(), computed)?;
        let mut reads = BTreeSet::new();
        placed.node.dependencies(&mut reads);
        Some(Expression {
            node: placed.node,
            source: Arc::new(Source {
                written: placed.written,
                reads: reads.len() as u32,
            }),
            ..self.clone()
        })
    }

    /// Evaluates with `root` as `$$ROOT`. Computed values live in `arena`.
    pub fn evaluate<'a>(
        &'a self,
        root: &'a RawDocument,
        arena: &'a Arena,
    ) -> Result<Value<'a>, QueryError> {
        self.evaluate_at(arena.root(root).expecting(self.reads()))
    }

    /// The same over a document that others are evaluated over as well.
    pub fn evaluate_at<'a>(&'a self, root: Root<'a>) -> Result<Value<'a>, QueryError> {
        let env = Env::new(root, &self.budget)
            .with_collator(self.collator.as_ref())
            .with_outer(&self.outer);
        self.node.evaluate(&env)
    }

    /// How many fields of the document it reads.
    pub fn reads(&self) -> u32 {
        self.source.reads
    }

    /// Evaluates and copies the result out; `None` is missing.
    pub fn evaluate_owned(&self, root: &RawDocument) -> Result<Option<RawBson>, QueryError> {
        let arena = Arena::new();
        Ok(self.evaluate(root, &arena)?.map(Into::into))
    }

    /// Whether the result counts as true (not missing, null, undefined, false or zero).
    pub fn is_true(&self, root: &RawDocument) -> Result<bool, QueryError> {
        let arena = Arena::new();
        Ok(value::is_true(self.evaluate(root, &arena)?))
    }

    /// What the expression is as a condition: comparisons of paths with constants, joined.
    pub(crate) fn condition(&self) -> Condition<'_> {
        Condition::of(&self.node)
    }

    /// The value, if the expression is a constant.
    pub fn as_constant(&self) -> Option<RawBsonRef<'_>> {
        self.node.as_constant(&self.budget, self.collator.as_ref())
    }

    /// Whether it depends on no document, though it may fail.
    pub(crate) fn is_fixed(&self) -> bool {
        self.node.is_fixed()
    }

    /// Whether it is a constant once the variables of the `$lookup` stages around are known.
    pub(crate) fn is_bound(&self) -> bool {
        self.node.is_bound()
    }

    /// Whether the expression is a constant that has no value.
    pub fn is_missing(&self) -> bool {
        matches!(self.node, ExpressionNode::Missing)
    }

    /// The path, if the expression is a plain path into the document (`$a.b`).
    pub fn as_field_path(&self) -> Option<&FieldPath> {
        match &self.node {
            ExpressionNode::Field(path) => Some(path),
            _ => None,
        }
    }

    /// Whether it calls a script.
    pub(crate) fn calls_script(&self) -> bool {
        self.node.calls_script()
    }

    /// Whether something in it is drawn anew for every document.
    pub(crate) fn is_random(&self) -> bool {
        self.node.is_random()
    }

    /// Whether it has the same value for every document.
    pub(crate) fn is_constant(&self) -> bool {
        self.is_missing() || self.as_constant().is_some()
    }

    /// Adds the dotted paths that the expression reads; false if it needs the whole document.
    pub fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        self.node.dependencies(paths)
    }

    /// The comparisons of a field with what depends on no document, all of which hold wherever
    /// the expression is true.
    pub fn comparisons(&self) -> Vec<FieldComparison> {
        let mut found = Vec::new();
        compared::collect(&self.node, &mut |path, comparison, operand| {
            found.push(FieldComparison {
                path: path.clone(),
                comparison,
                operand: Expression {
                    node: operand.clone(),
                    source: self.source.clone(),
                    budget: self.budget.clone(),
                    collator: self.collator.clone(),
                    outer: self.outer.clone(),
                },
            });
        });
        found
    }
}

/// `$path` compared with a value that is the same for all documents.
#[derive(Clone, Debug)]
pub struct FieldComparison {
    pub path: FieldPath,
    pub comparison: Comparison,
    pub operand: Expression,
}

#[cfg(test)]
mod tests;
