//! `shutdown`: ends the process cleanly.
//!
//! A primary gives the lead away first. If nobody takes it, it stays, unless it is forced: a set
//! should not lose its only writable member by accident.

use std::time::Duration;

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::{CommandError, ErrorCode};
use bson::rawdoc;

use super::table::{BoxFuture, CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("shutdown", Run::Future(run))
    .access(Access::Cluster(Action::Shutdown))
    .needs(Needs::Any)
    .admin_only()
    .help("ends the process cleanly")
    .fields(&["force", "timeoutSecs"]);

/// How long a successor is looked for when the client names no time.
const HAND_OVER_DEFAULT: Duration = Duration::from_secs(15);
const HAND_OVER_MAX: Duration = Duration::from_secs(3600);

fn run<'a>(ctx: &'a CommandContext<'a>) -> BoxFuture<'a, CommandResult> {
    Box::pin(async move {
        let force = match ctx.field("force") {
            Some(field) => field.bool()?,
            None => false,
        };
        let limit = match ctx.field("timeoutSecs") {
            Some(field) => Duration::from_secs(field.unsigned()?).min(HAND_OVER_MAX),
            None => HAND_OVER_DEFAULT,
        };
        tracing::info!(connection = ctx.conn.id, force, "shutdown asked for");
        let replication = &ctx.node.replication;
        let needed = !force && replication.has_possible_heirs();
        if needed && !replication.hand_over(&ctx.node.replica, limit).await {
            return Err(CommandError::new(
                ErrorCode::ExceededTimeLimit,
                "No electable secondaries caught up as of now. Please use the shutdown command \
                 with the argument {force: true} to shut the node down all the same.",
            ));
        }
        ctx.node.info.stop.cancel();
        // The reply may or may not leave before the connection closes; clients expect either.
        Ok(rawdoc! { "ok": 1.0 })
    })
}
