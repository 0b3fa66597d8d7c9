//! How the foreign documents of a `$lookup` are found: by a query for each document where an index
//! serves it, or else among those that are kept (`kept.rs`). What may not be kept is read again for
//! each document.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use banyan_document::path::Path;
use bson::{RawBson, RawBsonRef, RawDocument};
use parking_lot::Mutex;

use super::kept::{Keeper, Kept};
use super::specification::{Brought, Lookup};
use crate::budget::Budget;
use crate::error::QueryError;
use crate::expression::FieldComparison;
use crate::filter::Comparison;
use crate::pipeline::execute::Execution;
use crate::pipeline::foreign::Reader;
use crate::pipeline::foreign_query::{Condition, ForeignQuery};
use crate::pipeline::pushdown;
use crate::pipeline::sequence::Pipeline;
use crate::pipeline::stage_run::{Flow, Start};
use crate::variables::Variables;

/// What is done with a document that was found.
pub(super) type Take<'t> = dyn FnMut(&RawDocument) -> Result<(), QueryError> + 't;

pub(super) struct Join {
    lookup: Arc<Lookup>,
    reader: Reader,
    budget: Budget,
    by: Option<By>,
    state: State,
    /// With those that join other parts of the input.
    shared: Option<Arc<Shared>>,
}

/// Who waits for another one that reads looks so often whether it has to end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What those keep that join the parts of one input: nothing yet, or what could be kept.
type Shared = Mutex<Option<Option<Arc<Kept>>>>;

/// The path at which the foreign documents have a value that is known of each document.
enum By {
    /// `foreignField`; the values are those of `localField`.
    Fields,
    /// An equality in the pipeline's first `$match`, by its place among the comparisons.
    Comparison(usize),
}

enum State {
    /// Nothing was read yet.
    New,
    /// A query for each document.
    Queries,
    /// The foreign documents are kept from the second document on: for one alone a query does.
    KeptFromNow,
    Kept(Arc<Kept>),
}

impl Join {
    pub fn new(lookup: Arc<Lookup>, reader: Reader, start: &Start<'_>) -> Result<Join, QueryError> {
        let mut join = Join {
            by: by(&lookup),
            shared: start.together().map(|together| together.made(&lookup)),
            lookup,
            reader,
            budget: start.budget.clone(),
            state: State::New,
        };
        if join.is_indexed()? || !join.is_worth_keeping() {
            join.state = State::Queries;
        }
        Ok(join)
    }

