//! `aggregate`: a pipeline over a collection, as a cursor.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_execution::{
    Distinct, DistinctOf, Executor, Goal, InterruptSlot, PlanSummaryStats, Request, Row, Rows,
};
use banyan_query::canonical::{CanonicalQuery, Order, TextScore};
use banyan_query::filter::Filter;
use banyan_query::metadata::MetadataSet;
use banyan_query::pipeline::{
    self, Dependencies, Execution, Flow, GeoNear, Group, Limit, Match, NearFields, Output,
    Pipeline, Representative, Sample, Sort, SortKey,
};
use banyan_query::query_settings::PARAMETER;
use banyan_query::view::Resolved;
use banyan_query::{Context, QueryError};
use banyan_replication::set::write_concern::WriteConcern;
use banyan_storage::Namespace;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::explanation::{Around, Verbosity, explain_run, finish};
use super::pipeline_rows::{Gathering, Input, PipelineRows, Streaming};
use super::table::{self, BoxFuture, CommandResult, CommandSpec};
use super::time_series;
use super::validation::BYPASS;
use super::write_report;
use super::{change_stream, out, pipeline_sources};
use crate::collation::Asked;
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::cursors::Cursor;
use crate::cursors::first::{self, BatchOptions};
use crate::errors;
use crate::names::check_outline;
use crate::params::{self, Field};
use crate::read_concern;
use crate::reads::{self, query_context};
use crate::views::{self, sharded};

pub static SPEC: CommandSpec = CommandSpec::new("aggregate", table::Run::Future(run))
    .access(Access::Checked(reads_and_writes::aggregate))
    .in_transaction()
    .fields(&[
        "pipeline",
        "cursor",
        "explain",
        "hint",
        "let",
        "collation",
        "allowDiskUse",
        "needsMerge",
        BYPASS,
        collection_uuid::FIELD,
    ])
    .ignored(&[
        PARAMETER,
        "fromMongos",
        "includeQueryStatsMetrics",
        "isMapReduceCommand",
        "runtimeConstants",
    ])
    .form(check_form)
    .explained(check_explained)
    .takes_concern()
    .computes();

/// What fields of all commands have to be that the parser of this one reads as its own.
fn check_form(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "maxTimeMS" if !field.is_null() => check_time(field),
        "readConcern" | "runtimeConstants" => field.document_or_null().map(drop),
        BYPASS => field.bool().map(drop),
        collection_uuid::FIELD => collection_uuid::check_form(field),
        "needsMerge" | "fromMongos" | "isMapReduceCommand" => field.strict_bool().map(drop),
        _ => Ok(()),
    }
}

/// How long it may take, as far as this command's own parser looks at it.
fn check_time(field: Field<'_>) -> Result<(), CommandError> {
    match field.i64()? {
        0.. => Ok(()),
        milliseconds => Err(CommandError::new(
            ErrorCode::Location(51024),
            format!("BSON field 'maxTimeMS' value must be >= 0, actual value '{milliseconds}'"),
        )),
    }
}

fn check_explained(field: Field<'_>) -> Result<(), CommandError> {
    match field.name {
        "writeConcern" => {
            if let Some(concern) = field.document_or_null()? {
                WriteConcern::parse(concern)?;
            }
            Err(CommandError::new(
                ErrorCode::FailedToParse,
                "Aggregation explain does not support the 'writeConcern' option",
            ))
        }
        _ => Ok(()),
    }
}

/// What an `aggregate` asks for.
#[derive(Default)]
pub struct Parameters<'a> {
    /// `None` for `aggregate: 1`.
    pub collection: Option<&'a str>,
    pub stages: Vec<&'a RawDocument>,
    pub hint: Option<RawBsonRef<'a>>,
    pub variables: Option<&'a RawDocument>,
    pub explain: bool,
    pub has_cursor: bool,
    pub collation: Asked,
    pub allow_disk_use: Option<bool>,
    /// The view that the client reads, and what it comes to; the rest is about the collection below
    /// it.
    pub view: Option<(&'a str, &'a Resolved)>,
}

