//! `setUserWriteBlockMode`: the config servers block the writes of users on all shards.

use banyan_access::check::Access;
use banyan_security::Action;

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const SPEC: CommandSpec = CommandSpec::new(
    "setUserWriteBlockMode",
    "blocks the writes of users in the whole cluster, or lets them pass again",
    run!(set),
)
.access(Access::Cluster(Action::SetUserWriteBlockMode))
.admin_only();

async fn set(context: &Context<'_>) -> CommandResult {
    pass::to_config(context, "_configsvrSetUserWriteBlockMode", &[]).await
}
