//! $group, and $count and $sortByCount, which are short for it

mod evaluated;
mod groups;
mod run;
mod scripted;
mod specification;
mod spilled;

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{DocumentWriter, elements};

use self::run::GroupRun;
use self::specification::Mode;
use super::accumulator::{self, Accumulator};
use super::ahead::Ahead;
use super::group_key::Key;
use super::sort;
use super::stage::{Division, Reads, Stage};
use super::stage_run::{StageRun, Start};
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::Expression;
use crate::expression::value::error;

pub use self::specification::{Group, Representative};

/// The marks that the router puts into the specification it sends, as MongoDB does.
const WILL_BE_MERGED: &str = "$willBeMerged";
const DOING_MERGE: &str = "$doingMerge";

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(spec) = value else {
        return error(15947, "a group's fields must be specified in an object");
    };
    let (mut id, mut accumulators, mut mode) = (None, Vec::new(), Mode::Complete);
    for (name, value) in spec.iter().map_while(Result::ok) {
        match (name.as_str(), value) {
            ("_id", value) => {
                if id.is_some() {
                    return error(15948, "a group's _id may only be specified once");
                }
                // Its constants are evaluated first, wherever it stands.
                let parse = || Key::parse(value, context);
                id = Some(context.folding.at_place(0, parse)?);
            }
            (WILL_BE_MERGED, RawBsonRef::Boolean(true)) => mode = Mode::Partial,
            (DOING_MERGE, RawBsonRef::Boolean(true)) => mode = Mode::Merge,
            (name, value) => {
                let parse = || accumulator::parse(name, value, context);
                accumulators.push(context.folding.at_place(1, parse)?);
            }
        }
    }
    let Some(id) = id else {
        return error(15955, "a group specification must include an _id");
    };
    let accumulators = accumulators.into();
    let source = without_marks(spec);
    out.push(Arc::new(Group {
        id,
        accumulators,
        mode,
        source,
    }));
    Ok(())
}

/// The specification as it is shown: without the marks, what it groups by first.
fn without_marks(spec: &RawDocument) -> RawDocumentBuf {
    let mut writer = DocumentWriter::with_capacity(spec.as_bytes().len());
    let (id, others): (Vec<_>, Vec<_>) = elements(spec)
        .filter(|element| !matches!(element.name(), WILL_BE_MERGED | DOING_MERGE))
        .partition(|element| element.name() == "_id");
    for element in id.iter().chain(&others) {
        writer.append_element(element);
    }
    writer.finish()
}

/// `$count: "n"` counts everything and drops the group's `_id`.
pub(super) fn parse_count(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::String(name) = value else {
        return error(40156, "the count field must be a non-empty string");
    };
    if name.is_empty() {
        return error(40157, "the count field must be a non-empty string");
    }
    if name.starts_with('$') {
        return error(40158, "the count field cannot be a $-prefixed path");
    }
    if name.contains('\0') {
        return error(40159, "the count field cannot contain a null byte");
    }
    if name.contains('.') {
        return error(40160, "the count field cannot contain '.'");
    }
    if name == "_id" {
        return error(9039800, "the count field cannot be '_id'");
    }
    let mut writer = DocumentWriter::new();
    writer.append_null("_id");
    writer.begin_document(name);
    writer.append_i32("$sum", 1);
    writer.end();
    parse(RawBsonRef::Document(&writer.finish()), context, out)?;
    super::project::parse_project(
        RawBsonRef::Document(&bson::rawdoc! {"_id": 0}),
        context,
        out,
    )
}

/// `$sortByCount: x` groups by `x`, counts, and sorts the greatest count first.
pub(super) fn parse_sort_by_count(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    match value {
        RawBsonRef::String(path) if path.starts_with('$') => {}
        RawBsonRef::String(_) => {
            return error(
                40148,
                "the sortByCount field must be defined as a $-prefixed path or an expression \
                 inside an object",
            );
        }
        RawBsonRef::Document(document) => {
            let first = document.iter().next().and_then(Result::ok);
            if !first.is_some_and(|(name, _)| name.as_str().starts_with('$')) {
                return error(
                    40147,
                    "the sortByCount field must be defined as a $-prefixed path or an expression \
                     inside an object",
                );
            }
        }
        _ => {
            return error(
                40149,
                "the sortByCount field must be specified as a string or as an object",
            );
        }
    }
    let mut writer = DocumentWriter::new();
    writer.append("_id", value);
    writer.begin_document("count");
    writer.append_i32("$sum", 1);
    writer.end();
    parse(RawBsonRef::Document(&writer.finish()), context, out)?;
    sort::parse(
        RawBsonRef::Document(&bson::rawdoc! {"count": -1}),
        context,
        out,
    )
}

impl Group {
    /// Whether it calls scripts for each document.
    fn calls_script(&self) -> bool {
        let mut arguments = self.accumulators.iter().map(|a| &a.argument);
        self.mode != Mode::Merge
            && (self.id.expression.calls_script() || arguments.any(Expression::calls_script))
    }
}

impl Stage for Group {
    fn name(&self) -> &'static str {
        "$group"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name());
        out.append_all(&self.source);
        match self.mode {
            Mode::Complete => {}
            Mode::Partial => out.append_bool(WILL_BE_MERGED, true),
            Mode::Merge => out.append_bool(DOING_MERGE, true),
        }
        out.end();
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        // A merging group reads partial states, not documents.
        let mut bounded = self.mode != Mode::Merge && self.id.expression.dependencies(paths);
        for accumulator in self.accumulators.iter() {
            bounded &= accumulator.argument.dependencies(paths);
            bounded &= accumulator.kind.dependencies(paths);
        }
        match bounded {
            true => Reads::Only,
            false => Reads::Everything,
        }
    }

    /// The shards hand over partial states, which the router puts together.
    fn split(&self) -> Division {
        Division::Both {
            shards: vec![Arc::new(self.with_mode(Mode::Partial))],
            order: None,
            router: vec![Arc::new(self.with_mode(Mode::Merge))],
        }
    }

    fn gathers(&self) -> bool {
        let is_exact = |accumulator: &Accumulator| accumulator.kind.is_exact_in_parts();
        self.mode != Mode::Merge && self.accumulators.iter().all(is_exact)
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let calls_script = start.may_keep() && self.calls_script();
        Ok(Ahead::of(GroupRun::new(self, start), calls_script, start))
    }
}
