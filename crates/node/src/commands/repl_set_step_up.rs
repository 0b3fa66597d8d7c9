//! `replSetStepUp`: this member asks for the lead now.

use banyan_access::check::Access;
use banyan_security::Action;
use bson::rawdoc;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("replSetStepUp", Run::Future(run))
    .access(Access::Cluster(Action::ReplSetStateChange))
    .needs(Needs::Any)
    .admin_only()
    .help("makes this member ask for the lead")
    .ignored(&["skipDryRun"]);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        ctx.node.replication.step_up(&ctx.node.replica).await?;
        Ok(rawdoc! { "ok": 1.0 })
    })
}
