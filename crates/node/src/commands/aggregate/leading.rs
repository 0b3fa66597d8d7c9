//! What the first stages of a pipeline ask of its collection.

use std::collections::BTreeSet;
use std::sync::Arc;

use banyan_execution::{Distinct, DistinctOf, Goal, Request};
use banyan_query::QueryError;
use banyan_query::canonical::{CanonicalQuery, Order, TextScore};
use banyan_query::filter::Filter;
use banyan_query::metadata::MetadataSet;
use banyan_query::pipeline::{
    Dependencies, GeoNear, Group, Limit, Match, NearFields, Pipeline, Representative, Sample, Sort,
    SortKey,
};
use banyan_wire::CommandError;

use super::parameters::Parameters;
use crate::commands::pipeline_sources;
use crate::context::CommandContext;
use crate::errors;

/// What the first stages ask of the collection.
pub(super) struct Leading {
    pub filter: Arc<Filter>,
    /// The sort right behind the filters.
    sort: Option<SortKey>,
    /// A limit right behind them.
    limit: Option<u64>,
    /// The paths that the stages behind read; `None`: whole documents.
    reads: Option<Arc<BTreeSet<String>>>,
    /// What a group right behind takes one document of each value for.
    distinct: Option<Distinct>,
    /// So many documents are drawn at random.
    sample: Option<u64>,
    /// A group right behind the filters counts documents, and does nothing else.
    counts: bool,
    /// Stages ask for the scores of a search.
    is_scored: bool,
    /// What else they ask to know of documents.
    metadata: MetadataSet,
    /// What documents are told of their distances: the first stage asks what is near.
    pub near: Option<Arc<NearFields>>,
}

impl Leading {
    pub fn of(
        ctx: &CommandContext<'_>,
        collection: &str,
        pipeline: &Pipeline,
    ) -> Result<Leading, CommandError> {
        if let Some(near) = pipeline.first().and_then(|first| first.get::<GeoNear>()) {
            return Leading::of_near(ctx, collection, pipeline, near);
        }
        let mut filters = Vec::new();
        let (mut sort, mut limit) = (None, None);
        let (mut taken, mut distinct, mut counts) = (0, None, false);
        for stage in pipeline.stages() {
            if let Some(matching) = stage.get::<Match>() {
                filters.push(&matching.filter);
                taken += 1;
                continue;
            }
            if let Some(Limit(count)) = stage.get() {
                limit = Some(*count);
            } else if let Some(stage) = stage.get::<Sort>() {
                sort = Some(stage.key.clone());
                limit = stage.limit;
                taken += 1;
            }
            break;
        }
        if let Some(group) = pipeline
            .stages()
            .nth(taken)
            .and_then(|stage| stage.get::<Group>())
        {
            counts = group.counts() && sort.is_none();
            distinct = group.representative().map(|(path, document)| Distinct {
                path,
                of: match document {
                    Representative::Any => DistinctOf::Groups,
                    Representative::First => DistinctOf::First,
                    Representative::Last => DistinctOf::Last,
                },
            });
        }
        let sample = pipeline.first().and_then(|stage| stage.get::<Sample>());
        let sample = sample.map(|sample| sample.size);
        let reads = match pipeline.dependencies_behind(taken) {
            Dependencies::Whole => None,
            Dependencies::Paths(paths) => Some(Arc::new(paths)),
        };
        let filter = match filters.as_slice() {
            [only] => (*only).clone(),
            several => {
                let filters = several.iter().map(|filter| &***filter);
                let collator = pipeline.collator().cloned();
                let joined = Filter::conjunction(filters, collator, pipeline.budget());
                Arc::new(joined.map_err(errors::query)?)
            }
        };
        Ok(Leading {
            filter,
            sort,
            limit,
            reads,
            distinct,
            sample,
            counts,
            is_scored: pipeline.needs_text_score(),
            metadata: pipeline.metadata(),
            near: None,
        })
    }

    fn of_near(
        ctx: &CommandContext<'_>,
        collection: &str,
        pipeline: &Pipeline,
        near: &GeoNear,
    ) -> Result<Leading, CommandError> {
        let catalog = ctx.node.replica.store.catalog();
        let filter = pipeline_sources::near_filter(&catalog, ctx.database(), collection, near);
        let limit = pipeline.stages().nth(1);
        let limit = limit.and_then(|stage| stage.get::<Limit>());
        Ok(Leading {
            filter: filter.map_err(errors::query)?,
            sort: None,
            limit: limit.map(|Limit(count)| *count),
            reads: None,
            distinct: None,
            sample: None,
            counts: false,
            is_scored: false,
            metadata: pipeline.metadata(),
            near: Some(near.fields.clone()),
        })
    }

    pub fn request<'a>(self, ctx: &CommandContext<'_>, parameters: &Parameters<'a>) -> Request<'a> {
        let pattern = self.sort.map(|sort| sort.pattern);
        let query = CanonicalQuery {
            order: pattern.map_or(Order::Any, Order::By),
            limit: self.limit,
            // The pipeline drops them.
            text_score: match self.is_scored {
                true => TextScore::Kept,
                false => TextScore::Unused,
            },
            metadata: self.metadata,
            ..CanonicalQuery::of_filter(self.filter)
        };
        Request {
            query: Arc::new(query),
            hint: parameters.hint,
            reads: self.reads,
            distinct: self.distinct,
            sample: self.sample,
            near: self.near,
            // The pipeline drops it.
            keeps_metadata: true,
            goal: match self.counts {
                true => Goal::Count,
                false => Goal::Documents,
            },
            budget: ctx.budget(),
            ..Request::default()
        }
    }
}

/// Takes the stages off that the plan has taken over.
pub(super) fn take_leading(pipeline: &mut Pipeline) {
    if pipeline.first().is_some_and(|stage| stage.is::<GeoNear>()) {
        pipeline.remove_first();
        return;
    }
    while pipeline.take_match().is_some() {}
    if pipeline.first().is_some_and(|stage| stage.is::<Sort>()) {
        pipeline.remove_first();
    }
}

/// Has the group that counts make its result of one document, as the count is known.
pub(super) fn put_count(pipeline: &mut Pipeline, count: u64) -> Result<(), QueryError> {
    if let Some(group) = pipeline.first().and_then(|stage| stage.get::<Group>()) {
        let group = group.of_count(count)?;
        pipeline.replace_first(group);
    }
    Ok(())
}
