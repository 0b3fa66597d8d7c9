//! `getAuditConfig`, `setAuditConfig`: which audit events are wanted while the processes run.

use banyan_access::audit;
use banyan_access::audit_config::{asked, describe, require};
use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::cluster_parameter;
use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::cluster_parameters::AUDIT;
use crate::context::CommandContext;
use crate::info::ClusterRole;

pub static GET: CommandSpec = CommandSpec::new("getAuditConfig", Run::Inline(get))
    .access(Access::Cluster(Action::AuditConfigure))
    .needs(Needs::Any)
    .admin_only()
    .help("shows which audit events are wanted");

// What it writes, it writes by another command.
pub static SET: CommandSpec = CommandSpec::new("setAuditConfig", Run::Future(set))
    .access(Access::Cluster(Action::AuditConfigure))
    .needs(Needs::Primary)
    .admin_only()
    .help("says which audit events are wanted")
    .fields(&["filter", audit::SUCCESS_PARAMETER])
    .takes_concern();

fn get(ctx: &CommandContext<'_>) -> CommandResult {
    let node = ctx.node;
    node.cluster_parameters.keep_up(&node.replica);
    describe(|| node.parameters.flag(audit::SUCCESS_PARAMETER))
}

fn set<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        if ctx.node.info.role == ClusterRole::Shard {
            return Err(CommandError::new(
                ErrorCode::NotImplemented,
                "setAuditConfig can only run on mongos in sharded clusters",
            ));
        }
        require()?;
        cluster_parameter::keep(ctx, AUDIT, &asked(ctx.body())?).await?;
        Ok(rawdoc! { "ok": 1.0 })
    })
}
