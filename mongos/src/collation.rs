//! The collation that an operation has on its shards, for what the router does of it.

use banyan_document::Collator;
use banyan_sharding::RoutingTable;
use banyan_wire::{CommandError, ErrorCode, Outgoing};
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::answer::Answer;
use crate::catalog::Route;
use crate::context::Context;
use crate::fields;

/// Of a command or a statement: the collation that it names, or else the collection's.
pub fn of(
    table: Option<&RoutingTable>,
    holder: &RawDocument,
) -> Result<Option<Collator>, CommandError> {
    match named(holder) {
        Some(named) => parse(named),
        None => Ok(table.and_then(RoutingTable::default_collator).cloned()),
    }
}

/// As [`of`]; of a collection that is not sharded its shard is asked.
pub async fn resolved(
    context: &Context<'_>,
    route: &Route,
    holder: &RawDocument,
) -> Result<Option<Collator>, CommandError> {
    if route.is_sharded() || named(holder).is_some() {
        return of(route.table.as_ref(), holder);
    }
    let (database, collection) = route.ns.split_once('.').unwrap_or((&route.ns, ""));
    let command = rawdoc! { "listCollections": 1, "filter": { "name": collection } };
    let shard = route.database.primary.clone();
    let requests = vec![(shard, Outgoing::command(database, &command))];
    let answers = context
        .router
        .send_all(requests, context.request_options(false))
        .await;
    for answer in answers {
        let reply = answer.and_then(Answer::checked)?.reply;
        if let Some(default) = default_of(&reply) {
            return parse(default);
        }
    }
    Ok(None)
}

/// The `collation` to send so that a shard takes this one and not its collection's.
pub fn explicit(collator: Option<&Collator>) -> RawDocumentBuf {
    match collator {
        Some(collator) => collator.collation().to_document(),
        None => rawdoc! { "locale": "simple" },
    }
}

fn parse(document: &RawDocument) -> Result<Option<Collator>, CommandError> {
    Collator::parse(document)
        .map_err(|error| CommandError::new(ErrorCode::from_code(error.code()), error.to_string()))
}

/// As in MongoDB, an empty document names none.
fn named(holder: &RawDocument) -> Option<&RawDocument> {
    match fields::get(holder, "collation") {
        Some(RawBsonRef::Document(named)) if !named.is_empty() => Some(named),
        _ => None,
    }
}

fn default_of(reply: &RawDocument) -> Option<&RawDocument> {
    let batch = reply
        .get_document("cursor")
        .ok()?
        .get_array("firstBatch")
        .ok()?;
    let options = batch.get_document(0).ok()?.get_document("options").ok()?;
    options.get_document("collation").ok()
}
