//! `find`: documents that match, as a cursor.

use std::sync::Arc;

use banyan_execution::matching::{Matching, Shape, rows};
use banyan_execution::plan::{self, Plan, Query};
use banyan_execution::source::{Cost, Source};
use banyan_execution::tailing::Tailing;
use banyan_execution::{InterruptSlot, Row, Rows, Ticker};
use banyan_execution::{ShardFilter, by_id};
use banyan_query::Context;
use banyan_query::filter::Filter;
use banyan_query::projection::Projection;
use banyan_query::sort::SortPattern;
use banyan_replication::oplog;
use banyan_replication::oplog::view::Order;
use banyan_storage::{Catalog, Collection, Namespace, Snapshot, Store};
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, RawDocument};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::{CommandContext, check_collection_name};
use crate::cursors::batch::Batch;
use crate::cursors::first::{self, BatchOptions};
use crate::cursors::{Cursor, Tail};
use crate::errors;
use crate::params::{self, Field};
use crate::virtual_collections::local::{self, Documents};

pub static SPEC: CommandSpec = CommandSpec::new("find", Run::Either(point, run))
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
    ])
    .ignored(&[
        "allowDiskUse",
        "allowPartialResults",
        "oplogReplay",
        "term",
        "readOnce",
        "ntoreturn",
        "_use44SortKeys",
        "includeQueryStatsMetrics",
        "runtimeConstants",
    ])
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
    pub tailable: bool,
    pub await_data: bool,
    pub no_timeout: bool,
    pub variables: Option<&'a RawDocument>,
}

impl<'a> Parameters<'a> {
    /// From the command itself, or from one inside an `explain`.
    pub fn parse(database: &str, body: &'a RawDocument) -> Result<Parameters<'a>, CommandError> {
        let mut parameters = Parameters::default();
        let document = |field: Field<'a>| {
            Ok::<_, CommandError>(
                field
                    .document_or_null()?
                    .filter(|document| !document.is_empty()),
            )
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
                "hint" => {
                    parameters.hint = Some(field.value)
                        .filter(|hint| !matches!(hint, RawBsonRef::Document(d) if d.is_empty()));
                }
                "skip" => parameters.skip = field.unsigned()?,
                "limit" => parameters.limit = Some(field.unsigned()?).filter(|limit| *limit > 0),
                "batchSize" => parameters.batch.size = Some(field.unsigned()?),
                "singleBatch" => parameters.batch.single = field.bool()?,
                "min" => parameters.min = document(field)?,
                "max" => parameters.max = document(field)?,
                "showRecordId" => parameters.show_record_id = field.bool()?,
                "tailable" => parameters.tailable = field.bool()?,
                "awaitData" => parameters.await_data = field.bool()?,
                "noCursorTimeout" => parameters.no_timeout = field.bool()?,
                "let" => parameters.variables = document(field)?,
                "collation" => simple_collation(field)?,
                "returnKey" if field.bool()? => {
                    return Err(CommandError::new(
                        ErrorCode::NotImplemented,
                        "returnKey is not supported",
                    ));
                }
                _ => {}
            }
        }
        check_collection_name(database, parameters.collection)?;
        if parameters.await_data && !parameters.tailable {
            return Err(CommandError::new(
                ErrorCode::FailedToParse,
                "Cannot set 'awaitData' without also setting 'tailable'",
            ));
        }
        parameters.check_tail()?;
        Ok(parameters)
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

