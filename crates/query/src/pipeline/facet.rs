//! $facet: several pipelines over the same input, their results side by side in one document

use std::any::Any;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::DocumentWriter;

use super::execute::Execution;
use super::sequence::{ParseInner, Pipeline};
use super::stage::Stage;
use super::stage_run::{Drained, Flow, Next, StageRun, Start, not_alike};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::check_depth;
use crate::memory::{Holding, consumer};
use crate::metadata::without_metadata;
use crate::text::{TextContext, without_score};

#[derive(Debug)]
pub struct Facet {
    facets: Vec<(Box<str>, Pipeline)>,
    /// Documents come in with what is known of them beside their fields.
    drops: Drops,
}

#[derive(Clone, Copy, Debug)]
struct Drops {
    scores: bool,
    metadata: bool,
}

impl Drops {
    /// The document without what it brought, if it has any of that.
    fn apply(self, document: &RawDocument) -> Option<RawDocumentBuf> {
        let without = match self.scores {
            true => without_score(document),
            false => None,
        };
        if !self.metadata {
            return without;
        }
        let document = without.as_deref().unwrap_or(document);
        without_metadata(document).or(without)
    }
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    parse_inner: ParseInner,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    // `outline.rs` has seen to it that these are arrays in an object.
    let facet = value.as_document().into_iter().flat_map(RawDocument::iter);
    let mut facets = Vec::new();
    for (name, value) in facet.map_while(Result::ok) {
        let Some(array) = value.as_array() else {
            continue;
        };
        let pipeline = parse_inner("$facet", array, context)?;
        facets.push((name.as_str().into(), pipeline));
    }
    // Nothing else has been asked for since this stage began.
    let drops = Drops {
        scores: context.text.as_ref().is_some_and(TextContext::is_asked),
        metadata: context.metadata.is_asked(),
    };
    out.push(Arc::new(Facet { facets, drops }));
    Ok(())
}

impl Stage for Facet {
    fn name(&self) -> &'static str {
        "$facet"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.begin_document(self.name());
        for (name, pipeline) in &self.facets {
            pipeline.serialize(name, out);
        }
        out.end();
    }

    fn collections_read(&self, names: &mut Vec<(Option<String>, String)>) {
        for (_, pipeline) in &self.facets {
            names.extend(pipeline.collections_read());
        }
    }

    fn gathers(&self) -> bool {
        let mut pipelines = self.facets.iter().map(|(_, pipeline)| pipeline);
        pipelines.all(|pipeline| pipeline.gathering().is_some())
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let mut running = Vec::with_capacity(self.facets.len());
        for (at, (name, pipeline)) in self.facets.iter().enumerate() {
            let part = start.together().map(|together| together.within(at));
            running.push(Running {
                name: name.clone(),
                execution: match part.zip(pipeline.gathering()) {
                    Some((together, gathering)) => {
                        gathering.start_part(start.sources.cloned(), &together)?
                    }
                    None => pipeline.start_within(start.sources.cloned(), start.variables)?,
                },
                stopped: false,
                drops: self.drops,
                writer: open_array(name),
            });
        }
        Ok(Box::new(FacetRun {
            running,
            holding: start.budget.holding(&consumer::FACET),
            done: false,
        }))
    }
}

fn open_array(name: &str) -> DocumentWriter {
    let mut writer = DocumentWriter::new();
    writer.begin_array(name);
    writer
}

struct Running {
    name: Box<str>,
    execution: Execution,
    stopped: bool,
    drops: Drops,
    /// The results so far, as the field they will be.
    writer: DocumentWriter,
}

impl Running {
    fn collect(&mut self, holding: &mut Holding) -> Result<(), QueryError> {
        while let Some(document) = self.execution.pop()? {
            let dropped = self.drops.apply(&document);
            let document = dropped.as_deref().unwrap_or(&document);
            holding.add(document.as_bytes().len() + INDEX_BYTES)?;
            self.writer.push(RawBsonRef::Document(document));
        }
        Ok(())
    }
}

/// What stands before an item of an array: its type and its index.
const INDEX_BYTES: usize = 8;

struct FacetRun {
    running: Vec<Running>,
    holding: Holding,
    done: bool,
}

impl StageRun for FacetRun {
    fn push(&mut self, document: &RawDocument, _: &mut Next<'_>) -> Result<Flow, QueryError> {
        for running in self.running.iter_mut().filter(|r| !r.stopped) {
            running.stopped = running.execution.push(document)? == Flow::Stop;
            running.collect(&mut self.holding)?;
        }
        let all = self.running.iter().all(|r| r.stopped);
        Ok(if all { Flow::Stop } else { Flow::Continue })
    }

    fn absorb(&mut self, later: Box<dyn StageRun>, _: &Budget) -> Result<(), QueryError> {
        let later: Box<dyn Any> = later;
        let later = later.downcast::<FacetRun>().map_err(|_| not_alike())?;
        let mut both = self.running.iter_mut().zip(later.running);
        both.try_for_each(|(running, later)| running.execution.absorb(later.execution))
    }

    fn begin(&mut self, part: u64) -> bool {
        let mut tells_apart = true;
        for running in &mut self.running {
            // Each has to know, whatever the others say.
            tells_apart &= running.execution.begin(part);
        }
        tells_apart
    }

    fn seal(&mut self) -> Result<(), QueryError> {
        let mut running = self.running.iter_mut();
        running.try_for_each(|running| running.execution.seal())
    }

    fn drain(&mut self, next: &mut Next<'_>) -> Result<Drained, QueryError> {
        if std::mem::replace(&mut self.done, true) {
            return Ok(Drained::Done);
        }
        for running in &mut self.running {
            while running.execution.drain()? {
                running.collect(&mut self.holding)?;
            }
        }
        let mut writer = DocumentWriter::new();
        for running in &mut self.running {
            let finished = std::mem::replace(&mut running.writer, open_array(&running.name));
            writer.append_all(&finished.finish());
        }
        let results = writer.finish();
        check_depth(RawBsonRef::Document(&results))?;
        next.push(&results)?;
        Ok(Drained::Done)
    }
}
