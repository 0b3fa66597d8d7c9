//! `aggregate`: passed on when one shard has everything the pipeline needs; otherwise the shards
//! run the part that they can run alone, and the rest runs here.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use std::sync::Arc;

use banyan_document::DocumentWriter;
use banyan_query::pipeline::{Output, Pipeline};
use banyan_wire::{CommandError, ErrorCode, params};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::pipeline::{
    self, Parsed, begins_on_each_shard, is_output, parse, stage_name, without_output,
};
use super::{cluster_catalog, forward, on_primary, out, own_sources, sharded_data};
use crate::catalog::Route;
use crate::collation;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::cursors::{Cursor, Source, first_batch_size, reply};
use crate::ending::{Ending, while_awaited};
use crate::errors::query_error;
use crate::fields;
use crate::merge::{Merge, Order, Shape};
use crate::piped::Piped;
use crate::sources::RouterSources;
use crate::targeting;
use crate::views::{self, Told};

pub const SPEC: CommandSpec = CommandSpec::new("aggregate", "runs a pipeline", run!(run))
    .access(Access::Checked(reads_and_writes::aggregate));

async fn run(context: &Context<'_>) -> CommandResult {
    let request = context.request;
    refuse_change_stream(&request.body)?;
    if fields::get_flag(&request.body, "explain") {
        return super::explain::aggregate(context).await;
    }
    check_options(&request.body)?;
    let stages = fields::stages(&request.body)?;
    if cluster_catalog::is_asked_for(&stages) {
        return cluster_catalog::run(context, &stages).await;
    }
    if own_sources::are_asked_for(&stages) {
        return own_sources::run(context, &stages).await;
    }
    if request
        .first_value()
        .is_some_and(|value| value.as_str().is_none())
    {
        // `aggregate: 1` speaks of the database or the server.
        if sharded_data::is_asked_for(&stages) {
            return sharded_data::run(context, &stages).await;
        }
        let Some(database) = on_primary::route(context).await? else {
            let ns = format!("{}.$cmd.aggregate", request.database);
            return Ok(reply("firstBatch", &[], 0, &ns));
        };
        return on_primary::forward_cursor(context, &database, &[], &RawDocumentBuf::new()).await;
    }
    let ns = context.namespace()?;
    let (ns, stages) = (ns.as_str(), stages.as_slice());
    let outcome = whole(context, ns, stages).await;
    match Told::of_outcome(&outcome) {
        None => outcome,
        Some(told) if told.view == ns => {
            let body = told
                .resolved
                .of_aggregate(&request.body)
                .map_err(query_error)?;
            of_view(context, ns, body).await
        }
        // Another collection that it reads is a view of what is not on this shard alone.
        Some(_) => divided(context, ns, ns, stages).await,
    }
}

/// Shards are sent other options, so what is wrong with these is told here.
fn check_options(body: &RawDocument) -> Result<(), CommandError> {
    for internal in ["needsMerge", "fromMongos"] {
        if fields::get_flag(body, internal) {
            let text = format!("internal parameter {internal} cannot be set for a router");
            return Err(CommandError::new(ErrorCode::Location(51_089), text));
        }
    }
    if fields::get(body, "pipeline").is_none() {
        return Err(params::missing_field("aggregate", "pipeline"));
    }
    if fields::get(body, "cursor").is_none() {
        return Err(CommandError::new(
            ErrorCode::FailedToParse,
            "The 'cursor' option is required, except for aggregate with the explain argument",
        ));
    }
    params::cursor_batch_size("aggregate", body).map(drop)
}

/// Runs what a read of a view comes to: an aggregation of the collection below it.
pub async fn of_view(context: &Context<'_>, view: &str, body: RawDocumentBuf) -> CommandResult {
    let request = views::request(context, "aggregate", body);
    let context = Context {
        request: &request,
        ..*context
    };
    let ns = context.namespace()?;
    let stages = fields::stages(&request.body)?;
    divided(&context, view, &ns, &stages).await
}

/// Runs the shards' part on them and the rest here, even where one shard could do all of it.
/// `shown`: what the cursor is said to be over.
async fn divided(
    context: &Context<'_>,
    shown: &str,
    ns: &str,
    stages: &[&RawDocument],
) -> CommandResult {
    let body = &context.request.body;
    context
        .router
        .with_route(ns, false, |route| async move {
            let Some(route) = route else {
                return without_database(context, shown, stages).await;
            };
            let targets = targeting::of_pipeline(&route, stages, body);
            split(context, shown, &route, &targets, stages).await
        })
        .await
}

/// Passes it on if one shard has everything, and divides it if not.
async fn whole(context: &Context<'_>, ns: &str, stages: &[&RawDocument]) -> CommandResult {
    let request = context.request;
    context
        .router
        .with_route(ns, false, |route| async move {
            let Some(route) = route else {
                return without_database(context, ns, stages).await;
            };
            let targets = targeting::of_pipeline(&route, stages, &request.body);
            if let [shard] = targets.as_slice()
                && !begins_on_each_shard(stages)
                && is_local(context, stages, shard).await?
            {
                let writes = stages.last().is_some_and(|stage| is_output(stage));
                let answer = forward::forward_cursor(context, &route, shard, writes);
                return while_awaited(context.connection, answer).await;
            }
            split(context, ns, &route, &targets, stages).await
        })
        .await
}

/// One shard's changes are not the cluster's.
fn refuse_change_stream(body: &RawDocument) -> Result<(), CommandError> {
    let Some(RawBsonRef::Array(array)) = fields::get(body, "pipeline") else {
        return Ok(());
    };
    match array.into_iter().next() {
        Some(Ok(RawBsonRef::Document(stage))) if stage_name(stage) == "$changeStream" => {
            let text = "a router cannot open a $changeStream; open one on each shard's replica set";
            Err(CommandError::new(ErrorCode::NotImplemented, text))
        }
        _ => Ok(()),
    }
}