    pub fn query<'q>(&'q self, filter: &'q Filter) -> Query<'q> {
        Query {
            filter: Some(filter),
            sort: self.sort,
            hint: self.hint,
            wanted: self.limit.map(|limit| limit.saturating_add(self.skip)),
            min: self.min,
            max: self.max,
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

const COLLATION_FIELDS: [&str; 10] = [
    "locale",
    "caseLevel",
    "caseFirst",
    "strength",
    "numericOrdering",
    "alternate",
    "maxVariable",
    "normalization",
    "backwards",
    "version",
];

/// Any order but the plain one of bytes would need indexes of its own.
pub fn simple_collation(field: Field<'_>) -> Result<(), CommandError> {
    let Some(collation) = field.document_or_null()?.filter(|given| !given.is_empty()) else {
        return Ok(());
    };
    let mut locale = None;
    for field in params::fields("collation", collation) {
        if field.name == "locale" {
            locale = Some(field.str()?);
        } else if !COLLATION_FIELDS.contains(&field.name) {
            return Err(params::unknown_field("collation", field.name));
        }
    }
    match locale {
        Some("simple") => Ok(()),
        None => Err(params::missing_field("collation", "locale")),
        Some(_) => Err(CommandError::new(
            ErrorCode::NotImplemented,
            "only the collation {locale: \"simple\"} is supported",
        )),
    }
}

/// The query crate's context of a command: its `let` and its time.
pub fn query_context(
    ctx: &CommandContext<'_>,
    variables: Option<&RawDocument>,
) -> Result<Context, CommandError> {
    let mut context = Context {
        budget: ctx.budget(),
        ..Context::default()
    };
    if ctx.node.replication.is_replica_set() {
        context.cluster_time = Some(ctx.node.clock.now());
    }
    if may_hold_where(ctx) {
        context.javascript = ctx.node.javascript(ctx.interrupt());
    }
    for (name, value) in variables
        .into_iter()
        .flat_map(|document| document.iter().flatten())
    {
        context
            .variables
            .push((name.as_str().to_owned(), value.into()));
    }
    Ok(context)
}

/// Whether `$where` may be in the request: an engine costs something that few commands need.
fn may_hold_where(ctx: &CommandContext<'_>) -> bool {
    let holds = |bytes: &[u8]| bytes.windows(7).any(|name| name == b"$where\0");
    let mut documents = ctx
        .request
        .sequences
        .iter()
        .flat_map(|sequence| sequence.docs());
    holds(ctx.body().as_bytes()) || documents.any(|document| holds(document.as_bytes()))
}

/// Where a cursor goes on after it has been idle. A read of a certain time keeps to its state, and
/// so does one that a router sent: documents may move away, and their ranges are those of the state
/// that it began in.
pub fn later_states(ctx: &CommandContext<'_>) -> Option<Store> {
    let keeps = ctx.view.is_some() || ctx.is_routed();
    (!keeps).then(|| ctx.node.store.clone())
}

/// What a read sees of a collection: a state, and which documents in it this shard may answer.
pub struct OwnedView {
    pub ownership: Option<Arc<dyn ShardFilter>>,
    pub catalog: Arc<Catalog>,
    pub snapshot: Snapshot,
}

/// The state that a command reads, and what this shard may answer of the collection in it.
pub fn owned_view(ctx: &CommandContext<'_>, collection: &str) -> Result<OwnedView, CommandError> {
    let role = ctx.node.role().filter(|_| ctx.is_routed());
    let ownership = match role {
        Some(role) => {
            let namespace = Namespace::new(ctx.database(), collection);
            role.check(&namespace, ctx.versions(), false)?
        }
        None => None,
    };
    let (catalog, snapshot) = ctx.view();
    if let Some(role) = role {
        // A range may have left since, and its documents been removed before the snapshot.
        let namespace = Namespace::new(ctx.database(), collection);
        role.check(&namespace, ctx.versions(), false)?;
    }
    Ok(OwnedView {
        ownership,
        catalog,
        snapshot,
    })
}

/// `{_id: value}` without anything around it: two lookups, in place.
fn point(ctx: &CommandContext<'_>) -> Option<CommandResult> {
    let parameters = match Parameters::parse(ctx.database(), ctx.body()) {
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
        && parameters.min.is_none()
        && parameters.max.is_none()
        && parameters.sort.is_none()
        && !matches!(ctx.database(), "local" | "config");
    plain.then(|| answer_point(ctx, parameters.collection, id))
}

fn answer_point(ctx: &CommandContext<'_>, name: &str, id: RawBsonRef<'_>) -> CommandResult {
    let OwnedView {
        ownership,
        catalog,
        snapshot,
    } = owned_view(ctx, name)?;
    let Some(collection) = catalog.get(ctx.database(), name) else {
        let mut batch = Batch::first(0);
        batch.at_cluster_time = ctx.at_cluster_time();
        return batch.finish(0, &format!("{}.{name}", ctx.database()));
    };
    let found = by_id::lookup(collection, &snapshot, id).map_err(errors::query)?;
    let found = found.filter(|record| ownership.as_ref().is_none_or(|own| own.owns(record)));
    let mut batch = Batch::first(found.as_ref().map_or(0, |record| record.as_bytes().len()));
    batch.at_cluster_time = ctx.at_cluster_time();
    ctx.work.found_by_id(found.is_some());
    if let Some(record) = &found {
        batch.push(record);
        ctx.work.returned.add(1);
    }
    batch.finish(0, collection.namespace.as_str())
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let parameters = Parameters::parse(ctx.database(), ctx.body())?;
        let prepared = Prepared::new(ctx, &parameters)?;
        if prepared.plan.is_point() {
            prepared.reply(ctx)
        } else {
            ctx.compute(|| prepared.reply(ctx)).await
        }
    })
}

/// A `find` that has been parsed and planned.
pub struct Prepared<'a> {
    pub plan: Plan,
    parameters: &'a Parameters<'a>,
    snapshot: Snapshot,
    pub filter: Arc<Filter>,
    shape: Shape,
    ownership: Option<Arc<dyn ShardFilter>>,
    /// Set where the rest of the result may be read from a later state.
    later: Option<Store>,
}

impl<'a> Prepared<'a> {
    pub fn new(
        ctx: &CommandContext<'_>,
        parameters: &'a Parameters<'a>,
    ) -> Result<Prepared<'a>, CommandError> {
        let context = query_context(ctx, parameters.variables)?;
        let empty = bson::RawDocumentBuf::new();
        let filter = Filter::parse(parameters.filter.unwrap_or(&empty), &context);
        let filter = Arc::new(filter.map_err(errors::query)?);
        let projection = parameters
            .projection
            .map(|projection| Projection::parse(projection, &context))
            .transpose()
            .map_err(errors::query)?
            .map(Arc::new);
        let natural = parameters.sort.is_some_and(is_natural);
        let pattern = parameters
            .sort
            .filter(|_| !natural)
            .map(SortPattern::parse)
            .transpose()
            .map_err(errors::query)?;
        let OwnedView {
            ownership,
            catalog,
            snapshot,
        } = owned_view(ctx, parameters.collection)?;
        let collection = catalog.get(ctx.database(), parameters.collection);
        let query = parameters.query(&filter);
        let plan = plan::choose(collection, &snapshot, &query).map_err(errors::query)?;
        let shape = Shape {
            sort: pattern.filter(|_| !plan.sorted),
            skip: parameters.skip,
            limit: parameters.limit,
            positions: projection
                .as_ref()
                .filter(|projection| projection.needs_position())
                .map(|_| filter.clone()),
            projection,
            sort_bytes_max: sort_bytes_max(ctx),
            budget: context.budget.clone(),
            show_record_id: parameters.show_record_id,
        };
        Ok(Prepared {
            plan,
            parameters,
            snapshot,
            filter,
            shape,
            ownership,
            later: later_states(ctx),
        })
    }

