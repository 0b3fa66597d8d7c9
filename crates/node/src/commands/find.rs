//! `find`: documents that match, as a cursor.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_execution::by_id;
use banyan_execution::plan;
use banyan_execution::tailing::{Tailed, Tailing};
use banyan_execution::{CreatedFrom, Listed, PlanSummaryStats, Request, Row, Ticker};
use banyan_query::Context;
use banyan_query::canonical::{CanonicalQuery, Written};
use banyan_query::metadata::MetadataSet;
use banyan_query::pipeline::NearFields;
use banyan_query::query_settings::PARAMETER;
use banyan_query::sort::SortPattern;
use banyan_replication::oplog;
use banyan_replication::oplog::view::Order;
use banyan_replication::views::may_be;
use banyan_security::Action;
use banyan_storage::{Collection, RecordId};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::aggregate;
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use super::write_report;
use crate::collation::Asked;
use crate::collection_uuid;
use crate::context::CommandContext;
use crate::cursors::batch::Batch;
use crate::cursors::first::{self, BatchOptions};
use crate::cursors::{Cursor, Tail};
use crate::errors;
use crate::forms;
use crate::names::{check_collection_name, check_outline};
use crate::params::{self, Field};
use crate::reads::{self, OwnedView, Ready, owned_view, query_context};
use crate::views;
use crate::virtual_collections::local;

pub static SPEC: CommandSpec = CommandSpec::new("find", Run::Either(point, run))
    .access(Access::Collection(Action::Find))
    .parsed_as("FindCommandRequest")
    .in_transaction()
    .fields(&[
        "filter",
        "sort",
        "projection",
        "hint",
        "skip",
        "limit",
        "batchSize",
        "singleBatch",
        "max",
        "min",
        "showRecordId",
        "returnKey",
        "tailable",
        "awaitData",
        "noCursorTimeout",
        "collation",
        "let",
        "allowDiskUse",
        "ntoreturn",
        collection_uuid::FIELD,
        "needsMerge",
    ])
    .ignored(&[
        "allowPartialResults",
        PARAMETER,
        "oplogReplay",
        "term",
        "readOnce",
        "_use44SortKeys",
        "includeQueryStatsMetrics",
        "runtimeConstants",
        "encryptionInformation",
        "options",
    ])
    .form(collection_uuid::check_form_in)
    .explained(forms::of_explained_read)
    .computes();

/// What a `find` asks for.
#[derive(Default)]
pub struct Parameters<'a> {
    pub collection: &'a str,
    pub filter: Option<&'a RawDocument>,
    pub sort: Option<&'a RawDocument>,
    pub projection: Option<&'a RawDocument>,
    pub hint: Option<RawBsonRef<'a>>,
    pub skip: u64,
    pub limit: Option<u64>,
    pub batch: BatchOptions,
    pub min: Option<&'a RawDocument>,
    pub max: Option<&'a RawDocument>,
    pub show_record_id: bool,
    pub return_key: bool,
    pub tailable: bool,
    pub await_data: bool,
    pub no_timeout: bool,
    pub variables: Option<&'a RawDocument>,
    pub collation: Asked,
    pub allow_disk_use: Option<bool>,
    /// A router merges what this shard finds with what others do.
    pub needs_merge: bool,
}

