//! `_configsvrCommitChunkMigration`: the one moment at which a range changes hands.

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_sharding::commit::Expected;
use banyan_sharding::{ChunkRange, CommitError, commit};
use banyan_wire::{CommandError, ErrorCode};
use bson::oid::ObjectId;
use bson::rawdoc;

use super::target::{bad_value, refused};
use crate::index_changes;
use crate::role::ConfigRole;

pub static SPEC: CommandSpec =
    primary_only("_configsvrCommitChunkMigration", |ctx| boxed(run(ctx)));

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let ns = ctx.required("_configsvrCommitChunkMigration")?.str()?;
    let from = ctx.required("fromShard")?.str()?;
    let to = ctx.required("toShard")?.str()?;
    let min = ctx.required("min")?.document()?;
    let max = ctx.required("max")?.document()?;
    let expected = Expected {
        epoch: ctx.body().get_object_id("epoch").ok(),
        lastmod: ctx.body().get_timestamp("lastmod").ok(),
    };
    let _lock = role.namespaces.lock(ns).await;
    // A shard that is gone must not be given anything.
    let to = role.metadata.shard(to).await?.id;
    let table = role.metadata.sharded_table(ns).await?;
    let range = ChunkRange::parse(table.pattern(), min, max).map_err(bad_value)?;
    let at = role.metadata.tick();
    let mut new_id = ObjectId::new;
    let done = match commit::move_range(&table, from, &to, expected, &range, at, &mut new_id) {
        Ok(done) => done,
        // The answer to an earlier attempt was lost.
        Err(CommitError::AlreadyDone) => return Ok(rawdoc! { "ok": 1.0 }),
        Err(error) => return Err(refused(error)),
    };
    // The recipient has the indexes that the donor had when the move began.
    let known = ctx.body().get_timestamp("indexesChanged").ok();
    if known != table.entry().indexes_changed || index_changes::is_open(role, ns).await? {
        let message = format!("the indexes of {ns} have changed since the move began");
        return Err(CommandError::new(
            ErrorCode::ConflictingOperationInProgress,
            message,
        ));
    }
    role.metadata.put_chunks(&table, &done.changed).await?;
    let details = rawdoc! {
        "min": min.to_owned(), "max": max.to_owned(), "from": from, "to": &*to,
    };
    role.note("moveChunk.commit", ns, details).await;
    Ok(rawdoc! { "ok": 1.0 })
}
