//! Zones: which ranges of keys live on which shards.

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new("addShardToZone", "puts a shard into a zone", run!(add)).admin_only(),
    CommandSpec::new(
        "removeShardFromZone",
        "takes a shard out of a zone",
        run!(remove),
    )
    .admin_only(),
    CommandSpec::new(
        "updateZoneKeyRange",
        "gives a range of keys to a zone",
        run!(update),
    )
    .admin_only(),
];

async fn add(context: &Context<'_>) -> CommandResult {
    pass::to_config(context, "_configsvrAddShardToZone", &[]).await
}

async fn remove(context: &Context<'_>) -> CommandResult {
    pass::to_config(context, "_configsvrRemoveShardFromZone", &[]).await
}

async fn update(context: &Context<'_>) -> CommandResult {
    pass::to_config(context, "_configsvrUpdateZoneKeyRange", &[]).await
}