impl<'a> Parameters<'a> {
    /// From the command itself, or from one inside an `explain`.
    /// Those of the command itself, which is not explained: then its name may be any.
    fn asked(ctx: &CommandContext<'a>) -> Result<Parameters<'a>, CommandError> {
        let parameters = Parameters::parse(ctx.database(), ctx.body())?;
        check_collection_name(ctx.database(), parameters.collection)?;
        Ok(parameters)
    }

    pub fn parse(database: &str, body: &'a RawDocument) -> Result<Parameters<'a>, CommandError> {
        let mut parameters = Parameters::default();
        let mut number_to_return = None;
        let document = |field: Field<'a>| {
            let document = field.document()?;
            Ok::<_, CommandError>(Some(document).filter(|document| !document.is_empty()))
        };
        for (position, field) in params::fields(SPEC.parsed_as, body).enumerate() {
            if position == 0 {
                parameters.collection = field.str().map_err(|_| not_a_name(field.value))?;
                continue;
            }
            match field.name {
                "filter" => parameters.filter = document(field)?,
                "sort" => parameters.sort = document(field)?,
                "projection" => parameters.projection = document(field)?,
                "hint" => parameters.hint = write_report::hint(field)?,
                "skip" | "limit" | "batchSize" | "let" | "ntoreturn" if field.is_null() => {}
                "skip" => parameters.skip = field.unsigned()?,
                "limit" => parameters.limit = Some(field.unsigned()?).filter(|limit| *limit > 0),
                "batchSize" => parameters.batch.size = Some(field.unsigned()?),
                "singleBatch" => parameters.batch.single = field.strict_bool()?,
                "min" => parameters.min = document(field)?,
                "max" => parameters.max = document(field)?,
                "showRecordId" => parameters.show_record_id = field.strict_bool()?,
                "tailable" => parameters.tailable = field.strict_bool()?,
                "awaitData" => parameters.await_data = field.strict_bool()?,
                "noCursorTimeout" => parameters.no_timeout = field.strict_bool()?,
                "allowPartialResults" | "oplogReplay" | "readOnce" => {
                    field.strict_bool()?;
                }
                "let" => parameters.variables = document(field)?,
                "runtimeConstants" | "encryptionInformation" | "options" => {
                    field.document_or_null()?;
                }
                "term" if !field.is_null() => {
                    field.i64()?;
                }
                "allowDiskUse" => parameters.allow_disk_use = Some(field.strict_bool()?),
                "collation" => {
                    parameters.collation = Asked::of(Some(field.document()?))?;
                }
                "ntoreturn" => number_to_return = Some(field.unsigned()?),
                "needsMerge" => parameters.needs_merge = field.strict_bool()?,
                "returnKey" => parameters.return_key = field.strict_bool()?,
                _ => {}
            }
        }
        check_outline(database, parameters.collection)?;
        parameters.check_ends()?;
        if number_to_return.is_some() {
            return Err(parameters.refuse_number_to_return());
        }
        if parameters.await_data && !parameters.tailable {
            return Err(CommandError::new(
                ErrorCode::FailedToParse,
                "Cannot set 'awaitData' without also setting 'tailable'",
            ));
        }
        parameters.check_tail()?;
        Ok(parameters)
    }

    /// Both ends are keys of one index.
    fn check_ends(&self) -> Result<(), CommandError> {
        let names = |end: &'a RawDocument| end.iter().flatten().map(|(name, _)| name);
        match (self.min, self.max) {
            (Some(min), Some(max)) if !names(min).eq(names(max)) => Err(CommandError::new(
                ErrorCode::Location(51176),
                "min and max must have the same field names",
            )),
            _ => Ok(()),
        }
    }

    /// `ntoreturn` is what a find has that came as a message of old, which no command is.
    fn refuse_number_to_return(&self) -> CommandError {
        match self.limit.is_some() || self.batch.size.is_some() {
            true => CommandError::new(
                ErrorCode::BadValue,
                "'limit' or 'batchSize' fields can not be set with 'ntoreturn' field.",
            ),
            false => CommandError::new(
                ErrorCode::Location(5_746_102),
                "The ntoreturn find command parameter is not supported by the find command",
            ),
        }
    }

    /// Who tails a collection sees it in the order in which it grows, for as long as it does.
    fn check_tail(&self) -> Result<(), CommandError> {
        let bad = |why| Err(CommandError::new(ErrorCode::BadValue, why));
        let forward = |sort| plan::natural_direction(sort) == Some(false);
        match self.sort {
            _ if !self.tailable => Ok(()),
            Some(sort) if !forward(sort) => {
                bad("cannot use tailable option with a sort other than {$natural: 1}")
            }
            _ if self.batch.single => {
                bad("cannot use tailable option with the 'singleBatch' option")
            }
            _ => Ok(()),
        }
    }

    /// What happens at the end of a collection that can be tailed.
    fn tail(&self) -> Tail {
        match (self.tailable, self.await_data) {
            (false, _) => Tail::Ends,
            (true, false) => Tail::Stays,
            (true, true) => Tail::Waits,
        }
    }

    /// What the query is parsed in.
    pub fn context(&self, ctx: &CommandContext<'_>) -> Result<Context, CommandError> {
        let collator = self.collation.collator(ctx, self.collection);
        if let Some(allowed) = self.allow_disk_use {
            ctx.budget().allow_disk(allowed);
        }
        query_context(ctx, self.collection, self.variables, collator)
    }

    /// The query in its one form.
    pub fn canonical(&self, context: &Context) -> Result<CanonicalQuery, CommandError> {
        let beside = |hint: &RawDocument| hint.iter().count() > 1;
        let natural = self.hint.and_then(|hint| hint.as_document());
        if natural.is_some_and(|hint| plan::natural_direction(hint).is_some() && beside(hint)) {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                "$natural hint cannot stand beside others",
            ));
        }
        let written = Written {
            filter: self.filter,
            sort: self.sort,
            projection: self.projection,
            skip: self.skip,
            limit: self.limit,
        };
        let mut query = CanonicalQuery::parse(&written, context).map_err(errors::query)?;
        if self.return_key {
            // It has to be one, and says nothing of keys.
            query.projection = None;
            query.metadata = MetadataSet::default();
        }
        Ok(query)
    }

    /// What a router merges the documents by with those of other shards.
    fn merge_order(&self, canonical: &CanonicalQuery) -> Option<SortPattern> {
        self.needs_merge.then(|| canonical.merge_order()).flatten()
    }

    /// What is asked of the collection.
    pub fn request(&self, ctx: &CommandContext<'_>, canonical: CanonicalQuery) -> Request<'a> {
        let merge_order = self.merge_order(&canonical);
        let by_distance = merge_order.is_some() && canonical.filter.near().is_some();
        let near = match canonical.metadata.is_of_places() {
            true => Some(NearFields::for_metadata()),
            false => by_distance.then(NearFields::for_router),
        };
        let near = near.map(Arc::new);
        Request {
            query: Arc::new(canonical),
            created_from: CreatedFrom {
                filter: self.filter,
                projection: self.projection,
            },
            hint: self.hint,
            min: self.min,
            max: self.max,
            show_record_id: self.show_record_id,
            return_key: self.return_key,
            merge_order,
            near,
            budget: ctx.budget(),
            ..Request::default()
        }
    }
}

