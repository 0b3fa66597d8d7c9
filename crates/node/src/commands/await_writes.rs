//! `_awaitWrites`: nothing but its write concern, for what was written before on this connection.
//! It is what `getLastError` waits with.

use banyan_access::check::Access;
use bson::rawdoc;

use super::table::{BoxFuture, CommandResult, CommandSpec, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("_awaitWrites", Run::Future(run))
    .access(Access::LoggedIn)
    .writes()
    .admin_only()
    .help("internal: waits for a write concern");

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        ctx.recall_writes();
        // In a set everything that was acknowledged is on disk.
        if ctx.concern.journal() && !ctx.node.replication.is_replica_set() {
            ctx.node.replica.sync_log().await?;
        }
        Ok(rawdoc! { "ok": 1.0 })
    })
}
