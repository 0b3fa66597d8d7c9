//! `getClusterParameter`, `setClusterParameter`: the config servers keep what is set.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{ReadPreference, RequestOptions};

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const GET: CommandSpec = CommandSpec::new(
    "getClusterParameter",
    "shows parameters of the whole cluster",
    run!(get),
)
.access(Access::Cluster(Action::GetClusterParameter))
.admin_only();

pub const SET: CommandSpec = CommandSpec::new(
    "setClusterParameter",
    "sets a parameter of the whole cluster",
    run!(set),
)
.access(Access::Cluster(Action::SetClusterParameter))
.admin_only();

async fn get(context: &Context<'_>) -> CommandResult {
    pass::as_it_is(context, RequestOptions::read(ReadPreference::default())).await
}

async fn set(context: &Context<'_>) -> CommandResult {
    pass::change_settings(context, "_configsvrSetClusterParameter").await
}