impl<'a> Parameters<'a> {
    pub fn parse(database: &str, body: &'a RawDocument) -> Result<Parameters<'a>, CommandError> {
        let mut parameters = Parameters::default();
        let mut pipeline = None;
        for (position, field) in params::fields("aggregate", body).enumerate() {
            match field.name {
                _ if position == 0 => parameters.collection = target(database, field.value)?,
                "pipeline" => {
                    pipeline = Some(field.value.as_array().ok_or_else(|| {
                        CommandError::new(
                            ErrorCode::TypeMismatch,
                            "'pipeline' option must be specified as an array",
                        )
                    })?);
                }
                "hint" => parameters.hint = write_report::hint(field)?,
                "let" => parameters.variables = field.document_or_null()?,
                "explain" => parameters.explain = field.strict_bool()?,
                "cursor" => parameters.has_cursor = true,
                "allowDiskUse" => parameters.allow_disk_use = Some(field.strict_bool()?),
                "collation" => parameters.collation = Asked::parse(field)?,
                _ => {}
            }
        }
        let pipeline = pipeline.ok_or_else(|| params::missing_field("aggregate", "pipeline"))?;
        parameters.stages = stages(pipeline)?;
        Ok(parameters)
    }

    pub fn pipeline(&self, context: &Context) -> Result<Pipeline, CommandError> {
        let has_collection = self.collection.is_some();
        Pipeline::parse_of_command(&self.stages, context, has_collection).map_err(errors::query)
    }

    /// What the pipeline is parsed in.
    pub fn context(&self, ctx: &CommandContext<'_>) -> Result<Context, CommandError> {
        let collator = self
            .collation
            .collator(ctx, self.collection.unwrap_or_default());
        if let Some(allowed) = self.allow_disk_use {
            ctx.budget().allow_disk(allowed);
        }
        let collection = self.collection.unwrap_or_default();
        let mut context = query_context(ctx, collection, self.variables, collator)?;
        // What the view holds is not in the request.
        if self.view.is_some() {
            context.javascript = ctx.node.javascript(ctx.interrupt());
        }
        Ok(context)
    }

    /// Whether all that it does is what a `find` can do with its filter and projection.
    fn only_projects(&self) -> bool {
        let is = |stage: &&RawDocument, wanted: &str| {
            let mut names = stage.iter().flatten().map(|(name, _)| name.as_str());
            names.next() == Some(wanted)
        };
        match self.stages.split_last() {
            Some((last, before)) => {
                is(last, "$project") && before.iter().all(|stage| is(stage, "$match"))
            }
            None => true,
        }
    }

    /// What the client reads.
    pub fn namespace(&self, database: &str) -> String {
        let view = self.view.map(|(name, _)| name);
        let name = view.or(self.collection).unwrap_or("$cmd.aggregate");
        format!("{database}.{name}")
    }

    /// What the collection comes to, if it is a view.
    fn resolved(&self, ctx: &CommandContext<'_>) -> Result<Option<Resolved>, CommandError> {
        let Some(name) = self.collection else {
            return Ok(None);
        };
        if change_stream::starts(&self.stages) {
            views::refuse(&ctx.node.replica, &Namespace::new(ctx.database(), name))?;
            return Ok(None);
        }
        // What is told of a collection is not told of the one below a view.
        let first = self.stages.first().and_then(|stage| stage.iter().next());
        match first {
            Some(Ok((stage, _))) if stage.as_str() == "$collStats" => Ok(None),
            // Measurements have indexes, as views have none.
            Some(Ok((stage, _)))
                if stage.as_str() == "$indexStats" && time_series::named(ctx, name).is_some() =>
            {
                Ok(None)
            }
            _ => views::resolve(ctx, name),
        }
    }
}

fn target<'a>(database: &str, value: RawBsonRef<'a>) -> Result<Option<&'a str>, CommandError> {
    match value {
        RawBsonRef::String(name) => {
            // A name that no collection can have is that of one that does not exist.
            check_outline(database, name)?;
            if name == "$cmd.aggregate" {
                return Err(CommandError::new(
                    ErrorCode::InvalidNamespace,
                    format!("Invalid namespace specified '{database}.{name}'"),
                ));
            }
            Ok(Some(name))
        }
        value if params::number(value) == Some(1) => Ok(None),
        value if params::number(value).is_none() => Err(CommandError::new(
            ErrorCode::TypeMismatch,
            format!(
                "collection name has invalid type {}",
                banyan_document::kind::name(&value)
            ),
        )),
        _ => Err(CommandError::new(
            ErrorCode::FailedToParse,
            "Invalid command format: the 'aggregate' field must specify a collection name or 1",
        )),
    }
}

