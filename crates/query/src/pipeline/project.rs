//! $project, $unset, $addFields and $set: a tree of what happens to each field

mod parse;
mod projector;
mod run;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use banyan_document::DocumentWriter;
use banyan_document::path::position;

use self::projector::Mode;
use self::run::ProjectRun;
use self::tree::Action;
use super::ahead::Ahead;
use super::dependencies::Needed;
use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{StageRun, Start};
use crate::error::QueryError;
use crate::expression::{Arena, ComputedFields, ExpressionNode};

pub(super) use self::parse::{parse_add_fields, parse_project, parse_set, parse_unset};
pub use self::projector::Projector;

impl Projector {
    /// The fields that it computes. `None` if that is not all that it does but to leave or keep
    /// others, or takes a script.
    pub(super) fn computed(&self) -> Option<ComputedFields<'_>> {
        if self.mode == Mode::Exclusion || self.calls_script() {
            return None;
        }
        let mut computed = ComputedFields::default();
        for (name, action) in self.tree.fields.iter() {
            match action {
                Action::Compute(node, written) => computed.add(name, node, written),
                Action::Include => {}
                Action::Exclude | Action::Nested(_) => return None,
            }
        }
        Some(computed)
    }

    /// Whether documents behind it have everything at a path that they have before, where it does
    /// not compute it.
    pub(super) fn leaves(&self, path: &str) -> bool {
        let first = path.split('.').next().unwrap_or(path);
        self.mode == Mode::Addition || self.tree.fields.get(first).is_some()
    }

    /// Whether it calls scripts for each document.
    fn calls_script(&self) -> bool {
        let mut calls = false;
        let mut visit = |action: &Action, _: &str| {
            calls |= matches!(action, Action::Compute(node, _) if node.calls_script());
        };
        self.tree.visit(&mut visit, "");
        calls
    }
}

impl Stage for Projector {
    fn name(&self) -> &'static str {
        self.name
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name);
        self.tree.serialize(out);
        out.end();
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        match (self.dependencies(paths), self.mode) {
            (false, _) | (true, Mode::Exclusion) => Reads::Everything,
            (true, Mode::Inclusion) => Reads::Only,
            (true, Mode::Addition) => {
                // A field that is set in a document leaves the rest of it.
                let nested = |action: &Action| matches!(action, Action::Nested(_));
                let set = self.tree.fields.iter().filter(|(_, action)| nested(action));
                paths.extend(set.map(|(name, _)| name.to_string()));
                Reads::AndPasses
            }
        }
    }

    fn changes(&self) -> Changes {
        let mut renamed = BTreeMap::new();
        for (name, action) in self.tree.fields.iter() {
            if let Action::Compute(ExpressionNode::Field(path), _) = action
                && path.parts().len() == 1
            {
                renamed.insert(name.to_string(), path.to_string());
            }
        }
        if self.mode != Mode::Inclusion {
            let fields = self.tree.fields.iter();
            let changed = fields.map(|(name, _)| name.to_string()).collect();
            return Changes::Fields { changed, renamed };
        }
        let mut kept = BTreeSet::new();
        for (name, action) in self.tree.fields.iter() {
            match action {
                Action::Include => {
                    kept.insert(name.to_string());
                }
                Action::Nested(tree) if !tree.computes => {
                    let mut keep = |_: &Action, path: &str| {
                        // A position in an array is another one among the documents that stay.
                        if !path.split('.').any(|part| position(part).is_some()) {
                            kept.insert(path.to_owned());
                        }
                    };
                    tree.visit(&mut keep, name);
                }
                _ => {}
            }
        }
        Changes::AllBut { kept, renamed }
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn is_filter_transparent(&self) -> bool {
        true
    }

    fn is_one_to_one(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let calls_script = start.may_keep() && self.calls_script();
        let run = ProjectRun {
            projector: self,
            needed: Needed::of(&start.needed),
            variables: start.variables.clone(),
            arena: Arena::new(),
        };
        Ok(Ahead::of(run, calls_script, start))
    }
}