fn not_a_name(value: RawBsonRef<'_>) -> CommandError {
    CommandError::new(
        ErrorCode::BadValue,
        format!(
            "collection name has invalid type {}",
            banyan_document::kind::name(&value)
        ),
    )
}

/// `{_id: value}` without anything around it: two lookups, in place.
fn point(ctx: &CommandContext<'_>) -> Option<CommandResult> {
    let parameters = match Parameters::asked(ctx) {
        Ok(parameters) => parameters,
        Err(error) => return Some(Err(error)),
    };
    let id = plan::id_lookup(parameters.filter?)?;
    let plain = parameters.hint.is_none()
        && parameters.projection.is_none()
        && parameters.skip == 0
        && parameters.batch.size != Some(0)
        && !parameters.tailable
        && !parameters.show_record_id
        && !parameters.return_key
        && !parameters.needs_merge
        && parameters.min.is_none()
        && parameters.max.is_none()
        && parameters.sort.is_none()
        // They are checked and evaluated, whether or not something names them.
        && parameters.variables.is_none()
        && !collection_uuid::is_asked(ctx)
        // Whatever the collation of the collection is, its index on `_id` has it.
        && matches!(parameters.collation, Asked::Inherited)
        && !matches!(ctx.database(), "local" | "config");
    let found = plain.then(|| answer_point(ctx, parameters.collection, id))?;
    match found.transpose() {
        Some(reply) => Some(reply),
        None => {
            let catalog = ctx.node.replica.store.catalog();
            let may_be = may_be(&catalog, ctx.database(), parameters.collection);
            (!may_be).then(|| answer_nothing(ctx, parameters.collection))
        }
    }
}

fn answer_nothing(ctx: &CommandContext<'_>, name: &str) -> CommandResult {
    let mut batch = Batch::first(0);
    batch.at_cluster_time = ctx.at_cluster_time();
    batch.finish(0, &format!("{}.{name}", ctx.database()))
}

/// `None`: there is no such collection.
fn answer_point(
    ctx: &CommandContext<'_>,
    name: &str,
    id: RawBsonRef<'_>,
) -> Result<Option<RawDocumentBuf>, CommandError> {
    let OwnedView {
        ownership,
        catalog,
        snapshot,
    } = owned_view(ctx, name)?;
    let Some(collection) = catalog.get(ctx.database(), name) else {
        return Ok(None);
    };
    let found = by_id::lookup(collection, &snapshot, id).map_err(errors::query)?;
    let found = found.filter(|record| ownership.as_ref().is_none_or(|own| own.owns(record)));
    let mut batch = Batch::first(found.as_ref().map_or(0, |record| record.as_bytes().len()));
    batch.at_cluster_time = ctx.at_cluster_time();
    ctx.work.found_by_id(found.is_some());
    if let Some(index) = collection.id_index() {
        index.note_use();
    }
    if let Some(record) = &found {
        batch.push(record);
        ctx.work.returned.add(1);
    }
    batch.finish(0, collection.namespace.as_str()).map(Some)
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let parameters = Parameters::asked(ctx)?;
        // What is wrong with it as a query is told of views, too.
        let context = parameters.context(ctx)?;
        let canonical = parameters.canonical(&context)?;
        collection_uuid::check(ctx, parameters.collection)?;
        if let Some(view) = views::resolve(ctx, parameters.collection)? {
            let body = view.of_find(ctx.body()).map_err(errors::query)?;
            return aggregate::of_view(ctx, parameters.collection, &view, &body).await;
        }
        let request = parameters.request(ctx, canonical);
        if parameters.tailable {
            return ctx.compute(|| tail(ctx, &parameters, &request)).await;
        }
        let ready = reads::plan(ctx, parameters.collection, request)?;
        if ready.is_small() {
            reply(ctx, &parameters, ready)
        } else {
            ctx.compute(|| reply(ctx, &parameters, ready)).await
        }
    })
}

