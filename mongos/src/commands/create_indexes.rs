//! `createIndexes`: on every shard that holds a part of the collection.

use super::index_changes;
use crate::context::{CommandResult, CommandSpec, Context, run};
use crate::errors::no_database;
use banyan_access::check::Access;
use banyan_security::Action;

pub const SPEC: CommandSpec = CommandSpec::new("createIndexes", "makes indexes", run!(run))
    .access(Access::Collection(Action::CreateIndex))
    .aliases(&["createindexes"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    context
        .router
        .with_route(&ns, true, |route| async move {
            let route = route.ok_or_else(no_database)?;
            index_changes::run(context, &route).await
        })
        .await
}
