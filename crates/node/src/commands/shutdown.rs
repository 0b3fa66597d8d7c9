//! `shutdown`: ends the process cleanly.

use bson::rawdoc;

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("shutdown", Run::Inline(run))
    .needs(Needs::Any)
    .admin_only()
    .fields(&["force", "timeoutSecs"]);

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    tracing::info!(connection = ctx.conn.id, "shutdown asked for by a client");
    // The reply may or may not leave before the connection closes; clients expect either.
    ctx.node.info.stop.cancel();
    Ok(rawdoc! { "ok": 1.0 })
}
