//! `create`: a collection begins on its database's shard.

use super::forward;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::errors::no_database;
use banyan_access::check::Access;
use banyan_access::reads_and_writes;

pub const SPEC: CommandSpec = CommandSpec::new("create", "makes a collection", run!(run))
    .access(Access::Checked(reads_and_writes::create));

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
