//! `findAndModify`: on the one shard that the query names.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawDocumentBuf, rawdoc};

use super::forward;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;
use crate::targeting;

pub const SPEC: CommandSpec = CommandSpec::new(
    "findAndModify",
    "changes one document and returns it",
    run!(run),
)
.access(Access::Checked(reads_and_writes::find_and_modify))
.aliases(&["findandmodify"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let body = &context.request.body;
    let empty = RawDocumentBuf::new();
    let filter = fields::document(body, "query")?.unwrap_or(&empty);
    let upsert = fields::get_flag(body, "upsert");
    context
        .router
        .with_route(&ns, upsert, |route| async move {
            let Some(route) = route else {
                return Ok(nothing_found(context));
            };
            let shards = targeting::of_filter(&route, filter, body);
            let [shard] = shards.as_slice() else {
                let text = "Query for sharded findAndModify must contain the shard key";
                return Err(CommandError::new(ErrorCode::ShardKeyNotFound, text));
            };
            if upsert && let Some(table) = &route.table {
                let filter = targeting::parse(table, filter, body)?;
                if targeting::key_of(table, &filter).is_none() {
                    let text = "Query for sharded findAndModify must contain the shard key";
                    return Err(CommandError::new(ErrorCode::ShardKeyNotFound, text));
                }
            }
            Ok(forward::forward(context, &route, shard, true).await?.reply)
        })
        .await
}

fn nothing_found(context: &Context<'_>) -> RawDocumentBuf {
    let remove = fields::get_flag(&context.request.body, "remove");
    let last = if remove {
        rawdoc! {"n": 0}
    } else {
        rawdoc! {"n": 0, "updatedExisting": false}
    };
    rawdoc! {"lastErrorObject": last, "value": RawBson::Null, "ok": 1.0}
}
