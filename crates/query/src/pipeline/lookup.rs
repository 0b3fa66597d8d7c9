//! $lookup: for each document the documents of another collection that belong to it
//!
//! The inner pipeline is parsed once; `let` binds its variables for each document. What the stage
//! knows of the foreign documents that a document can get, a value that they have at a path, comes
//! from `localField` and `foreignField` or from an equality in the pipeline's first `$match`.
//! `join.rs` finds them by it.

mod find;
mod graph;
mod join;
mod kept;
mod parse;
mod specification;
mod unwinding;

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use banyan_document::{DocumentWriter, field};

use super::stage::{Changes, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use super::unwind::write_at;
use crate::error::QueryError;
use crate::expression::FieldPath;
use crate::memory::{Holding, consumer};
use find::Finder;
use specification::UNWIND;
use unwinding::UnwindingRun;

pub(super) use graph::{GraphLookup, parse as parse_graph};
pub(super) use parse::parse;
pub use specification::Lookup;

impl Stage for Lookup {
    fn name(&self) -> &'static str {
        "$lookup"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name());
        if let Some(from) = &self.from {
            from.serialize("from", out);
        }
        out.append_str("as", &self.output.to_string());
        if let Some(equality) = &self.equality {
            out.append_str("localField", &equality.local.to_string());
            out.append_str("foreignField", &equality.foreign);
        }
        if self.has_pipeline {
            out.begin_document("let");
            for (name, variable) in &self.variables {
                out.append(name, variable.source());
            }
            out.end();
            out.begin_array("pipeline");
            self.leading.serialize_plain(out);
            self.before.serialize_stages(out);
            self.within.serialize_stages(out);
            out.end();
        }
        if let Some(unwind) = &self.unwind {
            out.begin_document(UNWIND);
            unwind.serialize(out);
            out.end();
        }
        out.end();
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        let mut bounded = true;
        for (_, variable) in &self.variables {
            bounded &= variable.dependencies(paths);
        }
        paths.extend(
            self.equality
                .iter()
                .map(|equality| equality.local.to_string()),
        );
        // The field that it sets may lie in a document that stays.
        paths.insert(self.output.first().to_owned());
        match bounded {
            true => Reads::AndPasses,
            false => Reads::Everything,
        }
    }

    fn changes(&self) -> Changes {
        let index = self
            .unwind
            .iter()
            .filter_map(|u| u.include_array_index.as_ref());
        Changes::at(
            [self.output.first()]
                .into_iter()
                .chain(index.map(FieldPath::first)),
        )
    }

    fn collections_read(&self, names: &mut Vec<(Option<String>, String)>) {
        if let Some(from) = &self.from {
            names.push((from.database.clone(), from.collection.clone()));
        }
        names.extend(self.before.collections_read());
        names.extend(self.within.collections_read());
    }

    fn is_filter_transparent(&self) -> bool {
        true
    }

    fn runs_in_parts(&self) -> bool {
        true
    }

    fn is_one_to_one(&self) -> bool {
        self.unwind.is_none()
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let finder = Finder::new(self.clone(), start)?;
        Ok(match &self.unwind {
            Some(unwind) => Box::new(UnwindingRun::new(finder, unwind.clone(), start)),
            None => Box::new(LookupRun {
                finder,
                holding: start.budget.holding(&consumer::LOOKUP_RESULT),
            }),
        })
    }
}

struct LookupRun {
    finder: Finder,
    holding: Holding,
}

impl StageRun for LookupRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let mut found = DocumentWriter::new();
        found.begin_array("");
        let holding = &mut self.holding;
        holding.set(0)?;
        self.finder.find(document, &mut |document| {
            holding.add(document.as_bytes().len())?;
            found.push(RawBsonRef::Document(document));
            Ok(())
        })?;
        found.end();
        let found = found.finish();
        let array = field(&found, "").unwrap_or(RawBsonRef::Null);
        let bytes = document.as_bytes().len() + found.as_bytes().len();
        let mut writer = DocumentWriter::with_capacity(bytes);
        write_at(document, &self.finder.lookup.output, array, &mut writer);
        next.push(&writer.finish())
    }

    fn explain(&self, out: &mut DocumentWriter) {
        self.finder.lookup.cost.explain(out);
    }
}
