//! The tree of a parsed expression and its evaluation.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use bson::{RawBson, RawBsonRef};

use banyan_document::DocumentWriter;

use super::env::{ArrayBuilder, Env, check_size};
use super::field::FieldPath;
use super::operator::{Arguments, Run};
use super::value::Value;
use crate::error::QueryError;

#[derive(Clone, Debug)]
pub(crate) enum Node {
    Constant(Arc<RawBson>),
    /// `$$REMOVE`, and an optional argument that was not given.
    Missing,
    /// `$$ROOT`.
    Root,
    /// `$a.b`: a path from the root.
    Field(FieldPath),
    /// `$$name` or `$$name.a.b`, the name resolved to a slot.
    Variable {
        slot: usize,
        path: Option<FieldPath>,
    },
    Document(Arc<[(Box<str>, Node)]>),
    Array(Arc<[Node]>),
    Call(Arc<Call>),
    Special(Arc<dyn Special>),
}

#[derive(Debug)]
pub(crate) struct Call {
    pub(super) operator: &'static str,
    pub(super) run: Run,
    pub(super) arguments: Vec<Node>,
    pub(super) given: u32,
}

/// An operator that decides itself what to evaluate, and when.
pub(crate) trait Special: Debug + Send + Sync {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError>;

    /// Calls `visit` for every operand, for the analysis of what fields are read.
    fn operands(&self, visit: &mut dyn FnMut(&Node));

    /// Whether equal operands always give equal results.
    fn deterministic(&self) -> bool {
        true
    }
}

impl Node {
    pub(crate) fn constant(value: RawBson) -> Node {
        Node::Constant(Arc::new(value))
    }

    pub(super) fn special(special: impl Special + 'static) -> Node {
        Node::Special(Arc::new(special))
    }

    pub(super) fn is_constant(&self) -> bool {
        matches!(self, Node::Constant(_) | Node::Missing)
    }

    pub(crate) fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        match self {
            Node::Constant(value) => Ok(Some(value.as_raw_bson_ref())),
            Node::Missing => Ok(None),
            Node::Root => Ok(Some(RawBsonRef::Document(env.root))),
            Node::Field(path) => path.read(env.root, env.arena),
            Node::Variable { slot, path: None } => Ok(env.variable(*slot)),
            Node::Variable {
                slot,
                path: Some(path),
            } => path.read_from(env.variable(*slot), env.arena),
            Node::Document(fields) => {
                let mut writer = DocumentWriter::new();
                for (name, node) in fields.iter() {
                    if let Some(value) = node.evaluate(env)? {
                        writer.append(name, value);
                        check_size(writer.len())?;
                    }
                }
                env.document(writer)
            }
            Node::Array(nodes) => {
                let mut builder = ArrayBuilder::new();
                for node in nodes.iter() {
                    builder.push(node.evaluate(env)?.unwrap_or(RawBsonRef::Null));
                }
                env.array(builder)
            }
            Node::Call(call) => call.evaluate(env),
            Node::Special(special) => special.evaluate(env),
        }
    }

    pub(super) fn operands(&self, visit: &mut dyn FnMut(&Node)) {
        match self {
            Node::Constant(_) | Node::Missing | Node::Root | Node::Field(_) => {}
            Node::Variable { .. } => {}
            Node::Document(fields) => fields.iter().for_each(|(_, node)| visit(node)),
            Node::Array(nodes) => nodes.iter().for_each(visit),
            Node::Call(call) => call.arguments.iter().for_each(visit),
            Node::Special(special) => special.operands(visit),
        }
    }

    /// Adds the paths read from the root; false if the whole document is needed.
    pub(crate) fn dependencies(&self, paths: &mut BTreeSet<String>) -> bool {
        match self {
            Node::Root => return false,
            Node::Field(path) => {
                paths.insert(path.to_string());
            }
            _ => {}
        }
        let mut bounded = true;
        self.operands(&mut |node| bounded &= node.dependencies(paths));
        bounded
    }
}

impl Call {
    fn evaluate<'a>(&'a self, env: &Env<'a>) -> Result<Value<'a>, QueryError> {
        let mut values = Vec::with_capacity(self.arguments.len());
        for argument in &self.arguments {
            values.push(argument.evaluate(env)?);
        }
        (self.run)(
            &Arguments {
                operator: self.operator,
                values,
                given: self.given,
            },
            env,
        )
    }
}
