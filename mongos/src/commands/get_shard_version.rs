//! `getShardVersion`: how old the router's picture of a collection is.

use banyan_access::check::Access;
use banyan_access::sharding;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::fields;

pub const SPEC: CommandSpec = CommandSpec::new(
    "getShardVersion",
    "the version of a collection's routing",
    run!(run),
)
.access(Access::Checked(sharding::get_shard_version))
.aliases(&["getshardversion"])
.admin_only();

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = fields::full_name(context.request)?;
    let route = context.router.catalog.route(&ns).await?;
    let Some(table) = route.as_ref().and_then(|route| route.table.as_ref()) else {
        let text = format!("Collection {ns} is not sharded.");
        return Err(CommandError::new(ErrorCode::NamespaceNotSharded, text));
    };
    let version = table.version();
    Ok(rawdoc! {
        "version": version.lastmod(),
        "versionEpoch": version.epoch,
        "versionTimestamp": version.timestamp,
        "ok": 1.0,
    })
}
