//! `listIndexes`: the indexes of a collection, as they were asked for.

use banyan_wire::{CommandError, ErrorCode};

use super::table::{CommandResult, CommandSpec, Run};
use crate::context::CommandContext;
use crate::cursors::first;

pub static SPEC: CommandSpec = CommandSpec::new("listIndexes", Run::Inline(run))
    .aliases(&["listindexes"])
    .fields(&["cursor"])
    .ignored(&["includeBuildUUIDs", "includeIndexBuildInfo"])
    .computes();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let name = ctx.collection()?;
    let catalog = ctx.node.store.catalog();
    let Some(collection) = catalog.get(ctx.database(), name) else {
        return Err(CommandError::new(
            ErrorCode::NamespaceNotFound,
            format!("ns does not exist: {}.{name}", ctx.database()),
        ));
    };
    let listed = collection
        .indexes
        .iter()
        .map(|index| index.spec.clone())
        .collect();
    first::reply_with_list(ctx, ctx.namespace()?, listed)
}