    /// Whether an index narrows down what a document can get.
    fn is_indexed(&self) -> Result<bool, QueryError> {
        if let Some(equality) = &self.lookup.equality
            && self.reader.is_indexed(&equality.foreign)?
        {
            return Ok(true);
        }
        for comparison in &self.lookup.leading.comparisons {
            // Without a value to look up, a range is the next best.
            if (comparison.comparison == Comparison::Eq || self.by.is_none())
                && self.reader.is_indexed(&comparison.path.to_string())?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether reading all foreign documents once saves something.
    fn is_worth_keeping(&self) -> bool {
        let lookup = &self.lookup;
        if lookup.brought == Brought::ForEach {
            return false;
        }
        // What is near a point is found by an index, and may be as many as there are.
        if lookup.leading.is_near() {
            return false;
        }
        self.by.is_some()
            || !lookup.before.is_empty()
            || !lookup.leading.plain.is_empty()
            || lookup.within.is_empty()
    }

    /// Hands on the documents that belong to one with these local values and variables.
    pub fn find(
        &mut self,
        local: &[RawBsonRef<'_>],
        variables: &Variables,
        take: &mut Take<'_>,
    ) -> Result<(), QueryError> {
        let mut constants = self.lookup.constants.iter();
        constants.try_for_each(|constant| constant.check(variables))?;
        match self.state {
            State::New if self.by.is_some() && self.shared.is_none() => {
                self.state = State::KeptFromNow;
            }
            State::New | State::KeptFromNow => {
                let kept = self.kept(variables)?;
                self.state = kept.map_or(State::Queries, State::Kept);
            }
            State::Queries | State::Kept(_) => {}
        }
        let lookup = self.lookup.clone();
        let kept = match &self.state {
            // What matches a pattern is not found by its value.
            State::Kept(kept) if !self.asks_for_matches(local) => {
                let values = self.values(local, variables)?;
                let finds = kept.can_find(values.as_deref());
                finds.then_some((kept, values))
            }
            _ => None,
        };
        let Some((kept, values)) = kept else {
            let query = self.query(local, variables)?;
            if lookup.brought != Brought::Nothing {
                return self.find_brought(&query, variables, take);
            }
            let documents = self.reader.documents(&query)?;
            let mut through = Through::new(&[&lookup.before, &lookup.within], self, variables)?;
            for document in documents {
                if through.push(&document?, take)? == Flow::Stop {
                    break;
                }
            }
            return through.drain(take);
        };
        let mut through = Through::new(&[&lookup.within], self, variables)?;
        kept.each(values.as_deref(), &mut |document| {
            self.budget.spend_bytes(document.as_bytes().len())?;
            Ok(match through.push(document, take)? {
                Flow::Stop => ControlFlow::Break(()),
                Flow::Continue | Flow::Full => ControlFlow::Continue(()),
            })
        })?;
        through.drain(take)
    }

    /// Hands on those of the documents that the pipeline brings that the query asks for.
    fn find_brought(
        &self,
        query: &ForeignQuery,
        variables: &Variables,
        take: &mut Take<'_>,
    ) -> Result<(), QueryError> {
        let filter = query.filter()?;
        let brought = Through::new(&[&self.lookup.before], self, variables)?;
        let mut through = Through::new(&[&self.lookup.within], self, variables)?;
        brought.drain(&mut |document| {
            self.budget.spend_bytes(document.as_bytes().len())?;
            if !through.stopped && filter.try_matches(document)? {
                through.push(document, take)?;
            }
            Ok(())
        })?;
        through.drain(take)
    }

    /// The values that the foreign documents have at the path; `None` if nothing is known.
    fn values(
        &self,
        local: &[RawBsonRef<'_>],
        variables: &Variables,
    ) -> Result<Option<Vec<RawBson>>, QueryError> {
        match self.by {
            None => Ok(None),
            Some(By::Fields) => Ok(Some(local.iter().map(|value| (*value).into()).collect())),
            Some(By::Comparison(index)) => {
                let Some(comparison) = self.lookup.leading.comparisons.get(index) else {
                    return Ok(None);
                };
                let value = pushdown::value(comparison, variables)?;
                Ok(value.map(|value| vec![value]))
            }
        }
    }

    fn asks_for_matches(&self, local: &[RawBsonRef<'_>]) -> bool {
        let is_regex = |value: &RawBsonRef<'_>| matches!(value, RawBsonRef::RegularExpression(_));
        let equality = self.lookup.equality.as_ref();
        equality.is_some_and(|equality| equality.takes_patterns) && local.iter().any(is_regex)
    }

    /// What a document asks of the foreign collection.
    fn query(
        &self,
        local: &[RawBsonRef<'_>],
        variables: &Variables,
    ) -> Result<ForeignQuery, QueryError> {
        let mut conditions = self.lookup.leading.conditions(variables)?;
        if let Some(equality) = &self.lookup.equality {
            let path = equality.foreign.to_string();
            let values = local.iter().map(|value| (*value).into()).collect();
            conditions.push(match self.asks_for_matches(local) {
                true => Condition::OneOfPatterns { path, values },
                false => Condition::OneOf { path, values },
            });
        }
        let collator = self.lookup.collator.as_ref();
        let query = ForeignQuery::new(conditions, collator, &self.budget);
        let query = query.scored(self.lookup.leading.is_scored());
        let query = query.told(self.lookup.leading.metadata());
        let query = query.costing(&self.lookup.cost);
        Ok(query.near_to(self.lookup.leading.near(variables)))
    }

    /// What is kept by whoever comes to it first.
    fn kept(&self, variables: &Variables) -> Result<Option<Arc<Kept>>, QueryError> {
        let Some(shared) = &self.shared else {
            return Ok(self.keep(variables)?.map(Arc::new));
        };
        let mut known = loop {
            match shared.try_lock_for(BETWEEN_LOOKS) {
                Some(known) => break known,
                // Somebody else reads, perhaps for long.
                None => self.budget.look()?,
            }
        };
        if let Some(kept) = &*known {
            return Ok(kept.clone());
        }
        let kept = self.keep(variables)?.map(Arc::new);
        Ok(known.insert(kept).clone())
    }

    /// Reads what no document has a part in; `None` if there is no room for it.
    fn keep(&self, variables: &Variables) -> Result<Option<Kept>, QueryError> {
        let lookup = &*self.lookup;
        let path = match self.by {
            None => None,
            Some(By::Fields) => lookup.equality.as_ref().map(|e| e.foreign.to_string()),
            Some(By::Comparison(index)) => {
                let comparison = lookup.leading.comparisons.get(index);
                comparison.map(|comparison| comparison.path.to_string())
            }
        };
        let path = path.and_then(|path| Path::parse(&path).ok());
        let mut keeper = Keeper::new(path, lookup.collator.clone(), &self.budget);
        match self.read(&mut keeper, variables) {
            // There is no room: what was read is given up.
            Err(_) if keeper.is_full() => Ok(None),
            Err(error) => Err(error),
            Ok(()) => keeper.finish().map(Some),
        }
    }

    fn read(&self, keeper: &mut Keeper, variables: &Variables) -> Result<(), QueryError> {
        let lookup = &*self.lookup;
        let conditions = lookup.leading.constant();
        let query = ForeignQuery::new(conditions, lookup.collator.as_ref(), &self.budget);
        let query = query.scored(lookup.leading.is_scored());
        let query = query.told(lookup.leading.metadata());
        let query = query.costing(&lookup.cost);
        let documents = self.reader.documents(&query)?;
        let mut through = Through::new(&[&lookup.before], self, variables)?;
        let mut take = |document: &RawDocument| keeper.add(document);
        for document in documents {
            let document = document?;
            self.budget.spend_bytes(document.as_bytes().len())?;
            if through.push(&document, &mut take)? == Flow::Stop {
                break;
            }
        }
        through.drain(&mut take)
    }
}

fn by(lookup: &Lookup) -> Option<By> {
    if lookup.equality.is_some() {
        return Some(By::Fields);
    }
    let is_equality = |comparison: &FieldComparison| comparison.comparison == Comparison::Eq;
    let comparisons = lookup.leading.comparisons.iter();
    comparisons
        .enumerate()
        .find(|(_, comparison)| is_equality(comparison))
        .map(|(index, _)| By::Comparison(index))
}

/// Pipelines that documents go through one after the other.
struct Through {
    executions: Vec<Execution>,
    stopped: bool,
}

impl Through {
    fn new(
        pipelines: &[&Pipeline],
        join: &Join,
        variables: &Variables,
    ) -> Result<Through, QueryError> {
        let mut executions = Vec::with_capacity(pipelines.len());
        for pipeline in pipelines.iter().filter(|pipeline| !pipeline.is_empty()) {
            executions.push(pipeline.start_within(join.reader.sources.clone(), variables)?);
        }
        Ok(Through {
            executions,
            stopped: false,
        })
    }

    fn push(&mut self, document: &RawDocument, take: &mut Take<'_>) -> Result<Flow, QueryError> {
        if self.stopped {
            return Ok(Flow::Stop);
        }
        let flow = push(&mut self.executions, document, take)?;
        self.stopped = flow == Flow::Stop;
        Ok(flow)
    }

    fn drain(mut self, take: &mut Take<'_>) -> Result<(), QueryError> {
        for index in 0..self.executions.len() {
            let Some((execution, rest)) = self
                .executions
                .get_mut(index..)
                .and_then(|all| all.split_first_mut())
            else {
                break;
            };
            let mut more = true;
            while more {
                more = execution.drain()?;
                while let Some(document) = execution.pop()? {
                    push(rest, &document, take)?;
                }
            }
        }
        Ok(())
    }
}

fn push(
    executions: &mut [Execution],
    document: &RawDocument,
    take: &mut Take<'_>,
) -> Result<Flow, QueryError> {
    let Some((execution, rest)) = executions.split_first_mut() else {
        take(document)?;
        return Ok(Flow::Continue);
    };
    let mut flow = execution.push(document)?;
    while let Some(document) = execution.pop()? {
        if push(rest, &document, take)? == Flow::Stop {
            flow = Flow::Stop;
        }
    }
    Ok(flow)
}
