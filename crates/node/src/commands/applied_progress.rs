//! `_appliedProgress`: how far this member has applied the log, told to the primary as soon as it
//! is further than the primary knows.

use banyan_access::check::Access;
use banyan_replication::set::progress;
use bson::rawdoc;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("_appliedProgress", Run::Future(run))
    .access(Access::Member)
    .needs(Needs::Any)
    .admin_only()
    .help("among members: waits until more of the log is applied")
    .fields(&["after"])
    .vital();

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let after = ctx.required("after")?.unsigned()?;
        let further = ctx.node.replica.group.wait_applied(after.saturating_add(1));
        // What counts is what is applied now, whether or not that took until the end.
        let _ = tokio::time::timeout(progress::POLL, further).await;
        let applied = ctx.node.replica.machine.applied_index();
        Ok(rawdoc! { "appliedIndex": i64::try_from(applied).unwrap_or(i64::MAX), "ok": 1.0 })
    })
}
