//! `find`: passed on when one shard can answer, merged when several have to.

use banyan_access::check::Access;
use banyan_security::Action;
use std::sync::Arc;

use banyan_document::Collator;
use banyan_query::projection::Projection;
use banyan_query::sort::{SORT_KEY_FIELD, SortPattern};
use banyan_query::text::{SearchedIndex, TextContext};
use banyan_query::view::Resolved;
use banyan_wire::{CommandError, ErrorCode};
use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf, rawdoc};

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
    projection: Option<&'a RawDocument>,
    /// The keys of indexes are wanted, which say too little of the order.
    return_key: bool,
    skip: u64,
    limit: Option<u64>,
    single_batch: bool,
}

impl<'a> Parts<'a> {
    fn read(body: &'a RawDocument) -> Result<Parts<'a>, CommandError> {
        let count = |name: &str| match fields::get_number(body, name) {
            Some(n) => u64::try_from(n).map_err(|_| {
                let text = format!("BSON field '{name}' value must be >= 0, actual value '{n}'");
                CommandError::new(ErrorCode::Location(51024), text)
            }),
            None => Ok(0),
        };
        let not_empty = |document: &&RawDocument| !document.is_empty();
        let is_natural = |sort: &RawDocument| matches!(sort.get("$natural"), Ok(Some(_)));
        let sort = fields::document(body, "sort")?.filter(not_empty);
        Ok(Parts {
            sort: sort.filter(|sort| !is_natural(sort)),
            projection: fields::document(body, "projection")?.filter(not_empty),
            return_key: fields::get_flag(body, "returnKey"),
            skip: count("skip")?,
            limit: Some(count("limit")?).filter(|&limit| limit > 0),
            single_batch: fields::get_flag(body, "singleBatch"),
        })
    }

    /// What happens to the documents here, once the shards have sent them.
    fn shape(&self, collator: Option<Collator>, is_near: bool) -> Result<Shape, CommandError> {
        let text = TextContext::new(SearchedIndex::Elsewhere);
        let inner = banyan_query::Context {
            collator,
            text: Some(text.clone()),
            ..banyan_query::Context::default()
        };
        let sort = self
            .sort
            .map(|sort| SortPattern::parse_in(sort, &inner))
            .transpose()
            .map_err(query_error)?;
        // A projection may take away what the merge sorts by, so it is applied after the merge.
        let projection = match self.projection {
            Some(projection) if is_near || sort.is_some() => {
                Some(Projection::parse(projection, &inner).map_err(query_error)?)
            }
            _ => None,
        };
        if !inner.metadata.take().is_empty() && !self.return_key {
            return Err(CommandError::new(
                ErrorCode::NotImplemented,
                "a router does not know this $meta of documents that it sorts",
            ));
        }
        let sort_is_some = sort.is_some();
        let order = match sort {
            Some(_) if self.return_key => Some(Order::Sent),
            Some(pattern) => Some(Order::By(pattern)),
            None => is_near.then(|| Order::Distance(SortPattern::by_distance())),
        };
        Ok(Shape {
            sort: order,
            skip: self.skip,
            limit: self.limit,
            projection: projection.filter(|_| !self.return_key),
            drops_text_score: sort_is_some && text.is_asked() && !self.return_key,
        })
    }
}

async fn scatter(context: &Context<'_>, route: &Route, shards: &[Arc<str>]) -> CommandResult {
    let request = context.request;
    let parts = Parts::read(&request.body)?;
    let is_near = parts.sort.is_none() && !parts.return_key && asks_for_near(route, &request.body)?;
    let mut dropped = vec!["skip", "limit", "singleBatch"];
    let mut added = RawDocumentBuf::new();
    if let Some(limit) = parts.limit {
        // Any shard may turn out to hold all that is skipped and wanted.
        let most = limit.saturating_add(parts.skip);
        added.append(cstr!("limit"), i64::try_from(most).unwrap_or(i64::MAX));
    }
    let shape = parts.shape(collation::of(route.table.as_ref(), &request.body)?, is_near)?;
    if shape.projection.is_some() {
        dropped.push("projection");
    }
    if let Some(Order::Sent) = shape.sort {
        dropped.push("projection");
        let mut asked = RawDocumentBuf::new();
        asked.append(SORT_KEY_FIELD, rawdoc! {"$meta": "sortKey"});
        added.append(cstr!("projection"), asked);
    }
    if let Some(Order::Distance(_)) = shape.sort {
        dropped.push("projection");
        let mut asked = RawDocumentBuf::new();
        asked.append(cstr!("$dis"), rawdoc! {"$meta": "geoNearDistance"});
        added.append(cstr!("projection"), asked);
    }
    if shape.drops_text_score {
        let mut asked = RawDocumentBuf::new();
        asked.append(cstr!("$textScore"), rawdoc! {"$meta": "textScore"});
        added.append(cstr!("projection"), asked);
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
