//! `createIndexes`: on every shard that holds a part of the collection.

use banyan_document::DocumentWriter;
use banyan_wire::CommandError;

use super::{CommandResult, CommandSpec, Context, forward, run};
use crate::catalog::Route;
use crate::dispatch::Answer;
use crate::fields;

pub const SPEC: CommandSpec =
    CommandSpec::new("createIndexes", "makes indexes", run!(run)).aliases(&["createindexes"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    context
        .router
        .with_route(&ns, true, |route| async move {
            let route = route.ok_or_else(super::no_database)?;
            on_every_owner(context, &route).await
        })
        .await
}

/// Runs an index command where the collection is, and shows each shard's reply under its address.
pub async fn on_every_owner(context: &Context<'_>, route: &Route) -> CommandResult {
    let mut shards = route.shards();
    // The database's shard lists the collection, so it has the indexes whether or not it has data.
    if !shards.contains(&route.database.primary) {
        shards.push(route.database.primary.clone());
    }
    let requests = shards
        .into_iter()
        .map(|shard| {
            let outgoing = forward::outgoing(context.request, route, &shard);
            (shard, outgoing)
        })
        .collect();
    let answers = forward::gather(context, requests, true).await?;
    raw_reply(context, &answers).await
}

async fn raw_reply(
    context: &Context<'_>,
    answers: &[Answer],
) -> Result<bson::RawDocumentBuf, CommandError> {
    let mut out = DocumentWriter::new();
    out.begin_document("raw");
    for answer in answers {
        let shard = context.router.shards.get(&answer.shard).await?;
        fields::append_reply(&mut out, &shard.address, &answer.reply);
    }
    out.end();
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}
