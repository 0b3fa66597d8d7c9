//! The commands on plan caches and index filters: every shard of a collection has its own.

use banyan_access::check::Access;
use banyan_document::DocumentWriter;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};

use super::forward;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const CLEAR: CommandSpec = CommandSpec::new(
    "planCacheClear",
    "forgets which plans have won their trials",
    run!(on_all),
)
.access(Access::Collection(Action::PlanCacheWrite));
pub const SET_FILTER: CommandSpec = CommandSpec::new(
    "planCacheSetFilter",
    "names the only indexes for queries of a shape",
    run!(on_all),
)
.access(Access::Collection(Action::PlanCacheIndexFilter));
pub const LIST_FILTERS: CommandSpec = CommandSpec::new(
    "planCacheListFilters",
    "the indexes that are set for queries of a shape",
    run!(on_all),
)
.access(Access::Collection(Action::PlanCacheIndexFilter));
pub const CLEAR_FILTERS: CommandSpec = CommandSpec::new(
    "planCacheClearFilters",
    "lets queries use all indexes again",
    run!(on_all),
)
.access(Access::Collection(Action::PlanCacheIndexFilter));

/// The first shard's reply, and that of each shard under its name.
async fn on_all(context: &Context<'_>) -> CommandResult {
    let ns = context.namespace()?;
    let ns = ns.as_str();
    context
        .router
        .with_route(ns, false, |route| async move {
            let route = route.ok_or_else(|| {
                CommandError::new(ErrorCode::BadValue, format!("no such collection: {ns}"))
            })?;
            let answers = forward::gather_from_owners(context, &route, false).await?;
            let mut reply = DocumentWriter::new();
            if let Some(first) = answers.first() {
                for element in banyan_document::elements(&first.reply) {
                    if !super::pass::GENERIC.contains(&element.name()) {
                        reply.append_element(&element);
                    }
                }
            }
            for answer in &answers {
                reply.append_doc(&answer.shard, &answer.reply);
            }
            Ok(reply.finish())
        })
        .await
}
