//! `listCollections`: the primary shard of a database knows all of its collections.

use bson::rawdoc;

use super::on_primary;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new(
    "listCollections",
    "the collections of a database",
    run!(run),
);

async fn run(context: &Context<'_>) -> CommandResult {
    let database = &context.request.database;
    let Some(route) = on_primary::route(context).await? else {
        let ns = format!("{database}.$cmd.listCollections");
        let none = bson::RawArrayBuf::new();
        let cursor = rawdoc! {"id": 0i64, "ns": ns, "firstBatch": none};
        return Ok(rawdoc! {"cursor": cursor, "ok": 1.0});
    };
    on_primary::forward_cursor(context, &route).await
}
