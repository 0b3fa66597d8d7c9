//! `mapReduce`: every shard maps and reduces its part, one of them puts the parts together.

use banyan_wire::{CommandError, ErrorCode};

use super::{CommandResult, CommandSpec, Context, forward, run};

pub const SPEC: CommandSpec =
    CommandSpec::new("mapReduce", "maps and reduces with JavaScript", run!(run))
        .aliases(&["mapreduce"]);

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let ns = ns.as_str();
    context
        .router
        .with_route(ns, false, |route| async move {
            let route = route.ok_or_else(|| {
                CommandError::new(
                    ErrorCode::NamespaceNotFound,
                    format!("ns doesn't exist: {ns}"),
                )
            })?;
            let shards = route.shards();
            let [shard] = shards.as_slice() else {
                let text = "mapReduce over several shards";
                return Err(CommandError::new(ErrorCode::NotImplemented, text));
            };
            Ok(forward::forward(context, &route, shard, true).await?.reply)
        })
        .await
}
