//! What happens to each field.

use bson::RawBson;

use banyan_document::DocumentWriter;

use crate::expression::ExpressionNode;
use crate::metadata::is_metadata;
use crate::names::Named;
use crate::text::TEXT_SCORE_FIELD;

/// The fields that something happens to, in the order of the specification.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub fields: Named<Action>,
    /// Whether something is computed here or below.
    pub computes: bool,
    /// How many of the fields are not computed themselves.
    pub read: usize,
}

#[derive(Debug)]
pub(super) enum Action {
    Include,
    Exclude,
    /// With what it was parsed from.
    Compute(ExpressionNode, RawBson),
    Nested(Tree),
}

impl Tree {
    /// Puts `action` at `path`; the error is the part of the path that collides.
    pub fn insert(&mut self, parts: &[Box<str>], action: Action) -> Result<(), Collision> {
        let Some((first, rest)) = parts.split_first() else {
            return Ok(());
        };
        self.computes |= matches!(action, Action::Compute(..));
        let index = self.fields.place(first);
        match (index, rest.is_empty()) {
            (None, true) => {
                self.push(first.clone(), action);
            }
            (None, false) => {
                let mut tree = Tree::default();
                tree.insert(rest, action)?;
                self.push(first.clone(), Action::Nested(tree));
            }
            (Some(_), true) => {
                return Err(Collision {
                    remaining: String::new(),
                });
            }
            (Some(index), false) => match self.fields.value_mut(index) {
                Action::Nested(tree) => tree.insert(rest, action)?,
                _ => {
                    return Err(Collision {
                        remaining: parts.join("."),
                    });
                }
            },
        }
        Ok(())
    }

    /// Adds a field that is not there yet behind the others.
    pub fn push(&mut self, name: Box<str>, action: Action) {
        self.read += usize::from(!matches!(action, Action::Compute(..)));
        self.fields.push(name, action);
    }

    /// Adds one that is included before the others.
    pub fn include_first(&mut self, name: Box<str>) {
        self.read += 1;
        self.fields.push_first(name, Action::Include);
    }

    pub fn visit<'t>(&'t self, visit: &mut dyn FnMut(&'t Action, &str), prefix: &str) {
        for (name, action) in self.fields.iter() {
            let path = if prefix.is_empty() {
                name.to_string()
            } else {
                format!("{prefix}.{name}")
            };
            match action {
                Action::Nested(tree) => tree.visit(visit, &path),
                other => visit(other, &path),
            }
        }
    }
}

impl Tree {
    pub fn serialize(&self, out: &mut DocumentWriter) {
        for (name, action) in self.fields.iter() {
            match action {
                Action::Include if &**name == TEXT_SCORE_FIELD || is_metadata(name) => {}
                Action::Include => out.append_bool(name, true),
                Action::Exclude => out.append_bool(name, false),
                Action::Compute(_, source) => out.append(name, source.as_raw_bson_ref()),
                Action::Nested(tree) => {
                    out.begin_document(name);
                    tree.serialize(out);
                    out.end();
                }
            }
        }
    }
}

pub(super) struct Collision {
    /// From the field on that has an action already; empty where nothing is below it.
    pub remaining: String,
}
