//! `connPoolStats` and `dropConnections`: the connections of this process to other members.

use banyan_access::check::Access;
use banyan_security::Action;
use banyan_wire::pool_commands;
use bson::{RawDocumentBuf, cstr};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;

pub static SPEC: CommandSpec = CommandSpec::new("connPoolStats", Run::Inline(run))
    .access(Access::Cluster(Action::ConnPoolStats))
    .needs(Needs::Any)
    .help("the connections of this process to others")
    .lenient();

pub static DROP: CommandSpec = CommandSpec::new("dropConnections", Run::Inline(drop_connections))
    .access(Access::Cluster(Action::DropConnections))
    .needs(Needs::Any)
    .admin_only()
    .help("drops connections of this process to others")
    .fields(&["hostAndPort"]);

fn run(_: &CommandContext<'_>) -> CommandResult {
    let mut reply = pool_commands::stats();
    // A member knows its set from the log, and follows no other.
    reply.append(cstr!("numReplicaSetMonitorsCreated"), 0);
    reply.append(cstr!("replicaSets"), RawDocumentBuf::new());
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn drop_connections(ctx: &CommandContext<'_>) -> CommandResult {
    pool_commands::drop_connections(ctx.body())
}
