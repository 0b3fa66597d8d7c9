//! `_configsvrEnsureChunkVersionIsGreaterThan`: a donor that does not know whether its (or its
//! predecessor's) commit has arrived makes sure that it either has or never will.

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_sharding::{ChunkRange, commit};
use bson::rawdoc;

use super::target::bad_value;
use crate::role::ConfigRole;

pub static SPEC: CommandSpec = primary_only("_configsvrEnsureChunkVersionIsGreaterThan", |ctx| {
    boxed(run(ctx))
});

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let ns = ctx
        .required("_configsvrEnsureChunkVersionIsGreaterThan")?
        .str()?;
    let min = ctx.required("min")?.document()?;
    let max = ctx.required("max")?.document()?;
    let lastmod = ctx.body().get_timestamp("lastmod").map_err(bad_value)?;
    let epoch = ctx.body().get_object_id("epoch").map_err(bad_value)?;
    let _lock = role.namespaces.lock(ns).await;
    // Dropped, or dropped and made again: the commit will be refused for that.
    let Some(table) = role.metadata.table(ns).await? else {
        return Ok(rawdoc! { "ok": 1.0 });
    };
    if table.version().epoch != epoch {
        return Ok(rawdoc! { "ok": 1.0 });
    }
    let range = ChunkRange::parse(table.pattern(), min, max).map_err(bad_value)?;
    if let Ok(raised) = commit::fence(&table, &range, lastmod) {
        role.metadata.put_chunks(&table, &[raised]).await?;
    }
    Ok(rawdoc! { "ok": 1.0 })
}