/// What else a stage may read or write, if anything.
fn reaches_out(stage: &RawDocument) -> bool {
    is_output(stage)
        || matches!(
            stage_name(stage),
            "$lookup" | "$graphLookup" | "$unionWith" | "$facet"
        )
}

/// Whether the shard has all other collections that the pipeline reads or writes.
async fn is_local(
    context: &Context<'_>,
    stages: &[&RawDocument],
    shard: &Arc<str>,
) -> Result<bool, CommandError> {
    if !stages.iter().any(|stage| reaches_out(stage)) {
        return Ok(true);
    }
    let request = context.request;
    // Which collections it reads does not depend on the collation.
    let pipeline = parse(context, stages, Parsed::Stages, None, &context.ending())?;
    let mut others: Vec<String> = pipeline
        .collections_read()
        .into_iter()
        .map(|(database, name)| format!("{}.{name}", database.unwrap_or(request.database.clone())))
        .collect();
    if let Some(output) = pipeline.output() {
        let (database, collection) = output.target();
        let ns = format!("{}.{collection}", database.unwrap_or(&request.database));
        context.router.catalog.route_or_create(&ns).await?;
        others.push(ns);
    }
    for ns in others {
        match context.router.catalog.route(&ns).await? {
            // What does not exist is empty on every shard.
            None => {}
            Some(route) if !route.is_sharded() && route.database.primary == *shard => {}
            Some(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// A collection that isn't there is empty; its pipeline may still make documents.
async fn without_database(
    context: &Context<'_>,
    ns: &str,
    stages: &[&RawDocument],
) -> CommandResult {
    let source = Merge::new(Vec::new(), Shape::default());
    respond(context, ns, stages, source, None, context.ending()).await
}

async fn split(
    context: &Context<'_>,
    shown: &str,
    route: &Route,
    targets: &[Arc<str>],
    stages: &[&RawDocument],
) -> CommandResult {
    let ending = context.ending();
    let (own, split) = pipeline::divided(context, route, stages, &ending).await?;
    let requests = targets
        .iter()
        .map(|shard| {
            let added = shards_part(own, &split.shard, shard);
            let dropped = ["pipeline", "cursor", "writeConcern"];
            (
                shard.clone(),
                forward::changed(context.request, &dropped, &added, route, shard),
            )
        })
        .collect();
    let answers = context
        .router
        .send_all(requests, context.request_options(false))
        .await;
    let remotes = forward::open_all(context, answers).await?;
    let shape = Shape {
        tells_sort_key: split.asks_metadata(),
        sort: split.order.map(|order| Order::By(order.pattern)),
        ..Shape::default()
    };
    let source = Merge::new(remotes, shape);
    respond(context, shown, stages, source, Some(split.merge), ending).await
}

/// The pipeline and the cursor options for one shard. What a shard says of itself (`own`) is
/// marked with its name.
fn shards_part(own: &[&RawDocument], stages: &[RawDocumentBuf], shard: &str) -> RawDocumentBuf {
    let mut out = DocumentWriter::new();
    out.begin_array("pipeline");
    for stage in own {
        out.push(RawBsonRef::Document(stage));
        out.push_document();
        out.begin_document("$addFields");
        out.append_str("shard", shard);
        out.end();
        out.end();
    }
    for stage in stages {
        out.push(RawBsonRef::Document(stage));
    }
    out.end();
    out.begin_document("cursor");
    out.end();
    out.append_bool("needsMerge", true);
    out.finish()
}

/// Runs the router's part over what the shards send, and answers with a cursor over it or writes
/// it to where the pipeline says.
async fn respond(
    context: &Context<'_>,
    ns: &str,
    stages: &[&RawDocument],
    source: Merge,
    here: Option<Pipeline>,
    ending: Arc<Ending>,
) -> CommandResult {
    let body = &context.request.body;
    let here = match here {
        Some(here) => here,
        None => {
            let collator = collation::of(None, body)?;
            parse(
                context,
                without_output(stages),
                Parsed::Stages,
                collator,
                &ending,
            )?
        }
    };
    let source = if here.is_empty() {
        Source::Merged(source)
    } else {
        let sources = RouterSources::new(
            context.router.clone(),
            &context.request.database,
            here.collator().cloned(),
            here.budget().clone(),
            &ending,
        );
        let execution = here.start(Some(Arc::new(sources))).map_err(query_error)?;
        Source::Piped(Box::new(Piped::new(source, execution, ending.clone())))
    };
    let mut cursor = Cursor::new(ns.to_owned(), source, body).owned_by(context.owner());
    if let Some(stage) = stages.last().filter(|stage| is_output(stage)) {
        let output = parse(context, &[stage], Parsed::Stages, None, &ending)?
            .output()
            .cloned();
        let written = match output {
            Some(Output::Replace {
                database,
                collection,
            }) => out::replace(context, database, &collection, &mut cursor).await,
            Some(Output::Merge(merge)) => {
                out::merge(context, &merge, here.collator(), &mut cursor).await
            }
            None => Ok(()),
        };
        cursor.kill().await;
        written?;
        return Ok(reply("firstBatch", &[], 0, ns));
    }
    let options = fields::document(body, "cursor")?;
    let batch = cursor.batch(first_batch_size(body, options)).await?;
    if cursor.is_done() {
        return Ok(reply("firstBatch", &batch, 0, ns));
    }
    let cursor = cursor.within(context.deadline);
    let id = context.router.cursors.insert(cursor);
    Ok(reply("firstBatch", &batch, id, ns))
}