    /// The rows, and what finding them costs.
    pub fn rows(
        self,
        ctx: &CommandContext<'_>,
        slot: Arc<InterruptSlot>,
    ) -> Result<(Rows, Arc<Cost>), CommandError> {
        let mut source = Source::new(self.snapshot, &self.plan, slot);
        if let Some(node) = &self.later {
            source = source.may_rest(node);
        }
        let cost = source.cost.clone();
        // A sort reads everything right here.
        ctx.run_plan(&cost);
        let filter = Some(self.filter).filter(|_| !self.plan.exact);
        let matching = Matching::new(source, filter, self.ownership);
        let rows = rows(matching.rows(), self.shape).map_err(errors::query)?;
        Ok((rows, cost))
    }

    /// The rows of a collection that is a view of something else.
    fn view_rows(
        mut self,
        documents: Documents,
        slot: Arc<InterruptSlot>,
    ) -> Result<Rows, CommandError> {
        let mut ticker = Ticker::new(slot);
        let natural = self.parameters.sort.is_some_and(is_natural);
        self.shape.sort = self
            .parameters
            .sort
            .filter(|_| !natural)
            .map(SortPattern::parse)
            .transpose()
            .map_err(errors::query)?;
        let filter = self.filter;
        let matching = documents.filter_map(move |document| {
            let document = match document {
                Ok(document) => document,
                Err(error) => return Some(Err(error)),
            };
            if let Err(error) = ticker.tick() {
                return Some(Err(error));
            }
            match filter.try_matches(&document) {
                Ok(true) => Some(Ok((0, Row::Owned(document)))),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            }
        });
        rows(matching, self.shape).map_err(errors::query)
    }

