//! `dropIndexes`: on every shard that holds a part of the collection.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};

use super::index_changes;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new("dropIndexes", "drops indexes", run!(run))
    .access(Access::Collection(Action::DropIndex))
    .aliases(&["dropindexes", "deleteIndexes"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let ns = ns.as_str();
    context
        .router
        .with_route(ns, false, |route| async move {
            let route = route.ok_or_else(|| {
                CommandError::new(ErrorCode::NamespaceNotFound, format!("ns not found {ns}"))
            })?;
            index_changes::run(context, &route).await
        })
        .await
}
