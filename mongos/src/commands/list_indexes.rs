//! `listIndexes`: every shard of a collection has the same ones.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};

use super::forward;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec =
    CommandSpec::new("listIndexes", "the indexes of a collection", run!(run))
        .access(Access::Collection(Action::ListIndexes));

async fn run(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let ns = ns.as_str();
    context
        .router
        .with_route(ns, false, |route| async move {
            let missing = || {
                let text = format!("ns does not exist: {ns}");
                CommandError::new(ErrorCode::NamespaceNotFound, text)
            };
            let route = route.ok_or_else(missing)?;
            let shards = route.shards();
            let shard = shards.first().ok_or_else(missing)?;
            forward::forward_cursor(context, &route, shard, false).await
        })
        .await
}
