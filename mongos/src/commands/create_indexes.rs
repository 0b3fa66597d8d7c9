//! `createIndexes`: on every shard that holds a part of the collection.

use super::{CommandResult, CommandSpec, Context, index_changes, run};

pub const SPEC: CommandSpec =
    CommandSpec::new("createIndexes", "makes indexes", run!(run)).aliases(&["createindexes"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    context
        .router
        .with_route(&ns, true, |route| async move {
            let route = route.ok_or_else(super::no_database)?;
            index_changes::run(context, &route).await
        })
        .await
}
