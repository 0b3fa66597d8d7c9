//! $unionWith: the results of another pipeline behind the input

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument};

use banyan_document::{DocumentWriter, field};

use super::foreign::{Documents, From, Reader};
use super::foreign_query::ForeignQuery;
use super::matching::Match;
use super::member::Member;
use super::pushdown::{self, Leading};
use super::sequence::{ParseInner, Pipeline};
use super::source;
use super::stage::Stage;
use super::stage_run::{Drained, Flow, Next, Pass, StageRun, Start};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::expression::value::{error, type_name};
use crate::variables::Variables;

#[derive(Clone, Debug)]
pub struct UnionWith {
    from: Option<From>,
    /// The inner pipeline's first `$match` stages, as far as the collection's planner reads them.
    leading: Leading,
    pipeline: Pipeline,
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    parse_inner: ParseInner,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let (mut from, mut pipeline) = (None, Pipeline::empty(context));
    let named = value.as_document().and_then(|fields| field(fields, "coll"));
    let named = named.and_then(|value| From::parse(value, "$unionWith").ok());
    let inner = Context {
        text: named.and_then(|from| from.inner_text(context)),
        ..context.clone()
    };
    match value {
        RawBsonRef::String(_) => from = Some(From::parse(value, "$unionWith")?),
        RawBsonRef::Document(document) => {
            for (name, value) in document.iter().map_while(Result::ok) {
                match (name.as_str(), value) {
                    ("coll", RawBsonRef::Null | RawBsonRef::Undefined) => {}
                    ("coll", RawBsonRef::Document(coll)) if !From::is_complete(coll) => {
                        return Err(QueryError::new(
                            ErrorKind::TypeMismatch,
                            "BSON field '$unionWith.coll' is the wrong type 'object', expected \
                             type 'string'",
                        ));
                    }
                    ("coll", value) => from = Some(From::parse(value, "$unionWith")?),
                    ("pipeline", RawBsonRef::Array(array)) => {
                        pipeline = parse_inner("$unionWith", array, &inner)?;
                    }
                    (other, _) => {
                        return error(
                            40415,
                            format!("BSON field '$unionWith.{other}' is an unknown field."),
                        );
                    }
                }
            }
        }
        other => {
            return Err(QueryError::new(
                ErrorKind::FailedToParse,
                format!(
                    "the $unionWith stage specification must be an object or string, but found {}",
                    type_name(Some(other))
                ),
            ));
        }
    }
    if from.is_none() && pipeline.source().is_none() {
        return Err(QueryError::new(
            ErrorKind::FailedToParse,
            "$unionWith stage without explicit collection must have a pipeline with \
             $documents as first stage",
        ));
    }
    source::check_inner(&pipeline, "$unionWith")?;
    let leading = pushdown::take_leading(&mut pipeline, &inner)?;
    out.push(Arc::new(UnionWith {
        from,
        leading,
        pipeline,
    }));
    Ok(())
}

impl UnionWith {
    /// The same, of whose own results only those come that a filter lets through. `None` where that
    /// has to be told behind both. `arrange` brings the filter ahead in the pipeline.
    pub(super) fn matching(
        &self,
        stage: &Match,
        arrange: impl FnOnce(&mut Vec<Member>) -> Result<(), QueryError>,
    ) -> Result<Option<UnionWith>, QueryError> {
        if stage.filter.computes() || self.leading.is_near() {
            return Ok(None);
        }
        let mut union = self.clone();
        union.pipeline.push(Arc::new(stage.clone()));
        arrange(&mut union.pipeline.members)?;
        union.leading.take_plain(&mut union.pipeline);
        Ok(Some(union))
    }
}

impl Stage for UnionWith {
    fn name(&self) -> &'static str {
        "$unionWith"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name());
        if let Some(from) = &self.from {
            from.serialize("coll", out);
        }
        out.begin_array("pipeline");
        self.leading.serialize_plain(out);
        self.pipeline.serialize_stages(out);
        out.end();
        out.end();
    }

    fn collections_read(&self, names: &mut Vec<(Option<String>, String)>) {
        if let Some(from) = &self.from {
            names.push((from.database.clone(), from.collection.clone()));
        }
        names.extend(self.pipeline.collections_read());
    }

    fn runs_in_parts(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        if start.together().is_some() {
            // The other documents come behind all parts.
            return Ok(Box::new(Pass));
        }
        Ok(Box::new(UnionRun {
            reader: Reader::new(self.from.as_ref(), start.sources, "$unionWith")?,
            union: self,
            variables: start.variables.clone(),
            budget: start.budget.clone(),
            running: None,
        }))
    }
}

struct UnionRun {
    union: Arc<UnionWith>,
    reader: Reader,
    variables: Variables,
    budget: Budget,
    running: Option<Documents>,
}

impl StageRun for UnionRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        next.push(document)
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        let running = match &mut self.running {
            Some(running) => running,
            None => {
                let union = &*self.union;
                let conditions = union.leading.conditions(&self.variables)?;
                let query = ForeignQuery::new(conditions, union.pipeline.collator(), &self.budget);
                let query = query.scored(union.leading.is_scored());
                let query = query.told(union.leading.metadata());
                let query = query.near_to(union.leading.near(&self.variables));
                let input = self.reader.documents(&query)?;
                self.running.insert(match union.pipeline.is_empty() {
                    true => input,
                    false => {
                        let sources = self.reader.sources.clone();
                        Box::new(union.pipeline.run_within(input, sources, &self.variables)?)
                    }
                })
            }
        };
        match running.next() {
            None => Ok(Drained::Done),
            Some(document) => match next.push(&document?)? {
                Flow::Continue | Flow::Full => Ok(Drained::More),
                Flow::Stop => Ok(Drained::Done),
            },
        }
    }
}