fn stages(pipeline: &RawArray) -> Result<Vec<&RawDocument>, CommandError> {
    pipeline
        .into_iter()
        .map(|stage| match stage {
            Ok(RawBsonRef::Document(stage)) => Ok(stage),
            _ => Err(CommandError::new(
                ErrorCode::TypeMismatch,
                "Each element of the 'pipeline' array must be an object",
            )),
        })
        .collect()
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let parameters = Parameters::parse(ctx.database(), ctx.body())?;
        match parameters.collection {
            Some(name) => collection_uuid::check(ctx, name)?,
            None if collection_uuid::is_asked(ctx) => {
                return Err(CommandError::new(
                    ErrorCode::Location(4928901),
                    "collectionUUID is not supported for a collectionless aggregation",
                ));
            }
            None => {}
        }
        match (parameters.collection, parameters.resolved(ctx)?) {
            (Some(name), Some(view)) => {
                // What is wrong with the stages' outlines is told before the view is looked at.
                Pipeline::check_outlines(&parameters.stages).map_err(errors::query)?;
                let body = view.of_aggregate(ctx.body()).map_err(errors::query)?;
                of_view(ctx, name, &view, &body).await
            }
            _ => answer(ctx, ctx.body(), &parameters).await,
        }
    })
}

/// Answers the aggregation that a read of a view comes to.
pub async fn of_view(
    ctx: &CommandContext<'_>,
    name: &str,
    view: &Resolved,
    body: &RawDocument,
) -> CommandResult {
    let parameters = Parameters {
        view: Some((name, view)),
        ..Parameters::parse(ctx.database(), body)?
    };
    answer(ctx, body, &parameters).await
}

/// The one document in which the aggregation ends that a read of a view comes to.
pub async fn one_of_view(
    ctx: &CommandContext<'_>,
    name: &str,
    view: &Resolved,
    body: &RawDocument,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let parameters = Parameters {
        view: Some((name, view)),
        ..Parameters::parse(ctx.database(), body)?
    };
    let context = parameters.context(ctx)?;
    let pipeline = parameters.pipeline(&context)?;
    sharded::check(ctx, parameters.view, &pipeline).await?;
    ctx.compute(|| {
        let mut rows = rows(ctx, &parameters, pipeline)?.rows;
        let mut batch = VecDeque::new();
        rows.next_batch(1, &mut batch).map_err(errors::query)?;
        Ok(batch.pop_front().map(Row::into_owned))
    })
    .await
}

async fn answer(
    ctx: &CommandContext<'_>,
    body: &RawDocument,
    parameters: &Parameters<'_>,
) -> CommandResult {
    if parameters.explain {
        return ctx.compute(|| explain(ctx, body, Verbosity::Planner)).await;
    }
    if !parameters.has_cursor {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "The 'cursor' option is required, except for aggregate with the explain argument",
        ));
    }
    let options = BatchOptions::from_cursor_field(SPEC.name, body)?;
    let context = parameters.context(ctx)?;
    if change_stream::starts(&parameters.stages) {
        let open = || {
            let cursor = change_stream::open(
                ctx,
                parameters.collection,
                parameters.namespace(ctx.database()),
                &parameters.stages,
                &context,
            )?;
            first::reply(ctx, cursor, options)
        };
        return ctx.compute(open).await;
    }
    let pipeline = parameters.pipeline(&context)?;
    sharded::check(ctx, parameters.view, &pipeline).await?;
    let namespace = parameters.namespace(ctx.database());
    if let Some(output) = pipeline.output().cloned() {
        read_concern::check_output(ctx, output.stage_name())?;
        let reads_target = reads_target(ctx, parameters, &pipeline, &output);
        let Results { rows, slot, .. } = ctx.compute(|| rows(ctx, parameters, pipeline)).await?;
        let results = out::Results::new(rows, slot, reads_target);
        out::write(ctx, &output, context.collator.as_ref(), results).await?;
        return crate::cursors::batch::single(&namespace, []);
    }
    let open = || {
        let Results { rows, slot, stats } = rows(ctx, parameters, pipeline)?;
        let mut cursor = Cursor::new(namespace, rows, slot);
        cursor.stats = stats;
        first::reply(ctx, cursor, options)
    };
    ctx.compute(open).await
}

/// Whether a pipeline reads the collection that its results go into document by document.
fn reads_target(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    pipeline: &Pipeline,
    output: &Output,
) -> bool {
    let Output::Merge(merge) = output else {
        return false;
    };
    let own = parameters.collection.map(|name| (None, name.to_owned()));
    let database = |named: &Option<String>| named.clone().unwrap_or(ctx.database().to_owned());
    let target = database(&merge.database);
    let mut read = own.into_iter().chain(pipeline.collections_read());
    read.any(|(named, collection)| collection == merge.collection && database(&named) == target)
}

/// What comes out of a pipeline, before it is batched.
pub struct Results {
    pub rows: Rows,
    pub slot: Arc<InterruptSlot>,
    pub stats: Option<Arc<PlanSummaryStats>>,
}

