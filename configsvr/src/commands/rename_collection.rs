//! `renameCollection` in a cluster: of collections that are not sharded, within one shard.

use std::collections::BTreeSet;

use banyan_node::collection_uuid;
use banyan_node::commands::table::{CommandResult, CommandSpec, boxed, primary_only};
use banyan_node::context::CommandContext;
use banyan_wire::{CommandError, ErrorCode};
use bson::{cstr, rawdoc};

use crate::role::ConfigRole;
use crate::shards::SHORT;
use crate::user_writes;

pub static SPEC: CommandSpec = primary_only("_configsvrRenameCollection", |ctx| boxed(run(ctx)));

async fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let role = ConfigRole::of(ctx)?;
    let from = ctx.required("_configsvrRenameCollection")?.str()?;
    let to = ctx.required("to")?.str()?;
    let drop_target = match ctx.field("dropTarget") {
        Some(field) => field.bool()?,
        None => false,
    };
    let _admitted = user_writes::admit(role, ctx).await?;
    // Neither of them is sharded or dropped meanwhile. In order, so that nobody waits in a circle.
    let databases: BTreeSet<&str> = [database(from)?, database(to)?].into();
    let mut _held = Vec::new();
    for database in databases {
        _held.push(role.databases.lock(database).await);
    }
    for ns in [from, to] {
        if role.metadata.table(ns).await?.is_some() {
            let text = "renaming to or from a sharded collection is not supported";
            return Err(CommandError::new(ErrorCode::IllegalOperation, text));
        }
    }
    let home = |entry: Option<crate::metadata::DatabaseEntry>| entry.map(|entry| entry.primary);
    let source = home(role.metadata.database(database(from)?).await?);
    let target = home(role.metadata.database(database(to)?).await?);
    let Some(source) = source else {
        let text = format!("Source collection {from} does not exist");
        return Err(CommandError::new(ErrorCode::NamespaceNotFound, text));
    };
    if target != Some(source.clone()) {
        let text = "source and destination collections must be on the same shard";
        return Err(CommandError::new(ErrorCode::CommandFailed, text));
    }
    let mut command = rawdoc! {
        "renameCollection": from,
        "to": to,
        "dropTarget": drop_target,
        "mayBypassWriteBlocking": true,
    };
    if let Some(concern) = ctx.generic.write_concern {
        command.append(cstr!("writeConcern"), concern.to_owned());
    }
    // The shard knows which collection has it.
    if let Some(uuid) = ctx.field(collection_uuid::FIELD) {
        command.append(cstr!("collectionUUID"), uuid.value);
    }
    let shard = role.metadata.shard(&source).await?;
    role.shards.command_once(&shard.host, &command, SHORT).await
}

fn database(ns: &str) -> Result<&str, CommandError> {
    let invalid = || {
        let message = format!("Invalid namespace specified '{ns}'");
        CommandError::new(ErrorCode::InvalidNamespace, message)
    };
    ns.split_once('.')
        .map(|(database, _)| database)
        .ok_or_else(invalid)
}
