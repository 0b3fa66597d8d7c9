//! `listCollections`: the primary shard of a database knows all of its collections.

use banyan_access::check::Access;
use banyan_access::listing;
use banyan_access::reads_and_writes;
use bson::{RawDocumentBuf, rawdoc};

use super::on_primary;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new(
    "listCollections",
    "the collections of a database",
    run!(run),
)
.access(Access::Checked(reads_and_writes::list_collections));

async fn run(context: &Context<'_>) -> CommandResult {
    let database = &context.request.database;
    let Some(route) = on_primary::route(context).await? else {
        let ns = format!("{database}.$cmd.listCollections");
        let none = bson::RawArrayBuf::new();
        let cursor = rawdoc! {"id": 0i64, "ns": ns, "firstBatch": none};
        return Ok(rawdoc! {"cursor": cursor, "ok": 1.0});
    };
    let only = context
        .identity()
        .and_then(|identity| listing::collections(identity, database, &context.request.body))
        .and_then(|identity| listing::reached_names(&identity, database));
    let Some(only) = only else {
        return on_primary::forward_cursor(context, &route, &[], &RawDocumentBuf::new()).await;
    };
    let filter = match fields::document(&context.request.body, "filter")? {
        Some(filter) => rawdoc! {"$and": [filter.to_owned(), only]},
        None => only,
    };
    // The shard is asked by the router, which may see all: what is left out, the filter says.
    let dropped = &["filter", "authorizedCollections"];
    on_primary::forward_cursor(context, &route, dropped, &rawdoc! {"filter": filter}).await
}
