//! Aggregation pipelines: parsed into stages, run document by document.
//!
//! `stage.rs` says what a stage is; each has a file of its own, and a row in `table.rs`. What was
//! parsed is put into the form in which it runs by the passes in `optimizer`. A running pipeline
//! (`execute.rs`) pushes borrowed documents through the runs of its stages: nothing is copied on the
//! way unless a stage makes a new document, and only what leaves the last run is owned. Runs that
//! hold documents back (`$group`, `$sort`) hand them on when the input has ended.
//!
//! What needs other collections is left to the caller: `$lookup` and its like read through
//! `Sources`, `$out` and `$merge` are described by `Pipeline::output` and carried out by whoever
//! runs the pipeline. `split.rs` divides a pipeline between the shards and the router.

mod accumulator;
mod bucket;
mod bucket_auto;
mod densify;
mod dependencies;
mod documents;
mod execute;
mod facet;
mod fill;
mod foreign;
mod foreign_query;
mod granularity;
mod group;
mod limit;
mod lookup;
mod matching;
mod optimizer;
mod output;
mod project;
mod pushdown;
mod redact;
mod replace;
mod sample;
mod sort;
mod source;
mod specification;
mod split;
mod stage;
mod table;
mod union;
mod unwind;
mod window;

use std::sync::Arc;

use banyan_document::{Collator, DocumentWriter};
use bson::{RawDocument, RawDocumentBuf};

use crate::budget::Budget;
use crate::context::Context;
use crate::error::{ErrorKind, QueryError};
use crate::variables::{Slots, Variables};

pub use dependencies::Dependencies;
pub use execute::{Drained, Execution, Flow, Next, Run, StageRun, Start};
pub use foreign::{Documents, Sources};
pub use foreign_query::ForeignQuery;
pub use group::{Group, Representative};
pub use limit::{Limit, Skip};
pub use lookup::Lookup;
pub use matching::Match;
pub use output::{Merge, Output, WhenMatched, WhenNotMatched};
pub use project::Projector;
pub use redact::Redact;
pub use replace::ReplaceRoot;
pub use sample::Sample;
pub use sort::{Sort, SortKey};
pub use source::Source;
pub use split::Split;
pub use stage::{Changes, Division, Reads, Stage};
pub use union::UnionWith;
pub use unwind::Unwind;

/// More stages than anyone writes by hand.
const STAGES_MAX: usize = 1000;

#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    members: Vec<Member>,
    /// What running it may use.
    budget: Budget,
    /// How all of it compares strings; without one, by their bytes.
    collator: Option<Collator>,
}

/// A stage in its pipeline.
#[derive(Clone, Debug)]
struct Member {
    stage: Arc<dyn Stage>,
    /// The variables of `$lookup` stages around that it reads.
    slots: Slots,
}

impl Pipeline {
    /// Parses the stages and puts them into the form in which they run.
    pub fn parse(stages: &[&RawDocument], context: &Context) -> Result<Pipeline, QueryError> {
        let mut members = Pipeline::members(stages, context)?;
        optimizer::optimize(&mut members, &context.budget)?;
        Ok(Pipeline {
            members,
            budget: context.budget.clone(),
            collator: context.collator.clone(),
        })
    }

    /// The stages as they were written.
    fn members(stages: &[&RawDocument], context: &Context) -> Result<Vec<Member>, QueryError> {
        if stages.len() > STAGES_MAX {
            return Err(QueryError::new(
                ErrorKind::Location(7749501),
                format!("Pipeline length must be no longer than {STAGES_MAX} stages"),
            ));
        }
        let (mut members, mut parsed) = (Vec::with_capacity(stages.len()), Vec::new());
        for (index, stage) in stages.iter().enumerate() {
            let position = table::Position {
                first: index == 0,
                last: index + 1 == stages.len(),
            };
            let parse = || table::parse(stage, position, context, &mut parsed);
            let (result, slots) = context.scope.recording(parse);
            result?;
            members.extend(parsed.drain(..).map(|stage| Member { stage, slots }));
        }
        Ok(members)
    }

    fn empty(context: &Context) -> Pipeline {
        Pipeline {
            members: Vec::new(),
            budget: context.budget.clone(),
            collator: context.collator.clone(),
        }
    }

    /// How all of it compares strings; `None`: by their bytes.
    pub fn collator(&self) -> Option<&Collator> {
        self.collator.as_ref()
    }

    fn without_stages(&self) -> Pipeline {
        Pipeline {
            members: Vec::new(),
            budget: self.budget.clone(),
            collator: self.collator.clone(),
        }
    }

