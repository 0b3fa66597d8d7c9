//! `balancerStart`, `balancerStop`, `balancerStatus`.

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};
use banyan_access::check::Access;
use banyan_access::sharding;

pub const SPECS: &[CommandSpec] = &[
    CommandSpec::new(
        "balancerStart",
        "lets the balancer move chunks",
        run!(start),
    )
    .access(Access::Checked(sharding::control_balancer))
    .admin_only(),
    CommandSpec::new(
        "balancerStop",
        "keeps the balancer from moving chunks",
        run!(stop),
    )
    .access(Access::Checked(sharding::control_balancer))
    .admin_only(),
    CommandSpec::new(
        "balancerStatus",
        "whether the balancer may move chunks",
        run!(status),
    )
    .access(Access::Checked(sharding::balancer_status))
    .admin_only(),
];

async fn start(context: &Context<'_>) -> CommandResult {
    pass::to_config(context, "_configsvrBalancerStart", &[]).await
}

async fn stop(context: &Context<'_>) -> CommandResult {
    pass::to_config(context, "_configsvrBalancerStop", &[]).await
}

async fn status(context: &Context<'_>) -> CommandResult {
    pass::to_config(context, "_configsvrBalancerStatus", &[]).await
}