    fn reply(self, ctx: &CommandContext<'_>) -> CommandResult {
        let parameters = self.parameters;
        let namespace = format!("{}.{}", ctx.database(), parameters.collection);
        ctx.interrupt();
        let slot = ctx.slot().clone();
        ctx.work.sorts.add(u64::from(self.shape.sort.is_some()));
        let order = Order {
            times: parameters.filter.and_then(oplog::view::times),
            reverse: parameters.sort.and_then(plan::natural_direction) == Some(true),
            tailable: parameters.tailable,
        };
        let view = local::documents(ctx.node, ctx.database(), parameters.collection, &order)?;
        let mut cursor = if let Some(documents) = view {
            let rows = self.view_rows(documents, slot.clone())?;
            let mut cursor = Cursor::new(namespace, rows, slot);
            if local::is_tailable(ctx.node, ctx.database(), parameters.collection) {
                cursor.tail = parameters.tail();
            }
            cursor
        } else if parameters.tailable {
            self.tailing(ctx, namespace, slot)?
        } else {
            let (rows, cost) = self.rows(ctx, slot.clone())?;
            let mut cursor = Cursor::new(namespace, rows, slot);
            cursor.cost = Some(cost);
            cursor
        };
        cursor.remaining = parameters.limit;
        cursor.no_timeout = parameters.no_timeout;
        first::reply(ctx, cursor, parameters.batch)
    }

    /// A tailable cursor: in insertion order, and on from there.
    fn tailing(
        self,
        ctx: &CommandContext<'_>,
        namespace: String,
        slot: Arc<InterruptSlot>,
    ) -> Result<Cursor, CommandError> {
        let capped =
            |collection: &Arc<Collection>| collection.options.get_bool("capped").unwrap_or(false);
        let Some(collection) = self.plan.collection.clone().filter(capped) else {
            return Err(CommandError::new(
                ErrorCode::BadValue,
                "error processing query: tailable cursor requested on non capped collection",
            ));
        };
        let tailing = Tailing::new(
            ctx.node.store.clone(),
            collection,
            self.filter,
            self.shape.projection,
            slot.clone(),
        );
        let mut cursor = Cursor::new(namespace, Box::new(tailing), slot);
        cursor.cost = Some(Arc::new(Cost::of_tailing()));
        cursor.tail = self.parameters.tail();
        Ok(cursor)
    }
}

/// `{$natural: ±1}`: the order in which the documents lie.
fn is_natural(sort: &RawDocument) -> bool {
    sort.get("$natural")
        .is_ok_and(|direction| direction.is_some())
}

/// How much a sort may hold in memory.
pub fn sort_bytes_max(ctx: &CommandContext<'_>) -> usize {
    let bytes = ctx
        .node
        .parameters
        .value("internalQueryMaxBlockingSortMemoryUsageBytes");
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
