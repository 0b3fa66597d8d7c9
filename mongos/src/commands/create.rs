//! `create`: a collection begins on its database's shard.

use super::forward;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::errors::no_database;

pub const SPEC: CommandSpec = CommandSpec::new("create", "makes a collection", run!(run));

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    context
        .router
        .with_route(&ns, true, |route| async move {
            let route = route.ok_or_else(no_database)?;
            let shard = route.database.primary.clone();
            Ok(forward::forward(context, &route, &shard, true).await?.reply)
        })
        .await
}