    fn push(&mut self, stage: Arc<dyn Stage>) {
        self.members.push(Member {
            stage,
            slots: Slots::default(),
        });
    }

    fn put_first(&mut self, stage: Arc<dyn Stage>, slots: Slots) {
        self.members.insert(0, Member { stage, slots });
    }

    /// How many of the first stages read none of the variables in these slots.
    fn independent(&self, first: usize, end: usize) -> usize {
        let reads = |member: &&Member| !member.slots.any_within(first, end);
        self.members.iter().take_while(reads).count()
    }

    /// The stages before `index`, and those from it on.
    fn split_at(mut self, index: usize) -> (Pipeline, Pipeline) {
        let rest = Pipeline {
            members: self.members.split_off(index),
            budget: self.budget.clone(),
            collator: self.collator.clone(),
        };
        (self, rest)
    }

    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    pub fn stages(&self) -> impl Iterator<Item = &Arc<dyn Stage>> {
        self.members.iter().map(|member| &member.stage)
    }

    pub fn first(&self) -> Option<&dyn Stage> {
        self.members.first().map(|member| &*member.stage)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Takes the first stage off, for a caller that carries it out itself (a `$match` that
    /// became the plan's filter, a source stage).
    pub fn remove_first(&mut self) -> Option<Arc<dyn Stage>> {
        if self.members.is_empty() {
            return None;
        }
        Some(self.members.remove(0).stage)
    }

    /// Takes the first stage off if it is a `$match`.
    pub fn take_match(&mut self) -> Option<Match> {
        let stage = self.first()?.get::<Match>()?.clone();
        self.remove_first();
        Some(stage)
    }

    /// Where the results are to be written, if the last stage says so.
    pub fn output(&self) -> Option<&Output> {
        self.members.last().and_then(|last| last.stage.output())
    }

    /// The stage that brings its own documents, if the first one does.
    pub fn source(&self) -> Option<&dyn Stage> {
        self.first().filter(|stage| stage.is_source())
    }

    /// The stages as documents, which parse to the same pipeline.
    pub fn to_documents(&self) -> Vec<RawDocumentBuf> {
        self.stages().map(|stage| stage.to_document()).collect()
    }

    /// Writes the stages as an array.
    fn serialize(&self, name: &str, out: &mut DocumentWriter) {
        out.begin_array(name);
        self.serialize_stages(out);
        out.end();
    }

    /// Writes the stages into the array that is open.
    fn serialize_stages(&self, out: &mut DocumentWriter) {
        for stage in self.stages() {
            out.push_document();
            stage.serialize(out);
            out.end();
        }
    }

    /// Other collections that the pipeline reads: `(database, collection)`, the database only
    /// where it is named.
    pub fn collections_read(&self) -> Vec<(Option<String>, String)> {
        let mut names = Vec::new();
        self.stages()
            .for_each(|stage| stage.collections_read(&mut names));
        names
    }

    /// The fields that the pipeline reads of its input.
    pub fn dependencies(&self) -> Dependencies {
        Dependencies::of(&self.members)
    }

    /// The fields that the stages behind the first so many read of their input.
    pub fn dependencies_behind(&self, stages: usize) -> Dependencies {
        Dependencies::of(self.members.get(stages..).unwrap_or_default())
    }

    /// Puts a stage in the place of the first one.
    pub fn replace_first(&mut self, stage: Arc<dyn Stage>) {
        if let Some(first) = self.members.first_mut() {
            first.stage = stage;
        }
    }

    /// The part for the shards and the part for the router.
    pub fn split(&self) -> Split {
        split::split(self)
    }

    /// The first stages up to one that gathers its input, if they can be run over parts of the
    /// input at the same time ([`Run::gather`]).
    pub fn gathering(&self) -> Option<Pipeline> {
        let gathers = |member: &Member| member.stage.gathers();
        let end = self.members.iter().position(gathers)?;
        let (before, _) = self.members.split_at(end);
        let is_alone = |member: &Member| {
            let mut read = Vec::new();
            member.stage.collections_read(&mut read);
            matches!(member.stage.split(), Division::Shards) && read.is_empty()
        };
        before.iter().all(is_alone).then(|| Pipeline {
            members: self.members.iter().take(end + 1).cloned().collect(),
            ..self.without_stages()
        })
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
        Execution::new(&self.members, sources, &self.budget, variables)
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
mod spilled_tests;
#[cfg(test)]
mod tests;
