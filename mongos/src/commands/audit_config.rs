//! `getAuditConfig`, `setAuditConfig`: the config servers keep which audit events are wanted.

use std::sync::atomic::Ordering;

use banyan_access::audit_config::{PARAMETER, asked, describe, require};
use banyan_access::check::Access;
use banyan_security::Action;

use super::pass;
use crate::context::{CommandResult, CommandSpec, Context, run};

pub const GET: CommandSpec = CommandSpec::new(
    "getAuditConfig",
    "shows which audit events are wanted",
    run!(get),
)
.access(Access::Cluster(Action::AuditConfigure))
.admin_only();

pub const SET: CommandSpec = CommandSpec::new(
    "setAuditConfig",
    "says which audit events are wanted in the whole cluster",
    run!(set),
)
.access(Access::Cluster(Action::AuditConfigure))
.admin_only();

async fn get(context: &Context<'_>) -> CommandResult {
    describe(|| context.router.audits_successes.load(Ordering::Relaxed))
}

async fn set(context: &Context<'_>) -> CommandResult {
    require()?;
    let value = asked(&context.request.body)?;
    pass::change_parameter(context, PARAMETER, &value).await
}
