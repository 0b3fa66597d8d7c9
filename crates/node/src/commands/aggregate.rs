//! `aggregate`: a pipeline over a collection, as a cursor.

use std::sync::Arc;

use banyan_execution::matching::Matching;
use banyan_execution::plan::{self, Query};
use banyan_execution::source::{Cost, Source};
use banyan_execution::{InterruptSlot, Row, Rows};
use banyan_query::Filter;
use banyan_query::pipeline::{Pipeline, Stage};
use banyan_replication::oplog;
use banyan_replication::oplog::view::Order;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

use super::explain::{self, Verbosity, explain_parameters};
use super::find::{self, OwnedView, later_states, owned_view, query_context, simple_collation};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::{change_stream, out, pipeline_sources};
use crate::context::{CommandContext, check_collection_name};
use crate::cursors::Cursor;
use crate::cursors::first::{self, BatchOptions};
use crate::errors;
use crate::params;
use crate::read_concern;
use crate::virtual_collections::local;

pub static SPEC: CommandSpec = CommandSpec::new("aggregate", Run::Future(run))
    .in_transaction()
    .fields(&["pipeline", "cursor", "explain", "hint", "let", "collation"])
    .ignored(&[
        "allowDiskUse",
        "bypassDocumentValidation",
        "fromMongos",
        "needsMerge",
        "includeQueryStatsMetrics",
        "isMapReduceCommand",
        "runtimeConstants",
        "collectionUUID",
    ])
    .computes();

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
                "hint" => parameters.hint = Some(field.value),
                "let" => parameters.variables = field.document_or_null()?,
                "explain" => parameters.explain = field.bool()?,
                "cursor" => parameters.has_cursor = true,
                "collation" => simple_collation(field)?,
                _ => {}
            }
        }
        let pipeline = pipeline.ok_or_else(|| params::missing_field("aggregate", "pipeline"))?;
        parameters.stages = stages(pipeline)?;
        Ok(parameters)
    }

    pub fn namespace(&self, database: &str) -> String {
        format!("{database}.{}", self.collection.unwrap_or("$cmd.aggregate"))
    }
}

fn target<'a>(database: &str, value: RawBsonRef<'a>) -> Result<Option<&'a str>, CommandError> {
    match value {
        RawBsonRef::String(name) => {
            check_collection_name(database, name)?;
            Ok(Some(name))
        }
        value if params::number(value) == Some(1) => Ok(None),
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
        if parameters.explain {
            return ctx
                .compute(|| explain(ctx, ctx.body(), Verbosity::Planner))
                .await;
        }
        if !parameters.has_cursor {
            return Err(CommandError::new(
                ErrorCode::FailedToParse,
                "The 'cursor' option is required, except for aggregate with the explain argument",
            ));
        }
        let options = BatchOptions::from_cursor_field(ctx)?;
        let context = query_context(ctx, parameters.variables)?;
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
        let pipeline = Pipeline::parse(&parameters.stages, &context).map_err(errors::query)?;
        pipeline_sources::prepare(ctx, &pipeline).await;
        let namespace = parameters.namespace(ctx.database());
        if let Some(output) = pipeline.output().cloned() {
            read_concern::check_output(ctx, output.stage_name())?;
            let results = ctx.compute(|| rows(ctx, &parameters, pipeline)).await?;
            out::write(ctx, &output, results.rows).await?;
            return crate::cursors::batch::single(&namespace, []);
        }
        let open = || {
            let Results { rows, slot, cost } = rows(ctx, &parameters, pipeline)?;
            let mut cursor = Cursor::new(namespace, rows, slot);
            cursor.cost = cost;
            first::reply(ctx, cursor, options)
        };
        ctx.compute(open).await
    })
}

/// What comes out of a pipeline, before it is batched.
pub struct Results {
    pub rows: Rows,
    pub slot: Arc<InterruptSlot>,
    pub cost: Option<Arc<Cost>>,
}

/// Plans and starts a pipeline.
pub fn rows(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    mut pipeline: Pipeline,
) -> Result<Results, CommandError> {
    ctx.interrupt();
    let slot = ctx.slot().clone();
    let (input, cost): (Rows, _) = match pipeline.source() {
        Some(Stage::Source { name, argument }) => {
            let documents =
                pipeline_sources::documents(ctx, parameters.collection, name, argument)?;
            pipeline.remove_first();
            (
                Box::new(
                    documents
                        .into_iter()
                        .map(|document| Ok(Row::Owned(document))),
                ),
                None,
            )
        }
        Some(_) => (Box::new(std::iter::empty()), None),
        None => {
            let Some(collection) = parameters.collection else {
                return Err(CommandError::new(
                    ErrorCode::InvalidNamespace,
                    if pipeline.is_empty() {
                        "{aggregate: 1} is not valid for an empty pipeline.".to_owned()
                    } else {
                        let first = pipeline.stages().first().map_or("", Stage::name);
                        format!(
                            "{{aggregate: 1}} is not valid for '{first}'; a collection is required."
                        )
                    },
                ));
            };
            let (rows, cost) = scan(ctx, parameters, collection, &mut pipeline, &slot)?;
            (rows, Some(cost))
        }
    };
    let sources = pipeline_sources::of(ctx, &pipeline, &slot)?;
    let run = pipeline.run(input, sources).map_err(errors::query)?;
    let rows = run.map(|document| document.map(Row::Owned));
    Ok(Results {
        rows: Box::new(rows),
        slot,
        cost,
    })
}

