//! $match

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use banyan_document::{DocumentWriter, elements};

use super::ahead::{Ahead, Scripted};
use super::sequence::Pipeline;
use super::stage::{Changes, Division, Reads, Stage};
use super::stage_run::{Flow, Next, StageRun, Start};
use crate::budget::Budget;
use crate::context::Context;
use crate::error::QueryError;
use crate::expression::value::error;
use crate::filter::Filter;
use crate::variables::Variables;

#[derive(Clone, Debug)]
pub struct Match {
    pub filter: Arc<Filter>,
    /// As it was written.
    pub source: RawDocumentBuf,
}

pub(super) fn parse(
    value: RawBsonRef<'_>,
    context: &Context,
    out: &mut Vec<Arc<dyn Stage>>,
) -> Result<(), QueryError> {
    let RawBsonRef::Document(document) = value else {
        return error(15959, "the match filter must be an expression in an object");
    };
    if names_where(document) {
        return Err(QueryError::bad_value(
            "$where is not allowed in this context",
        ));
    }
    out.push(Arc::new(Match::new(
        document,
        Filter::parse(document, context)?,
    )));
    Ok(())
}

/// Whether a script is to choose documents, which only a `find` and its like may ask for.
pub fn names_where(filter: &RawDocument) -> bool {
    elements(filter).any(|element| match (element.name(), element.value()) {
        ("$where", _) => true,
        ("$and" | "$or" | "$nor", RawBsonRef::Array(branches)) => {
            let mut branches = branches.into_iter().flatten();
            branches.any(|branch| branch.as_document().is_some_and(names_where))
        }
        _ => false,
    })
}

impl Match {
    pub fn new(source: &RawDocument, filter: Filter) -> Match {
        Match {
            filter: Arc::new(filter),
            source: source.to_owned(),
        }
    }

    /// What all of several let through.
    pub fn all(stages: &[&Match], budget: &Budget) -> Result<Match, QueryError> {
        let filters = stages.iter().map(|stage| &*stage.filter);
        let mut source = DocumentWriter::new();
        source.begin_array("$and");
        for stage in stages {
            source.push(RawBsonRef::Document(&stage.source));
        }
        source.end();
        // They are of one pipeline, which has one collation.
        let collator = stages.first().and_then(|stage| stage.filter.collator());
        let filter = Filter::conjunction(filters, collator.cloned(), budget)?;
        Ok(Match::new(&source.finish(), filter))
    }

    /// The filter with the values of the variables around it.
    fn filter_within(&self, variables: &Variables) -> Arc<Filter> {
        if variables.is_empty() || !self.filter.computes() {
            return self.filter.clone();
        }
        Arc::new(self.filter.bind(variables))
    }
}

impl Pipeline {
    /// Takes the first stage off if it is a `$match`.
    pub fn take_match(&mut self) -> Option<Match> {
        let stage = self.first()?.get::<Match>()?.clone();
        self.remove_first();
        Some(stage)
    }
}

impl Stage for Match {
    fn name(&self) -> &'static str {
        "$match"
    }

    fn serialize(&self, out: &mut DocumentWriter) {
        out.append_doc(self.name(), &self.source);
    }

    fn reads(&self, paths: &mut BTreeSet<String>) -> Reads {
        match self.filter.dependencies(paths) {
            true => Reads::AndPasses,
            false => Reads::Everything,
        }
    }

    fn changes(&self) -> Changes {
        Changes::nothing()
    }

    fn split(&self) -> Division {
        Division::Shards
    }

    fn makes_at_most_one(&self) -> bool {
        true
    }

    fn run(self: Arc<Self>, start: &Start<'_>) -> Result<Box<dyn StageRun>, QueryError> {
        let run = MatchRun {
            filter: self.filter_within(start.variables),
        };
        let calls_script = start.may_keep() && self.filter.calls_script();
        Ok(Ahead::of(run, calls_script, start))
    }
}

struct MatchRun {
    filter: Arc<Filter>,
}

impl StageRun for MatchRun {
    fn push(&mut self, document: &RawDocument, next: &mut Next<'_>) -> Result<Flow, QueryError> {
        let matches = self.work_out(document)?;
        self.hand_on(document, matches, next)
    }
}

impl Scripted for MatchRun {
    type Found = bool;

    fn work_out(&mut self, document: &RawDocument) -> Result<bool, QueryError> {
        self.filter.try_matches(document)
    }

    fn hand_on(
        &mut self,
        document: &RawDocument,
        matches: bool,
        next: &mut Next<'_>,
    ) -> Result<Flow, QueryError> {
        match matches {
            true => next.push(document),
            false => Ok(Flow::Continue),
        }
    }
}
