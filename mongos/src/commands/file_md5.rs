//! `filemd5`: worked out by the shard that has all chunks of the file.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBsonRef, cstr, rawdoc};

use super::forward;
use crate::catalog::Route;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::targeting;

pub const SPEC: CommandSpec = CommandSpec::new("filemd5", "the MD5 of a file in GridFS", run!(run))
    .access(Access::Checked(reads_and_writes::file_md5));

async fn run(context: &Context<'_>) -> CommandResult {
    let root = match context.request.get("root") {
        None => "fs",
        Some(RawBsonRef::String(root)) => root,
        Some(_) => {
            let text = "'root' must be of type String";
            return Err(CommandError::new(ErrorCode::InvalidNamespace, text));
        }
    };
    let ns = format!("{}.{root}.chunks", context.request.database);
    context
        .router
        .with_route(&ns, false, |route| async move {
            let Some(route) = route else {
                // The MD5 of nothing.
                return Ok(rawdoc! {
                    "numChunks": 0,
                    "md5": "d41d8cd98f00b204e9800998ecf8427e",
                    "ok": 1.0,
                });
            };
            let shard = holder(context, &route)?;
            Ok(forward::forward(context, &route, &shard, false)
                .await?
                .reply)
        })
        .await
}

/// The shard on which all chunks of the file lie.
fn holder(context: &Context<'_>, route: &Route) -> Result<Arc<str>, CommandError> {
    if !route.is_sharded() {
        return Ok(route.database.primary.clone());
    }
    let file = context.request.first_value().unwrap_or(RawBsonRef::Null);
    let mut filter = bson::RawDocumentBuf::new();
    filter.append(cstr!("files_id"), file);
    let shards = targeting::of_filter(route, &filter, &context.request.body);
    match &shards[..] {
        [shard] => Ok(shard.clone()),
        _ => Err(CommandError::new(
            ErrorCode::NotImplemented,
            "the chunks of the file lie on several shards",
        )),
    }
}
