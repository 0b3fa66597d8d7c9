//! `fsync`: what was written becomes durable on every shard.

use std::sync::Arc;

use banyan_access::check::Access;
use banyan_document::{DocumentWriter, is_true};
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::{RawDocumentBuf, rawdoc};

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new("fsync", "syncs every shard's data", run!(run))
    .access(Access::Cluster(Action::Fsync))
    .admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    if context.request.get("lock").is_some_and(is_true) {
        return Err(CommandError::new(
            ErrorCode::NotImplemented,
            "a cluster cannot be locked against writes through a router",
        ));
    }
    let router = context.router;
    router.shards.reload().await?;
    let shards: Vec<Arc<str>> = router.shards.all().keys().cloned().collect();
    let answers = router
        .broadcast(
            &shards,
            context.request_options(false),
            "admin",
            &rawdoc! {"fsync": 1},
        )
        .await;
    let mut files = 0;
    let mut all: Vec<(Arc<str>, RawDocumentBuf)> = Vec::new();
    for (shard, answer) in answers {
        let answer = answer?;
        files += answer.get_i32("numFiles").unwrap_or(0);
        all.push((shard, answer));
    }
    let mut out = DocumentWriter::new();
    out.append_i32("numFiles", files);
    out.begin_document("all");
    all.iter()
        .for_each(|(shard, answer)| fields::append_reply(&mut out, shard, answer));
    out.end();
    out.append_f64("ok", 1.0);
    Ok(out.finish())
}
