//! `$shardedDataDistribution`: how the documents of every sharded collection lie on the shards.

use banyan_document::DocumentWriter;
use banyan_wire::{CommandError, Outgoing};
use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::own_sources;
use crate::answer::Answer;
use crate::catalog::Route;
use crate::context::{CommandResult, Context};
use crate::fields;
use crate::shards::find_all;

/// Whether the pipeline begins with the stage.
pub fn is_asked_for(stages: &[&RawDocument]) -> bool {
    stages
        .first()
        .is_some_and(|stage| fields::get(stage, "$shardedDataDistribution").is_some())
}

/// Answers the pipeline with a document for each sharded collection.
pub async fn run(context: &Context<'_>, stages: &[&RawDocument]) -> CommandResult {
    let config = &context.router.config;
    let entries = find_all(config, "collections", &rawdoc! {}, &rawdoc! {"_id": 1}).await?;
    let mut documents = Vec::new();
    for entry in &entries {
        let Ok(ns) = entry.get_str("_id") else {
            continue;
        };
        let route = context.router.catalog.route(ns).await?;
        if let Some(route) = route.filter(|route| route.is_sharded()) {
            documents.push(distribution(context, &route).await?);
        }
    }
    own_sources::piped(context, &stages[1..], documents).await
}

async fn distribution(
    context: &Context<'_>,
    route: &Route,
) -> Result<RawDocumentBuf, CommandError> {
    let (database, collection) = route.ns.split_once('.').unwrap_or((&route.ns, ""));
    let pipeline = bson::RawArrayBuf::from_iter([rawdoc! {"$collStats": {"storageStats": {}}}]);
    let requests = route
        .shards()
        .into_iter()
        .map(|shard| {
            let mut command = rawdoc! {"aggregate": collection, "cursor": {}};
            command.append(cstr!("pipeline"), pipeline.clone());
            (shard, Outgoing::command(database, &command))
        })
        .collect();
    let answers = context
        .router
        .send_all(requests, context.request_options(false))
        .await;
    let mut out = DocumentWriter::new();
    out.append_str("ns", &route.ns);
    out.begin_array("shards");
    for answer in answers {
        let answer = answer.and_then(Answer::checked)?;
        let of = |name: &str| statistic(&answer.reply, name).unwrap_or(0);
        let (orphans, average) = (of("numOrphanDocs"), of("avgObjSize"));
        let owned = of("count") - orphans;
        out.push_document();
        out.append_str("shardName", &answer.shard);
        out.append_i64("numOrphanedDocs", orphans);
        out.append_i64("numOwnedDocuments", owned);
        out.append_i64("ownedSizeBytes", owned * average);
        out.append_i64("orphanedSizeBytes", orphans * average);
        out.end();
    }
    out.end();
    Ok(out.finish())
}

/// A number of the `storageStats` in a shard's reply.
fn statistic(reply: &RawDocument, name: &str) -> Option<i64> {
    let batch = reply
        .get_document("cursor")
        .ok()?
        .get_array("firstBatch")
        .ok()?;
    let Some(RawBsonRef::Document(first)) = batch.get(0).ok()? else {
        return None;
    };
    fields::get_number(first.get_document("storageStats").ok()?, name)
}