/// Plans and starts a pipeline.
pub fn rows(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    mut pipeline: Pipeline,
) -> Result<Results, CommandError> {
    ctx.interrupt();
    let slot = ctx.slot().clone();
    let (input, stats) = match pipeline.source() {
        Some(source) => match source.get::<pipeline::Source>() {
            Some(source) => {
                let (name, argument) = (source.name, &source.argument);
                let documents =
                    pipeline_sources::documents(ctx, parameters.collection, name, argument)?;
                pipeline.remove_first();
                let rows = documents.into_iter();
                let rows = rows.map(|document| Ok(Row::Owned(document)));
                (Input::Listed(Box::new(rows)), None)
            }
            None => (Input::Listed(Box::new(std::iter::empty())), None),
        },
        None => {
            let Some(collection) = parameters.collection else {
                let text = "a collection is required";
                return Err(CommandError::new(ErrorCode::InvalidNamespace, text));
            };
            open(ctx, parameters, collection, &mut pipeline)?
        }
    };
    let sources = pipeline_sources::of(ctx, &pipeline, &slot)?;
    let rows = PipelineRows::new(&pipeline, input, sources).map_err(errors::query)?;
    Ok(Results {
        rows: Box::new(rows),
        slot,
        stats,
    })
}

/// Plans what the first stages ask of the collection, and takes the stages off that the plan has
/// taken over.
fn open(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    collection: &str,
    pipeline: &mut Pipeline,
) -> Result<(Input, Option<Arc<PlanSummaryStats>>), CommandError> {
    let leading = Leading::of(ctx, collection, pipeline)?;
    let asks_nothing = leading.filter.is_empty() && parameters.hint.is_none();
    let request = leading.request(ctx, parameters);
    let counts = request.goal == Goal::Count;
    take_leading(pipeline);
    let known = match counts && asks_nothing {
        true => reads::known_count(ctx, collection)?,
        false => None,
    };
    let (count, stats) = match known {
        Some(count) => (count, None),
        None => {
            let mut executor = reads::plan(ctx, collection, request)?.open(ctx)?;
            let stats = Some(executor.stats.clone());
            if executor.is_sample() {
                pipeline.remove_first();
            }
            if !counts {
                return Ok((Input::Plan(Box::new(executor)), stats));
            }
            let count = executor.count_up_to(u64::MAX).map_err(errors::query)?;
            (count, stats)
        }
    };
    put_count(pipeline, count).map_err(errors::query)?;
    // No documents make no group.
    let documents = (count > 0).then(|| Ok(Row::Owned(rawdoc! {})));
    Ok((Input::Listed(Box::new(documents.into_iter())), stats))
}

/// What the first stages ask of the collection.
struct Leading {
    filter: Arc<Filter>,
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
    near: Option<Arc<NearFields>>,
}

