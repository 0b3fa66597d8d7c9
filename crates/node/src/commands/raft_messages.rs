//! `_raftMessages`: consensus between members. One-way: nobody reads the answer.

use banyan_access::check::Access;
use banyan_replication::set::status::not_a_set;
use bson::{RawBsonRef, rawdoc};

use super::table::{CommandResult, CommandSpec, Needs, Run};
use crate::context::CommandContext;
use crate::params;

pub static SPEC: CommandSpec = CommandSpec::new("_raftMessages", Run::Inline(run))
    .access(Access::Member)
    .needs(Needs::Any)
    .admin_only()
    .help("internal: consensus between members")
    .fields(&["to", "messages"])
    .vital();

fn run(ctx: &CommandContext<'_>) -> CommandResult {
    let replication = &ctx.node.replication;
    if !replication.is_replica_set() {
        return Err(not_a_set());
    }
    let to = ctx.body().get("to").ok().flatten().and_then(params::number);
    if to.and_then(|to| u64::try_from(to).ok()) != Some(replication.peer_id()) {
        // Meant for a directory that was here before.
        return Ok(rawdoc! { "ok": 1.0 });
    }
    let whole = ctx.request.body.bytes();
    for message in ctx.required("messages")?.array()? {
        if let Ok(RawBsonRef::Binary(binary)) = message {
            // Shares the request's buffer.
            ctx.node.replica.group.step(whole.slice_ref(binary.bytes));
        }
    }
    Ok(rawdoc! { "ok": 1.0 })
}
