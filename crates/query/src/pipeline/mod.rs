//! Aggregation pipelines: parsed into stages, run document by document.
//!
//! `stage.rs` names the stages and parses them; each has a file of its own. A running pipeline
//! (`execute.rs`) pushes borrowed documents through its steps: nothing is copied on the way
//! unless a stage makes a new document, and only what leaves the last step is owned. Steps that
//! hold documents back (`$group`, `$sort`) hand them on when the input has ended.
//!
//! What needs other collections is left to the caller: `$lookup` and its like read through
//! `Sources`, `$out` and `$merge` are described by `Pipeline::output` and carried out by whoever
//! runs the pipeline. `split.rs` divides a pipeline between the shards and the router.

mod accumulator;
mod bucket;
mod dependencies;
mod documents;
mod execute;
mod facet;
mod foreign;
mod group;
mod limit;
mod lookup;
mod output;
mod project;
mod pushdown;
mod redact;
mod replace;
mod sample;
mod sort;
mod split;
mod stage;
mod union;
mod unwind;

use std::sync::Arc;

use banyan_document::DocumentWriter;
use bson::{RawDocument, RawDocumentBuf};

use crate::budget::Budget;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::variables::{Slots, Variables};

pub use dependencies::Dependencies;
pub use execute::{Execution, Flow, Run};
pub use foreign::{Documents, Sources};
pub use lookup::Lookup;
pub use output::{Merge, Output, WhenMatched, WhenNotMatched};
pub use project::Projector;
pub use sort::{SortKey, SortStage};
pub use split::Split;
pub use stage::{Match, Stage};
pub use union::UnionWith;
pub use unwind::Unwind;

/// More stages than anyone writes by hand.
const STAGES_MAX: usize = 1000;

#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    stages: Vec<Stage>,
    /// What was written for each stage; several stages may stand for one that was.
    texts: Vec<RawDocumentBuf>,
    /// The variables of `$lookup` stages around that each stage reads.
    slots: Vec<Slots>,
    /// What running it may use.
    budget: Budget,
}

impl Pipeline {
    pub fn parse(stages: &[&RawDocument], context: &Context) -> Result<Pipeline, QueryError> {
        if stages.len() > STAGES_MAX {
            return Err(QueryError::new(
                ErrorKind::Location(7749501),
                format!("Pipeline length must be no longer than {STAGES_MAX} stages"),
            ));
        }
        let (mut parsed, mut texts) = (Vec::with_capacity(stages.len()), Vec::new());
        let mut slots = Vec::new();
        for (index, stage) in stages.iter().enumerate() {
            let position = stage::Position {
                first: index == 0,
                last: index + 1 == stages.len(),
            };
            let parse = || stage::parse(stage, position, context, &mut parsed);
            let (result, read) = context.scope.recording(parse);
            result?;
            texts.resize(parsed.len(), (*stage).to_owned());
            slots.resize(parsed.len(), read);
        }
        Ok(Pipeline {
            stages: sort::absorb_limits(parsed),
            texts,
            slots,
            budget: context.budget.clone(),
        })
    }

    fn add(&mut self, stage: Stage, text: &RawDocument) {
        self.stages.push(stage);
        self.texts.push(text.to_owned());
        self.slots.push(Slots::default());
    }

    fn empty(context: &Context) -> Pipeline {
        Pipeline {
            budget: context.budget.clone(),
            ..Pipeline::default()
        }
    }

    fn put_first(&mut self, stage: Match, slots: Slots) {
        let mut writer = DocumentWriter::new();
        writer.append_doc("$match", &stage.source);
        self.texts.insert(0, writer.finish());
        self.stages.insert(0, Stage::Match(stage));
        self.slots.insert(0, slots);
    }

    /// How many of the first stages read none of the variables in these slots.
    fn independent(&self, first: usize, end: usize) -> usize {
        let reads = |slots: &&Slots| !slots.any_within(first, end);
        self.slots.iter().take_while(reads).count()
    }

    /// The stages from one on, and those before it.
    fn split_at(mut self, index: usize) -> (Pipeline, Pipeline) {
        let rest = Pipeline {
            stages: self.stages.split_off(index),
            texts: self.texts.split_off(index),
            slots: self.slots.split_off(index),
            budget: self.budget.clone(),
        };
        (self, rest)
    }

    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Takes the first stage off, for a caller that carries it out itself (a `$match` that
    /// became the plan's filter, a source stage).
    pub fn remove_first(&mut self) -> Option<Stage> {
        if self.stages.is_empty() {
            return None;
        }
        self.texts.remove(0);
        self.slots.remove(0);
        Some(self.stages.remove(0))
    }

    /// Where the results are to be written, if the last stage says so.
    pub fn output(&self) -> Option<&Output> {
        match self.stages.last() {
            Some(Stage::Output(output)) => Some(output),
            _ => None,
        }
    }

    /// The stage that brings its own documents, if the first one does.
    pub fn source(&self) -> Option<&Stage> {
        self.stages.first().filter(|stage| stage.is_source())
    }

    /// Other collections that the pipeline reads: `(database, collection)`, the database only
    /// where it is named.
    pub fn collections_read(&self) -> Vec<(Option<String>, String)> {
        let mut names = Vec::new();
        self.stages
            .iter()
            .for_each(|stage| stage.collections_read(&mut names));
        names
    }

    /// The fields that the pipeline reads of its input.
    pub fn dependencies(&self) -> Dependencies {
        Dependencies::of(&self.stages)
    }

    /// The part for the shards and the part for the router.
    pub fn split(&self) -> Split {
        split::split(&self.stages, &self.texts)
    }

    /// A run that is fed by hand: `push` documents, then `drain`, and `pop` results.
    pub fn start(&self, sources: Option<Arc<dyn Sources>>) -> Result<Execution, QueryError> {
        self.start_within(sources, Variables::NONE)
    }

    /// A run inside a `$lookup` that has bound its variables.
    fn start_within(
        &self,
        sources: Option<Arc<dyn Sources>>,
        variables: &Variables,
    ) -> Result<Execution, QueryError> {
        Execution::new(&self.stages, sources, &self.budget, variables)
    }

    /// Runs over `input`, which may fail with an error of its own.
    pub fn run<I, D, E>(
        &self,
        input: I,
        sources: Option<Arc<dyn Sources>>,
    ) -> Result<Run<I>, QueryError>
    where
        I: Iterator<Item = Result<D, E>>,
        D: AsRef<RawDocument>,
        E: From<QueryError>,
    {
        Ok(Run::new(self.start(sources)?, input))
    }

    fn run_within(
        &self,
        input: Documents,
        sources: Option<Arc<dyn Sources>>,
        variables: &Variables,
    ) -> Result<Run<Documents>, QueryError> {
        Ok(Run::new(self.start_within(sources, variables)?, input))
    }
}

#[cfg(test)]
mod tests;
