//! What the first `$match` stages of an inner pipeline say to the planner of the collection that
//! it reads.
//!
//! Conditions without expressions are the collection's filter and leave the pipeline. A comparison
//! of `$expr` between a field and a value that is the same for all documents stays and decides;
//! it says something weaker about the field beside, which an index may serve. A `$geoNear` leaves the
//! pipeline as a whole: it says which documents come, and in which order.

use std::sync::Arc;

use bson::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::foreign_query::{Condition, PlainFilter};
use super::matching::Match;
use super::near_query::GeoNear;
use super::sequence::Pipeline;
use super::stage::Stage;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::items;
use crate::expression::{Arena, FieldComparison, FieldPath};
use crate::filter::{Comparison, Filter};
use crate::metadata::{Metadata, MetadataSet};
use crate::variables::Variables;

#[derive(Clone, Debug, Default)]
pub(super) struct Leading {
    /// Filters without expressions, all of which hold.
    pub plain: Vec<Arc<PlainFilter>>,
    pub comparisons: Vec<FieldComparison>,
    near: Option<Arc<GeoNear>>,
    /// Something behind asks for the scores of its search.
    is_scored: bool,
    /// What else stages behind ask to know of the documents.
    metadata: MetadataSet,
}

/// Takes the plain parts of the first `$match` stages out of the pipeline, and reads the rest.
pub(super) fn take_leading(
    pipeline: &mut Pipeline,
    context: &Context,
) -> Result<Leading, QueryError> {
    let mut leading = Leading {
        is_scored: pipeline.needs_text_score(),
        // Their sort is none of the query that finds them.
        metadata: pipeline.metadata().without(Metadata::SortKey),
        ..Leading::default()
    };
    if let Some(near) = pipeline.first().and_then(|first| first.get::<GeoNear>()) {
        leading.near = Some(Arc::new(near.clone()));
        pipeline.remove_first();
        return Ok(leading);
    }
    let mut kept = Vec::new();
    while let Some(stage) = pipeline.take_match() {
        if !stage.filter.computes() {
            leading.add_plain(stage);
            continue;
        }
        let mut parts = Vec::new();
        conjuncts(&stage.source, &mut parts);
        for part in parts {
            let (filter, slots) = context.scope.recording(|| Filter::parse(&part, context));
            let filter = filter?;
            if !filter.computes() {
                leading.add_plain(Match::new(&part, filter));
                continue;
            }
            for expression in filter.expressions() {
                leading.comparisons.extend(expression.comparisons());
            }
            kept.push((Match::new(&part, filter), slots));
        }
    }
    for (stage, slots) in kept.into_iter().rev() {
        pipeline.put_first(Arc::new(stage), slots);
    }
    Ok(leading)
}

/// The parts of a filter that all have to hold, each as a filter of its own.
fn conjuncts(filter: &RawDocument, parts: &mut Vec<RawDocumentBuf>) {
    for (name, value) in filter.iter().map_while(Result::ok) {
        if name.as_str() == "$and"
            && let RawBsonRef::Array(array) = value
        {
            for item in items(array) {
                if let RawBsonRef::Document(inner) = item {
                    conjuncts(inner, parts);
                }
            }
            continue;
        }
        let mut writer = DocumentWriter::new();
        writer.append(name.as_str(), value);
        parts.push(writer.finish());
    }
}

impl Leading {
    /// Takes more of the pipeline's first stages, as long as they are filters without expressions.
    pub fn take_plain(&mut self, pipeline: &mut Pipeline) {
        let is_plain = |stage: &dyn Stage| {
            stage
                .get()
                .is_some_and(|stage: &Match| !stage.filter.computes())
        };
        while pipeline.first().is_some_and(is_plain)
            && let Some(stage) = pipeline.take_match()
        {
            self.add_plain(stage);
        }
    }

    fn add_plain(&mut self, stage: Match) {
        self.plain.push(Arc::new(PlainFilter {
            filter: stage.filter,
            source: stage.source,
        }));
    }

    pub fn searches(&self) -> bool {
        self.plain.iter().any(|plain| plain.filter.searches())
    }

    pub fn is_scored(&self) -> bool {
        self.is_scored
    }

    pub fn metadata(&self) -> MetadataSet {
        self.metadata
    }

    /// Whether documents are wanted in the order of their distances.
    pub fn is_near(&self) -> bool {
        self.near.is_some()
    }

    /// What is near which documents are wanted, with the variables that have these values.
    pub fn near(&self, variables: &Variables) -> Option<GeoNear> {
        self.near.as_ref().map(|near| near.bind(variables))
    }

    /// Writes the stages that were taken out of the pipeline.
    pub fn serialize_plain(&self, out: &mut DocumentWriter) {
        if let Some(near) = &self.near {
            out.push_document();
            near.serialize(out);
            out.end();
        }
        for plain in &self.plain {
            out.push_document();
            out.append_doc("$match", &plain.source);
            out.end();
        }
    }

    /// What no variable has a part in.
    pub fn constant(&self) -> Vec<Condition> {
        let plain = self.plain.iter();
        plain.map(|plain| Condition::Plain(plain.clone())).collect()
    }

    /// The conditions on the collection, with the variables that have these values.
    pub fn conditions(&self, variables: &Variables) -> Result<Vec<Condition>, QueryError> {
        let mut conditions = self.constant();
        for comparison in &self.comparisons {
            conditions.extend(condition(comparison, variables)?);
        }
        Ok(conditions)
    }
}

/// What has to hold for `comparison` to be true: never less documents than those, and often more.
/// `None` where a filter says nothing of the kind.
fn condition(
    comparison: &FieldComparison,
    variables: &Variables,
) -> Result<Option<Condition>, QueryError> {
    let path = comparison.path.to_string();
    if comparison.comparison == Comparison::Eq {
        let values = value(comparison, variables)?.map(|value| vec![value]);
        return Ok(values.map(|values| Condition::OneOf { path, values }));
    }
    let value = comparison.operand.bind(variables);
    let value = value.evaluate_owned(&RawDocumentBuf::new())?;
    // A filter's own ranges are of one type; the planner reads bounds from these, too.
    let comparison = comparison.comparison;
    Ok(value.map(|value| Condition::Compare {
        path,
        comparison,
        value,
    }))
}

/// The value that documents must have at the path for an equality to be true, as filters compare.
pub(super) fn value(
    comparison: &FieldComparison,
    variables: &Variables,
) -> Result<Option<RawBson>, QueryError> {
    let (root, arena) = (RawDocumentBuf::new(), Arena::new());
    let operand = comparison.operand.bind(variables);
    let value = operand.evaluate(&root, &arena)?;
    Ok(comparable(&comparison.path, value).map(RawBson::from))
}

fn comparable<'v>(path: &FieldPath, value: Option<RawBsonRef<'v>>) -> Option<RawBsonRef<'v>> {
    match value {
        // A filter finds what is missing beside what is null.
        None => Some(RawBsonRef::Null),
        Some(RawBsonRef::Undefined) => None,
        // An expression makes an array of what it finds behind one; a filter looks at each.
        Some(RawBsonRef::Array(_)) if path.parts().len() > 1 => None,
        Some(value) => Some(value),
    }
}