impl Leading {
    fn of(
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

    fn request<'a>(self, ctx: &CommandContext<'_>, parameters: &Parameters<'a>) -> Request<'a> {
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
fn take_leading(pipeline: &mut Pipeline) {
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
fn put_count(pipeline: &mut Pipeline, count: u64) -> Result<(), QueryError> {
    if let Some(group) = pipeline.first().and_then(|stage| stage.get::<Group>()) {
        let group = group.of_count(count)?;
        pipeline.replace_first(group);
    }
    Ok(())
}

/// Runs the stages behind a plan for what they come to: how many documents they were given, and
/// what `explain` tells of each. Nothing is written.
fn run_stages(
    ctx: &CommandContext<'_>,
    pipeline: &mut Pipeline,
    executor: &mut Executor,
    counts: bool,
) -> Result<(u64, Vec<RawDocumentBuf>), CommandError> {
    let mut count = None;
    if counts {
        let found = executor.count_up_to(u64::MAX).map_err(errors::query)?;
        put_count(pipeline, found).map_err(errors::query)?;
        count = Some(found);
    } else if executor.is_sample() {
        pipeline.remove_first();
    }
    let sources = pipeline_sources::of(ctx, pipeline, ctx.slot())?;
    let gathering = Gathering::of(pipeline, sources.as_ref());
    let streaming = Streaming::of(pipeline, sources.as_ref());
    let mut execution = pipeline.start_ahead(sources).map_err(errors::query)?;
    let run = || {
        if count.is_some_and(|count| count > 0) {
            execution.push(&rawdoc! {})?;
        } else if count.is_none()
            && let Some(gathering) = gathering
            && let Some(parts) = gathering.run(executor)?
        {
            parts
                .into_iter()
                .try_for_each(|part| execution.absorb(part))?;
        }
        let returned = push_all(executor, &mut execution, &streaming)?;
        while execution.drain()? {
            execution.discard()?;
        }
        Ok(returned)
    };
    let returned = run().map_err(errors::query)?;
    let found = match (count, pipeline.is_empty()) {
        (Some(count), _) => count,
        (None, true) => returned,
        (None, false) => execution.received(),
    };
    Ok((
        found,
        execution.explain(pipeline.stages(), executor.milliseconds()),
    ))
}

/// Has an execution see what is left of what a plan finds: how many results came at once.
fn push_all(
    executor: &mut Executor,
    execution: &mut Execution,
    streaming: &Arc<Streaming>,
) -> Result<u64, QueryError> {
    let (mut returned, mut streamed) = (0, None);
    loop {
        if streamed.is_none()
            && let Some(begun) = streaming.begin(executor)?
        {
            while execution.release()? == Flow::Full {
                returned += execution.discard()?;
            }
            execution.skip_stages(streaming.stages());
            streamed = Some(begun);
        }
        let row = match &mut streamed {
            Some(streamed) => streamed.next(executor),
            None => executor.next(),
        };
        let Some(row) = row else { break };
        let flow = execution.push(&row?)?;
        returned += execution.discard()?;
        if flow == Flow::Stop {
            break;
        }
    }
    execution.add_received(&streaming.received());
    Ok(returned)
}

/// Before an aggregation is explained: what it reads besides its collection has to be here.
/// `view`: what it was made of, if that is a view.
pub async fn prepare_explanation(
    ctx: &CommandContext<'_>,
    view: Option<(&str, &Resolved)>,
    body: &RawDocument,
) -> Result<(), CommandError> {
    let parameters = Parameters::parse(ctx.database(), body)?;
    if change_stream::starts(&parameters.stages) {
        return Ok(());
    }
    let context = parameters.context(ctx)?;
    let pipeline = parameters.pipeline(&context)?;
    sharded::check(ctx, view, &pipeline).await
}

/// `explain` of an aggregation of a collection: how the documents get into the pipeline, and its
/// stages.
pub fn explain(
    ctx: &CommandContext<'_>,
    body: &RawDocument,
    verbosity: Verbosity,
) -> CommandResult {
    let parameters = Parameters::parse(ctx.database(), body)?;
    if change_stream::starts(&parameters.stages) {
        return Err(CommandError::new(
            ErrorCode::NotImplemented,
            "explain of a $changeStream is not supported",
        ));
    }
    let context = parameters.context(ctx)?;
    let mut pipeline = parameters.pipeline(&context)?;
    if let Some(source) = pipeline.source() {
        pipeline_sources::check_place(ctx, source.name())?;
    }
    // What is wrong with the views among the other collections is told, whether or not they are read.
    views::foreign::of(ctx, &pipeline)?;
    let mut explained = RawArrayBuf::new();
    let mut stages = Vec::new();
    if let (Some(collection), None) = (parameters.collection, pipeline.source()) {
        let leading = Leading::of(ctx, collection, &pipeline)?;
        let name = match &leading.near {
            Some(_) => cstr!("$geoNearCursor"),
            None => cstr!("$cursor"),
        };
        let is_near = leading.near.is_some();
        let request = leading.request(ctx, &parameters);
        let counts = request.goal == Goal::Count;
        take_leading(&mut pipeline);
        let around = Around {
            fails: !pipeline.is_empty() && !parameters.only_projects(),
            ..Around::default()
        };
        let run = |executor: &mut Executor| {
            let (found, run) = run_stages(ctx, &mut pipeline, executor, counts)?;
            stages = run;
            Ok(found)
        };
        let cursor = explain_run(ctx, collection, request, around, verbosity, run)?;
        if pipeline.is_empty() && !is_near {
            return Ok(finish(ctx, body, cursor));
        }
        let mut stage = RawDocumentBuf::new();
        stage.append(name, cursor);
        explained.push(stage);
    }
    let first = parameters.stages.first();
    let first = first.and_then(|stage| stage.iter().next()?.ok());
    let has_documents = first.is_some_and(|(name, _)| name.as_str() == "$documents");
    if has_documents && verbosity != Verbosity::Planner {
        // Nothing is told of how it went, but for what is wrong.
        let sources = pipeline_sources::of(ctx, &pipeline, ctx.slot())?;
        let mut execution = pipeline.start(sources).map_err(errors::query)?;
        while execution.drain().map_err(errors::query)? {
            execution.discard().map_err(errors::query)?;
        }
    }
    if stages.is_empty() {
        stages = pipeline.to_documents();
    }
    for stage in stages {
        explained.push(stage);
    }
    Ok(finish(ctx, body, rawdoc! { "stages": explained }))
}
