//! Putting expressions where the fields are read that they compute.

use std::collections::BTreeSet;

use bson::{RawBson, RawBsonRef};

use banyan_document::{DocumentWriter, elements};

use super::node::ExpressionNode;
use crate::names::Named;

/// The fields that a stage computes, for the expressions of the next one.
#[derive(Default)]
pub(crate) struct ComputedFields<'a> {
    fields: Named<Computed<'a>>,
}

struct Computed<'a> {
    node: &'a ExpressionNode,
    written: &'a RawBson,
    /// How often it stands somewhere instead of the field.
    placed: usize,
}

/// An expression and what it would be parsed from.
pub(super) struct Placed {
    pub node: ExpressionNode,
    pub written: RawBson,
}

impl<'a> ComputedFields<'a> {
    pub fn add(&mut self, name: &str, node: &'a ExpressionNode, written: &'a RawBson) {
        let computed = Computed {
            node,
            written,
            placed: 0,
        };
        self.fields.push(name.into(), computed);
    }

    /// Whether each of them has been put in one place, and so is evaluated as often as before.
    pub fn are_each_placed_once(&self) -> bool {
        self.fields.iter().all(|(_, field)| field.placed == 1)
    }

    fn place(&mut self, name: &str) -> Option<&mut Computed<'a>> {
        let place = self.fields.place(name)?;
        Some(self.fields.value_mut(place))
    }

    /// Whether an expression reads none of them.
    pub fn are_unread_by(&self, node: &ExpressionNode) -> bool {
        let mut paths = BTreeSet::new();
        let reads = |path: &String| {
            let first = path.split('.').next().unwrap_or(path);
            self.fields.get(first).is_some()
        };
        node.dependencies(&mut paths) && !paths.iter().any(reads)
    }
}

impl ExpressionNode {
    /// The expression with those of computed fields in their places. `None` if one is read in a way
    /// that leaves it no place of its own: by a path that leads on, or within an operator, where
    /// variables of that may hide others.
    pub(super) fn with_computed(
        &self,
        written: RawBsonRef<'_>,
        computed: &mut ComputedFields<'_>,
    ) -> Option<Placed> {
        match (self, written) {
            (ExpressionNode::Field(path), _) if let [only] = path.parts() => {
                let Some(field) = computed.place(only) else {
                    return Some(self.as_written(written));
                };
                field.placed += 1;
                Some(Placed {
                    node: field.node.clone(),
                    written: quoted(field.node, field.written),
                })
            }
            (ExpressionNode::Document(fields), RawBsonRef::Document(written)) => {
                let mut writer = DocumentWriter::new();
                let mut placed = Vec::with_capacity(fields.len());
                let mut written = elements(written);
                for (name, node) in &**fields {
                    let element = written.next().filter(|element| *element.name() == **name)?;
                    let field = node.with_computed(element.value(), computed)?;
                    writer.append(name, field.written.as_raw_bson_ref());
                    placed.push((name.clone(), field.node));
                }
                Some(Placed {
                    node: ExpressionNode::Document(placed.into()),
                    written: RawBson::Document(writer.finish()),
                })
            }
            (node, _) => computed
                .are_unread_by(node)
                .then(|| self.as_written(written)),
        }
    }

    fn as_written(&self, written: RawBsonRef<'_>) -> Placed {
        Placed {
            node: self.clone(),
            written: written.into(),
        }
    }
}

/// What an expression is parsed from wherever it stands: some places take no bare constants.
fn quoted(node: &ExpressionNode, written: &RawBson) -> RawBson {
    let ExpressionNode::Constant(value) = node else {
        return written.clone();
    };
    let mut writer = DocumentWriter::new();
    writer.append("$literal", value.as_raw_bson_ref());
    RawBson::Document(writer.finish())
}