fn reply(ctx: &CommandContext<'_>, parameters: &Parameters<'_>, ready: Ready<'_>) -> CommandResult {
    ctx.interrupt();
    let executor = ready.open(ctx)?;
    let namespace = format!("{}.{}", ctx.database(), parameters.collection);
    let blocking_sort = executor.has_blocking_sort();
    ctx.work.sorts.add(u64::from(blocking_sort));
    let stats = executor.stats.clone();
    let batch = BatchOptions {
        // Nothing will ever come of a collection that is not there.
        single: parameters.batch.single || !executor.has_collection(),
        ..parameters.batch
    };
    let mut cursor = Cursor::new(namespace, Box::new(executor), ctx.slot().clone());
    cursor.stats = Some(stats);
    cursor.remaining = parameters.limit;
    cursor.no_timeout = parameters.no_timeout;
    first::reply(ctx, cursor, batch)
}

/// A tailable cursor: in the order in which the collection grows, and on from there.
fn tail(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    request: &Request<'_>,
) -> CommandResult {
    ctx.interrupt();
    let database = ctx.database();
    let namespace = format!("{database}.{}", parameters.collection);
    let order = Order {
        times: parameters.filter.and_then(oplog::view::times),
        reverse: false,
        tailable: true,
    };
    let filter = request.query.filter.clone();
    let output = request.output();
    let slot = ctx.slot().clone();
    let mut cursor = match local::documents(ctx.node, database, parameters.collection, &order)? {
        Some(documents) => {
            let mut ticker = Ticker::new(slot.clone());
            let matching = documents.filter_map(move |document| {
                let shaped = ticker.tick().and_then(|()| {
                    let document = document?;
                    let matches = filter.try_matches(&document)?;
                    matches
                        .then(|| output.apply(Row::Owned(document), &RecordId::number(0)))
                        .transpose()
                });
                shaped.transpose()
            });
            Cursor::new(namespace, Box::new(Listed(matching)), slot)
        }
        None => match tail_capped(ctx, parameters, request, namespace)? {
            Some(cursor) => cursor,
            None => return answer_nothing(ctx, parameters.collection),
        },
    };
    if cursor.stats.is_some() || local::is_tailable(ctx.node, database, parameters.collection) {
        cursor.tail = parameters.tail();
    }
    cursor.remaining = parameters.limit;
    cursor.no_timeout = parameters.no_timeout;
    first::reply(ctx, cursor, parameters.batch)
}

/// The cursor on a capped collection. `None`: there is nothing in it, or it does not exist, so that
/// there is no place from which a cursor could go on.
fn tail_capped(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
    request: &Request<'_>,
    namespace: String,
) -> Result<Option<Cursor>, CommandError> {
    let OwnedView { catalog, .. } = owned_view(ctx, parameters.collection)?;
    let Some(collection) = catalog.get(ctx.database(), parameters.collection) else {
        return Ok(None);
    };
    check_tailed(collection, request)?;
    if collection.documents() == 0 {
        return Ok(None);
    }
    let slot = ctx.slot().clone();
    let hint = request.hint.and_then(|hint| hint.as_document());
    let tailed = Tailed {
        collection: collection.clone(),
        filter: request.query.filter.clone(),
        output: request.output(),
        skip: parameters.skip,
        reverse: hint.and_then(plan::natural_direction).unwrap_or(false),
    };
    let store = ctx.node.replica.store.clone();
    let tailing = Tailing::new(store, tailed, slot.clone());
    let mut cursor = Cursor::new(namespace, Box::new(tailing), slot);
    cursor.stats = Some(Arc::new(PlanSummaryStats::of_tailing()));
    Ok(Some(cursor))
}

/// Refuses to tail what does not stay in the order of its insertion, or by what is no scan.
pub fn check_tailed(collection: &Collection, request: &Request<'_>) -> Result<(), CommandError> {
    let bad = |why| Err(CommandError::new(ErrorCode::BadValue, why));
    let filter = &request.query.filter;
    if filter.searches() {
        return bad("text and tailable cursor not allowed in same query");
    }
    if filter.near().is_some() {
        return bad("Tailable cursors and geo $near cannot be used together");
    }
    if !collection.is_capped {
        return bad("error processing query: tailable cursor requested on non capped collection");
    }
    Ok(())
}
