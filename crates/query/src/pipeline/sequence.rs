//! A pipeline: stages, one behind the other.

use std::sync::Arc;

use banyan_document::{Collator, DocumentWriter};
use bson::{RawArray, RawDocument, RawDocumentBuf};

use super::dependencies::Dependencies;
use super::execute::{Execution, Run};
use super::foreign::{Documents, Sources};
use super::member::{self, Member};
use super::output::Output;
use super::stage::Stage;
use super::stage_run::Feeding;
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::memory::Together;
use crate::metadata::MetadataSet;
use crate::variables::{Slots, Variables};

/// Parses the pipeline inside the stage that it is told the name of. It knows all stages, which
/// none of them does; those with pipelines inside are given it.
pub(super) type ParseInner = fn(&str, &RawArray, &Context) -> Result<Pipeline, QueryError>;

#[derive(Clone, Debug, Default)]
pub struct Pipeline {
    pub(super) members: Vec<Member>,
    /// What running it may use.
    pub(super) budget: Budget,
    /// How all of it compares strings; without one, by their bytes.
    pub(super) collator: Option<Collator>,
    /// Whether it needs the scores of the search that it begins with.
    pub(super) needs_text_score: bool,
    /// What else it needs to know of the documents that it begins with.
    pub(super) metadata: MetadataSet,
}

impl Pipeline {
    pub(super) fn empty(context: &Context) -> Pipeline {
        Pipeline {
            members: Vec::new(),
            budget: context.budget.clone(),
            collator: context.collator.clone(),
            needs_text_score: false,
            metadata: MetadataSet::default(),
        }
    }

    /// How all of it compares strings; `None`: by their bytes.
    pub fn collator(&self) -> Option<&Collator> {
        self.collator.as_ref()
    }

    /// Whether it needs the scores of the search that it begins with.
    pub fn needs_text_score(&self) -> bool {
        self.needs_text_score
    }

    /// What it needs to know of the documents that it begins with, beside their fields.
    pub fn metadata(&self) -> MetadataSet {
        self.metadata
    }

    pub(super) fn without_stages(&self) -> Pipeline {
        Pipeline {
            members: Vec::new(),
            budget: self.budget.clone(),
            collator: self.collator.clone(),
            needs_text_score: self.needs_text_score,
            metadata: self.metadata,
        }
    }

    pub(super) fn push(&mut self, stage: Arc<dyn Stage>) {
        self.members.push(Member {
            stage,
            slots: Slots::default(),
        });
    }

    pub(super) fn put_first(&mut self, stage: Arc<dyn Stage>, slots: Slots) {
        self.members.insert(0, Member { stage, slots });
    }

    /// How many of the first stages read none of the variables in these slots.
    pub(super) fn independent(&self, first: usize, end: usize) -> usize {
        let reads = |member: &&Member| !member.slots.any_within(first, end);
        self.members.iter().take_while(reads).count()
    }

    /// The stages before `index`, and those from it on.
    pub(super) fn split_at(mut self, index: usize) -> (Pipeline, Pipeline) {
        let rest = Pipeline {
            members: self.members.split_off(index),
            budget: self.budget.clone(),
            collator: self.collator.clone(),
            needs_text_score: self.needs_text_score,
            metadata: self.metadata,
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
    pub(super) fn serialize(&self, name: &str, out: &mut DocumentWriter) {
        out.begin_array(name);
        self.serialize_stages(out);
        out.end();
    }

    /// Writes the stages into the array that is open.
    pub(super) fn serialize_stages(&self, out: &mut DocumentWriter) {
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
        member::dependencies(&self.members)
    }

    /// The fields that the stages behind the first so many read of their input.
    pub fn dependencies_behind(&self, stages: usize) -> Dependencies {
        member::dependencies(self.members.get(stages..).unwrap_or_default())
    }

    /// Puts a stage in the place of the first one.
    pub fn replace_first(&mut self, stage: Arc<dyn Stage>) {
        if let Some(first) = self.members.first_mut() {
            first.stage = stage;
        }
    }

    /// The first stages up to one that gathers its input, if they can be run over parts of the
    /// input at the same time ([`Run::gather`]).
    pub fn gathering(&self) -> Option<Pipeline> {
        let gathers = |member: &Member| member.stage.gathers();
        let end = self.members.iter().position(gathers)?;
        let (before, _) = self.members.split_at(end);
        let run_in_parts = before.iter().all(|member| member.stage.runs_in_parts());
        run_in_parts.then(|| Pipeline {
            members: self.members.iter().take(end + 1).cloned().collect(),
            ..self.without_stages()
        })
    }

    /// The first stages, as far as they can be run over parts of the input at the same time and hand on
    /// no more documents than they are given; whoever runs them has the others skip them
    /// ([`Run::skip_stages`]).
    pub fn streaming(&self) -> Pipeline {
        let streams =
            |member: &&Member| member.stage.runs_in_parts() && member.stage.makes_at_most_one();
        Pipeline {
            members: self.members.iter().take_while(streams).cloned().collect(),
            ..self.without_stages()
        }
    }

    /// How many stages there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// A run that the caller feeds: `push` documents, then `drain`, and `pop` results.
    pub fn start(&self, sources: Option<Arc<dyn Sources>>) -> Result<Execution, QueryError> {
        self.start_within(sources, Variables::NONE)
    }

    /// A run over a part of the input, one of several that hold memory together.
    pub fn start_part(
        &self,
        sources: Option<Arc<dyn Sources>>,
        together: &Arc<Together>,
    ) -> Result<Execution, QueryError> {
        self.execution(sources, Variables::NONE, Feeding::InParts(together))
    }

    /// A run inside a `$lookup` that has bound its variables.
    pub(super) fn start_within(
        &self,
        sources: Option<Arc<dyn Sources>>,
        variables: &Variables,
    ) -> Result<Execution, QueryError> {
        self.execution(sources, variables, Feeding::OneByOne)
    }

    /// A run that may keep documents until more come, or until it is asked for them.
    pub fn start_ahead(&self, sources: Option<Arc<dyn Sources>>) -> Result<Execution, QueryError> {
        self.execution(sources, Variables::NONE, Feeding::InBatches)
    }

    fn execution(
        &self,
        sources: Option<Arc<dyn Sources>>,
        variables: &Variables,
        feeding: Feeding<'_>,
    ) -> Result<Execution, QueryError> {
        Execution::new(&self.members, sources, &self.budget, variables, feeding)
    }

    /// Runs over `input`, which may fail with an error of its own.
    pub fn run<I, D, E>(
        &self,
        input: I,
        sources: Option<Arc<dyn Sources>>,
    ) -> Result<Run<I, E>, QueryError>
    where
        I: Iterator<Item = Result<D, E>>,
        D: AsRef<RawDocument>,
        E: From<QueryError>,
    {
        let execution = self.start_ahead(sources)?;
        Ok(Run::new(execution, input))
    }

    pub(super) fn run_within(
        &self,
        input: Documents,
        sources: Option<Arc<dyn Sources>>,
        variables: &Variables,
    ) -> Result<Run<Documents>, QueryError> {
        let execution = self.execution(sources, variables, Feeding::InBatches)?;
        Ok(Run::new(execution, input))
    }
}
