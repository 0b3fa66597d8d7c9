//! `_configsvrCommitChunkSplit`: a shard has found where its chunk should be cut.

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_sharding::{ChunkRange, CommitError, ShardKey, commit};
use banyan_wire::CommandError;
use bson::oid::ObjectId;
use bson::rawdoc;

use super::target::{bad_value, bound, refused};
use crate::role::ConfigRole;

pub static SPEC: CommandSpec = primary_only("_configsvrCommitChunkSplit", |ctx| boxed(run(ctx)));

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let ns = ctx.required("_configsvrCommitChunkSplit")?.str()?;
    let shard = ctx.required("shard")?.str()?;
    let epoch = ctx.body().get_object_id("collEpoch").ok();
    let min = ctx.required("min")?.document()?;
    let max = ctx.required("max")?.document()?;
    let points = ctx.required("splitPoints")?.array()?;
    let table = role.metadata.sharded_table(ns).await?;
    let range = ChunkRange::parse(table.pattern(), min, max).map_err(bad_value)?;
    let mut keys = Vec::new();
    for point in points {
        let point = point.map_err(bad_value)?.as_document();
        let point = point.ok_or_else(|| bad_value("split points must be documents"))?;
        keys.push(bound(&table, point)?);
    }
    split(role, ns, shard, epoch, &range, &keys).await?;
    Ok(rawdoc! { "ok": 1.0 })
}

/// Cuts a chunk; that it is already cut like this is fine.
pub async fn split(
    role: &ConfigRole,
    ns: &str,
    shard: &str,
    epoch: Option<ObjectId>,
    range: &ChunkRange,
    points: &[ShardKey],
) -> Result<(), CommandError> {
    let _lock = role.namespaces.lock(ns).await;
    let table = role.metadata.sharded_table(ns).await?;
    let mut new_id = ObjectId::new;
    let done = match commit::split(&table, shard, epoch, range, points, &mut new_id) {
        Ok(done) => done,
        Err(CommitError::AlreadyDone) => return Ok(()),
        Err(error) => return Err(refused(error)),
    };
    role.metadata.put_chunks(&table, &done.changed).await?;
    let details = rawdoc! {
        "before": {
            "min": range.min.document().to_owned(),
            "max": range.max.document().to_owned(),
            "lastmod": done.before.lastmod,
        },
        "number": i32::try_from(done.changed.len()).unwrap_or(i32::MAX),
        "owningShard": shard,
    };
    role.note("multi-split", ns, details).await;
    Ok(())
}