/// The documents of the collection that the leading `$match` stages let through.
fn scan(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    collection: &str,
    pipeline: &mut Pipeline,
    slot: &Arc<InterruptSlot>,
) -> Result<(Rows, Arc<Cost>), CommandError> {
    let leading = Leading::of(pipeline);
    let order = Order {
        times: leading.source.as_deref().and_then(oplog::view::times),
        ..Order::default()
    };
    let view = local::documents(ctx.node, ctx.database(), collection, &order)?;
    if let Some(documents) = view {
        let rows = documents.map(|document| document.map(Row::Owned));
        return Ok((Box::new(rows), Arc::default()));
    }
    let matched = take_matches(pipeline);
    let OwnedView {
        ownership,
        catalog,
        snapshot,
    } = owned_view(ctx, collection)?;
    let found = catalog.get(ctx.database(), collection);
    let plan =
        plan::choose(found, &snapshot, &leading.query(parameters.hint)).map_err(errors::query)?;
    // What an index has sorted need not be sorted again; the limit that the stage took up stays.
    let mut limit = None;
    if plan.sorted && leading.sort.is_some() {
        pipeline.remove_first();
        limit = leading.wanted;
    }
    let mut source = Source::new(snapshot, &plan, slot.clone());
    if let Some(node) = later_states(ctx) {
        source = source.may_rest(&node);
    }
    let cost = source.cost.clone();
    ctx.run_plan(&cost);
    let mut matched = matched.into_iter();
    let first = matched.next().filter(|_| !plan.exact);
    let rest: Vec<_> = matched.filter(|_| !plan.exact).collect();
    let matching = Matching::new(source, first, ownership);
    let rows = matching.filter_map(move |found| match found {
        Err(error) => Some(Err(error)),
        Ok((_, record)) => {
            for filter in &rest {
                match filter.try_matches(&record) {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => return Some(Err(error)),
                }
            }
            Some(Ok(Row::Record(record)))
        }
    });
    let limit = usize::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    Ok((Box::new(rows.take(limit)), cost))
}

/// What the first stages say to the planner.
struct Leading {
    filter: Option<Filter>,
    /// The filter as it was written.
    source: Option<RawDocumentBuf>,
    /// The sort right behind the filters.
    sort: Option<RawDocumentBuf>,
    /// A limit right behind them.
    wanted: Option<u64>,
}

impl Leading {
    fn of(pipeline: &Pipeline) -> Leading {
        let mut sources = Vec::new();
        let mut filters = Vec::new();
        let (mut sort, mut wanted) = (None, None);
        for stage in pipeline.stages() {
            match stage {
                Stage::Match(matching) => {
                    sources.push(matching.source.clone());
                    filters.push(&*matching.filter);
                    continue;
                }
                Stage::Limit(limit) => wanted = Some(*limit),
                Stage::Sort(stage) => {
                    sort = Some(stage.key.source.clone());
                    wanted = stage.limit;
                }
                _ => {}
            }
            break;
        }
        let source = match sources.len() {
            0 => None,
            1 => sources.pop(),
            _ => {
                let mut all = RawArrayBuf::new();
                sources.into_iter().for_each(|filter| all.push(filter));
                Some(rawdoc! { "$and": all })
            }
        };
        Leading {
            filter: (!filters.is_empty()).then(|| Filter::conjunction(filters)),
            source,
            sort,
            wanted,
        }
    }

    fn query<'a>(&'a self, hint: Option<RawBsonRef<'a>>) -> Query<'a> {
        Query {
            filter: self.filter.as_ref(),
            sort: self.sort.as_deref(),
            hint,
            wanted: self.wanted,
            ..Query::default()
        }
    }
}

fn take_matches(pipeline: &mut Pipeline) -> Vec<Arc<Filter>> {
    let mut filters = Vec::new();
    while let Some(Stage::Match(matching)) = pipeline.stages().first() {
        filters.push(matching.filter.clone());
        pipeline.remove_first();
    }
    filters
}

/// `explain` of an aggregation: how the documents get into the pipeline, and its stages.
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
    let context = query_context(ctx, parameters.variables)?;
    let pipeline = Pipeline::parse(&parameters.stages, &context).map_err(errors::query)?;
    let mut explained = RawArrayBuf::new();
    if let (Some(collection), None) = (parameters.collection, pipeline.source()) {
        let leading = Leading::of(&pipeline);
        let search = find::Parameters {
            collection,
            filter: leading.source.as_deref(),
            sort: leading.sort.as_deref(),
            hint: parameters.hint,
            limit: leading.wanted,
            variables: parameters.variables,
            ..find::Parameters::default()
        };
        let cursor = explain_parameters(ctx, &search, None, verbosity)?;
        if parameters
            .stages
            .iter()
            .all(|stage| stage.get("$match").is_ok_and(|m| m.is_some()))
        {
            return Ok(explain::finish(ctx, body, cursor));
        }
        explained.push(rawdoc! { "$cursor": cursor });
    }
    let shown = parameters
        .stages
        .iter()
        .skip_while(|stage| stage.get("$match").is_ok_and(|found| found.is_some()));
    for stage in shown {
        explained.push(*stage);
    }
    let mut reply = rawdoc! { "explainVersion": "1" };
    reply.append(cstr!("stages"), explained);
    Ok(explain::finish(ctx, body, reply))
}
