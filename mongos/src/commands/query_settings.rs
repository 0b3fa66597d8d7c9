//! `setQuerySettings`, `removeQuerySettings`: the config servers keep what is set.

use banyan_access::check::Access;
use banyan_security::Action;

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SET: CommandSpec = CommandSpec::new(
    "setQuerySettings",
    "says what holds for all queries of a shape",
    run!(set),
)
.access(Access::Cluster(Action::QuerySettings))
.admin_only();

pub const REMOVE: CommandSpec = CommandSpec::new(
    "removeQuerySettings",
    "forgets what was said of all queries of a shape",
    run!(remove),
)
.access(Access::Cluster(Action::QuerySettings))
.admin_only();

async fn set(context: &Context<'_>) -> CommandResult {
    pass::change_settings(context, "_configsvrSetQuerySettings").await
}

async fn remove(context: &Context<'_>) -> CommandResult {
    pass::change_settings(context, "_configsvrRemoveQuerySettings").await
}
