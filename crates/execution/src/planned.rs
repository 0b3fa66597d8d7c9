//! From a request to a plan that runs: the plan cache is asked, or a trial decides.

use std::sync::Arc;

use banyan_query::{ErrorKind, QueryError};
use banyan_storage::Collection;
use bson::RawDocument;

use crate::cache::{
    CandidateStats, CollectionQueryInfo, Creation, PlanCache, PlanCacheKey, PlanName,
};
use crate::executor::Executor;
use crate::interrupt::InterruptSlot;
use crate::operators::sort_pattern;
use crate::plan::{self, Solution};
use crate::request::{ReadView, Request};
use crate::stats::Choice;
use crate::trial;

/// So many records are looked at in place. At some microseconds each, if their blocks are in memory,
/// they hold up the connections that share a worker for less than a millisecond.
const IN_PLACE_MAX: u64 = 64;

/// A request for which the ways that may serve are known, and nothing has been read.
pub struct Planned<'a> {
    view: ReadView,
    request: Request<'a>,
    solutions: Vec<Solution>,
    has_index_filter: bool,
}

impl<'a> Planned<'a> {
    pub fn new(view: ReadView, request: Request<'a>) -> Result<Planned<'a>, QueryError> {
        let collection = view.collection.as_ref();
        let filter = collection.and_then(|collection| {
            let info = CollectionQueryInfo::of(collection);
            info.index_filters.of(&request.query)
        });
        let solutions = match plan::sample::solution(&view, &request)? {
            Some(sample) => vec![sample],
            None => match as_settings_say(collection, &request)? {
                Some(solutions) => solutions,
                None => {
                    let allowed = filter.as_ref().map(|filter| &filter.indexes);
                    plan::solutions(collection, &request, allowed)?
                }
            },
        };
        Ok(Planned {
            view,
            request,
            solutions,
            has_index_filter: filter.is_some(),
        })
    }

    /// Whether so few records will be looked at that it can be done in place.
    pub fn is_small(&self) -> bool {
        // What shards do not own is passed over, however much that is.
        let wanted = self.request.wanted();
        let wanted = wanted.filter(|_| self.request.shard_filter.is_none());
        match &self.solutions[..] {
            [only] => {
                let records = only.records_at_most(wanted);
                records.is_some_and(|records| records <= IN_PLACE_MAX)
            }
            // A trial of several ends with the record that a unique index finds.
            [first, ..] => first.records_at_most(None).is_some(),
            [] => false,
        }
    }

    /// Begins to run. What a plan has found while it was tried is not looked for again.
    pub fn open(self, slot: &Arc<InterruptSlot>) -> Result<Executor, QueryError> {
        let mut executor = match (self.solutions.as_slice(), &self.view.collection) {
            ([], _) | (_, None) => self.executor(&Solution::nothing(), slot)?,
            ([only], _) => self.executor(only, slot)?,
            (_, Some(collection)) => self.choose(collection, slot)?,
        };
        executor.has_index_filter = self.has_index_filter;
        Ok(executor)
    }

    fn executor(
        &self,
        solution: &Solution,
        slot: &Arc<InterruptSlot>,
    ) -> Result<Executor, QueryError> {
        Executor::new(&self.view, &self.request, solution, slot)
    }

    /// Runs the plan that the cache names, or tries all.
    fn choose(
        &self,
        collection: &Collection,
        slot: &Arc<InterruptSlot>,
    ) -> Result<Executor, QueryError> {
        let key = PlanCacheKey::of(&self.request.query, &self.solutions);
        let mut choice = Choice {
            plan_cache_key: key.hash(),
            ..Choice::default()
        };
        if self.request.explains {
            choice.from_multi_planner = true;
            let executor = self.try_all(slot, |_| {})?;
            executor.stats.choose(choice);
            return Ok(executor);
        }
        let info = CollectionQueryInfo::of(collection);
        let cache = &info.plan_cache;
        if let Some((plan, works)) = cache.active(collection, &key)
            && let Some(solution) = self.solutions.iter().find(|s| PlanName::of(s) == plan)
        {
            let mut executor = self.executor(solution, slot)?;
            let replan_reason = trial::run_cached(&mut executor, self.request.wanted(), works)?;
            if replan_reason.is_none() {
                executor.stats.choose(choice);
                return Ok(executor);
            }
            cache.deactivate(collection, &key);
            choice.replan_reason = replan_reason;
        }
        choice.from_multi_planner = true;
        let executor = self.try_all(slot, |trial| self.learn(collection, cache, key, trial))?;
        executor.stats.choose(choice);
        Ok(executor)
    }

    /// Tries all plans and goes on with the best.
    fn try_all(
        &self,
        slot: &Arc<InterruptSlot>,
        learn: impl FnOnce(&Trial<'_>),
    ) -> Result<Executor, QueryError> {
        let open = |solution: &Solution| self.executor(solution, slot);
        let mut executors = self
            .solutions
            .iter()
            .map(open)
            .collect::<Result<Vec<_>, _>>()?;
        let costs: Vec<_> = self.solutions.iter().map(Solution::work_cost).collect();
        let decision = trial::choose(&mut executors, &costs, self.request.wanted())?;
        let trial = Trial {
            executors: &executors,
            chosen: decision.chosen,
            scores: &decision.scores,
        };
        learn(&trial);
        let candidates = match self.request.explains {
            true => trial.candidates(true),
            false => Vec::new(),
        };
        let mut executor = executors.swap_remove(decision.chosen);
        // Those that lost end here: they hold the snapshot, and what they have read.
        drop(executors);
        executor.candidates = candidates;
        if self.request.explains {
            let solutions = self.solutions.iter().enumerate();
            let rejected = solutions.filter(|(number, _)| *number != decision.chosen);
            executor.rejected = rejected
                .map(|(_, other)| plan::build(self.view.collection.as_ref(), &self.request, other))
                .collect::<Result<_, _>>()?;
        }
        Ok(executor)
    }

    fn learn(
        &self,
        collection: &Collection,
        cache: &PlanCache,
        key: PlanCacheKey,
        trial: &Trial<'_>,
    ) {
        let (Some(solution), Some(executor)) = (
            self.solutions.get(trial.chosen),
            trial.executors.get(trial.chosen),
        ) else {
            return;
        };
        let (plan, works) = (PlanName::of(solution), executor.works());
        cache.learn(collection, key, plan, works, || {
            let query = &self.request.query;
            let written = &self.request.created_from;
            let filter = written.filter.map(RawDocument::to_owned);
            let projection = written.projection.map(RawDocument::to_owned);
            Creation {
                query: filter.unwrap_or_else(|| query.filter.to_document()),
                sort: query.order.pattern().map(sort_pattern).unwrap_or_default(),
                projection: projection.unwrap_or_default(),
                collation: query.collator().map(|c| c.collation().to_document()),
                plan: executor.explain_plan(),
                candidates: trial.candidates(false),
                has_index_filter: self.has_index_filter,
                ..Creation::default()
            }
        });
    }
}

/// The ways that a query's settings leave. `None`: they say nothing, or leave none, so that it is
/// planned as if they did not.
fn as_settings_say(
    collection: Option<&Arc<Collection>>,
    request: &Request<'_>,
) -> Result<Option<Vec<Solution>>, QueryError> {
    let Some(allowed) = request.settings.as_deref() else {
        return Ok(None);
    };
    match plan::solutions(collection, request, Some(allowed)) {
        Ok(solutions) => {
            let scans = solutions.iter().any(Solution::is_collection_scan);
            Ok((!scans || allowed.allows_scan()).then_some(solutions))
        }
        Err(error) if error.kind == ErrorKind::NoQueryExecutionPlans => Ok(None),
        Err(error) => Err(error),
    }
}

/// A trial that is over.
struct Trial<'t> {
    executors: &'t [Executor],
    chosen: usize,
    scores: &'t [f64],
}

impl Trial<'_> {
    /// What the plans have done, the best first.
    fn candidates(&self, with_scores: bool) -> Vec<CandidateStats> {
        let plans = self.executors.iter().zip(self.scores).enumerate();
        let mut candidates: Vec<_> = plans
            .map(|(number, (executor, score))| {
                let stats = executor.explain_trial(with_scores.then_some(*score));
                let score = *score;
                (number != self.chosen, CandidateStats { score, stats })
            })
            .collect();
        candidates
            .sort_by(|(lost, a), (other, b)| lost.cmp(other).then(b.score.total_cmp(&a.score)));
        candidates.into_iter().map(|(_, stats)| stats).collect()
    }
}
