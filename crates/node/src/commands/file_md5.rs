//! `filemd5`: the MD5 of a file in GridFS, out of its chunks.

use banyan_access::check::Access;
use banyan_access::reads_and_writes;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawBson, RawBsonRef, rawdoc};
use md5::{Digest, Md5};

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("filemd5", Run::Future(run))
    .access(Access::Checked(reads_and_writes::file_md5))
    .fields(&["root"]);

/// So many chunks are read at once: no more than a reply's bytes, if they are as large as may be.
const CHUNKS: i32 = 32;

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(file_md5(ctx))
}

async fn file_md5(ctx: &CommandContext<'_>) -> CommandResult {
    let root = match ctx.field("root").map(|field| field.value) {
        None => "fs",
        Some(RawBsonRef::String(root)) => root,
        Some(_) => {
            return Err(CommandError::new(
                ErrorCode::InvalidNamespace,
                "'root' must be of type String",
            ));
        }
    };
    let file = RawBson::from(ctx.argument().unwrap_or(RawBsonRef::Null));
    let mut sum = Md5::new();
    let mut chunks = 0;
    loop {
        let next = rawdoc! {
            "find": format!("{root}.chunks"),
            "filter": { "files_id": file.clone(), "n": { "$gte": chunks } },
            "sort": { "files_id": 1, "n": 1 },
            "limit": CHUNKS,
            "singleBatch": true,
        };
        let reply = ctx.nested(ctx.database(), next).await?;
        let batch = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"));
        let Ok(batch) = batch else { break };
        let before = chunks;
        for chunk in banyan_document::items(batch) {
            let Some(chunk) = chunk.value().as_document() else {
                continue;
            };
            let number = banyan_document::field(chunk, "n").and_then(params::number);
            if number != Some(i64::from(chunks)) {
                return Err(CommandError::new(
                    ErrorCode::Location(10_040),
                    "Executor error during filemd5 command :: caused by :: chunks out of order",
                ));
            }
            let Some(RawBsonRef::Binary(data)) = banyan_document::field(chunk, "data") else {
                return Err(CommandError::new(
                    ErrorCode::Location(50_849),
                    format!("The element 'data' of chunk {chunks} is not a BinData"),
                ));
            };
            sum.update(data.bytes);
            chunks += 1;
        }
        if chunks == before {
            break;
        }
    }
    let md5: String = sum
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(rawdoc! { "numChunks": chunks, "md5": md5, "ok": 1.0 })
}
