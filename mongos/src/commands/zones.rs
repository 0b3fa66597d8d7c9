//! Zones: which ranges of keys live on which shards.

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};
use banyan_access::check::Access;
use banyan_access::sharding;

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new("addShardToZone", "puts a shard into a zone", run!(add))
        .access(Access::Checked(sharding::add_shard_to_zone))
        .admin_only(),
    CommandSpec::new(
        "removeShardFromZone",
        "takes a shard out of a zone",
        run!(remove),
    )
    .access(Access::Checked(sharding::remove_shard_from_zone))
    .admin_only(),
    CommandSpec::new(
        "updateZoneKeyRange",
        "gives a range of keys to a zone",
        run!(update),
    )
    .access(Access::Checked(sharding::update_zone_key_range))
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
