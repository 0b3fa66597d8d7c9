//! `find`: passed on when one shard can answer, merged when several have to.

use banyan_access::check::Access;
use banyan_security::Action;
use std::sync::Arc;

use banyan_document::Collator;
use banyan_query::canonical::natural_direction;
use banyan_query::sort::{NEEDS_MERGE, SortPattern};
use banyan_query::view::Resolved;
use banyan_wire::{CommandError, params};
use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf};

use super::{forward, viewed};
use crate::catalog::Route;
use crate::collation;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::cursors::{Cursor, Source, first_batch_size, reply};
use crate::errors::query_error;
use crate::fields;
use crate::merge::{Merge, Order, Remote, Shape};

pub const SPEC: CommandSpec = CommandSpec::new(
    "find",
    "finds documents, on as few shards as the filter allows",
    run!(run),
)
.access(Access::Collection(Action::Find));

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    // Routers ask shards for it, and nobody asks routers.
    if context.request.get(NEEDS_MERGE.as_str()).is_some() {
        let name = NEEDS_MERGE.as_str();
        return Err(params::unknown_field("FindCommandRequest", name));
    }
    let empty = RawDocumentBuf::new();
    let filter = fields::document(&context.request.body, "filter")?.unwrap_or(&empty);
    let ns = ns.as_str();
    let found = find(context, ns, filter).await;
    viewed::or_view(context, found, Resolved::of_find).await
}

async fn find(context: &Context<'_>, ns: &str, filter: &RawDocument) -> CommandResult {
    context
        .router
        .with_route(ns, false, |route| async move {
            let Some(route) = route else {
                return Ok(reply("firstBatch", &[], 0, ns));
            };
            let shards = crate::targeting::of_filter(&route, filter, &context.request.body);
            match shards.as_slice() {
                [shard] => forward::forward_cursor(context, &route, shard, false).await,
                _ => scatter(context, &route, &shards).await,
            }
        })
        .await
}

/// What a `find` over several shards has to know of itself.
struct Parts<'a> {
    /// `$natural` is each shard's own order: there is nothing to merge by.
    sort: Option<&'a RawDocument>,
    /// Documents come as they are stored.
    come_whole: bool,
    skip: u64,
    limit: Option<u64>,
    single_batch: bool,
}

impl<'a> Parts<'a> {
    fn read(body: &'a RawDocument) -> Result<Parts<'a>, CommandError> {
        let not_empty = |document: &&RawDocument| !document.is_empty();
        let mut parts = Parts {
            sort: None,
            come_whole: true,
            skip: 0,
            limit: None,
            single_batch: false,
        };
        for field in params::fields("FindCommandRequest", body) {
            match field.name {
                "skip" | "limit" | "sort" | "projection" if field.is_null() => {}
                "skip" => parts.skip = field.unsigned()?,
                "limit" => parts.limit = Some(field.unsigned()?).filter(|limit| *limit > 0),
                "singleBatch" => parts.single_batch = field.strict_bool()?,
                "sort" => parts.sort = Some(field.document()?).filter(not_empty),
                "projection" => parts.come_whole &= field.document()?.is_empty(),
                "returnKey" => parts.come_whole &= !field.strict_bool()?,
                _ => {}
            }
        }
        let is_natural = |sort: &RawDocument| natural_direction(sort).is_some();
        parts.sort = parts.sort.filter(|sort| !is_natural(sort));
        Ok(parts)
    }

    /// By what the shards' documents are merged, if by anything. Where the documents say it themselves,
    /// shards need not.
    fn order(
        &self,
        collator: Option<&Collator>,
        is_near: bool,
    ) -> Result<Option<Order>, CommandError> {
        let Some(sort) = self.sort else {
            return Ok(is_near.then_some(Order::Sent));
        };
        let names_metadata = sort
            .iter()
            .flatten()
            .any(|(_, order)| order.as_document().is_some());
        if !self.come_whole || names_metadata {
            return Ok(Some(Order::Sent));
        }
        let pattern = SortPattern::parse(sort, collator).map_err(query_error)?;
        Ok(Some(Order::By(pattern)))
    }
}

async fn scatter(context: &Context<'_>, route: &Route, shards: &[Arc<str>]) -> CommandResult {
    let request = context.request;
    let parts = Parts::read(&request.body)?;
    let is_near = parts.sort.is_none() && asks_for_near(route, &request.body)?;
    let dropped = ["skip", "limit", "singleBatch"];
    let mut added = RawDocumentBuf::new();
    if let Some(limit) = parts.limit {
        // Any shard may turn out to hold all that is skipped and wanted.
        let most = limit.saturating_add(parts.skip);
        added.append(cstr!("limit"), i64::try_from(most).unwrap_or(i64::MAX));
    }
    let collator = collation::of(route.table.as_ref(), &request.body)?;
    let shape = Shape {
        sort: parts.order(collator.as_ref(), is_near)?,
        skip: parts.skip,
        limit: parts.limit,
        ..Shape::default()
    };
    if matches!(shape.sort, Some(Order::Sent)) {
        added.append(NEEDS_MERGE, true);
    }
    let requests = shards
        .iter()
        .map(|shard| {
            let outgoing = forward::changed(request, &dropped, &added, route, shard);
            (shard.clone(), outgoing)
        })
        .collect();
    let answers = context
        .router
        .send_all(requests, context.request_options(false))
        .await;
    let remotes = forward::open_all(context, answers).await?;
    respond(context, &route.ns, remotes, shape, parts.single_batch).await
}

/// Whether documents are wanted in the order of their distances, which shards send if they are asked.
fn asks_for_near(route: &Route, body: &RawDocument) -> Result<bool, CommandError> {
    let filter = fields::document(body, "filter")?;
    let (Some(table), Some(filter)) = (&route.table, filter) else {
        return Ok(false);
    };
    // One that is wrong is refused by the shards.
    let filter = crate::targeting::parse(table, filter, body);
    Ok(filter.is_ok_and(|filter| filter.near().is_some()))
}

async fn respond(
    context: &Context<'_>,
    ns: &str,
    mut remotes: Vec<Remote>,
    shape: Shape,
    single_batch: bool,
) -> CommandResult {
    let body = &context.request.body;
    for remote in &mut remotes {
        remote.set_batch_size(fields::get_number(body, "batchSize"));
    }
    let source = Source::Merged(Merge::new(remotes, shape));
    let mut cursor = Cursor::new(ns.to_owned(), source, body).owned_by(context.owner());
    let batch = cursor.batch(first_batch_size(body, None)).await?;
    if single_batch || cursor.is_done() {
        cursor.kill().await;
        return Ok(reply("firstBatch", &batch, 0, ns));
    }
    let cursor = cursor.within(context.deadline);
    let id = context.router.cursors.insert(cursor);
    Ok(reply("firstBatch", &batch, id, ns))
}
