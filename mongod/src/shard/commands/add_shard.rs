//! `_addShard`: the config servers take this set into their cluster.

use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use crate::shard::state::{Identity, ShardRole};

pub static SPEC: CommandSpec = primary_only("_addShard", |ctx| boxed(run(ctx)));

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ShardRole::of(ctx)?;
    let document = ctx.required("shardIdentity")?.document()?;
    let identity = Identity::parse(document)?;
    if let Some(known) = role.load_identity().await? {
        if known.cluster != identity.cluster || known.name != identity.name {
            let message = format!(
                "this server is already shard {} of cluster {}; it must be started with an empty \
                 data directory to become shard {} of cluster {}",
                known.name, known.cluster, identity.name, identity.cluster
            );
            return Err(CommandError::new(ErrorCode::IllegalOperation, message));
        }
        return Ok(rawdoc! { "ok": 1.0 });
    }
    let body = rawdoc! {
        "update": "system.version",
        "updates": [{
            "q": { "_id": "shardIdentity" }, "u": document.to_owned(), "upsert": true,
        }],
    };
    role.local.write("admin", body).await?;
    tracing::info!(shard = &*identity.name, "this server has become a shard");
    role.set_identity(identity);
    Ok(rawdoc! { "ok": 1.0 })
}
