//! `count`: how many documents match.

use std::sync::Arc;

use banyan_execution::matching::Matching;
use banyan_execution::plan::{self, Plan, Query};
use banyan_execution::source::{Cost, Source};
use banyan_query::filter::Filter;
use banyan_replication::oplog;
use banyan_replication::oplog::view::Order;
use banyan_wire::CommandError;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::coll_stats::number;
use super::find::{OwnedView, owned_view, query_context, simple_collation};
use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::{CommandContext, check_collection_name, collection_name};
use crate::errors;
use crate::params;
use crate::virtual_collections::local;

pub static SPEC: CommandSpec = CommandSpec::new("count", Run::Future(run))
    .fields(&["query", "limit", "skip", "hint", "collation"])
    .ignored(&["fields", "mode", "encryptionInformation"])
    .computes();

#[derive(Default)]
pub struct Parameters<'a> {
    pub collection: &'a str,
    pub filter: Option<&'a RawDocument>,
    pub hint: Option<RawBsonRef<'a>>,
    pub skip: u64,
    pub limit: Option<u64>,
}

impl<'a> Parameters<'a> {
    pub fn parse(database: &str, body: &'a RawDocument) -> Result<Parameters<'a>, CommandError> {
        let mut parameters = Parameters::default();
        for (position, field) in params::fields("count", body).enumerate() {
            match field.name {
                _ if position == 0 => parameters.collection = collection_name(field.value)?,
                "query" => parameters.filter = field.document_or_null()?,
                "hint" => {
                    parameters.hint = Some(field.value)
                        .filter(|hint| !matches!(hint, RawBsonRef::Document(d) if d.is_empty()));
                }
                "skip" => parameters.skip = field.unsigned()?,
                // A negative one means the same, as it always has.
                "limit" => {
                    let limit = field.i64()?.unsigned_abs();
                    parameters.limit = Some(limit).filter(|limit| *limit > 0);
                }
                "collation" => simple_collation(field)?,
                _ => {}
            }
        }
        parameters.filter = parameters.filter.filter(|filter| !filter.is_empty());
        check_collection_name(database, parameters.collection)?;
        Ok(parameters)
    }
}

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let parameters = Parameters::parse(ctx.database(), ctx.body())?;
        let Counted { count, .. } = ctx.compute(|| count(ctx, &parameters)).await?;
        Ok(reply(count))
    })
}

fn reply(count: u64) -> RawDocumentBuf {
    rawdoc! { "n": number(i64::try_from(count).unwrap_or(i64::MAX)), "ok": 1.0 }
}

/// A count, and how it came about.
pub struct Counted {
    pub count: u64,
    pub filter: Arc<Filter>,
    pub plan: Plan,
    pub cost: Arc<Cost>,
}

pub fn count(
    ctx: &CommandContext<'_>,
    parameters: &Parameters<'_>,
) -> Result<Counted, CommandError> {
    ctx.interrupt();
    let context = query_context(ctx, None)?;
    let filter = match parameters.filter {
        Some(filter) => Filter::parse(filter, &context).map_err(errors::query)?,
        None => Filter::all(),
    };
    let filter = Arc::new(filter);
    let order = Order {
        times: parameters.filter.and_then(oplog::view::times),
        ..Order::default()
    };
    let view = local::documents(ctx.node, ctx.database(), parameters.collection, &order)?;
    if let Some(documents) = view {
        let mut count = 0;
        for document in documents {
            count += u64::from(
                filter
                    .try_matches(&document.map_err(errors::query)?)
                    .map_err(errors::query)?,
            );
        }
        let most = parameters.limit.unwrap_or(u64::MAX);
        let left = count.saturating_sub(parameters.skip).min(most);
        return Ok(Counted {
            count: left,
            filter,
            plan: Plan::nothing(),
            cost: Arc::default(),
        });
    }
    let OwnedView {
        ownership,
        catalog,
        snapshot,
    } = owned_view(ctx, parameters.collection)?;
    let collection = catalog.get(ctx.database(), parameters.collection);
    let query = Query {
        filter: Some(&filter),
        hint: parameters.hint,
        wanted: parameters
            .limit
            .map(|limit| limit.saturating_add(parameters.skip)),
        ..Query::default()
    };
    let plan = plan::choose(collection, &snapshot, &query).map_err(errors::query)?;
    let most = query.wanted.unwrap_or(u64::MAX);
    let known = collection.filter(|_| filter.is_empty() && ownership.is_none());
    let source = Source::new(snapshot, &plan, ctx.slot().clone());
    let cost = source.cost.clone();
    let known = known.filter(|_| parameters.hint.is_none());
    if known.is_none() {
        ctx.run_plan(&cost);
    }
    let found = if let Some(collection) = known {
        let documents = collection.documents().min(most);
        // It is counted as of now, not as of the snapshot.
        if ctx.is_routed() {
            owned_view(ctx, parameters.collection)?;
        }
        documents
    } else if plan.exact && ownership.is_none() {
        source.count_keys(most).map_err(errors::query)?
    } else {
        let filter = Some(filter.clone()).filter(|_| !plan.exact);
        let mut found = 0;
        for matched in Matching::new(source, filter, ownership) {
            matched.map_err(errors::query)?;
            found += 1;
            if found >= most {
                break;
            }
        }
        found
    };
    Ok(Counted {
        count: found.saturating_sub(parameters.skip),
        filter,
        plan,
        cost,
    })
}
